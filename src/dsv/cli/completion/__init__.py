"""Completion of command lines in bash, zsh and fish.

A shell starts `dsv` with `_DSV_COMPLETE` set at each press of the key, so nothing here imports more than the standard
library, and no bucket is asked: what is offered is what this machine knows. Folders are listed, for a moment at most.
"""
