"""Reading objects by their ids: indexes, packs, ranged reads, and local copies of metadata."""
