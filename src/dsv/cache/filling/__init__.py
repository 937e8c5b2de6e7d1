"""Filling: how a commit gets into a cache, with every process and host that wants it sharing the work."""
