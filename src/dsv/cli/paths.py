"""Paths as a person types them, made into paths of the workspace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dsv.errors import UsageError
from dsv.worktree.workspace import Workspace


def workspace_paths(workspace: Workspace, typed: Sequence[str]) -> tuple[bytes, ...]:
    """Relative to the workspace's root; the root itself is the empty path. Raises `UsageError`."""
    return tuple(_inside(workspace, text) for text in typed)


def _inside(workspace: Workspace, text: str) -> bytes:
    if not text:
        raise UsageError("a path is empty", hint="dsv status")
    found = workspace.inside(Path(text))
    if found is None:
        raise UsageError(
            f"{text} is not in the workspace {workspace.root}",
            subject=text,
            hint=f"dsv -C {workspace.root} status",
        )
    return found
