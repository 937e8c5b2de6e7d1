"""Pages that a browser opens from a folder: datasets, commits, differences, runs, lineage, caches."""
