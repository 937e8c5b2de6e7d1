"""How far a fill is, by what all of its workers say."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping

from dsv.cache.fill_state import workers as fill_workers
from dsv.cache.fill_state.fill_directory import FillDirectory
from dsv.cache.fill_state.workers import Heartbeat, Worker, read_workers
from dsv.model.progress import Progress
from dsv.model.units import format_duration

_LOOK_EVERY = 0.5  # seconds between two looks at what others have done
_NOTE_EVERY = 10.0
_SILENT = 10.0  # seconds without a heartbeat: more than two of them are missing


class Reporter:
    """Reports to a `Progress` what this process, its helpers and other hosts have done. For one thread."""

    def __init__(self, progress: Progress, directory: FillDirectory, heartbeat: Heartbeat) -> None:
        self._progress = progress
        self._directory = directory
        self._heartbeat = heartbeat
        self._others = (0, 0, 0)
        self._told = (0, 0, 0)
        self._looked = 0.0
        self._noted = time.monotonic()
        self._began = (time.monotonic(), 0)

    def start(self) -> None:
        plan = self._directory.plan
        self._look(read_workers(self._directory.workers))
        self._began = (time.monotonic(), self._bytes_done())
        self._progress.start(plan.entries, plan.bytes)
        self.update()

    def update(self) -> None:
        """Cheap; to be called often."""
        if time.monotonic() - self._looked > _LOOK_EVERY:
            with contextlib.suppress(OSError):
                self._look(read_workers(self._directory.workers))
        self._tell()

    def wait(self, workers: Mapping[str, Worker], parts_done: int, now: float) -> None:
        """Reports which processes it waits for, and how long that may take."""
        self._look(workers)
        self._tell()
        if time.monotonic() - self._noted > _NOTE_EVERY:
            self._noted = time.monotonic()
            self._progress.note(self._waiting(workers, parts_done, now))

    def finish(self) -> None:
        self._progress.finish()

    def _look(self, workers: Mapping[str, Worker]) -> None:
        mine = self._heartbeat.owner.id
        others = [one for name, one in workers.items() if name != mine]
        self._others = (
            sum(one.entries for one in others),
            sum(one.bytes for one in others),
            sum(one.fetched for one in others),
        )
        self._looked = time.monotonic()

    def _tell(self) -> None:
        """A part that was taken over is counted by two workers, but reported once."""
        plan, tally = self._directory.plan, self._heartbeat.tally
        files = min(plan.entries, self._others[0] + tally.entries)
        size = min(plan.bytes, self._others[1] + tally.bytes)
        fetched = self._others[2] + tally.fetched
        told = self._told
        if files > told[0] or size > told[1] or fetched > told[2]:
            self._told = (max(files, told[0]), max(size, told[1]), max(fetched, told[2]))
            self._progress.advance(*(new - old for new, old in zip(self._told, told, strict=True)))

    def _bytes_done(self) -> int:
        return min(self._directory.plan.bytes, self._others[1] + self._heartbeat.tally.bytes)

    def _waiting(self, workers: Mapping[str, Worker], parts_done: int, now: float) -> str:
        mine = self._heartbeat.owner.id
        at_work = [one for name, one in workers.items() if name != mine and not one.gone(now)]
        who = ", ".join(sorted({f"{one.owner.user}@{one.owner.host}" for one in at_work})) or "nobody"
        parts = f"{parts_done} of {len(self._directory.plan.parts)} parts"
        heard = max((one.heard for one in at_work), default=now)
        if now - heard > _SILENT:  # no estimate would be worth anything
            return (
                f"nothing heard from {who} for {format_duration(now - heard)}: this host takes over what they have "
                f"not done of {self._directory.place} after {format_duration(fill_workers.EXPIRY)} of silence; {parts}"
            )
        done = self._bytes_done()
        rate = (done - self._began[1]) / max(time.monotonic() - self._began[0], 0.1)
        left = format_duration((self._directory.plan.bytes - done) / rate) if rate > 0 else "unknown"
        return f"waiting for {who} to fill {self._directory.place}: {parts}, time left {left}"
