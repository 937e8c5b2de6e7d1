"""The interface between runs and the cache: how data and code are staged."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from dsv.run.node_order import StoreAccess
    from dsv.run.record import RunId, RunOutput
    from dsv.values.ids import CommitId
    from dsv.values.names import DatasetName, Target


class Staged(msgspec.Struct, frozen=True):
    """A commit, or part of one, in the cache: where it is, or would be. Times are seconds since 1970."""

    path: Path
    dataset: DatasetName
    commit: CommitId
    files: int
    bytes: int
    hit: bool
    """It was there already."""
    seconds: float = 0.0
    """The time that it took to get it."""
    fetched_bytes: int = 0
    """Read from the store for it."""
    linked_files: int = 0
    """Those that another cached commit had."""
    erased: int = 0
    """Files that it lacks, as they were erased from the store."""
    hold: str | None = None
    """The id of the hold that was asked for."""
    held_until: float | None = None
    may_go: float | None = None
    """The time from which it may be evicted as unused if it is not held; None if that never happens."""


class Lease(Protocol):
    """A claim on staged data that renews itself. `lost` is set, with `reason`, once it can't be held any more."""

    @property
    def lost(self) -> Event: ...

    @property
    def reason(self) -> str: ...

    def release(self) -> None: ...


class Staging(Protocol):
    """The functions of the store and the cache that a run needs."""

    def locate(self, target: Target) -> Staged:
        """Return where the target is or would be; fetch none of it."""
        ...

    def stage(self, target: Target, run: RunId) -> tuple[Staged, Lease]:
        """Stage the target, and hold it for a run, from before it is looked for until the lease is released."""
        ...

    def elsewhere(self) -> tuple[str, ...]:
        """Return the options with which dsv on another machine finds the same store and cache."""
        ...

    def access(self) -> StoreAccess:
        """Return what dsv elsewhere needs to reach the store by those options, if it has no configuration that says so.

        Raises `UsageError`, `NotFound` or `Denied` for a setting that no other machine can be given."""
        ...

    def commit_code(self, folder: Path) -> CommitId | None:
        """Commit the code in this folder into the store. Return None, and say why, if that is not possible."""
        ...

    def output(self, folder: Path | None, run: RunId) -> RunOutput:
        """Commit the job's output in this folder into the store, and return the commit or the error.

        folder: None if the machine of the job has committed it, and the result only has to be looked up
        """
        ...
