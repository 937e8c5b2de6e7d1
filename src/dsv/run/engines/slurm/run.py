"""Looking on while a job on Slurm runs: its output as it is written, and its end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from shutil import disk_usage
from tempfile import NamedTemporaryFile
from threading import Event, Thread
from time import monotonic
from typing import Final

from dsv.fs.files import open_plain
from dsv.run.engines.attach import ENDING, FollowedJob, asked_by
from dsv.run.engines.base import CANNOT_LAUNCH, Ended
from dsv.run.engines.output import NodeLines, Output, through_a_pipe
from dsv.run.engines.slurm.job_status import (
    ATTENDED,
    STOPPED,
    Left,
    ended,
    is_late,
    left_here,
    nodes_of,
)
from dsv.run.engines.slurm.program import SlurmProgram, job_folder, job_id
from dsv.run.record import EndCause, JobRef

_PAUSE: Final = (0.1, 1.0)
"""Seconds between two looks at the job's files: at first, and at most."""
_SLOWER: Final = 1.05
"""By which the pause grows: a job of some seconds is seen to end at once."""
_ASK: Final = (0.5, 15.0)
"""Seconds between two questions to the controller."""
LATE: Final = 60.0
"""Seconds for which the folder is looked at again if it lacks what a job must have left there."""
_PIECE: Final = 1 << 16
_NO_ROOM: Final = 4096
"""Bytes: with fewer free ones the nodes can't write to the job's folder any more."""
_CUT: Final = b"\n[dsv: the disk of the job's folder is full; what it wrote last may be missing here]\n"


class SlurmRun(FollowedJob):
    """Several may look on at one job, from any machine that sees its folder."""

    def __init__(
        self, program: SlurmProgram, ref: JobRef, output: Output, on_end: Callable[[], None]
    ) -> None:
        super().__init__("dsv-slurm", on_end)
        self._program = program
        self._id, self._folder = job_id(ref), job_folder(ref)
        self._out, self._err = output.open_pipes()
        self._over = Event()
        self._thread.start()
        Thread(target=self._await_end, name="dsv-slurm-end", daemon=True).start()

    def _send(self, number: int) -> bool:
        if number in ENDING:
            tell_stopped(self._folder, signal.Signals(number).name)
        return send(self._program, self._id, self._folder, number)

    def _kill(self) -> bool:
        tell_stopped(self._folder, "SIGKILL")
        if self._kills == 1 and Left(self._folder).begun:
            send(self._program, self._id, self._folder, signal.SIGKILL)
        else:
            self._program.call("scancel", self._id)
        return True

    def _await_end(self) -> None:
        """Notice the end of the job in time, also while Slurm takes long to answer."""
        while not self._over.wait(_PAUSE[1]):
            if (self._folder / "end").exists():
                _attend(self._folder)

    def _close(self) -> None:
        os.close(self._out)
        os.close(self._err)
        self._over.set()

    def _until_end(self) -> Ended:
        out, err = Follower(self._folder, "out", self._out), Follower(self._folder, "err", self._err)
        done = self._end_seen(lambda: out.step() + err.step())
        out.step(last=True)
        err.step(last=True)
        return done

    def _end_seen(self, step: Callable[[], int]) -> Ended:
        pause, interval, asked, late = _PAUSE[0], _ASK[0], 0.0, 0.0
        while True:
            moved = step()
            left = Left(self._folder)
            if left.end is not None:
                _attend(self._folder)
            if left.end is not None or monotonic() - asked >= interval or self._wake.is_set():
                soon = self._wake.is_set() or left.end is not None
                if soon:
                    self._wake.clear()
                    interval = _ASK[0]
                asked = monotonic()
                fresh = min(interval, pause) if soon else interval / 2
                job, answer = self._program.find(self._id, fresh=fresh)
                interval = min(interval * 1.3, _ASK[1])
                if answer.problem is None and is_late(job, left):
                    late, interval = late or monotonic() + LATE, _ASK[0]
                    _look_afresh(self._folder)
                settled = 0 < late <= monotonic()
                if answer.problem is None and (done := ended(job, left, settled=settled)) is not None:
                    return done
                if answer.is_away and left.succeeded and (done := left_here(left)) is not None:
                    return done
                if job is not None and job.never_begins:
                    self._program.call("scancel", self._id)
                    return Ended(
                        exit_code=CANNOT_LAUNCH,
                        launched=False,
                        reason=f"Slurm can't run it: {job.reason}",
                        hint="sinfo --Format=partition,time shows what --time and stage_time may be together",
                        cause=EndCause.UNSCHEDULABLE,
                    )
            if left.begun:
                self.send_again()
            pause = _PAUSE[0] if moved else min(pause * _SLOWER, _PAUSE[1])
            self._wake.wait(pause)


