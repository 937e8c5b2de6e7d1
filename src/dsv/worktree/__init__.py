"""The workspace: a folder that is bound to a dataset, what changed in it, and how files of a commit come to it."""
