"""The result of a scan: which paths may differ from the base, and which are gone.

`scanner.scan_workspace` makes it. Everything here is about one base commit.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dsv.format.recipe import SINGLE_CHUNK_MAX
from dsv.format.tree import Entry, Kind
from dsv.fs.mapped import Notice, is_old, notice
from dsv.transfer.file_reader import ROW
from dsv.values.ids import RecipeId
from dsv.values.paths import sort_key
from dsv.workspace.scan.folder import (
    BASE_KINDS,
    KINDS,
    NO_ID,
    OWN_SAME,
    READ,
    RELATIONS,
    TRUSTED,
    Relation,
    with_relation,
)
from dsv.workspace.scan.state import relate, sync_with_tree

if TYPE_CHECKING:
    from dsv.transfer.file_reader import Problem
    from dsv.values.ids import CommitId, FileId
    from dsv.values.paths import PathSet
    from dsv.workspace.scan.folder import (
        Folder,
    )
    from dsv.workspace.scan.state import State

_OWN = -1  # the position of a folder's own entry, as an empty directory


class Pending(msgspec.Struct):
    """A path that goes into a tree and is not known to be as in the base."""

    path: bytes
    kind: Kind
    size: int
    relation: Relation
    """With DIFFERS and UNKNOWN the base has the path, with ABSENT it does not."""
    known: Entry | None
    """Its entry, if that is known without reading the file."""
    base: Entry | None
    """With SAME, the base's entry, to compare with the content."""
    folder: bytes
    at: int
    base_kind: Kind | None = None
    """The kind of the base's entry, if the relation is SAME or DIFFERS."""

    @property
    def is_file(self) -> bool:
        return self.kind <= Kind.EXECUTABLE

    @property
    def entry(self) -> Entry:
        """The entry as it is here; without a file id if the file was not read, as its size differs already."""
        return self.known or Entry(self.path, self.kind, self.size)

    @property
    def surely_changed(self) -> bool:
        """Return whether it is certain, without reading, that the base has another entry or none."""
        if self.base is not None:
            return self.size != self.base.size or self.kind != self.base.kind
        return self.relation is Relation.ABSENT or (
            self.relation is Relation.DIFFERS and self.known is not None
        )


class Gone(msgspec.Struct, frozen=True):
    """A path that the base has and the disk does not."""

    path: bytes
    size: int = 0
    is_file: bool = False
    known: None = None
    entry: None = None