class Follower:
    """Copies what the nodes of a job write to one of the two streams into a descriptor, as it is written.

    Several nodes: each line begins with the number of its node.
    """

    def __init__(self, folder: Path, stream: str, sink: int) -> None:
        self.folder = folder
        self.stream = stream
        self._labelled: bool | None = None
        self._lines = NodeLines(sink)
        self._read: dict[str, int] = {}

    def step(self, *, last: bool = False) -> int:
        """Read what is new, and return the number of bytes. last: the job is over, so that half a line is a line."""
        total = 0
        for path in sorted(self.folder.glob(f"{self.stream}.*")):
            while data := self._piece(path):
                total += len(data)
                self._write(path, data)
        if last:
            self._lines.end_lines()
            if self.stream == "err" and disk_usage(self.folder).free < _NO_ROOM:
                self._lines.write(_CUT, None)
        return total

    def _piece(self, path: Path) -> bytes:
        with suppress(FileNotFoundError), open_plain(path) as file:
            file.seek(self._read.get(path.name, 0))
            data = file.read(_PIECE)
            self._read[path.name] = self._read.get(path.name, 0) + len(data)
            return data
        return b""

    def _write(self, path: Path, data: bytes) -> None:
        if self._labelled is None:
            self._labelled = nodes_of(self.folder) > 1
        self._lines.write(data, int(path.suffix[1:]) if self._labelled else None)


def _attend(folder: Path) -> None:
    """Tell the node of the job that it need not complete the record."""
    with suppress(OSError):
        (folder / ATTENDED).touch()


def _look_afresh(folder: Path) -> None:
    """Change the folder, so that a file server's client forgets what it remembers of it."""
    with suppress(OSError), NamedTemporaryFile(dir=folder):
        pass


def read_logs(program: SlurmProgram, ref: JobRef, follow: bool) -> AbstractContextManager[Iterator[bytes]]:
    """Read what the job has written, stdout and stderr together; with `follow` until its end."""

    def collect(writer: int, stop: Event) -> None:
        streams = [Follower(job_folder(ref), stream, writer) for stream in ("out", "err")]
        with suppress(OSError):
            over = False
            while not stop.is_set() and not over:
                job, answer = program.find(job_id(ref), fresh=_ASK[1] / 3)
                over = not follow or (
                    answer.problem is None and ended(job, Left(job_folder(ref))) is not None
                )
                for each in streams:
                    each.step(last=over)
                stop.wait(0 if over else _PAUSE[1] / 2)
        os.close(writer)

    return through_a_pipe(collect)


def tell_stopped(folder: Path, how: str) -> None:
    """Write down who ended the job, so that no further attempt of it is made. The first one counts."""
    with suppress(OSError), (folder / STOPPED).open("x") as file:
        file.write(f"{asked_by(how)}\n")


def send(program: SlurmProgram, number: str, folder: Path, which: int) -> bool:
    """Send a signal to the commands of a job; one that waits is cancelled by any that ends a job.

    False if it has to be sent again once the commands have begun.
    """
    if Left(folder).begun:
        name = signal.Signals(which).name.removeprefix("SIG")
        return program.call("scancel", f"--signal={name}", number).problem is None
    if which not in (*ENDING, signal.SIGKILL):
        return False
    job, answer = program.find(number, fresh=0)
    if answer.problem is None and (job is None or job.state == "PENDING"):
        program.call("scancel", number)
        return True
    return False
