"""Objects, refs, sessions and run records on one store. Owns the order of writes."""
