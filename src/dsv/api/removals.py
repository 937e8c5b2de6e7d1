"""A mount that is missing must not empty a dataset."""

from __future__ import annotations

from dsv.errors import Conflict
from dsv.repo.trees import TreeReader
from dsv.worktree.folder import KEPT
from dsv.worktree.workspace_scan import WorkspaceScan

# More than half of a dataset of at least this many files is never removed by accident.
MANY = 20


def check_removals(scan: WorkspaceScan, base: TreeReader | None, *, allowed: bool) -> None:
    """Raises `Conflict` if a sync would remove more than half of the files, or all of a top-level folder."""
    if base is None or allowed or not scan.missing:
        return
    removed, before = len(scan.missing), base.commit.entries
    if before >= MANY and removed * 2 > before:
        raise _refused(f"{removed:,} of {before:,} paths", str(scan.root))
    for top in emptied(scan):
        raise _refused(f"everything in {top.decode(errors='backslashreplace')}/", str(scan.root))


def emptied(scan: WorkspaceScan) -> list[bytes]:
    """Top-level folders of which the base has something and the disk nothing any more."""
    tops = {path.split(b"/", 1)[0] for path in scan.missing if b"/" in path}
    if not tops:
        return []
    for path in scan.state.paths():
        top = path.split(b"/", 1)[0]
        if top in tops:
            folder = scan.state.folder(path)
            if folder is not None and any(folder.kinds.find(kind) >= 0 for kind in KEPT):
                tops.discard(top)
    return sorted(tops)


def _refused(what: str, root: str) -> Conflict:
    return Conflict(
        f"this sync would remove {what} from the dataset; if that is not meant, something in {root} is not mounted",
        subject=root,
        hint="dsv status shows what is missing; dsv sync --allow-removals removes it",
    )
