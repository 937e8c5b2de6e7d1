"""The entry point of the `dsv` program. For a fast start, --version and --help import almost nothing."""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import suppress

from dsv import __version__

NO_MEMORY = b"error: dsv can't start: no memory\nhint: ulimit -v shows how much memory a process may have\n"


def main() -> int:
    """Run the command line of this process and return its exit code."""
    interrupts = signal.getsignal(signal.SIGINT)
    if interrupts is signal.default_int_handler:  # during imports, Ctrl-C ends it without a traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _speak_utf8()
    arguments = sys.argv[1:]
    if "_DSV_COMPLETE" in os.environ:
        from dsv.cli.commands.completion import answer

        code = _print(answer(os.environ, arguments))
        os._exit(code)  # without waiting for a folder that does not answer
    if arguments in (["--version"], ["-V"], ["version"]):
        return _print(f"dsv {__version__}\n")
    if arguments in ([], ["--help"], ["-h"], ["help"]):
        from dsv.cli.catalogue import has_colour, root_help, with_headings

        stream = 1 if arguments else 2
        text = root_help(_columns(stream))
        code = _print(with_headings(text) if _columns(stream, 0) and has_colour(os.environ) else text, stream)
        return code if arguments else 2
    from dsv.errors import memory_ran_out

    # Imports make no garbage, and collections took a tenth of a short command. `Call.run` enables them.
    gc.disable()
    try:
        # msgspec takes the same names from typing if this is missing, whose import takes as long as its own.
        if "typing_extensions" not in sys.modules:
            sys.modules["typing_extensions"] = None  # type: ignore[assignment]
            import msgspec  # noqa: F401

            del sys.modules["typing_extensions"]
        from dsv.cli.app import exit_now, reset_sigchld, run
        from dsv.cli.terminal import of_process
        from dsv.files.system import reuse_freed_memory

        reset_sigchld()
        reuse_freed_memory()
        around = of_process()
        if interrupts is signal.default_int_handler:
            signal.signal(signal.SIGINT, interrupts)
        code = run(arguments, around)
    except Exception:
        if not memory_ran_out():
            raise
        os.write(2, NO_MEMORY)
        return 7
    exit_now(code)
    gc.freeze()  # else Python looks for garbage among all that was imported, for 40 ms
    return code


def _speak_utf8() -> None:
    """Start this program again in UTF-8 mode if the locale makes Python use another encoding for file names.

    Names in a dataset and typed words are UTF-8, whatever LC_ALL says. A running process can't change its
    encoding. The environment is not changed, because jobs get it."""
    if sys.getfilesystemencoding() == "utf-8" or "utf8" in sys._xoptions or not sys.executable:
        return
    with suppress(OSError):  # then only ASCII names work
        os.execv(sys.executable, [sys.orig_argv[0], "-X", "utf8", *sys.orig_argv[1:]])


def _columns(stream: int, otherwise: int = 80) -> int:
    """Return the width of the terminal that help is for."""
    with suppress(OSError):
        return os.get_terminal_size(stream).columns or 80
    return otherwise


def _print(text: str, stream: int = 1) -> int:
    try:
        data = text.encode("utf-8", "surrogateescape")
        while data:
            try:
                data = data[os.write(stream, data) :]
            except BlockingIOError:
                from select import select

                select([], [stream], [])
    except BrokenPipeError:
        return 141
    except OSError as error:
        if sys.stderr is not None and stream == 1:  # the caller may have closed it
            sys.stderr.write(f"error: stdout: {error.strerror}\n")
        return 7
    return 0


if __name__ == "__main__":
    sys.exit(main())
