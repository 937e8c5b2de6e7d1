"""What a workspace may build on: its base, if the store has it, else the nearest ancestor that the store has.

A store that was put back from a backup lacks the commits that were made since, and a workspace still has local copies
of them. Whatever is published, removed or overwritten on the strength of the base is therefore decided by what the
store itself answers.
"""

from __future__ import annotations

from dsv.model.ids import CommitId
from dsv.repo.objects import Objects


def standing(objects: Objects, base: CommitId | None) -> CommitId | None:
    """The base, or its nearest ancestor by first parents, that the store has; None if it has none of them."""
    while base is not None and objects.stored_commit(base) is None:
        lost = objects.local_commit(base)
        base = lost.parents[0] if lost is not None and lost.parents else None
    return base
