"""Protected branches: what their rules refuse. `Refs.move` asks this of every move, so that no command can forget it.

Rules are advice: every dsv keeps to them, and a store does not know them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsv.repo.history import is_ancestor
from dsv.repo.refs.branches import refused_mover, refused_removals
from dsv.repo.tree.diff import diff_trees
from dsv.repo.tree.read import TreeReader

if TYPE_CHECKING:
    from dsv.format.commit import Commit
    from dsv.format.records import Limits, RefEntry
    from dsv.repo.objects.objects import Objects
    from dsv.values.ids import CommitId


def refused_move(
    objects: Objects, limits: Limits, before: CommitId | None, entry: RefEntry, merge: bool
) -> str | None:
    """Return why the branch may not go from `before` to what the entry names; None if it may. merge: a merge does
    it."""
    if entry.commit == before and not entry.deleted:
        return None  # it stays where it is, as when its rule is changed
    commit = None if entry.commit is None else objects.commit(entry.commit)
    merge = merge or (commit is not None and len(commit.parents) > 1)
    refused = refused_mover(limits, entry.author, merge=merge)
    if refused is not None:
        return refused
    if entry.deleted:
        return "it is neither deleted nor renamed"
    if before is None or commit is None or entry.commit is None:
        return None
    if not _goes_forward(objects, before, entry.commit, commit):
        return f"{str(before)[:12]}, its head, would not be part of its history any more"
    return _removals(objects, limits, before, entry.commit)


def _goes_forward(objects: Objects, before: CommitId, commit_id: CommitId, commit: Commit) -> bool:
    """A head that the store has lost holds nobody back."""
    if before in commit.parents or objects.stored_commit(before) is None:
        return True
    return is_ancestor(objects, before, commit_id)


def _removals(objects: Objects, limits: Limits, before: CommitId, after: CommitId) -> str | None:
    if limits.max_removals is None or objects.stored_commit(before) is None:
        return None
    old = TreeReader(objects, before)
    removed = sum(change.after is None for change in diff_trees(old, TreeReader(objects, after)))
    return refused_removals(limits, removed, old.commit.entries)
