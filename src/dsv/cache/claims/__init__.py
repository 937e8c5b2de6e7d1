"""Claims on a cached commit: leases of those who use it, and intents of those who want to evict it."""
