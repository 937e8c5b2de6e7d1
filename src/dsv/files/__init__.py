"""Files that other processes, users and hosts use at the same time, on a local disk or on NFS.

All layers above use these modules. No other module makes a shared folder, writes a file once, replaces a file
atomically, descends without following symlinks, or reads a file server's clock.
"""
