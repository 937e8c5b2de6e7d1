"""Whether a folder that becomes a workspace has nothing but what the commit has."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dsv.errors import Conflict
from dsv.fs.descent import Descent
from dsv.model.diff import Change
from dsv.model.entry import sort_key
from dsv.model.paths import show
from dsv.model.units import format_count
from dsv.repo.find_paths import find_paths
from dsv.repo.trees import TreeReader
from dsv.worktree.baseline import Baseline
from dsv.worktree.checkout.disk import Disk
from dsv.worktree.checkout.plan import make_plan
from dsv.worktree.checkout.settle import NEVER

_SHOWN = 20


def check_equal(baseline: Baseline, tree: TreeReader, changes: Callable[[], Iterable[Change]]) -> None:
    """Raises `Conflict` with a list of all that differs from the commit, or that it does not have. Reads every file."""
    scan = baseline.scan
    if next(scan.pending(), None) is None:
        return  # an empty folder, as most are
    with Descent(scan.root) as descent:
        found = make_plan(changes(), Disk(scan, descent), NEVER).conflicts
    reasons = {
        one.path: "differs from the commit's" if reason.startswith("was added") else reason
        for one, reason in found
    }
    for path, there in find_paths(tree, (item.path for item in scan.pending())):
        if there.entry is None and not there.below:
            reasons.setdefault(path, "is not in the commit")
    if not reasons:
        return
    lines = [f"{show(path)} {reasons[path]}" for path in sorted(reasons, key=sort_key)[:_SHOWN]]
    if len(reasons) > _SHOWN:
        lines.append(f"and {len(reasons) - _SHOWN:,} more")
    raise Conflict(
        f"nothing was written, as {scan.root} has {format_count(len(reasons), 'path')} that the commit has otherwise, "
        "or not at all:" + "".join(f"\n  {line}" for line in lines),
        subject=str(scan.root),
        hint="dsv clone --keep keeps what differs as your changes, --force overwrites it; both keep what is not in the "
        "commit",
    )
