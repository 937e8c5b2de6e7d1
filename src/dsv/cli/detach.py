"""`dsv run --detach`: the same command line in a process of its own, which outlives the terminal.

That process, the supervisor, works like a foreground `dsv run`. It uses the terminal until all checks have passed. Then
it reports its run through a pipe, and writes its further messages to a file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import msgspec

from dsv.cli.app import exit_now, reset_sigchld, run
from dsv.cli.call import Call
from dsv.cli.terminal import of_process
from dsv.errors import Interrupted, LaunchError
from dsv.run.dirs import leave_terminal
from dsv.run.sweep import Started
from dsv.values.json import Json


def start_supervisor(call: Call, member: dict[str, Json] | None = None) -> Started:
    """Start a supervisor; return once it has announced its run, or has failed. Raises `LaunchError`.
    member: its place in a sweep; its messages are then returned and not shown."""
    with ExitStack() as files:
        said = None if member is None else files.enter_context(TemporaryFile())
        process, answer = _start(call, member, said)
        if answer:
            return Started(process, json.loads(answer))
        process.wait()
        if said is None:
            return Started(process)
        said.seek(0)
        return Started(process, said=said.read().decode("utf-8", "replace").strip().removeprefix("error: "))


def detach(call: Call) -> int:
    """Start the supervisor; return once it has announced its run, or has failed and printed why."""
    supervisor = start_supervisor(call)
    if supervisor.launched is None:
        code = supervisor.poll()
        assert code is not None  # it was waited for
        return code
    if call.json:
        call.document(supervisor.launched)
    else:
        call.line(supervisor.launched["run"])
    return supervisor.process.wait() if supervisor.launched["hit"] else 0


def _start(
    call: Call, member: dict[str, Json] | None, said: IO[bytes] | None
) -> tuple[subprocess.Popen[bytes], bytes]:
    reading, writing = os.pipe()
    try:
        supervisor = subprocess.Popen(
            [sys.executable, "-P", "-X", "utf8", "-m", __name__, str(writing)],
            env=dict(call.around.environ),
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
            pass_fds=(writing,),
            start_new_session=True,  # signals of the terminal don't reach it
        )
    except OSError as error:
        os.close(reading)
        raise LaunchError(f"a process for the run can't be started: {error.strerror or error}") from error
    finally:
        os.close(writing)
    try:
        with os.fdopen(reading, "rb") as pipe:
            assert supervisor.stdin is not None  # asked for above
            _hand_over(supervisor.stdin, call.session.arguments, member)
            return supervisor, pipe.readline()
    except BaseException:
        supervisor.terminate()
        supervisor.wait()
        raise


def _hand_over(pipe: IO[bytes], arguments: tuple[str, ...], member: dict[str, Json] | None) -> None:
    """Send the command line by a pipe: as arguments, every user of the machine could see it for days."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    if member is not None:  # a person reads its messages
        arguments = (*(each for each in arguments[:at] if each != "--json"), *arguments[at:])
        at = arguments.index("--") if "--" in arguments else len(arguments)
    # The last -C counts; this process is in that folder already.
    whole = [*arguments[:at], "-C", str(Path.cwd()), *arguments[at:]]
    with pipe as file:
        file.write(json.dumps({"arguments": whole, "member": member}).encode("ascii"))


def main() -> None:
    reset_sigchld()
    pipe = int(sys.argv[1])
    os.set_inheritable(pipe, False)
    handed = json.loads(sys.stdin.buffer.read())
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.close(nothing)

    def announce(number: str, folder: Path | None, out: Path | None) -> None:
        launched = {"run": number, "out": None if out is None else str(out), "hit": folder is None}
        try:
            with os.fdopen(pipe, "wb") as answer:
                answer.write(json.dumps(launched).encode("ascii") + b"\n")
        except BrokenPipeError as error:
            raise Interrupted("nobody waited for the run to be started") from error
        sys.stderr.flush()
        if folder is not None:
            leave_terminal(folder, (1, 2))

    # No bar: this process leaves the terminal soon.
    around = msgspec.structs.replace(of_process(), stderr_is_terminal=False, stdout_is_terminal=False)
    code = run(handed["arguments"], around, announce, handed["member"])
    exit_now(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
