"""The program that `syncer` runs by its path. For each byte on stdin, it syncs the file system of the
inherited folder and prints the errno or 0. It imports nothing of dsv, so that it starts quickly."""

import contextlib
import ctypes
import os
import sys


def main(descriptor: int, above: int, tree: str, dead: str) -> None:
    syncfs = ctypes.CDLL(None, use_errno=True).syncfs
    while os.read(0, 1):
        number = 0 if syncfs(descriptor) == 0 else ctypes.get_errno()
        if number:  # the process that asked may have ended, and the kernel reports this only here
            with contextlib.suppress(OSError):
                os.rename(tree, dead, src_dir_fd=above, dst_dir_fd=above)
        os.write(1, b"%d\n" % number)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
