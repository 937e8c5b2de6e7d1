"""Results, printed for a person."""
