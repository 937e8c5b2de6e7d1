"""Claims: who wants a cached commit to stay, and who wants to remove it."""
