"""Filling a cache with a commit, shared by every process and host that asks for it."""
