"""Reading, writing and comparing the trees of commits."""
