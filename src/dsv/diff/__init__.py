"""Differences between the contents of files: lines of texts, and rows of tables."""
