"""Upkeep of a store: what lies in it, what is damaged, what may go, and copies of it."""
