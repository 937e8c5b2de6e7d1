"""Ends a job if dsv is killed, and starts a plain process only once its reference is recorded.

This file is a module of dsv, and also a program that dsv starts beside a job. As a program it imports nothing
of dsv, to start fast. It does one of two things:

    reaper.py reap           waits on its standard input, and ends the job when that is closed
    reaper.py exec IN OUT    waits for a command on the descriptor IN, and executes it in its own place

`reap`: dsv keeps the other end of the standard input open while the job lives, and then kills the reaper. If
the input ends before that, dsv is gone: SIGKILL, for instance by the kernel when memory runs out, leaves no
other trace. The input is JSON, one value a line: first the order, then the process group to end from then on,
or null. A container that has run is kept for the dsv that completes the record, as it has the log, unless the
last line is `"abandoned"`.

    {"run": ID, "grace": SECONDS, "container": null or the engine's program, "files": [paths to remove]}
    1234

`exec`: reads a line with the length of the rest, then the number of arguments, the arguments, and
`NAME=VALUE` for each variable, separated by NUL bytes. If that ends early, dsv is gone and nothing is run. If
the command can't be run, its errno is written to OUT.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping, Sequence
# json, subprocess and threading are imported where they are used: `exec` needs none of them, and they take long.

GRACE = 20.0
"""Seconds that a job gets to end by itself: less than the 30 that Slurm and Kubernetes give dsv."""
_PAUSE = 0.1
_LOOKS = (0.0, 1.0, 3.0)  # for a container that the engine was just creating
_PATIENCE = 300.0  # with an engine that doesn't answer
_ABANDONED = "abandoned"


class Guard:
    """Starts and stops the reaper of one job. Made before the job; if no process can be started, the job has none."""

    def __init__(
        self,
        run: str,
        environ: Mapping[str, str],
        *,
        container: str | None = None,
        files: Sequence[os.PathLike[str]] = (),
        grace: float = GRACE,
    ) -> None:
        """Start the reaper.

        run: the id with which `DSV_RUN` or a label marks the job
        container: the program of the job's engine, if it runs in a container
        files: removed if dsv is killed
        """
        import subprocess
        from threading import Lock

        self._process: subprocess.Popen[bytes] | None = None
        self._lock = Lock()
        order = {
            "run": run,
            "grace": grace,
            "container": container,
            "files": [os.fspath(path) for path in files],
        }
        with suppress(OSError):
            # -I, -S: import nothing of the caller's. In its own session, because a signal to the group of dsv
            # or of the job, from the terminal for instance, must not end it.
            self._process = subprocess.Popen(
                [*COMMAND, "reap"],
                env=dict(environ),
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._send(order)

    def watch(self, group: int | None) -> None:
        """Set the process group of the job, or of the program that works for it now, instead of the former one."""
        self._send(group)

    def dismiss(self) -> None:
        """Stop the reaper: the job is over."""
        self._close(kills=True)

    def abandon(self) -> None:
        """Let the reaper end the job as if this process were gone, without waiting for the end, and keep nothing."""
        self._send(_ABANDONED)
        self._close(kills=False)

    def _close(self, *, kills: bool) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            if kills:
                process.kill()
                process.wait()
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.close()

    def _send(self, value: object) -> None:
        import json

        if self._process is not None:
            assert self._process.stdin is not None
            with suppress(OSError):
                self._process.stdin.write(json.dumps(value).encode() + b"\n")
                self._process.stdin.flush()


COMMAND = (sys.executable, "-I", "-S", __file__)
"""The program, without its arguments."""


def become_command(order: int, problem: int) -> None:
    """Read a command from one descriptor and execute it; write the errno of a failure to the other."""
    os.set_inheritable(problem, False)
    with os.fdopen(order, "rb") as file:
        length = file.readline()
        data = file.read()
    if not length.endswith(b"\n") or len(data) != int(length):
        return
    count, *words = data.split(b"\0")
    argv, env = words[: int(count)], dict(each.split(b"=", 1) for each in words[int(count) :])
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored by Python, which the command would inherit
        signal.signal(number, signal.SIG_DFL)
    folders = [b""] if b"/" in argv[0] else env.get(b"PATH", os.fsencode(os.defpath)).split(b":")
    failed = errno.ENOENT
    for folder in folders:  # not by execvpe, for which a folder that can't be read hides all later failures
        try:
            os.execve(os.path.join(folder, argv[0]), argv, env)  # noqa: PTH118 (no import)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                failed = error.errno or 0
                if failed != errno.EACCES:
                    break
    os.write(problem, b"%d" % failed)


def reap() -> None:
    """Wait until the standard input is closed, then end the job."""
    import json

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # dsv decides what they mean for the job
    lines = os.fdopen(0, "rb")
    order = json.loads(lines.readline() or "null")
    if order is None:
        return
    sent = [json.loads(line) for line in lines if line.endswith(b"\n")]
    groups = {group for group in [line for line in sent if line != _ABANDONED][-1:] if group is not None}
    for path in order["files"]:
        with suppress(OSError):
            os.unlink(path)  # noqa: PTH108
    if order["container"] is None:
        # Without a group dsv was killed while it started the job, whose first process leads a group of its own.
        end_groups(groups or set(processes_of(order["run"])), order["grace"])
    else:
        end_groups(groups, 0)  # the program that fetches the image or delivers the output
        _end_containers(order["container"], order["run"], order["grace"], keeps=_ABANDONED not in sent)


def processes_of(run: str) -> list[int]:
    """Return the processes of this user that have `DSV_RUN` of this run in their environment."""
    return [pid for pid, other in marked() if other == run]


def marked() -> list[tuple[int, str]]:
    """Return the processes of this user that have `DSV_RUN` in their environment, each with the run's id."""
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
    """End these process groups by SIGTERM, and by SIGKILL after `grace` seconds. Ignore those that are gone."""
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


def _end_containers(program: str, run: str, grace: float, *, keeps: bool) -> None:
    deadline = time.monotonic() + _PATIENCE
    for pause in _LOOKS:
        time.sleep(pause)
        while (found := _containers(program, run)) is None and time.monotonic() < deadline:
            time.sleep(_LOOKS[-1])
        for container in found or ():
            _call(program, "stop", "--time", str(int(grace)), container)
            if keeps and container in (_containers(program, run, "--filter", "status=exited") or ()):
                _call(program, "rename", container, f"dsv-cut-off-{run}")  # a next run may want its name
            else:
                _call(program, "rm", "--force", "--volumes", container)
        if found:
            return


def _containers(program: str, run: str, *only: str) -> list[str] | None:
    """Return the containers of a run; None if the engine does not answer."""
    answer = _call(program, "ps", "--all", "--quiet", "--no-trunc", "--filter", f"label=dsv.run={run}", *only)
    return None if answer is None else answer.split()


def _call(*argv: str) -> str | None:
    import subprocess

    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


if __name__ == "__main__":
    if sys.argv[1] == "reap":
        reap()
    else:
        become_command(int(sys.argv[2]), int(sys.argv[3]))
