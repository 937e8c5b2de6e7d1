"""The program: finds the command, calls it, reports a failure and returns the exit code."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from dsv.cli.call import CommandLine
from dsv.cli.failure import READER_GONE, failure_json, failure_text, of_error, without_passwords
from dsv.cli.output import CommandOutput, ReaderGone
from dsv.cli.quick import quick_call
from dsv.cli.terminal import Surroundings, wrapped
from dsv.errors import HungUp, NoRoom, Signalled, Terminated

INTERRUPTED = (129, 130, 143)
RESUMED = frozenset({"sync", "pull", "clone", "cache", "sparse"})
"""Commands that continue an interrupted run of themselves."""


def run(
    arguments: Sequence[str],
    around: Surroundings,
    announce: Callable[[str, Path | None, Path | None], None] | None = None,
    member: dict[str, Any] | None = None,
) -> int:
    """Run one command line. All output goes to `around`. For `announce` and `member` see `CommandLine`."""
    with CommandOutput(around.stdout) as out, _terminable():
        session = CommandLine(around, out, arguments=tuple(arguments), announce=announce, member=member)
        try:
            return _invoke(session)
        except ReaderGone:
            return READER_GONE
        # Catch everything, so that a script always gets an exit code and a sentence, also of a panic in Rust.
        except BaseException as error:  # noqa: BLE001
            return _fail(error, arguments, session)


def exit_now(code: int) -> None:
    """End the process at once if it was interrupted, without waiting for threads that are in a request."""
    sys.stderr.flush()
    if code in INTERRUPTED:
        os._exit(code)


def _invoke(session: CommandLine) -> int:
    call = quick_call(session)
    if call is not None:
        code = call.run()
    else:
        from dsv.cli.parser import invoke

        code = invoke(session.arguments, session)
    if (line := session.pager) is not None:
        from dsv.cli.pager import show_in

        show_in(line, session.out, session.around.environ)
    session.out.publish()
    session.tell("".join(session.later))
    return code or 0


def _fail(error: BaseException, arguments: Sequence[str], session: CommandLine) -> int:
    session.out.discard()
    session.tell("".join(session.later))
    around = session.around
    if session.flags.debug or "--debug" in _options(arguments):
        import traceback

        around.stderr.write(without_passwords("".join(traceback.format_exception(error))))
    failure = of_error(error)
    if failure.exit_code in INTERRUPTED and failure.hint is None and session.command in RESUMED:
        failure.hint = "run the same command again to continue"
    with suppress(BrokenPipeError, ReaderGone):
        if session.flags.json or "--json" in _options(arguments):
            with suppress(NoRoom):  # a full stdout may be the failure
                session.out.write(failure_json(failure).encode())
                session.out.publish()
                return failure.exit_code
        text = failure_text(failure, around.stderr_ink)
        around.stderr.write(wrapped(text, around.columns()) if around.stderr_is_terminal else text)
        around.stderr.flush()
    return failure.exit_code


def _options(arguments: Sequence[str]) -> Sequence[str]:
    """Return the words before `--`: parsing may have failed before the option that asks for JSON."""
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def reset_sigchld() -> None:
    """Reset SIGCHLD so that children can be waited for: some programs start others with it ignored."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind as Ctrl-C does; the same signal again ends the process at once."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        kind = HungUp if number == signal.SIGHUP else Terminated
        raise Signalled(kind(f"stopped by {signal.Signals(number).name}"))

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught = [
        number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN
    ]
    before = {number: signal.signal(number, stop) for number in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
