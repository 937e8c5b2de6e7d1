"""The bytes of the store's format, as docs/format.md describes them. Pure: no I/O and no clock."""
