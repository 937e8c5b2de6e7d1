"""The interface between runs and the cache: how data and code are staged."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from dsv.run.node_order import StoreAccess
    from dsv.run.record import RunId, RunOutput
    from dsv.values.ids import CommitId
    from dsv.values.names import DatasetName, Target


@dataclass(frozen=True, slots=True)
class Staged:
    """A commit, or part of one, in the cache: where it is, or would be. Times are seconds since 1970."""

    path: Path
    dataset: DatasetName
    commit: CommitId
    files: int
    bytes: int
    hit: bool
    """It was there already."""
    seconds: float = 0.0
    """What getting it took."""
    fetched_bytes: int = 0
    """Read from the store for it."""
    linked_files: int = 0
    """Those that another cached commit had."""
    hold: str | None = None
    """The id of the hold that was asked for."""
    held_until: float | None = None
    may_go: float | None = None
    """When it may be evicted for not being used, if it is not held; None if that never happens."""


class Flag(Protocol):
    """A `threading.Event`, as far as it is read here."""

    def is_set(self) -> bool: ...


class Lease(Protocol):
    """A claim on staged data that renews itself. `lost` is set, with `reason`, once it can't be held any more."""

    @property
    def lost(self) -> Flag: ...

    @property
    def reason(self) -> str: ...

    def release(self) -> None: ...


class DataStaging(Protocol):
    """The functions of the cache that a node of a run needs."""

    def locate(self, target: Target) -> Staged:
        """Where the target is or would be; fetches none of it. `hit`: whether it is there, whole."""
        ...

    def stage(self, target: Target, run: RunId) -> tuple[Staged, Lease]:
        """Makes sure of the data, and holds it for this run from before it looked until the lease is released."""
        ...


class Staging(DataStaging, Protocol):
    """The functions of the cache that a run needs."""

    def elsewhere(self) -> tuple[str, ...]:
        """The options with which dsv on another machine finds the same store and cache."""
        ...

    def access(self) -> StoreAccess:
        """Return what dsv elsewhere needs to reach the store by those options, if it has no configuration that says so.

        Raises `UsageError`, `NotFound` or `Denied` for a setting that no other machine can be given."""
        ...

    def locate_code(self, folder: Path, recorded: CommitId | None) -> Staged:
        """Commits what is code in this folder into the store, and tells where it would be in the cache; puts nothing
        there. recorded: as of `stage_code`. Raises `LaunchError` if it can't be committed."""
        ...

    def stage_code(self, folder: Path, recorded: CommitId | None, run: RunId) -> tuple[Staged, Lease] | None:
        """Commits what is code in this folder into the store, and makes sure of it as of data.

        recorded: the commit of a run that is repeated, which is taken instead. None if the run is to see the folder
        itself, because its code can't be committed.
        """
        ...

    def sent_output(self, run: RunId) -> RunOutput:
        """Return the output that the machine of the job has committed. An output without it says why not."""
        ...

    def keep_output(self, folder: Path, run: RunId) -> RunOutput:
        """Commits what the job left in this folder into the store. That it can't be is a result."""
        ...
