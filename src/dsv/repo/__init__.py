"""Objects, trees, refs and history of one store. Owns the order of writes."""
