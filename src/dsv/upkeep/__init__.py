"""Upkeep of a store: space, verification, repair, expiry, erasures, garbage collection, and copies."""
