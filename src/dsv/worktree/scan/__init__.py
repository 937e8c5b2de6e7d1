"""What is in the folder, and how it stands to the base: the walk, what it remembers, and what it leaves out."""
