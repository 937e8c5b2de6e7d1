"""Finding what in a folder can't be in a tree."""

from __future__ import annotations

import os

from dsv.fs.files import what_it_is
from dsv.model.entry import Kind
from dsv.model.paths import MAX_COMPONENT, MAX_PATH, check_target, fold_clashes
from dsv.worktree.scan.folder import (
    BASE_KINDS,
    DIRECTORY,
    KEPT,
    OWN_SAME,
    READ,
    TRUSTED,
    UNSUPPORTED,
    Folder,
    Relation,
    with_relation,
)
from dsv.worktree.scan.listing import Compared, Listing, is_utf8
from dsv.worktree.scan.problem import Problem, Trouble
from dsv.worktree.scan.state import State

LEAVES = "it is a symlink that leads out of the dataset"


class EntryValidator:
    """Looks at folders one by one, and collects what it finds.

    problems, clashes: as in `WorkspaceScan`. lost: paths that the base has and that are not files or symlinks now.
    withheld: paths that can't be read. links_moved: whether a symlink was added, changed or removed.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self.problems: list[Problem] = []
        self.clashes: list[tuple[bytes, bytes]] = []
        self.lost: set[bytes] = set()
        self.withheld: list[bytes] = []
        self.links_moved = False

    def validate(self, compared: Compared, listing: Listing, descriptor: int) -> None:
        """Refuses what can't be in a tree, reads symlinks, and notes what the base has and the folder lacks."""
        folder = compared.folder
        names = folder.name_list()
        for name, kind in compared.lost:
            self.lost.add(folder.path_of(name))
            self.links_moved |= kind == Kind.SYMLINK
        for at in folder.positions(UNSUPPORTED):
            self.problem(folder.path_of(names[at]), what_it_is(listing.mode(at)))
        self._names(compared, listing, names)
        for at in list(folder.positions(Kind.SYMLINK)):
            if not folder.marks[at] & TRUSTED:
                self._read_link(folder, at, names[at], descriptor)
        if not listing.all_readable():
            self._access(folder, names, descriptor)
        if folder.own == OWN_SAME and not folder.is_empty:
            self.lost.add(folder.path)
            folder.own = 0

    def _names(self, compared: Compared, listing: Listing, names: list[bytes]) -> None:
        folder = compared.folder
        fresh = list(compared.fresh)
        if not fresh:
            return
        room = min(MAX_COMPONENT, MAX_PATH - len(folder.path) - 1)
        plain = listing.blob.isascii() or is_utf8(listing.blob)
        if not plain or max(map(len, names)) > room:
            for at in fresh:
                reason = _name_fault(names[at], room)
                if reason is not None and folder.kinds[at] in (*KEPT, DIRECTORY):
                    self.refuse(folder, at, names[at], reason)
        if plain and (not listing.blob.isascii() or len(set(listing.blob.lower().split(b"\0"))) < len(names)):
            kept = [
                name for name, kind in zip(names, folder.kinds, strict=True) if kind in (*KEPT, DIRECTORY)
            ]
            self.clashes += [
                (folder.path_of(one), folder.path_of(other)) for one, other in fold_clashes(kept)
            ]

    def _access(self, folder: Folder, names: list[bytes], descriptor: int) -> None:
        """Finds files that would have to be read and that the user may not read."""
        for at in list(folder.unclean()):
            if folder.kinds[at] != Kind.SYMLINK and not folder.marks[at] & TRUSTED:
                effective = os.access in os.supports_effective_ids
                if not os.access(names[at], os.R_OK, dir_fd=descriptor, effective_ids=effective):
                    path = folder.path_of(names[at])
                    self.refuse(
                        folder, at, names[at], "it may not be read: Permission denied", Trouble.UNREADABLE
                    )
                    self.withheld.append(path)

    def _read_link(self, folder: Folder, at: int, name: bytes, descriptor: int) -> None:
        self.links_moved = True
        try:
            target = os.readlink(name, dir_fd=descriptor)
        except OSError:  # it is gone, or became something else: the next scan will tell
            self.refuse(folder, at, name, "it changed while dsv looked at it", Trouble.CHANGING)
            return
        before, relation = folder.targets.get(at), folder.relation(at)
        folder.targets[at] = target
        try:
            check_target(target)
        except ValueError as error:
            reason = (
                LEAVES if target[:1] == b"/" else f"it is a symlink whose target no tree can hold: {error}"
            )
            self.refuse(folder, at, name, reason)
            return
        base_kind = BASE_KINDS[folder.marks[at]]
        if relation is Relation.SAME and (base_kind is not Kind.SYMLINK or before != target):
            relation = Relation.DIFFERS
        known = TRUSTED if self._state.vouches(folder.row(at)) else READ
        folder.marks[at] = with_relation(known, relation, base_kind)

    def refuse(
        self, folder: Folder, at: int, name: bytes, reason: str, trouble: Trouble = Trouble.UNSUPPORTED
    ) -> None:
        """Leaves a name out of the tree."""
        path = folder.path_of(name)
        self.problem(path, reason, trouble)
        if folder.kinds[at] in KEPT and folder.relation(at) is not Relation.ABSENT:
            self.lost.add(path)
        folder.kinds[at] = UNSUPPORTED
        folder.marks[at] = 0

    def problem(self, path: bytes, reason: str, trouble: Trouble = Trouble.UNSUPPORTED) -> None:
        self.problems.append(Problem(path, reason, trouble))


def _name_fault(name: bytes, room: int) -> str | None:
    if not is_utf8(name):
        return "its name is not UTF-8"
    if len(name) > MAX_COMPONENT:
        return f"its name is longer than {MAX_COMPONENT} bytes"
    if len(name) > room:
        return f"its path is longer than {MAX_PATH} bytes"
    return None
