"""The interface between runs and the cache: how data and code are staged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Protocol

from dsv.run.node_order import StoreAccess
from dsv.run.record import RunId, RunOutput, RunRecord
from dsv.run.staged import Staged
from dsv.values.ids import CommitId
from dsv.values.json import Json
from dsv.values.names import Target

if TYPE_CHECKING:
    from dsv.run.listing import RunView
    from dsv.run.plan import Launch


class DataLease(Protocol):
    """A claim on staged data that renews itself. `lost` is set, with `reason`, once it can't be held any more."""

    @property
    def lost(self) -> Event: ...

    @property
    def reason(self) -> str: ...

    def release(self) -> None: ...


class Staging(Protocol):
    """The functions of the store and the cache that a run needs."""

    def locate(self, target: Target) -> Staged:
        """Return where the target is or would be in the cache, without fetching it."""
        ...

    def stage(self, target: Target, run: RunId) -> tuple[Staged, DataLease]:
        """Stage the target, held for a run from before the lookup until the lease is released."""
        ...

    def elsewhere(self) -> tuple[str, ...]:
        """Return the options with which dsv on another machine finds the same store and cache."""
        ...

    def access(self) -> StoreAccess:
        """Return the data by which dsv elsewhere, without its own configuration, reaches the store. Raise
        `UsageError`, `NotFound` or `Denied` for a setting that can't be passed to another machine."""
        ...

    def commit_code(self, folder: Path) -> CommitId | None:
        """Commit the code in this folder into the store. If that is impossible, report why; return None."""
        ...

    def output(self, folder: Path | None, record: RunRecord) -> RunOutput:
        """Commit the job's output in this folder into the store, and return the commit or the error. folder:
        None if the machine of the job has committed it, and only the result is looked up"""
        ...

    def into(self, record: RunRecord) -> RunOutput:
        """Make the branch that the record names exactly its output, and return that with the result."""
        ...


class OnceGate(Protocol):
    """Decides whether a run with `--once` has to run."""

    def look(self, launch: Launch) -> RunView | None:
        """Serve the result of an equal run, without waiting, and return this run, which has it; None if there is none.
        It has a record only if that is of use."""

    def around(self, launch: Launch, run: Callable[[Launch], RunView]) -> RunView:
        """As `look`, but wait for an equal run; if there is none, claim the key and run."""

    def checked(self, launch: Launch) -> Launch:
        """Return the launch, its data and code staged, without its key if that turned out to be another."""

    def submitted(self, *, queues: bool) -> None:
        """Note that an engine has the job. queues: it keeps the job alive, and not this process"""

    def explain(self, launch: Launch) -> dict[str, Json]:
        """Say what would become of the run, also as JSON. Nothing is pulled or written."""
