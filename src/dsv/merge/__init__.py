"""Bringing the changes of two sides together: paths, lines of texts, and rows of tables."""
