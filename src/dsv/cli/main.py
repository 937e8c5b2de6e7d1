"""The entry point of the `dsv` program.

It starts fast: what needs no command imports next to nothing.
"""

from __future__ import annotations

import os
import sys

from dsv import __version__


def main() -> int:
    """Runs the command line of this process and returns its exit code."""
    arguments = sys.argv[1:]
    if arguments in (["--version"], ["-V"]):
        return _print(f"dsv {__version__}\n")
    if not arguments and "_DSV_COMPLETE" not in os.environ:
        from dsv.cli.catalogue import root_help

        sys.stderr.write(root_help())
        return 2
    if arguments in (["--help"], ["-h"], ["help"]):
        from dsv.cli.catalogue import root_help

        return _print(root_help())
    from dsv.cli.app import exit_now, hear_of_children, run
    from dsv.cli.surroundings import of_process

    hear_of_children()
    code = run(arguments, of_process())
    exit_now(code)
    return code


def _print(text: str) -> int:
    try:
        data = text.encode()
        while data:
            try:
                data = data[os.write(1, data) :]
            except BlockingIOError:
                from select import select

                select([], [1], [])
    except BrokenPipeError:
        return 141
    except OSError as error:
        sys.stderr.write(f"error: stdout: {error.strerror}\n")
        return 7
    return 0


if __name__ == "__main__":
    sys.exit(main())
