"""A workspace: a folder bound to a dataset, with the state of its files in `.dsv/`."""
