"""Merging the changes of two sides: paths, lines of texts, and rows of tables."""
