"""What a new name of a dataset may not be."""

from __future__ import annotations

from dsv.errors import Conflict
from dsv.model.names import BranchName, DatasetName, TagName
from dsv.repo.repository import Repository


def check_new_branch(repository: Repository, dataset: DatasetName, name: BranchName) -> None:
    """Raises `Conflict` where a tag has the name, or another name differs from it in case only."""
    if repository.refs.tag(dataset, TagName.parse(name)) is not None:
        raise Conflict(f"{dataset} has a tag {name}, so a branch can't have that name", subject=name)
    _check_case(repository, dataset, name)


def check_new_tag(repository: Repository, dataset: DatasetName, name: TagName) -> None:
    """Raises `Conflict` where a branch has the name, or another name differs from it in case only."""
    if repository.refs.head_or_none(dataset, BranchName.parse(name)) is not None:
        raise Conflict(f"{dataset} has a branch {name}, so a tag can't have that name", subject=name)
    _check_case(repository, dataset, name)


def _check_case(repository: Repository, dataset: DatasetName, name: str) -> None:
    heads, tags = repository.refs.names(dataset)
    for other in [*(str(head.branch) for head in heads), *(str(tag) for tag, _ in tags)]:
        if other != name and other.casefold() == name.casefold():
            raise Conflict(f"{dataset} has {other}, and names may not differ in case only", subject=name)
