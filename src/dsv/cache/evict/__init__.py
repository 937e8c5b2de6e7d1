"""Evicting commits from a cache by age, size and free space, and clearing up after killed processes."""
