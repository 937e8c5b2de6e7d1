"""Stores: named bytes that are written once and never changed, in a folder or a bucket."""
