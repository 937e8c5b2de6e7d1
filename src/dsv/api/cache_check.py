"""Check cached bytes against their ids, for `cached --check`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dsv.api.cache import Claim
from dsv.api.cache_targets import Found, Targets
from dsv.api.context import Context
from dsv.cache.evict.inventory import find_places, take_inventory
from dsv.cache.fill.check import Checked
from dsv.cache.fill.check import check as check_place
from dsv.cache.fill.check import repair as repair_place
from dsv.cache.record import Filled, read_record
from dsv.cache.root import CacheRoot, Place, explaining, refuse_symlinks
from dsv.errors import Conflict, IntegrityError
from dsv.values.ids import CommitId, StoreId
from dsv.values.names import DatasetName, Target
from dsv.values.paths import PathSet, show

_SHOWN = 20
_TRIES = 10  # a tenth of a second apart, for the record of what has just become visible


@dataclass(frozen=True, slots=True)
class WrongItem:
    """A path, as shown to people, and what is wrong with it."""

    path: str
    problem: str
    links: int
    """Other names of the same file in the cache."""


@dataclass(frozen=True, slots=True)
class CheckedItem:
    """One cached commit that was read again."""

    path: Path
    dataset: DatasetName
    commit: CommitId
    files: int
    bytes: int
    wrong: tuple[WrongItem, ...] = ()
    repaired: int = 0
    """The number of `wrong` that are right now."""
    foreign: int = 0
    """The number of paths that were never committed."""
    removed: int = 0
    """The number of these that are gone now."""
    foreign_paths: tuple[str, ...] = ()
    """The first of those that are still there, or else of those that were removed."""
    problem: str | None = None
    """The reason why the commit could not be checked."""

    @property
    def still_wrong(self) -> bool:
        return self.problem is not None or self.repaired < len(self.wrong) or self.removed < self.foreign


@dataclass(frozen=True, slots=True)
class CheckReport:
    items: tuple[CheckedItem, ...]

    @property
    def exit_code(self) -> int:
        """Return 5 if something is still wrong."""
        return IntegrityError.exit_code if any(one.still_wrong for one in self.items) else 0


def check(
    context: Context,
    folder: Path,
    targets: Sequence[Target] = (),
    *,
    repair: bool = True,
    remove_foreign: bool = False,
) -> CheckReport:
    """Read all that is cached, or the targets, and replaces what is wrong by what the store has.

    remove_foreign: a repair also deletes files that were never committed.

    Raises `NotFound` for a target that is not cached, `Unreachable` if the store does not answer,
    `Denied` if something is wrong that this user may not replace.
    """
    root = CacheRoot(folder)
    refuse_symlinks(root)
    known: dict[object, Path] = {}
    with explaining(root.path, "check"), Targets(context, root) as finder:
        if targets:
            places = [place for target in targets for place in finder.find_cached(target)]
        else:
            places = [item.place for item in take_inventory(root).visible]
        items = [
            _check(context, finder, place, known, repair=repair, remove_foreign=remove_foreign)
            for place in places
        ]
    return CheckReport(tuple(item for item in items if item is not None))


def _check(
    context: Context,
    finder: Targets,
    place: Place,
    known: dict[object, Path],
    *,
    repair: bool,
    remove_foreign: bool,
) -> CheckedItem | None:
    """Check one commit; return None if it was evicted in the meantime."""
    root = finder.root
    dataset = place.dataset_name
    record, there = _look(root, place, dataset)
    if record is None:
        return _unknown(root, place, dataset) if there else None
    _check_store(finder, place, record)
    selection = PathSet.of(path.encode() for path in record.selection)
    found = Found(dataset, place.commit, selection, finder.repository.id)
    context.progress.note(f"reading {place}")
    context.progress.start(record.entries, record.bytes)
    with Claim(root, found, "stage", optional=True) as claim:
        if not claim.confirm():
            return None
        source = finder.source()
        result = check_place(root, place, source.tree(place.commit), selection, context.progress)
        if repair and (result.wrong or result.foreign):
            repair_place(root, place, source, result, known, remove_foreign=remove_foreign)
    context.progress.finish()
    return _item(root, place, result)


def _look(root: CacheRoot, place: Place, dataset: DatasetName) -> tuple[Filled | None, bool]:
    """Return its record, and whether it is visible.

    It becomes visible before it is recorded, and is moved away before its record is removed.
    """
    for attempt in range(_TRIES):
        record = read_record(root, place)
        there = record is not None or place in find_places(root, dataset)
        if record is not None or not there or attempt == _TRIES - 1:
            return record, there
        time.sleep(0.1)
    return None, False


def _unknown(root: CacheRoot, place: Place, dataset: DatasetName) -> CheckedItem:
    problem = "its record is missing or unreadable, so it was not checked"
    return CheckedItem(root.visible(place), dataset, place.commit, 0, 0, problem=problem)


def _check_store(finder: Targets, place: Place, record: Filled) -> None:
    if StoreId.parse(record.store) != finder.repository.id:
        raise Conflict(
            f"{place} comes from another store than {finder.repository.store.url}",
            subject=str(place),
            hint="name its store: dsv cached --check --store URL TARGET",
        )


def _item(root: CacheRoot, place: Place, result: Checked) -> CheckedItem:
    return CheckedItem(
        path=root.visible(place),
        dataset=place.dataset_name,
        commit=place.commit,
        files=result.files,
        bytes=result.bytes,
        wrong=tuple(WrongItem(one.path, one.problem, one.links) for one in result.wrong),
        repaired=result.repaired,
        foreign=len(result.foreign),
        removed=len(result.foreign) - len(result.left),
        foreign_paths=tuple(show(path) for path in (result.left or result.foreign)[:_SHOWN]),
    )
