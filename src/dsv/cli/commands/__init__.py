"""One file for each command, named like it."""
