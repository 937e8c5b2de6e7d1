"""Run records on their way to a store: a folder of the user's that outlives an unreachable store and a crash.

    <folder>/<store id>/<dataset>/<run id>.start | .log | .record

Every part is written here first and removed once the store has it. Several processes may send the same spool
at once: a part that is sent twice has the same bytes both times.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dsv.errors import Conflict, UsageError
from dsv.model.ids import StoreId
from dsv.model.names import DatasetName
from dsv.model.run import LOG, RECORD, START, RunId, RunRecord
from dsv.repo.runs import RunStore
from dsv.store.temporary import sync_folder

_ORDER = {START: 0, LOG: 1, RECORD: 2}


@dataclass(frozen=True, slots=True)
class SpooledPart:
    """One part that the store doesn't have yet, as far as is known here."""

    path: Path
    dataset: DatasetName
    run: RunId
    part: str


class Spool:
    """The parts that wait for one store."""

    def __init__(self, folder: Path, store: StoreId) -> None:
        self._folder = folder / str(store)

    def keep(self, dataset: DatasetName, run: RunId, part: str, data: bytes) -> Path:
        """Stores a part durably, for its owner's eyes only. Raises `OSError`."""
        folder = self._folder / dataset.component
        made = [one for one in (folder, *folder.parents) if not one.exists()]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=".", dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            target = folder / f"{run}.{part}"
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        # Its name, then those of the folders: another process may just have made the spool's own, and not synced them.
        for one in dict.fromkeys(
            (folder, self._folder, self._folder.parent, *(each.parent for each in made))
        ):
            _sync(one)
        return target

    def waiting(self) -> list[SpooledPart]:
        """What waits, oldest run first, each run's parts in the order in which they are sent."""
        paths = [path for folder in _listing(self._folder) for path in _listing(folder)]
        found = [part for path in paths if (part := _parse(path)) is not None]
        return sorted(found, key=lambda each: (each.run, each.dataset, _ORDER[each.part]))

    def send(self, runs: RunStore, only: RunId | None = None) -> int:
        """Sends what waits (of one run, or all); how many parts went.

        Raises at once what the store raises, but a part that clashes with the store's keeps no other back.
        """
        sent, clash = 0, None
        for part in self.waiting():
            if only is not None and part.run != only:
                continue
            try:
                data = part.path.read_bytes()
            except FileNotFoundError:  # another process has sent it
                continue
            try:
                runs.write(part.dataset, part.run, part.part, data)
            except Conflict as error:
                clash = error
                continue
            part.path.unlink(missing_ok=True)
            sent += 1
        if clash is not None:
            raise clash
        return sent

    def records(self, dataset: DatasetName | None = None) -> Iterator[RunRecord]:
        """The runs that wait here, whole or just begun."""
        newest = {(part.dataset, part.run): part for part in self.waiting() if part.part != LOG}
        for part in newest.values():
            if dataset in (None, part.dataset):
                try:
                    yield RunRecord.decode(part.path.read_bytes(), str(part.path))
                except FileNotFoundError:
                    continue


def _sync(folder: Path) -> None:
    with suppress(PermissionError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sync_folder(descriptor)
        finally:
            os.close(descriptor)


def _listing(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _parse(path: Path) -> SpooledPart | None:
    stem, _, part = path.name.rpartition(".")
    if part not in _ORDER:
        return None
    try:
        return SpooledPart(path, DatasetName.from_component(path.parent.name), RunId.parse(stem), part)
    except UsageError:
        return None
