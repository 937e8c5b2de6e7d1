"""One function for each operation of dsv, for programs and for the command line.

Nothing here reads the environment, prints or exits. Functions take a `Context`, return values, and raise the
errors of `dsv.errors`.
"""
