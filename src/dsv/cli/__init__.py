"""The command line: parses, calls one function of `api`, and prints its result."""
