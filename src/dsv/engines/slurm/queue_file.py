"""What squeue said last, shared by every dsv of one user on one machine: many that wait ask the controller as often as
one does."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Final

from dsv.fs.system import boot

_WAITS: Final = (0.05, 40.0)
"""Seconds between two tries to lock the file, and after which it is done without: squeue is given less than that, but
whoever asks may have been stopped meanwhile, as by Ctrl-Z."""
_MOST: Final = 64 << 20
"""Bytes of an answer that are kept: more than the lines of 100,000 jobs."""


@dataclass(frozen=True, slots=True)
class QueueAnswer:
    """asked: when squeue was started, by the monotonic clock of this boot; problem: its own words if it failed."""

    boot: str
    asked: float
    text: str = ""
    problem: str | None = None


def queue_file(environ: Mapping[str, str]) -> Path | None:
    """Where the answer for the cluster of this environment is kept; None if this user has no folder for that.

    Other programs of Slurm, by another PATH, may mean another cluster.
    """
    words = "\0".join(environ.get(name, "") for name in ("SLURM_CONF", "PATH"))
    cluster = hashlib.sha256(words.encode("utf-8", "surrogateescape")).hexdigest()
    name = f"squeue-{cluster[:16]}.json"
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/"):
        return Path(runtime) / "dsv" / name
    home = environ.get("HOME", "")
    return Path(home) / ".local/state/dsv" / name if home.startswith("/") else None


def ask_once(
    file: Path | None, ask: Callable[[], tuple[str, str | None]], *, since: float, force: bool = False
) -> QueueAnswer:
    """The last answer if it was asked for at `since` or later, else a new one, while others wait for it.

    ask: returns what squeue printed and its problem. force: ask in any case. A folder that can't be written to costs
    nothing but further questions.
    """
    with _locked(file) as descriptor:
        last = None if descriptor is None or force else _read(descriptor)
        if last is not None and since <= last.asked <= monotonic():
            return last
        asked = monotonic()
        text, problem = ask()
        answer = QueueAnswer(boot(), asked, text, problem)
        if descriptor is not None:
            _write(descriptor, answer)
        return answer


@contextmanager
def _locked(file: Path | None) -> Iterator[int | None]:
    """The open file, if it is this user's own and no other dsv reads or writes it now."""
    descriptor = None
    with suppress(OSError):
        if file is not None:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor if descriptor is not None and _lock(descriptor) else None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _lock(descriptor: int) -> bool:
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode):
        return False
    pause, most = _WAITS
    last = monotonic() + most
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if monotonic() >= last:
                return False
        except OSError:
            return False
        sleep(pause)


def _read(descriptor: int) -> QueueAnswer | None:
    """None if there is none of this boot, or one that a killed dsv wrote half."""
    try:
        last = QueueAnswer(**json.loads(os.pread(descriptor, _MOST, 0)))
    except (OSError, ValueError, TypeError):
        return None
    return last if last.boot == boot() else None


def _write(descriptor: int, answer: QueueAnswer) -> None:
    data = json.dumps(asdict(answer)).encode()
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        if len(data) <= _MOST:
            os.pwrite(descriptor, data, 0)
