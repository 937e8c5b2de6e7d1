"""Run by its path, for `syncer`: syncs the file system of a folder, which it was given open, once for each byte on
stdin, and says what came of it. It imports nothing of dsv, so that it starts quickly."""

import contextlib
import ctypes
import os
import sys


def main(descriptor: int, tree: str, dead: str) -> None:
    syncfs = ctypes.CDLL(None, use_errno=True).syncfs
    while os.read(0, 1):
        number = 0 if syncfs(descriptor) == 0 else ctypes.get_errno()
        if number:  # the process that asked may have ended meanwhile, and the kernel tells nobody else
            with contextlib.suppress(OSError):
                os.rename(tree, dead)  # noqa: PTH104 (pathlib takes long to import)
        os.write(1, b"%d\n" % number)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
