"""Open the workspace around the working folder, for a command that changes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from dsv.api.cache_targets import lending
from dsv.api.context import Context, check_binding, tracking
from dsv.cache.root import SETTINGS_FILE
from dsv.errors import Conflict
from dsv.values.names import BranchName, Rev, Target
from dsv.workspace.open import OpenWorkspace
from dsv.workspace.workspace import Workspace


@contextmanager
def open_to_publish(
    context: Context, command: str, branch: BranchName | None = None, *, borrows: bool = False
) -> Iterator[OpenWorkspace]:
    """Open the workspace for a command that publishes on `branch` (None: the workspace's), with its lock.

    borrows: files are written here, and taken from caches of this machine before the store is asked.
    Raises `Conflict` if another command is at work in the workspace, or the store is not the one that it belongs to.
    """
    with context.workspace().locked(command) as (workspace, lock), context.store() as store:
        target = Target(workspace.dataset, Rev(branch or workspace.branch))
        repository = context.open_repository(store, target, workspace.base())
        check_binding(workspace, repository)
        with (
            tracking(context, repository),
            lending(context, repository, workspace.dataset) if borrows else nullcontext() as copies,
        ):
            yield OpenWorkspace(
                workspace, repository, lock, context.writer, context.progress, lambda: store.counts, copies
            )


@contextmanager
def open_to_write(context: Context, command: str) -> Iterator[OpenWorkspace]:
    """Open the workspace for a command that only writes files here; the store may be read from local copies."""
    with (
        context.workspace().locked(command) as (workspace, lock),
        context.bound_repository(workspace) as repository,
        lending(context, repository, workspace.dataset) as copies,
    ):
        yield OpenWorkspace(workspace, repository, lock, context.writer, context.progress, copies=copies)


def check_no_cache(folder: Path, hint: str) -> None:
    """Raise `Conflict` if a folder lies in a cache: files there are everybody's, and go when nobody uses them."""
    for above in (folder.resolve(), *folder.resolve().parents):
        if (above / SETTINGS_FILE).exists():
            raise Conflict(f"{folder} lies in the cache {above}", subject=str(folder), hint=hint)


def workspace_above(folder: Path) -> Path | None:
    """Return the root of the workspace that `folder` is or lies in."""
    found = Workspace.find(folder)
    return None if found is None else found.root
