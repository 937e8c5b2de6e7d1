"""dsv against what its users would pick instead, side by side: `python -m benchmarks --help`."""
