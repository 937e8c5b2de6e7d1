"""A cache: commits as plain files in a directory that hosts share, filled once, and evicted when unused."""
