"""The program that ends a job if dsv is killed and can't do it. It imports nothing of dsv, so that it starts at once.

dsv keeps the other end of its standard input open for as long as the job lives, and kills it after that. If the input
ends before, dsv is gone: SIGKILL, for instance the kernel's when memory runs out, leaves no other trace. The input is
JSON, one value a line: first the order, then whatever process group is to be ended from then on, or null.

    {"run": ID, "grace": SECONDS, "container": null or the engine's program, "files": [what to remove]}
    1234
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import suppress

_PAUSE = 0.1
_LOOKS = (0.0, 1.0, 3.0)  # for a container that the engine was just making
_PATIENCE = 300.0  # with an engine that doesn't answer


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # what they mean for the job is dsv's to say
    lines = os.fdopen(0, "rb")
    order = json.loads(lines.readline() or "null")
    if order is None:
        return
    told = [json.loads(line) for line in lines if line.endswith(b"\n")]
    groups = {group for group in told[-1:] if group is not None}
    for path in order["files"]:
        with suppress(OSError):
            os.unlink(path)  # noqa: PTH108
    if order["container"] is None:
        # Without a group dsv was killed while it started the job, whose first process leads a group of its own.
        end_groups(groups or set(processes_of(order["run"])), order["grace"])
    else:
        end_groups(groups, 0)  # the program that fetches the image or delivers the output
        _end_containers(order["container"], order["run"], order["grace"])


def processes_of(run: str) -> list[int]:
    """The processes of this user that have `DSV_RUN` of this run in their environment."""
    return [pid for pid, other in marked() if other == run]


def marked() -> list[tuple[int, str]]:
    """The processes of this user that have `DSV_RUN` in their environment, each with the run's id."""
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 (pathlib takes longer to import than all else here)
        if name.isdecimal() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:  # noqa: PTH123
                    values = file.read().split(b"\0")
            except OSError:
                continue
            runs = [
                value[8:].decode("utf-8", "surrogateescape") for value in values if value[:8] == b"DSV_RUN="
            ]
            found += [(int(name), run) for run in runs]
    return found


def end_groups(groups: set[int], grace: float) -> None:
    """Ends these process groups, by SIGKILL after so many seconds. Those that don't exist any more are passed over."""
    groups = {group for group in groups if grace == 0 or _signal(group, signal.SIGTERM)}
    deadline = time.monotonic() + grace
    while groups and time.monotonic() < deadline:
        time.sleep(_PAUSE)
        groups = {group for group in groups if _signal(group, 0)}
    for group in groups:
        _signal(group, signal.SIGKILL)


def _signal(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except OSError:
        return False
    return True


def _end_containers(program: str, run: str, grace: float) -> None:
    deadline = time.monotonic() + _PATIENCE
    for pause in _LOOKS:
        time.sleep(pause)
        while (found := _containers(program, run)) is None and time.monotonic() < deadline:
            time.sleep(_LOOKS[-1])
        for container in found or ():
            _call(program, "stop", "--time", str(int(grace)), container)
            _call(program, "rm", "--force", "--volumes", container)
        if found:
            return


def _containers(program: str, run: str) -> list[str] | None:
    """None without an answer."""
    answer = _call(program, "ps", "--all", "--quiet", "--no-trunc", "--filter", f"label=dsv.run={run}")
    return None if answer is None else answer.split()


def _call(*argv: str) -> str | None:
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


if __name__ == "__main__":
    main()
