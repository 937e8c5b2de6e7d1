"""Run records on their way to a store: a folder of the user's that outlives an unreachable store and a crash.

    <folder>/<store id>/<dataset>/<run id>.start | .log | .record | .start-<number> | .log-<node>-<attempt>
                                          | .part-<node>-<attempt>

Every part is written here first and removed once the store has it. Several processes may send the same spool
at once: a part that is sent twice has the same bytes both times.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from dsv.errors import Conflict, Denied, DsvError, IntegrityError, Unreachable, Unsupported, UsageError
from dsv.fs.files import replace_file
from dsv.fs.folders import sync_folder
from dsv.model.ids import StoreId
from dsv.model.names import DatasetName
from dsv.model.run import LOG, MAX_RECORD, RECORD, RunId, RunRecord, start_number
from dsv.model.run_parts import parse_part_name
from dsv.repo.runs import RunStore

_ORDER = {LOG: 1, RECORD: 2}


class SpooledPart(msgspec.Struct, frozen=True):
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
        target = folder / f"{run}.{part}"
        replace_file(target, data, mode=0o600)
        # The names of the folders too: another process may just have made the spool's own, and not synced them.
        for one in dict.fromkeys((self._folder, self._folder.parent, *(each.parent for each in made))):
            sync_folder(one)
        return target

    def waiting(self, skipped: Callable[[DsvError], None] = lambda _: None) -> list[SpooledPart]:
        """What waits, oldest run first, each run's parts in the order in which they are sent.

        skipped: told of each folder that can't be read.
        """
        paths = [
            path for folder in self._listing(self._folder, skipped) for path in self._listing(folder, skipped)
        ]
        found = [part for path in paths if (part := _parse(path)) is not None]
        return sorted(found, key=lambda each: (each.run, each.dataset, _order(each.part)))

    def send(self, runs: RunStore, only: RunId | None = None) -> int:
        """Sends what waits (of one run, or all); how many parts went.

        Raises at once what the store raises. A part that clashes with the store's, or can't be read (another user
        made it), keeps no other back: the first such is raised when all else has gone.
        """
        sent = 0
        problems: list[DsvError] = []
        for part in self.waiting(problems.append if only is None else lambda _: None):
            if only is not None and part.run != only:
                continue
            try:
                data = _read(part.path)
                runs.write(part.dataset, part.run, part.part, data)
                part.path.unlink(missing_ok=True)
            except FileNotFoundError:  # another process has sent it
                continue
            except Conflict as error:
                if not _is_complete(runs, part):
                    problems.append(error)
                    continue
                part.path.unlink(missing_ok=True)  # another dsv has told the end of this run
            except IntegrityError as error:
                problems.append(error)
                continue
            except OSError as error:
                problems.append(self._explained(part.path, error))
                continue
            sent += 1
        if problems:
            raise problems[0]
        return sent

    def records(
        self, wanted: Callable[[SpooledPart], bool], skipped: Callable[[DsvError], None]
    ) -> Iterator[RunRecord]:
        """The wanted ones of the runs that wait here, whole or just begun.

        skipped: told of each that can't be read, is damaged, or is of a newer dsv.
        """
        parts = [
            part
            for part in self.waiting(skipped)
            if (part.part == RECORD or start_number(part.part) is not None) and wanted(part)
        ]
        for part in {(each.dataset, each.run): each for each in parts}.values():
            try:
                yield RunRecord.decode(_read(part.path), str(part.path))
            except FileNotFoundError:
                continue
            except OSError as error:
                skipped(self._explained(part.path, error))
            except (IntegrityError, Unsupported) as error:
                skipped(error)

    def log(self, dataset: DatasetName, run: RunId) -> bytes | None:
        """The log of a run, if it waits here."""
        try:
            return _read(self._folder / dataset.component / f"{run}.{LOG}")
        except (OSError, IntegrityError):
            return None

    def _listing(self, folder: Path, skipped: Callable[[DsvError], None]) -> list[Path]:
        try:
            return list(folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            skipped(self._explained(folder, error))
            return []

    def _explained(self, path: Path, error: OSError) -> DsvError:
        denied = isinstance(error, PermissionError)
        return (Denied if denied else Unreachable)(
            f"a run's record that waits here can't be read or removed: {path}: {error.strerror or error}",
            subject=str(path),
            hint=f'sudo chown -R "$(id -u)" {shlex.quote(str(self._folder))}' if denied else None,
        )


def _is_complete(runs: RunStore, part: SpooledPart) -> bool:
    """Whether this tells the end of a run, and the store has that already."""
    if part.part not in (LOG, RECORD):
        return False
    stored = [each for each in runs.listing(part.dataset, part.run) if RECORD in each.parts]
    try:
        return bool(stored) and runs.read(stored[0]).state.is_terminal
    except (IntegrityError, Unsupported):
        return False


def _order(part: str) -> tuple[int, int, str]:
    """A log is sent before what says that it is all."""
    number = start_number(part)
    return (_ORDER.get(part, _ORDER[LOG]), 0, part) if number is None else (0, number, part)


def _read(path: Path) -> bytes:
    """A part's bytes, and no more of them than a part can have. Raises `OSError`, `IntegrityError`."""
    with path.open("rb") as file:
        data = file.read(MAX_RECORD + 1)
    if len(data) > MAX_RECORD:
        raise IntegrityError(
            f"{path}, which waits to be sent, has more than the {MAX_RECORD} bytes of a run's record",
            subject=str(path),
            hint=f"no dsv writes that: rm {shlex.quote(str(path))}",
        )
    return data


def _parse(path: Path) -> SpooledPart | None:
    stem, _, part = path.name.rpartition(".")
    if part not in _ORDER and start_number(part) is None and parse_part_name(part) is None:
        return None
    try:
        return SpooledPart(path, DatasetName.from_component(path.parent.name), RunId.parse(stem), part)
    except UsageError:
        return None
