"""What a lab needs of the machine: root, programs, free ports, and processes that it can stop again.

A process is remembered as `<pid> <start time>` in `<folder>/<name>.pid`, so that a number that the kernel
has since given to somebody else is never signalled.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.waiting import PATIENCE

SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])

_children: list[subprocess.Popen[bytes]] = []  # kept so that ended ones are reaped and none is warned about


class MissingError(Exception):
    """Why a lab cannot be had on this machine: a sentence that names the package to install."""


class LabError(Exception):
    """A lab whose parts are all there did not come up; ends with what the log said last."""


def require(lab: str, programs: Mapping[str, str]) -> None:
    """Raise `MissingError` unless this is root and each program (name -> Debian package) is installed."""
    if os.geteuid() != 0:
        raise MissingError(f"{lab} needs root")
    absent = sorted({package for program, package in programs.items() if find(program) is None})
    if absent:
        raise MissingError(f"{lab} needs Debian's {' '.join(absent)} (apt-get install)")


def find(program: str) -> str | None:
    return shutil.which(program, path=SEARCH_PATH)


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    return {**os.environ, "PATH": SEARCH_PATH, **(extra or {})}


def free_ports(count: int) -> list[int]:
    """Ports of this host that were free a moment ago, all different.

    They are below those that the kernel gives to outgoing connections, so that none takes one before it is used.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = random.SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            ports += [port] if port not in ports else []
    return ports


def call(
    argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None, timeout: float = PATIENCE
) -> None:
    """Run a command to its end with its output in `log`; raises `LabError`."""
    with log.open("ab") as sink:
        try:
            subprocess.run(
                argv,
                env=environment(env),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                timeout=timeout,
                check=True,
            )
        except (subprocess.SubprocessError, OSError) as error:
            raise LabError(f"{error}; {log} ends:\n{tail(log)}") from error


def start(folder: Path, name: str, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> int:
    """Start a process that outlives this one, logging to `<folder>/<name>.log`; returns its pid."""
    with (folder / f"{name}.log").open("ab") as sink:
        child = subprocess.Popen(
            argv,
            env=environment(env),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
    _children.append(child)
    (folder / f"{name}.pid").write_text(f"{child.pid} {_start_time(child.pid)}\n")
    return child.pid


def alive(folder: Path, name: str) -> bool:
    return _living(folder / f"{name}.pid") is not None


def stop(folder: Path, name: str, *, grace: float = 20) -> None:
    """End one process of this folder, by force where it does not go by itself; no error if it is gone."""
    pidfile = folder / f"{name}.pid"
    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, 60.0)):
        pid = _living(pidfile)
        if pid is None:
            break
        os.kill(pid, number)
        wait_until(lambda: _living(pidfile) is None, patience)
    pidfile.unlink(missing_ok=True)
    for child in _children:
        child.poll()


def kill(folder: Path, name: str) -> None:
    """End one process of this folder as a power cut would, and wait until it is gone."""
    pidfile = folder / f"{name}.pid"
    pid = _living(pidfile)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    if not wait_until(lambda: _living(pidfile) is None, 120):
        raise LabError(f"{name} does not end")


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Return whether the condition came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def wait_ready(folder: Path, name: str, ready: Callable[[], bool]) -> None:
    """Wait until a started process serves; raises `LabError` with its log when it ends or takes too long."""
    came = wait_until(lambda: ready() or not alive(folder, name), PATIENCE)
    if not came or not alive(folder, name):
        raise LabError(f"{name} did not come up; its log ends:\n{tail(folder / f'{name}.log')}")


def listening(port: int, address: str = "127.0.0.1") -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((address, port)) == 0


def tail(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else "(no log)"


def _start_time(pid: int) -> str | None:
    """Return when the kernel started this process (clock ticks since boot); None for one that ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def _living(pidfile: Path) -> int | None:
    try:
        pid, started = pidfile.read_text().split()
    except (OSError, ValueError):
        return None
    return int(pid) if _start_time(int(pid)) == started else None
