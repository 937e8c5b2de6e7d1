"""Scanning a workspace: the walk, the saved state, and the differences from the base."""
