"""Erasing contents: the objects that they consist of, and the files that share or still have these.

A file is erased in every commit of the store, with its chunks and recipes that no other file has. The caller
decides about shared ones. A garbage collection then removes the bytes.

Each erasure is a record with a random key, `erased/<id>`, which is never changed or deleted. So the erasures of a store
are a set that only grows: concurrent ones do not disturb each other, and a copy of the store's data has them too. A
store gets the feature `erased-contents` before its first erasure. Without it no reader asks for erasures.

Races: an erasing command writes the record, and then reads what names refer to. A publishing command reads
the erasures when it opens its session and again just before it writes the name (`Session.declare`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from dsv.errors import Conflict, NotFound
from dsv.format import index, keys
from dsv.format.locator import Location, ObjectKind, places_of
from dsv.format.records import MAX_ERASED, Erasure, Feature, FeatureRule, Named, WriterIdentity
from dsv.repo.errors import broken, explain_denied_write
from dsv.repo.format_log import ERASED_CONTENTS
from dsv.repo.objects.erasures import NONE, Erasures
from dsv.repo.objects.objects import Located, Objects
from dsv.repo.tree.reader import LocatedSegment
from dsv.stores.base import PutResult
from dsv.upkeep.gc_packs import ErasedRows, list_packs
from dsv.upkeep.ids import Seen
from dsv.upkeep.index_rows import IndexRows
from dsv.upkeep.reach import walk_segments
from dsv.upkeep.roots import read_roots
from dsv.values.ids import CommitId, ErasureId, FileId, Id, Nonce, RecipeId
from dsv.values.progress import NoProgress, Progress

if TYPE_CHECKING:
    from dsv.format.segment import Segment
    from dsv.format.tree import Entry
    from dsv.repo.repository import Repository

Choice = Literal["erase", "keep"]
State = Literal["erased", "shared", "kept", "damaged"]


class DatasetPath(NamedTuple):
    dataset: str
    path: bytes


class ErasedPath(msgspec.Struct, frozen=True):
    """A path that an erasure concerns. The trees that list it keep its size and id."""

    dataset: str
    path: bytes
    file_id: FileId
    size: int
    shared_bytes: int | None = None
    """Bytes shared with the files asked for; None for a file that was asked for itself."""
    state: State = "shared"
    """`erased`; `shared`: shares content with an erased file, and stays; `kept`: has the content of a file to
    erase, which stays for it; `damaged`: was stored during the erasure, and lost a part."""


class ErasePlan(msgspec.Struct):
    files: dict[FileId, int] = msgspec.field(default_factory=dict)
    """The files to erase, with their sizes."""
    objects: set[Named] = msgspec.field(default_factory=set)
    """The chunks and recipes to erase."""
    places: list[tuple[DatasetPath, FileId]] = msgspec.field(default_factory=list)
    """Every path that has one of the files, in any commit."""
    shared: list[ErasedPath] = msgspec.field(default_factory=list)
    """Other paths that share content with the files asked for."""
    kept: list[ErasedPath] = msgspec.field(default_factory=list)
    """Paths with the content of files that were to be erased, which stay for them."""
    kept_bytes: int = 0
    """Bytes of chunks that stay because other files have them too."""
    taken: dict[Named, set[FileId]] = msgspec.field(default_factory=dict)
    """The chunks and recipes that stay, and the other files that have them."""
    commits: set[CommitId] = msgspec.field(default_factory=set)
    """The commits that were looked at."""


class _Found(msgspec.Struct):
    """The result of a walk through all trees."""

    sizes: dict[FileId, int] = msgspec.field(default_factory=dict)
    recipes: dict[FileId, tuple[RecipeId, Location | None]] = msgspec.field(default_factory=dict)
    places: dict[FileId, set[DatasetPath]] = msgspec.field(default_factory=dict)


FEATURE = Feature(ERASED_CONTENTS, FeatureRule.REFUSE)


def put_erasure(
    repository: Repository,
    writer: WriterIdentity,
    files: Iterable[FileId],
    objects: Iterable[Named],
    reason: str,
    nonce: Nonce,
) -> ErasureId:
    """Write an erasure. Readers that begin after this returns do not get these contents. Raises `Denied`,
    `Conflict` if the names are moved, and what the store raises."""
    repository.format.check(repository.store.url, writing=True)
    repository.add_feature(FEATURE, writer)
    record = Erasure(
        tuple(sorted(set(files))), tuple(sorted(set(objects))), nonce, repository.clock(), writer.author, reason,
        writer.tool,
    )  # fmt: skip
    erasure_id = ErasureId.random()
    key = keys.erasure_key(erasure_id)
    with explain_denied_write(repository.store.url):
        put = repository.store.put_if_absent(key, record.encode())
    if put is PutResult.LOST:
        raise broken(key, f"{key} in {repository.store.url} has a random name and already exists")
    repository.objects.forget_erasures()
    return erasure_id


class Eraser:
    """Plans an erasure and carries it out. Also reads contents erased before, while their bytes are there."""

    def __init__(self, repository: Repository, progress: Progress | None = None) -> None:
        self._repository = repository
        self._objects: Objects = repository.objects
        self._known = repository.objects.erasures
        self._progress = NoProgress() if progress is None else progress

    def plan(
        self, wanted: Iterable[FileId], asked: Iterable[DatasetPath] | None, choice: Choice | None
    ) -> ErasePlan:
        """Return the plan. asked: the paths that were named; None if files were named by id, which means all
        their paths. choice: what happens to shared content. Raises `NotFound` for a file that is not in the
        store, and what reading raises."""
        self._objects.known_erasures = NONE  # to read parts of a large file that a killed command has erased
        try:
            return self._plan({one for one in wanted if self._known.file(one) is None}, asked, choice)
        finally:
            self._objects.known_erasures = self._known

    def _plan(
        self, files: set[FileId], asked: Iterable[DatasetPath] | None, choice: Choice | None
    ) -> ErasePlan:
        roots = read_roots(self._repository)
        plan = ErasePlan(commits=set(roots))
        by_dataset = self._by_dataset(roots)
        found = self._find(by_dataset, files)
        for file in sorted(files - found.sizes.keys()):
            where = self._objects.indexes.find(ObjectKind.CHUNK, file)
            if where is not None:  # no commit has it any more, and gc may leave it in a pack that others need
                found.sizes[file] = where.length
                found.places[file] = set()
                continue
            raise NotFound(
                f"file {file} is not in {self._repository.store.url}",
                subject=str(file),
                hint="dsv ls DATASET --json prints the ids of files",
            )
        named = None if asked is None else set(asked)
        for file in sorted(files):
            for place in sorted(found.places[file]):
                if named is not None and place not in named:
                    plan.shared.append(ErasedPath(*place, file, found.sizes[file], found.sizes[file]))
        if choice == "keep":
            plan.kept, plan.shared = [*plan.shared], []
            files -= {path.file_id for path in plan.kept}
        self._parts(plan, by_dataset, files, found, choice)
        plan.places = sorted((place, file) for file in plan.files for place in found.places.get(file, ()))
        return plan

    def _parts(
        self,
        plan: ErasePlan,
        by_dataset: dict[str, list[CommitId]],
        files: set[FileId],
        found: _Found,
        choice: Choice | None,
    ) -> None:
        """Fill in the objects that the files consist of, and the other files that share some."""
        own = self._parts_of(files, found)
        others = self._sharing(by_dataset, files, own)
        plan.shared += [shared for shared, _ in others]
        plan.taken = _taken(others)
        if choice == "erase" and others:
            further = {shared.file_id for shared, _ in others}
            more = self._find(by_dataset, further)
            for which in ("sizes", "recipes", "places"):
                getattr(found, which).update(getattr(more, which))
            theirs = self._parts_of(further, found)
            files = files | further
            beyond = self._sharing(
                by_dataset, files, {named: size for named, size in theirs.items() if named not in own}
            )
            own |= theirs
            plan.taken = _taken(beyond)
        plan.files = {file: found.sizes[file] for file in sorted(files)}
        plan.objects = own.keys() - plan.taken.keys()
        plan.kept_bytes = sum(own[named] for named in plan.taken if named[0] is ObjectKind.CHUNK)

    def _by_dataset(self, commits: Iterable[CommitId]) -> dict[str, list[CommitId]]:
        commits_of: dict[str, list[CommitId]] = {}
        for commit_id in commits:
            dataset = self._objects.commit(commit_id).dataset
            name = "" if dataset is None else str(self._repository.refs.home(dataset))
            commits_of.setdefault(name, []).append(commit_id)
        return commits_of

    def _entries(self, by_dataset: dict[str, list[CommitId]]) -> Iterator[tuple[str, Located[Segment]]]:
        """Yield every segment, once for each dataset."""
        for dataset, commits in sorted(by_dataset.items()):
            for located in walk_segments(self._objects, commits, lambda *_: None, Seen(), self._progress):
                yield dataset, located

    def _find(self, by_dataset: dict[str, list[CommitId]], files: set[FileId]) -> _Found:
        found = _Found()
        if not files:
            return found
        wanted = np.array(sorted(map(bytes, files)), "S32")
        for dataset, located in self._entries(by_dataset):
            if not np.isin(np.frombuffer(located.value.file_ids, "S32"), wanted).any():
                continue
            for entry, where in LocatedSegment(located.value, located).entries():
                if entry.file_id in files and entry.size:
                    file_id = FileId(entry.file_id)
                    found.sizes[file_id] = entry.size
                    found.places.setdefault(file_id, set()).add(DatasetPath(dataset, entry.path))
                    if entry.recipe_id is not None:
                        found.recipes[file_id] = entry.recipe_id, where
        return found

    def _parts_of(self, files: Iterable[FileId], found: _Found) -> dict[Named, int]:
        """Return the chunks and recipes of files, with the bytes of content of each."""
        parts: dict[Named, int] = {}
        for file in files:
            recipe = found.recipes.get(file)
            if recipe is None:
                parts[ObjectKind.CHUNK, Id(file)] = found.sizes[file]
            else:
                parts.update(self._below(*recipe, found.sizes[file]))
        return parts

    def _below(self, recipe_id: RecipeId, where: Location | None, size: int) -> dict[Named, int]:
        """Return a recipe and all below it, with the bytes of each. Each recipe is read once, however often
        it is listed."""
        parts: dict[Named, int] = {}
        waiting: list[tuple[RecipeId, Location | None, int, int | None]] = [(recipe_id, where, size, None)]
        while waiting:
            one, where, size, level = waiting.pop()
            if (ObjectKind.RECIPE, Id(one)) in parts:
                continue
            parts[ObjectKind.RECIPE, Id(one)] = size
            recipe, locator = self._objects.recipe(one, where, None if level is None else (level, size))
            for (child, length), place in zip(recipe.rows(), places_of(locator), strict=False):
                if recipe.level:
                    waiting.append((RecipeId(child), place, length, recipe.level - 1))
                else:
                    parts[ObjectKind.CHUNK, Id(child)] = length
        return parts

    def _sharing(
        self, by_dataset: dict[str, list[CommitId]], files: set[FileId], parts: dict[Named, int]
    ) -> list[tuple[ErasedPath, set[Named]]]:
        """Return other files that have some of these parts, and which. Files erased before do not count."""
        if not parts:
            return []
        shared: dict[tuple[DatasetPath, FileId], tuple[ErasedPath, set[Named]]] = {}
        looked: dict[RecipeId, set[Named]] = {}
        chunks = np.array(sorted(bytes(one) for kind, one in parts if kind is ObjectKind.CHUNK), "S32")
        for dataset, located in self._entries(by_dataset):
            ids = np.frombuffer(located.value.file_ids, "S32")
            if not located.value.recipe_ids and not np.isin(ids, chunks).any():
                continue
            for entry, where in LocatedSegment(located.value, located).entries():
                if entry.file_id is None or not entry.size or entry.file_id in files:
                    continue
                if self._known.of(entry) is not None:
                    continue
                theirs = self._parts_in(entry, where, parts, looked)
                if theirs:
                    place, file_id = DatasetPath(dataset, entry.path), FileId(entry.file_id)
                    size = sum(parts[named] for named in theirs if named[0] is ObjectKind.CHUNK)
                    shared[place, file_id] = (
                        ErasedPath(*place, file_id, entry.size, min(size, entry.size)), theirs,
                    )  # fmt: skip
        return [shared[which] for which in sorted(shared)]

    def _parts_in(
        self,
        entry: Entry,
        where: Location | None,
        parts: dict[Named, int],
        looked: dict[RecipeId, set[Named]],
    ) -> set[Named]:
        if entry.recipe_id is None:
            return {(ObjectKind.CHUNK, Id(entry.file_id or b""))} & parts.keys()
        if entry.recipe_id not in looked:
            looked[entry.recipe_id] = self._below(entry.recipe_id, where, entry.size).keys() & parts.keys()
        return looked[entry.recipe_id]

    def carry_out(self, plan: ErasePlan, writer: WriterIdentity, reason: str) -> list[ErasureId]:
        """Write the records of a plan: objects first, if they take several records, then the files.

        If killed between two records, the same command writes the rest. Raises as `put_erasure`.
        """
        files, objects = list(plan.files), sorted(plan.objects)
        nonce, made = Nonce.random(), []
        records: list[tuple[list[FileId], list[Named]]] = []
        while len(objects) > MAX_ERASED:
            records.append(([], objects[:MAX_ERASED]))
            objects = objects[MAX_ERASED:]
        records.append((files[:MAX_ERASED], objects))
        records += [(files[at : at + MAX_ERASED], []) for at in range(MAX_ERASED, len(files), MAX_ERASED)]
        for some, part in records if files else ():
            made.append(put_erasure(self._repository, writer, some, part, reason, nonce))
        erased = self._objects.erasures
        left = sorted(  # kept for files that another command has erased since the plan
            named
            for named, others in plan.taken.items()
            if files and named not in erased.objects and all(erased.file(one) is not None for one in others)
        )
        for at in range(0, len(left), MAX_ERASED):
            part = left[at : at + MAX_ERASED]
            made.append(put_erasure(self._repository, writer, [], part, reason, nonce))
        return made

    def new_commits(self, plan: ErasePlan) -> set[CommitId]:
        self._repository.refs.forget()
        self._repository.objects.indexes.renew()
        return set(read_roots(self._repository)) - plan.commits

    def needed(self, files: set[FileId], parts: dict[Named, int]) -> set[Named]:
        """Return the parts that any other file has."""
        self._objects.known_erasures = NONE
        try:
            found = self._sharing(self._by_dataset(read_roots(self._repository)), files, parts)
        finally:
            self._objects.known_erasures = self._known
        return set(_taken(found))

    def late(self, plan: ErasePlan) -> list[ErasedPath]:
        """Return the files of commits made since the plan that lost a part by the erasure."""
        new = self.new_commits(plan)
        if not new:
            return []
        self._objects.known_erasures = NONE
        try:
            found = self._sharing(self._by_dataset(new), set(plan.files), dict.fromkeys(plan.objects, 0))
        finally:
            self._objects.forget_erasures()
        return [shared for shared, _ in found]


def _taken(found: Iterable[tuple[ErasedPath, set[Named]]]) -> dict[Named, set[FileId]]:
    taken: dict[Named, set[FileId]] = {}
    for shared, parts in found:
        for named in parts:
            taken.setdefault(named, set()).add(shared.file_id)
    return taken


def adopt(repository: Repository, writer: WriterIdentity, theirs: Erasures) -> int:
    """Copy the erasures of another store, with their ids, and return how many this store lacked. Parts that
    other files of this store have are not erased."""
    known = repository.objects.erasures.known
    missing = {one: record for one, record in theirs.known.items() if one not in known}
    if missing:
        stays = _needed_parts(repository, missing.values())
        repository.add_feature(FEATURE, writer)
        with explain_denied_write(repository.store.url):
            for one, record in missing.items():
                taken = replace(record, objects=tuple(part for part in record.objects if part not in stays))
                if taken.files or taken.objects:
                    repository.store.put_if_absent(keys.erasure_key(one), taken.encode())
        repository.objects.forget_erasures()
    return len(missing)


def _needed_parts(repository: Repository, records: Iterable[Erasure]) -> set[Named]:
    """Return the parts that records of another store erase, and that files not named by them need here."""
    files: set[FileId] = set()
    parts: dict[Named, int] = {}
    for record in records:
        files.update(record.files)
        parts.update(dict.fromkeys(record.objects, 0))
    return Eraser(repository).needed(files, parts)


def find_packs(repository: Repository, folder: Path) -> tuple[int, int]:
    """Return how many packs gc must rewrite or delete to remove all erased bytes, and how many packs in no
    index may have some."""
    erased = ErasedRows(repository.objects.erasures.objects)
    with IndexRows(repository, folder / "rows") as rows:
        listed = list_packs(repository.store)
        places = listed.ids.places(rows.packs)
        found = np.zeros(len(listed.ids), np.bool_)
        for first in range(256):
            bucket = rows.bucket(first)
            here = bucket[erased.among(bucket) & (bucket["where"] == index.IN_PACK)]
            at = places[here["pack"]] if len(places) else np.zeros(0, np.int64)
            found[at[at >= 0]] = True
        return int(found.sum()), int((~listed.marked(rows.packs)).sum())


def refuse_shared(plan: ErasePlan, choice: Choice | None) -> None:
    """Raises `Conflict` if other files share content to erase, and the user has not decided about that."""
    if plan.shared and choice is None:
        first = plan.shared[0]
        count = len(plan.shared)
        others = "another path shares" if count == 1 else f"{count:,} other paths share"
        raise Conflict(
            f"{others} content with what is to be erased, such as {first.dataset}:"
            f"{first.path.decode('utf-8', 'backslashreplace')}",
            subject=first.dataset,
            hint="--shared erase erases that, too; --shared keep leaves it whole; --dry-run lists all",
        )
