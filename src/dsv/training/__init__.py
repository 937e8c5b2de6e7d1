"""Reading for training."""
