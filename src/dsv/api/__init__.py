"""One function for each operation of dsv, for programs and the command line.

Nothing here reads the environment, prints or exits. Functions take a `Context` and raise `dsv.errors`.
"""
