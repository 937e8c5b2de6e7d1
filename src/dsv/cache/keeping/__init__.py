"""Data that is held for exactly as long as a process lives: who renews the leases, and who waits for a command."""
