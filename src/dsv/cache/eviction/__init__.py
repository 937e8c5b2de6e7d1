"""Eviction: which commits go, and how they go without hurting who uses them."""
