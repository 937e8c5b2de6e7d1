"""Which branches a store's commits make: what is left of its names if the place where they were kept is lost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from dsv.format.commit import Commit
from dsv.values.ids import CommitId
from dsv.values.names import MAIN, MAX_COMPONENT, BranchName, DatasetName

RECOVERED: Final = DatasetName.parse("recovered")
"""The dataset of commits that don't say theirs."""


class FoundCommit(msgspec.Struct, frozen=True):
    """A commit of the store, its dataset, and the branch that it becomes the head of, if it does."""

    id: CommitId
    commit: Commit
    dataset: DatasetName
    head_of: BranchName | None = None


def find_heads(commits: Iterable[tuple[CommitId, Commit]]) -> list[FoundCommit]:
    """Every commit, by dataset and the newest first.

    The commits that were made for one branch form lines: the newest one that no other of them has as a parent becomes
    its head, each further one that of a branch called `BRANCH-<12 digits of its id>`, unless a commit of another branch
    has it as a parent, as that leads to it. Commits of stores that are too
    old to say what they were made for count as made for the main branch of `RECOVERED`: lines of several datasets are
    branches of that one.
    """
    known = dict(commits)
    made_for: dict[tuple[DatasetName, BranchName], list[CommitId]] = {}
    for commit_id, commit in known.items():
        made_for.setdefault((_dataset(commit), commit.branch or MAIN), []).append(commit_id)
    heads: dict[CommitId, BranchName] = {}
    followed = {parent for commit in known.values() for parent in commit.parents}
    for (_, branch), ids in made_for.items():
        parents = {parent for commit_id in ids for parent in known[commit_id].parents}
        tips = sorted(
            (commit_id for commit_id in ids if commit_id not in parents), key=lambda one: _age(one, known)
        )
        for number, tip in enumerate(tips):
            if not number:
                heads[tip] = branch
            elif tip not in followed:
                heads[tip] = _further(branch, tip)
    found = [
        FoundCommit(commit_id, commit, _dataset(commit), heads.get(commit_id))
        for commit_id, commit in known.items()
    ]
    return sorted(found, key=lambda one: (str(one.dataset), *_age(one.id, known)))


def _further(branch: BranchName, tip: CommitId) -> BranchName:
    """A name for another line of a branch, as much of the branch's as there is room for."""
    end = f"-{str(tip)[:12]}"
    begin = str(branch)
    while len(begin.replace("/", "%2F")) + len(end) > MAX_COMPONENT:
        begin = begin[:-1].rstrip("/")
    return BranchName.parse(f"{begin}{end}")


def _dataset(commit: Commit) -> DatasetName:
    return RECOVERED if commit.dataset is None else commit.dataset


def _age(commit_id: CommitId, known: dict[CommitId, Commit]) -> tuple[int, str]:
    return -known[commit_id].time_ms, str(commit_id)
