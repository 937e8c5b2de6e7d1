"""Saving what changed in a workspace, and publishing it on a branch."""
