"""The program that holds a plain process back until its reference is written down, and then becomes the command.

It imports nothing of dsv, so that it starts at once. Its arguments are two descriptors. From the first it reads what to
become: a line with the length of the rest, then the number of arguments, the arguments, and `NAME=VALUE` for each
variable, with NUL bytes in between. If that ends early dsv is gone, and nothing is run. If the command can't be run,
the number of the error goes to the second.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    order, problem = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(problem, False)
    with os.fdopen(order, "rb") as file:
        length = file.readline()
        data = file.read()
    if not length.endswith(b"\n") or len(data) != int(length):
        return
    count, *words = data.split(b"\0")
    argv, env = words[: int(count)], dict(each.split(b"=", 1) for each in words[int(count) :])
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and what it becomes would too
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        os.write(problem, b"%d" % (error.errno or 0))


if __name__ == "__main__":
    main()
