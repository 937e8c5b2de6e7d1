"""What is asked of a fill, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from dsv.cache.layout import Place
from dsv.cache.record import Cached
from dsv.errors import NoRoom
from dsv.model.ids import CommitId, StoreId
from dsv.model.path_set import PathSet


@dataclass(frozen=True, slots=True)
class FillRequest:
    """One commit, or a selection of it, to be visible in a cache.

    dataset: the path component (`/` written `%2F`).
    """

    dataset: str
    commit: CommitId
    store: StoreId
    selection: PathSet = field(default_factory=PathSet)

    @property
    def place(self) -> Place:
        return Place.of(self.dataset, self.commit, self.selection.id)


@dataclass(frozen=True, slots=True)
class FillResult:
    """A visible, whole commit.

    files, bytes: of the commit (or selection).
    fetched_bytes: read from the store by this call and its helper processes.
    linked_files: files that this call and its helpers took from other cached commits.
    hit: it was there already.
    """

    path: Path
    files: int
    bytes: int
    fetched_bytes: int = 0
    linked_files: int = 0
    hit: bool = True

    @classmethod
    def of(cls, found: Cached) -> FillResult:
        """What was there already."""
        return cls(found.path, found.record.files, found.record.bytes)


@dataclass(frozen=True, slots=True)
class Need:
    """Room that a fill needs, beyond what it has written.

    bytes: of disk, files counted as whole blocks.
    files: inodes; folders: further ones, which no limit of the owner's counts.
    keep: cached commits that must not be evicted for it: itself, and those it takes files from.
    """

    place: Place
    bytes: int
    files: int
    keep: frozenset[Place] = frozenset()
    folders: int = 0


class NoRoomBeside(NoRoom):
    """There is no room beside what the need wants kept.

    spare: what of that could go if it were not wanted, the least recently used first.
    """

    spare: tuple[Place, ...] = ()


class EnsureRoom(Protocol):
    def __call__(self, need: Need, /) -> None:
        """Returns when the need fits the disk and the owner's limits, with every other fill's reservation counted
        (`room.reservations`, less the one for `need.place`), evicting if that helps.

        Raises `NoRoom`; `NoRoomBeside` if it could help to keep less.
        """


@dataclass(frozen=True, slots=True)
class HelperSpec:
    """How a helper process gets its source: `factory` is `module:function`, called with `arguments` (JSON)."""

    factory: str
    arguments: Mapping[str, object] = field(default_factory=dict)
