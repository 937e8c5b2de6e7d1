"""Eviction: which commits go, and how they go without hurting their users."""
