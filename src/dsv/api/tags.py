"""Tags: names that never move."""

from __future__ import annotations

from dataclasses import dataclass

from dsv.api.context import Context
from dsv.errors import Conflict
from dsv.format.records import TagDeleted, TagValue
from dsv.repo.session import naming
from dsv.values.ids import CommitId, Nonce
from dsv.values.names import DatasetName, TagName, Target


@dataclass(frozen=True, slots=True)
class TagItem:
    """A tag of a dataset and the commit that it names."""

    dataset: DatasetName
    tag: TagName
    commit: CommitId
    author: str
    time_ms: int
    message: str


def tags(context: Context, dataset: DatasetName | None) -> list[TagItem]:
    """Return all tags of a dataset (None: the workspace's), by name."""
    with context.repository() as repository:
        name = dataset or context.workspace().dataset
        repository.refs.require(name)
        return [_item(name, tag, value) for tag, value in repository.refs.tags(name)]


def tag(context: Context, name: TagName, target: Target, message: str = "") -> TagItem:
    """Name the commit that `target` means. Raises `Conflict` where the name means something else."""
    with context.repository(target) as repository:
        resolved = context.resolve(repository, target)
        repository.refs.check_new_tag(resolved.dataset, name)
        value = TagValue(
            commit=resolved.commit,
            nonce=Nonce.random(),
            time_ms=context.clock(),
            author=context.writer.author,
            message=message,
        )
        with naming(repository, context.writer, resolved.dataset, resolved.commit, f"tag {name}"):
            made = repository.refs.set_tag(resolved.dataset, name, value)
        repository.refs.check_not_gone(resolved.dataset, f"tag {name} was made")
        return _item(resolved.dataset, name, made)


def delete_tag(
    context: Context, dataset: DatasetName | None, name: TagName, message: str = "", *, force: bool = False
) -> TagItem:
    """Delete a tag for good, and return what it was: its name is never used again, not even for the same commit.

    Raises `NotFound`, and `Conflict` unless `force`, as nothing undoes this.
    """
    with context.repository() as repository:
        repository.format.check(repository.store.url, writing=True)
        where = dataset or context.workspace().dataset
        value = repository.refs.tag(where, name)
        if value is None:
            repository.refs.require(where)
            raise repository.refs.no_name(where, name, "tag")
        if not force:
            raise Conflict(
                f"nothing brings a deleted tag back, and its name is never used again; tag {name} of {where} names "
                f"{str(value.commit)[:12]}",
                subject=name,
                hint=f"dsv tag --delete {name} {where} --force deletes it",
            )
        record = TagDeleted(
            nonce=Nonce.random(), time_ms=context.clock(), author=context.writer.author, message=message
        )
        repository.refs.delete_tag(where, name, record)
        repository.refs.check_not_gone(where, f"tag {name} was deleted")
        return _item(where, name, value)


def _item(dataset: DatasetName, name: TagName, value: TagValue) -> TagItem:
    return TagItem(dataset, name, value.commit, value.author, value.time_ms, value.message)
