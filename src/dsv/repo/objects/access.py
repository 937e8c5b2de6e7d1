"""How a repository reads what its store alone does not give, and who is told of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from dsv.periodic import Clock, now_ms
from dsv.repo.objects.trim import CopyLimits

if TYPE_CHECKING:
    from dsv.errors import DsvError
    from dsv.files.shared_path import AnyPath
    from dsv.format.locator import ObjectKind
    from dsv.format.records import CommitRecord
    from dsv.format.tree import Entry
    from dsv.repo.job_notes import JobNotes
    from dsv.repo.objects.externals import ReadSource
    from dsv.repo.tracking import Tracked
    from dsv.values.ids import CommitId, Id, StoreId
    from dsv.values.names import BranchName, DatasetName


class Mirror(Protocol):
    """Another source of a store's objects; `why` is the error that the store gave."""

    def read(self, kind: ObjectKind, object_id: Id, why: DsvError) -> bytes | None: ...
    def commit(self, commit_id: CommitId, why: DsvError) -> CommitRecord | None: ...


LastSeen: TypeAlias = "tuple[StoreId, DatasetName, BranchName, Tracked]"
"""The branch of the current workspace, and the last answer about it."""


class Access(msgspec.Struct, frozen=True):
    """Given when a repository is made, and the same from then on."""

    clock: Clock = now_ms
    read_source: ReadSource | None = None
    """Reads files outside the store that commits refer to."""
    mirrors: Mirror | None = None
    """Read for what the store has lost, or once it does not answer. A writer has none."""
    copy_of: Callable[[Entry], AnyPath] | None = None
    """Finds a file's content on this machine, if the store must not be asked. Raises `Unreachable`."""
    override: str | None = None
    """The reason to override the rules of protected branches; None if they count."""
    tell: Callable[[str], None] = lambda text: None
    """Receives a line when a copy is read for what is damaged."""
    last_seen: LastSeen | None = None
    copies: CopyLimits = CopyLimits()
    job: JobNotes | None = None
    """The run whose job reads and writes here."""


STORE_ALONE = Access()
