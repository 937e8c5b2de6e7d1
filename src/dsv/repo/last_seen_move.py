"""The move at which a workspace last met its branch: the store must still have it.

A server that lets two writers win, and settles later which of them stays, takes a move away that was read back before.
What somebody saw of a branch is the only proof of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dsv.format import keys
from dsv.repo.history import is_ancestor
from dsv.repo.refs.read import changed
from dsv.values.ids import CommitId
from dsv.values.names import BranchName, DatasetName

if TYPE_CHECKING:
    from dsv.repo.objects.objects import Objects
    from dsv.repo.refs.branches import Refs


class Remembered(msgspec.Struct, frozen=True):
    """The move of a branch with this number named this commit.

    names: the URL of the place where it was read; None if an older dsv noted it.
    """

    dataset: DatasetName
    branch: BranchName
    number: int
    commit: CommitId
    names: str | None = None


def check_remembered(refs: Refs, objects: Objects, names: str, one: Remembered | None) -> None:
    """Raises `IntegrityError` if the branch was met since, and its move is another one by now.

    names: the URL of the place where names are now. Asks nothing unless the branch has moved on. A store or names that
    were put back from a copy, or made anew, may give the number to another move: then the commit is gone, or part of
    the branch's history. A place that the names have left may have got a move that does not count, and says nothing.
    """
    if one is None or one.names not in (None, names):
        return
    head = refs.met(one.dataset, one.branch)[0]
    if head is None or head.number < one.number:
        return
    now = head.entry if head.number == one.number else refs.entry(one.dataset, one.branch, one.number)
    if now is None or now.commit == one.commit or objects.stored_commit(one.commit) is None:
        return
    if head.commit is not None and is_ancestor(objects, one.commit, head.commit):
        return
    key = keys.branch_key(one.dataset, one.branch, one.number)
    what = f"move {one.number} of branch {one.branch} of {one.dataset}, to {str(one.commit)[:12]},"
    raise changed(objects.store.url, key, what, now)