class WorkspaceScan:
    """The result of a scan. It edits the state, which the holder of the workspace's lock saves."""

    def __init__(self, root: Path, state: State, base: CommitId | None, scope: PathSet, device: int) -> None:
        self.root = root
        self.state = state
        self.base = base
        self.scope = scope
        self.problems: list[Problem] = []
        """Paths that can't be stored, in tree order."""
        self.clashes: list[tuple[bytes, bytes]] = []
        """Pairs of new names that differ only in case or Unicode normalization."""
        self.leftovers: list[bytes] = []
        """Temporary files of killed commands."""
        self.missing: list[bytes] = []
        """Paths in the base that are not on disk."""
        self.unsettled: list[bytes] = []
        """Folders in which something is not known to be as in the base, in tree order."""
        self.withheld: PathSet | None = None
        """Paths that can't be read. The base's entries stay there."""
        self.filled_elsewhere: frozenset[bytes] = frozenset()
        """Folders that are empty here and not in the base, which has paths in them that this workspace leaves out."""
        self.let_go: list[bytes] = []
        """Paths of the base outside the sparse patterns that were here and are not any more."""
        self._device = device
        self._notices = {device: notice(root)}

    @property
    def exact(self) -> bool:
        """Return whether the state mirrors the base, as it does after a scan."""
        return self.state.is_exact_for(self.base)

    @property
    def unchanged(self) -> bool:
        """Return whether it is certain that a sync would change nothing."""
        return not self.missing and next(self.pending(), None) is None

    def sync_with_tree(self, entries: Iterable[Entry]) -> None:
        """Make the state mirror the base, whose entries these are, in tree order."""
        gone = sync_with_tree(self.state, entries)
        self.state.set_exact(self.base, gone)
        self._find_unsettled()

    def compared_with_more_than_the_base(self) -> None:
        """Note that paths were compared with entries that are not the base's, which holds for this command only."""
        self.state.provisional = True
        self._find_unsettled()

    def _find_unsettled(self) -> None:
        self.unsettled = [
            path
            for path in sorted(self.state.paths(), key=sort_key)
            if (folder := self.state.folder(path)) is not None and not folder.is_clean
        ]
        self.find_missing()

    def find_missing(self) -> None:
        """Set `missing` from what the state knows to be gone."""
        self.missing = sorted(
            (
                path
                for path in self.state.gone
                if self.scope.touches(path) and (self.withheld is None or path not in self.withheld)
            ),
            key=sort_key,
        )

    def pending(self) -> Iterator[Pending]:
        """Yield the items in tree order. Items that are recorded meanwhile are not yielded again."""
        stack: list[_Emitter] = []
        for path in self.unsettled:
            folder = self.state.folder(path)
            if folder is None:
                continue
            key = sort_key(path)
            while stack and not stack[-1].holds(key):
                yield from self._scoped(stack.pop().rest())
            if stack:
                yield from self._scoped(stack[-1].until(key))
            stack.append(_Emitter(folder, key, own=self._is_new_itself(folder)))
        while stack:
            yield from self._scoped(stack.pop().rest())

    def totals(self) -> tuple[int, int]:
        """Return the number of pending paths, and the bytes of those that must be read. Faster than `pending`."""
        if not self.scope.whole:
            found = [0 if item.known is not None else item.size for item in self.pending()]
            return len(found), sum(found)
        count = size = 0
        for path in self.unsettled:
            folder = self.state.folder(path)
            if folder is not None:
                one, other = folder.unclean_totals()
                count, size = count + one + self._is_new_itself(folder), size + other
        return count, size

    def _is_new_itself(self, folder: Folder) -> bool:
        """Return whether the folder is new as an empty directory. It is not if something below can't be read: the base
        may have files there, and they stay.
        """
        if not folder.path or not folder.is_empty or folder.own == OWN_SAME:
            return False
        if folder.path in self.filled_elsewhere:
            return False
        return self.withheld is None or not self.withheld.touches(folder.path)

    def _scoped(self, found: Iterator[Pending]) -> Iterator[Pending]:
        return found if self.scope.whole else (item for item in found if item.path in self.scope)

    def work(self) -> Iterator[Pending | Gone]:
        """Yield all that may differ from the base, in tree order, each path once."""
        missing = iter(self.missing)
        gone = next(missing, None)
        for item in self.pending():
            if gone is not None:
                key = sort_key(item.path)
                while gone is not None and sort_key(gone) < key:
                    yield Gone(gone)
                    gone = next(missing, None)
                if gone == item.path:  # the base has something else there
                    item.relation, item.base = Relation.UNKNOWN, None
                    gone = next(missing, None)
            yield item
        while gone is not None:
            yield Gone(gone)
            gone = next(missing, None)

    def record(
        self,
        item: Pending,
        row: bytes,
        device: int,
        file_id: FileId,
        recipe_id: RecipeId | None = None,
        *,
        quiet: bool,
    ) -> Entry | None:
        """Remember what was read, and return the entry for a tree.

        row: the stat before and after the reading, by `row_of`. device: its st_dev. quiet: whether it has no unseen
        writer, see `file_reader.is_quiet`. None if `recipe_id` is needed and missing, as after mere hashing: the file
        must then be read again to be stored.
        """
        folder, at = self.state.edit(item.folder), item.at
        folder.rows[at * ROW.size : (at + 1) * ROW.size] = row
        _, size, _, ctime, mode = ROW.unpack(row)
        kind = Kind.EXECUTABLE if mode & 0o100 else Kind.FILE
        folder.kinds[at] = kind
        relation, base_kind = RELATIONS[folder.marks[at]], BASE_KINDS[folder.marks[at]]
        if relation is Relation.SAME:
            if folder.id_at(at) != file_id:
                relation = Relation.DIFFERS
            elif recipe_id is None and at in folder.recipes:
                recipe_id = RecipeId(folder.recipes[at])
            if base_kind is not kind:
                relation = Relation.DIFFERS
        if size > SINGLE_CHUNK_MAX and recipe_id is None:
            folder.set_id(at, NO_ID, None)
            folder.marks[at] = with_relation(0, relation, base_kind)
            return None
        folder.set_id(at, file_id, recipe_id)
        tells = self._tells(item.path, device, ctime, quiet=quiet)
        known = TRUSTED if tells and self.state.vouches(row, foreign=device != self._device) else READ
        folder.marks[at] = with_relation(known, relation, base_kind)
        return Entry(item.path, kind, size, file_id, recipe_id)

    def _tells(self, path: bytes, device: int, ctime: int, *, quiet: bool) -> bool:
        """Return whether a later change of the file's content is bound to change its times."""
        kind = self._notices.get(device)
        if kind is None:
            kind = self._notices[device] = notice(self.root / os.fsdecode(path))
        if kind is Notice.WRITTEN_BACK:
            return is_old(ctime)
        return kind is Notice.ALWAYS or (quiet and kind is Notice.UNMAPPED)

    @property
    def keeps_ids(self) -> bool:
        """Return whether files on this file system can be known without being read."""
        return self._notices[self._device] is not Notice.NEVER

    def not_stored(self, item: Pending) -> None:
        """Forget what was known of a file that could not be read to be stored: what the base has there stays, and
        `published` must not count the file as committed.
        """
        folder = self.state.edit(item.folder)
        before = folder.marks[item.at]
        folder.marks[item.at] = with_relation(0, RELATIONS[before], BASE_KINDS[before])

    def relate(self, item: Pending, base: Entry | None) -> None:
        """Compare a path with the base's entry (None: it has none), and note the relation."""
        item.base = base
        item.relation = Relation.ABSENT if base is None else Relation.DIFFERS
        if item.at == _OWN:
            return
        folder = self.state.edit(item.folder)
        if base is None or base.kind is Kind.EMPTY_DIRECTORY:
            folder.marks[item.at] = with_relation(
                folder.marks[item.at], item.relation, Kind.FILE if base is None else base.kind
            )
        else:
            relate(folder, item.at, base)
            item.relation = folder.relation(item.at)

    def published(self, commit: CommitId) -> None:
        """The base is now `commit`: it has everything from `work` that was recorded, and nothing that is `missing`."""
        for path in self.unsettled:
            folder = self.state.edit(path)
            if self.scope.whole or path in self.scope:
                if self._is_new_itself(folder):
                    folder.own = OWN_SAME
                folder.adopt()
                continue
            names = folder.name_list()
            for at in list(folder.unclean()):
                if folder.path_of(names[at]) in self.scope:
                    folder.adopt_name(at)
        self.base = commit
        self.state.set_exact(commit, self.state.gone.difference(self.missing))
        self.missing = []


