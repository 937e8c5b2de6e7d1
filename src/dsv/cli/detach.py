"""`dsv run --detach`: the same command line in a process of its own, which outlives the terminal.

That process, the supervisor, lives as a foreground `dsv run` does. It uses the terminal until nothing is found wrong
any more. Then it tells of its run through a pipe, and from then on what it has to say goes to a file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import IO

from dsv.cli.app import exit_now, hear_of_children, run
from dsv.cli.call import Call
from dsv.cli.surroundings import of_process
from dsv.errors import Interrupted, LaunchError
from dsv.runs.place import MESSAGES


def detach(call: Call) -> int:
    """Starts the supervisor; returns once it has told of its run, or has failed and said why."""
    reading, writing = os.pipe()
    try:
        supervisor = subprocess.Popen(
            [sys.executable, "-P", "-X", "utf8", "-m", __name__, str(writing)],
            env=dict(call.around.environ),
            stdin=subprocess.PIPE,
            pass_fds=(writing,),
            start_new_session=True,  # what ends the terminal, or is typed there, doesn't reach it
        )
    except OSError as error:
        os.close(reading)
        raise LaunchError(f"a process for the run can't be started: {error.strerror or error}") from error
    finally:
        os.close(writing)
    try:
        with os.fdopen(reading, "rb") as pipe:
            assert supervisor.stdin is not None  # asked for above
            _hand_over(supervisor.stdin, call.session.arguments)
            told = pipe.readline()
    except BaseException:
        supervisor.terminate()
        supervisor.wait()
        raise
    if not told:
        code = supervisor.wait()
        return code if code >= 0 else 128 - code
    document = json.loads(told)
    if call.json:
        call.document(document)
    else:
        call.line(document["run"])
    return 0


def _hand_over(pipe: IO[bytes], arguments: tuple[str, ...]) -> None:
    """The command line goes by a pipe: what is in it is not shown to every user of the machine for days."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    # The last -C counts; this process is in that folder already.
    whole = [*arguments[:at], "-C", str(Path.cwd()), *arguments[at:]]
    with pipe as file:
        file.write(json.dumps(whole).encode("ascii"))


def main() -> None:
    hear_of_children()
    pipe = int(sys.argv[1])
    os.set_inheritable(pipe, False)
    arguments = json.loads(sys.stdin.buffer.read())
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(nothing, 0)

    def announce(number: str, folder: Path, out: Path) -> None:
        messages = os.open(folder / MESSAGES, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(pipe, "wb") as told:
                told.write(json.dumps({"run": number, "out": str(out)}).encode("ascii") + b"\n")
        except BrokenPipeError as error:
            raise Interrupted("nobody waited for the run to be started") from error
        sys.stderr.flush()
        os.dup2(nothing, 1)
        os.dup2(messages, 2)
        os.close(messages)

    # No bar is drawn: the terminal is soon without this process.
    around = replace(of_process(), stderr_is_terminal=False, stdout_is_terminal=False)
    code = run(arguments, around, announce)
    exit_now(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
