"""Paths as a person types them, made into paths of the workspace."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from dsv.api.context import Context
from dsv.errors import UsageError
from dsv.model.names import Target, clean_path
from dsv.worktree.workspace import Workspace


def workspace_paths(workspace: Workspace, typed: Sequence[str]) -> tuple[bytes, ...]:
    """Relative to the workspace's root; the root itself is the empty path. Raises `UsageError`."""
    return tuple(_inside(workspace, text) for text in typed)


def dataset_paths(
    context: Context, typed: Sequence[str], targets: Sequence[Target | None] = ()
) -> tuple[bytes, ...]:
    """Paths of the dataset that the targets name. If it is the workspace's, they are relative to the working directory.

    Raises `UsageError`.
    """
    workspace = context.workspace_or_none() if typed else None
    named = {target.dataset for target in targets if target is not None and target.dataset is not None}
    if workspace is not None and named <= {workspace.dataset}:
        return workspace_paths(workspace, typed)
    return tuple(clean_path(os.fsencode(text)) for text in typed)


def _inside(workspace: Workspace, text: str) -> bytes:
    if not text:
        raise UsageError("a path is empty", hint="dsv status")
    found = workspace.inside(Path(text))
    if found is None:
        raise UsageError(
            f"{text} is not in the workspace {workspace.root}",
            subject=text,
            hint=f"dsv -C {shlex.quote(str(workspace.root))} status",
        )
    return found
