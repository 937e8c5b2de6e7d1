"""How the contents of files differ: lines of texts, and rows of tables."""
