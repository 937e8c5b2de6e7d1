"""Pools: which one a run goes to, and waiting for its turn there."""
