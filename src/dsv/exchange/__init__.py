"""Import from and export to places that fsspec can reach, and archives."""
