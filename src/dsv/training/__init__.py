"""Samples for training: which there are, in what order they come, how one host reads them once, and how fast."""
