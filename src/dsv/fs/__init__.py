"""Care for files that other processes, users and hosts use at the same time, on a local disk or on NFS.

Everything above this layer uses these modules: nothing else makes a shared folder, writes a file once, replaces one
atomically, follows no symlink on its way down, or reads a file server's clock by itself.
"""
