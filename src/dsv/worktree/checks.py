"""What is refused as a likely mistake: a path that does not exist, and removals as a missing mount causes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable
from difflib import get_close_matches
from pathlib import Path

from dsv.errors import Conflict, NotFound
from dsv.model.path_set import folders_above
from dsv.model.paths import show
from dsv.model.progress import Progress
from dsv.model.units import format_count
from dsv.repo.trees import TreeReader
from dsv.worktree.held import count_held
from dsv.worktree.scan.folder import KEPT
from dsv.worktree.scan.workspace_scan import WorkspaceScan

# More than half of a dataset of at least this many files is never removed by accident.
MANY = 20


def check_removals(scan: WorkspaceScan, base: TreeReader | None, *, allowed: bool) -> None:
    """Raises `Conflict` if a sync would remove more than half of the files, or all of a top-level folder.

    Of a sparse workspace, what counts is the part of the dataset that it has.
    """
    if base is None or allowed or not scan.missing:
        return
    whole = scan.state.chosen.whole
    here = "" if whole else " that this workspace has"
    removed, before = len(scan.missing), base.commit.entries if whole else count_held(scan)
    if before >= MANY and removed * 2 > before:
        raise _refused(f"{removed:,} of {before:,} paths{here}", str(scan.root))
    for top in emptied(scan):
        raise _refused(f"everything{here} in {top.decode(errors='backslashreplace')}/", str(scan.root))


def note_let_go(scan: WorkspaceScan, progress: Progress) -> None:
    """Says that what went here, beside what a sparse workspace is to have, stays in the dataset."""
    if not scan.let_go:
        return
    first, others = show(scan.let_go[0]), len(scan.let_go) - 1
    more = f" and {format_count(others, 'more path')} were" if others else " was"
    progress.note(
        f"{first}{more} deleted here, and remain{'' if others else 's'} in the dataset, as the patterns of this sparse "
        "workspace don't include it: dsv rm removes files from a dataset"
    )


def emptied(scan: WorkspaceScan) -> list[bytes]:
    """Top-level folders that are in the base and missing on disk."""
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


def restorable(scan: WorkspaceScan, renamed: Container[bytes]) -> list[bytes]:
    """What is missing and not renamed, in few paths: a folder if no file is left in it. To restore these loses no local
    change.
    """
    root, tops = os.fsencode(scan.root) + b"/", set(emptied(scan))
    gone: dict[bytes, bool] = {}

    def is_gone(folder: bytes) -> bool:
        if folder not in gone:
            empty = folder in tops and scan.state.folder(folder) is not None
            gone[folder] = empty or not os.path.lexists(root + folder)
        return gone[folder]

    found: dict[bytes, None] = {}
    for path in scan.missing:
        if path in renamed:
            continue
        above = [*folders_above(path), b""]
        way = next((each for each in reversed(above[:-1]) if is_gone(each)), None)
        if way is None and scan.state.folder(above[0]) is not None and not os.path.lexists(root + path):
            way = path
        if way is not None:
            found[way] = None
    return list(found)


def _refused(what: str, root: str) -> Conflict:
    return Conflict(
        f"this sync would remove {what} from the dataset; if unintended, check the mounts in {root}",
        subject=root,
        hint="dsv status shows what is missing; dsv restore brings it back; dsv sync --allow-removals publishes the "
        "removal",
    )


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
