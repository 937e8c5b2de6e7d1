"""Where a branch stands, and what is told of one that can't be moved or is gone."""

from __future__ import annotations

import msgspec

from dsv.errors import Conflict, IntegrityError, NotFound
from dsv.model import keys
from dsv.model.action import RENAME, RENAMED_TO, Action
from dsv.model.ids import CommitId
from dsv.model.names import BranchName, DatasetName
from dsv.model.records import RefEntry
from dsv.model.units import rfc3339
from dsv.repo.damage import put_back


class Head(msgspec.Struct, frozen=True):
    """Where a branch stands: its newest entry, and that entry's number from 0."""

    dataset: DatasetName
    branch: BranchName
    number: int
    entry: RefEntry

    @property
    def commit(self) -> CommitId | None:
        """None before the first commit."""
        return self.entry.commit


def same_move(one: Head, other: Head) -> bool:
    """Whether both are the same move, and not two that were made in two places."""
    return one.number == other.number and one.entry.nonce == other.entry.nonce


def carried_away(after: Head) -> Conflict:
    """For a branch that was made while the names moved, by somebody who did not finish."""
    return Conflict(
        f"the names have moved, and branch {after.branch} of {after.dataset} was not there when they did",
        subject=f"{after.dataset}@{after.branch}",
        hint="run the same command again",
    )


def protected(head: Head, reason: str) -> Conflict:
    return Conflict(
        f"branch {head.branch} of {head.dataset} is protected: {reason}",
        subject=f"{head.dataset}@{head.branch}",
        hint="the same command with --force -m REASON does it all the same; dsv branch --list shows the rules",
    )


def deleted(tombstone: Head) -> NotFound:
    """For a branch that was there: who has deleted it, and what brings it back."""
    action = Action.parse(tombstone.entry.action)
    who = f"({tombstone.entry.author}, {rfc3339(tombstone.entry.time_ms)})"
    branch, dataset = tombstone.branch, tombstone.dataset
    if action.verb == RENAME and action.message:
        new = action.message.removeprefix(RENAMED_TO).partition(";")[0]
        return NotFound(
            f"branch {branch} of {dataset} was renamed to {new} {who}",
            subject=branch,
            hint=f"name it {new}; a workspace follows it after dsv switch {new}",
        )
    return NotFound(
        f"branch {branch} of {dataset} was deleted {who}",
        subject=branch,
        hint=f"dsv branch --restore {dataset}@{branch} brings it back",
    )


def gap(head: Head, number: int) -> IntegrityError:
    key = keys.branch_key(head.dataset, head.branch, number)
    return IntegrityError(
        f"branch {head.branch} of {head.dataset} lacks its entry {number}", subject=key, hint=put_back(key)
    )
