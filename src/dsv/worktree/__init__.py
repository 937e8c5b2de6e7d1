"""The workspace: which folder it is, what changed in it, and making files appear in it."""
