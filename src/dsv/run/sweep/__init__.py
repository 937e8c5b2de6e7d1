"""Sweeps: one run for each combination of parameter values."""
