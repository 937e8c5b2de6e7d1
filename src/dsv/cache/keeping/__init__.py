"""Hold data for exactly as long as a process lives: one process renews the leases, one waits for the command."""