class _Emitter:
    """The pending paths of one folder, given in turn with those of the folders in it."""

    def __init__(self, folder: Folder, key: bytes, *, own: bool) -> None:
        self._folder = folder
        self._prefix = key + b"\0" if key else b""
        self._names = folder.name_list()
        self._positions = folder.unclean()
        self._next: int | None = None
        self._own = own

    def holds(self, key: bytes) -> bool:
        """Return whether a folder with this sort key is below this one."""
        return key.startswith(self._prefix)

    def until(self, key: bytes) -> Iterator[Pending]:
        for item in self.rest():
            if sort_key(item.path) > key:
                self._next = item.at
                return
            yield item

    def rest(self) -> Iterator[Pending]:
        if self._own:
            self._own = False
            folder = self._folder
            entry = Entry(folder.path, Kind.EMPTY_DIRECTORY)
            yield Pending(
                folder.path, Kind.EMPTY_DIRECTORY, 0, Relation.ABSENT, entry, None, folder.path, _OWN
            )
        if self._next is not None:
            at, self._next = self._next, None
            yield self._pending(at)
        for at in self._positions:
            yield self._pending(at)

    def _pending(self, at: int) -> Pending:
        return pending_at(self._folder, at, self._names[at])


def pending_at(folder: Folder, at: int, name: bytes | None = None) -> Pending:
    """Return the item for one file or symlink."""
    path = folder.path_of(folder.name_list()[at] if name is None else name)
    value = folder.marks[at]
    kind, relation = KINDS[folder.kinds[at]], RELATIONS[value]
    return Pending(
        path,
        kind,
        folder.size_on_disk(at) if kind is not Kind.SYMLINK else 0,
        relation,
        folder.known_entry(at, path),
        folder.base_entry(at, path),
        folder.path,
        at,
        BASE_KINDS[value] if relation is Relation.SAME or relation is Relation.DIFFERS else None,
    )
