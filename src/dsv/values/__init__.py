"""Ids, names, paths, patterns, units and other values that every room uses. Pure: no I/O and no clock."""
