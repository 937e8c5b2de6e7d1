"""Samples for training: their index, their order, and a window through which a host reads them once."""
