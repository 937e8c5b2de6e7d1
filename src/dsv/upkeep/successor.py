"""A copy of a dataset's history in a new dataset, whose commits do not list the files that were erased.

A commit's id covers its tree, so the commits of the new dataset have ids of their own. All else of a commit stays, so
making the same copy again makes the same ids: a copy that was killed is continued by making it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from dsv.errors import Conflict, NotFound
from dsv.format.records import Commit, RefEntry, Writer
from dsv.repo.expiry import read_expiry
from dsv.repo.history import KeptParents, walk
from dsv.repo.merge_indexes import tidy
from dsv.repo.refs.branches import Head, LostRace
from dsv.repo.session import Session, naming, point_branch
from dsv.repo.tree.read import TreeReader
from dsv.repo.tree.write import TreeChange, write_tree
from dsv.transfer.upload import Uploader
from dsv.values.ids import CommitId, SegmentId
from dsv.values.names import MAIN, DatasetName

if TYPE_CHECKING:
    from dsv.format.locator import Locator
    from dsv.repo.repository import Repository

ACTION = "successor"
"""The action of the first move of a branch of the new dataset."""


class Succeeded(msgspec.Struct, frozen=True):
    """The result. `paths` were left out of `commits` commits, a path once for each commit that listed it."""

    dataset: str
    commits: int
    paths: int
    branches: int
    tags: int


def _erased_in(tree: TreeReader, known: dict[SegmentId, list[bytes]]) -> list[bytes]:
    """Return the erased paths of a tree. known: those of segments that were read before."""
    erasures, leaves = tree.objects.erasures, tree.leaves()
    unread = {leaf.id: leaf for leaf in leaves if leaf.id not in known}
    read = tree.objects.segments((one, leaf.where) for one, leaf in unread.items())
    for one, found in zip(unread, read, strict=True):
        known[one] = [entry.path for entry in found.value.entries() if erasures.of(entry) is not None]
    return [path for leaf in leaves for path in known[leaf.id]]


class _History(msgspec.Struct):
    """The commits of the new dataset, by those of the old one."""

    made: dict[CommitId, CommitId] = {}
    paths: int = 0


def make_successor(
    repository: Repository, writer: Writer, dataset: DatasetName, new: DatasetName
) -> Succeeded:
    """Make a dataset with the branches, the tags and all commits of another one that are not expired, without what was
    erased.

    Raises `NotFound` if there is none, and `Conflict` if a dataset has the new name that is no such copy.
    """
    refs = repository.refs
    refs.require(dataset)
    heads = {head.branch: head.commit for head in refs.heads(dataset) if head.commit is not None}
    main = heads.pop(MAIN, None)
    if main is None:
        raise NotFound(f"{dataset}@{MAIN} has no commit", subject=str(dataset), hint=f"dsv log {dataset}")
    tags = [(name, value) for name, value in refs.names(dataset)[1]]
    after = refs.newest(new, MAIN)
    if after is None:
        refs.check_new_dataset(new)
    elif after.entry.deleted or after.entry.action != ACTION:
        raise _is_taken(new)
    starts = [main, *heads.values(), *(value.commit for _, value in tags)]
    history = _write(repository, writer, (dataset, new), starts, main, after)
    for branch, commit in sorted(heads.items()):
        if refs.newest(new, branch) is None:
            point_branch(repository, writer, (new, branch), None, history.made[commit], ACTION)
    for name, value in tags:
        if refs.tag(new, name) is None and value.commit in history.made:
            commit = history.made[value.commit]
            with naming(repository, writer, new, commit, f"tag {name}"):
                refs.set_tag(new, name, replace(value, commit=commit))
    tidy(repository, writer)
    return Succeeded(str(new), len(history.made), history.paths, len(heads) + 1, len(tags))


def _write(
    repository: Repository,
    writer: Writer,
    names: tuple[DatasetName, DatasetName],
    starts: list[CommitId],
    main: CommitId,
    after: Head | None,
) -> _History:
    """Write the commits, and make the new dataset if it is not there."""
    _, new = names
    history = _History()
    with Session.open(repository, writer) as session:
        try:
            with Uploader(session) as uploader:
                commits = list(_commits(repository, names, starts, uploader, history))
                uploader.finish()
            for commit, locator in commits:
                session.put_commit(commit, locator)
            if after is not None and after.commit != history.made[main]:
                raise _is_taken(new)
        except BaseException:
            session.close()  # nothing is named, so gc need not wait
            raise
        if after is not None:
            session.close()
            return history
        entry = RefEntry.of(writer, repository.clock(), history.made[main], ACTION)
        if isinstance(session.publish(new, MAIN, None, entry), LostRace):
            raise _is_taken(new)
    return history


def _commits(
    repository: Repository,
    names: tuple[DatasetName, DatasetName],
    starts: list[CommitId],
    uploader: Uploader,
    history: _History,
) -> Iterator[tuple[Commit, Locator | None]]:
    """Yield the new commits, each behind its parents, when their trees are written."""
    dataset, new = names
    objects = repository.objects
    expired = set(read_expiry(repository.refs, dataset).states)
    parents, known = KeptParents(objects, expired), dict[SegmentId, list[bytes]]()
    for commit_id, old in reversed(list(walk(objects, starts))):
        if commit_id in expired:
            continue
        tree = TreeReader(objects, commit_id)
        gone = _erased_in(tree, known)
        history.paths += len(gone)
        written = write_tree(uploader, tree, [TreeChange(path, None) for path in gone])
        made = replace(
            old,
            root=written.root,
            level=written.level,
            parents=tuple(dict.fromkeys(history.made[one] for one in parents.of(old))),
            files=written.files,
            bytes=written.bytes,
            entries=written.entries,
        )
        made = repository.named(made, new, old.branch or MAIN)
        history.made[commit_id] = made.id
        yield made, written.locator


def _is_taken(new: DatasetName) -> Conflict:
    return Conflict(
        f"there is a dataset {new} already, and it is not this copy",
        subject=str(new),
        hint="dsv erase DATASET --successor ANOTHER-NAME",
    )
