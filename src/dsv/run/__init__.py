"""Runs: a command on a commit, from its options to its record."""
