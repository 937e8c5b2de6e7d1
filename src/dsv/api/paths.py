"""Paths that a person named: one that is nowhere is an error, and never a reason to find nothing to do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path

from dsv.errors import NotFound
from dsv.model.paths import show
from dsv.repo.trees import TreeReader


def check_paths(root: Path, base: Callable[[], TreeReader | None], paths: Iterable[bytes]) -> None:
    """Raises `NotFound` for a path that is neither on disk nor in the base, which is read only if it is needed."""
    for path in paths:
        if os.path.lexists(os.fsencode(root) + b"/" + path):
            continue
        tree = base()
        if tree is None or next(tree.below(path), None) is None:
            raise NotFound(
                f"{show(path)} is neither in {root} nor in its base",
                subject=path.decode("utf-8", "backslashreplace"),
                hint=_meant(root, path),
            )


def _meant(root: Path, path: bytes) -> str:
    if path.startswith(b"@"):
        return f"a path is wanted here; dsv ls {path.decode(errors='replace')} shows what a commit has"
    folder, _, name = path.rpartition(b"/")
    try:
        names = [one.name for one in (root / os.fsdecode(folder)).iterdir()]
    except OSError:
        names = []
    close = get_close_matches(os.fsdecode(name), names, n=1)
    if not close:
        return "dsv ls shows the paths of the base"
    return f"did you mean {Path(os.fsdecode(folder)) / close[0]}?"
