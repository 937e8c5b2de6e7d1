"""Making one commit on a branch from changes of a tree, without a workspace.

`commit_changes` does everything, from the session to the branch's next move. A writer with its own session,
or with a tree that is already written, uses `new_commit` and `publish_commit`. If the process is killed, the
branch has the whole commit, or nothing of it is visible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import cast

import msgspec
from msgspec.structs import replace

from dsv.errors import Unsupported
from dsv.format.locator import Locator
from dsv.format.records import CommitRecord, RefEntry, WriterIdentity
from dsv.repo.merge_indexes import tidy
from dsv.repo.races import publish_in_turn
from dsv.repo.refs.branches import Head, LostRace
from dsv.repo.repository import Repository
from dsv.repo.session import Session, check_whole
from dsv.repo.tree.diff import PathChange, diff_trees
from dsv.repo.tree.reader import TreeReader
from dsv.repo.tree.writer import TreeChange, WrittenTree, write_tree
from dsv.transfer.upload import Uploader
from dsv.values.ids import CommitId
from dsv.values.json import LONG_MAX
from dsv.values.names import MAIN, BranchName, DatasetName
from dsv.values.paths import link_escapes, show
from dsv.values.trailers import with_made_by


class Draft(msgspec.Struct, frozen=True):
    """The destination of a commit, and its content besides the tree."""

    dataset: DatasetName
    branch: BranchName
    after: Head | None
    """The branch's newest move, also a deletion (`Refs.newest`). None: the branch, or dataset, is new."""
    parents: tuple[CommitId, ...]
    """Empty for a first commit. The store must have each, and all of `taken_from`."""
    message: str
    action: str
    """The action in the branch's log of moves, such as `put`."""
    taken_from: tuple[CommitId, ...] = ()
    """Other commits with contents that this one uses."""
    author: str | None = None
    """The author of the content; None: the writer."""
    time_ms: int | None = None
    """When it was made; None: now."""

    @property
    def head(self) -> CommitId | None:
        """The branch's commit; None if it has none or does not exist."""
        return None if self.after is None or self.after.entry.deleted else self.after.commit


class Committed(msgspec.Struct, frozen=True):
    """A new commit, to which the branch was moved."""

    id: CommitId
    commit: CommitRecord
    head: Head
    uploaded_bytes: int = 0
    """Bytes of packs and indexes."""


class Unchanged(msgspec.Struct, frozen=True):
    """The tree is that of the only parent, so nothing was published. None: an empty tree without a parent."""

    commit: CommitId | None


def commit_changes(
    repository: Repository,
    writer: WriterIdentity,
    draft: Draft,
    base: TreeReader | None,
    changes: Callable[[Uploader], Iterable[TreeChange]],
    check: Callable[[Iterable[PathChange], Head], object] | None = None,
) -> Committed | Unchanged | LostRace:
    """Apply changes to the tree of `base` (None: an empty one), and publish the result on a branch.

    changes: called in each attempt; stores the new contents, unless an earlier attempt did, and makes the changes in
    tree order, one for each path. An entry of another commit has its location. A commit with several parents is made
    even if its tree is that of one of them.

    check: if set, the base is the branch's head or what others put there meanwhile, and no lost race is returned.
    It gets their changes and the head, which may be a deletion, and raises if `changes` can't follow them.

    Raises `Conflict` if gc has fenced this session or is removing a parent, `IntegrityError` if the store lacks a
    parent or a commit that contents are taken from, and `Unsupported` if a symlink would lead out of the dataset.
    """
    if draft.after is None and draft.branch != MAIN and not repository.refs.exists(draft.dataset):
        entry = RefEntry.of(writer, repository.clock(), None, "init")
        repository.refs.move(draft.dataset, MAIN, None, entry)  # no list has a dataset without it

    def look() -> Head | None:
        return draft.after if check is None else repository.refs.newest(draft.dataset, draft.branch)

    def rebase(head: Head | None) -> None:
        nonlocal draft, base
        if check is not None and head is not None and head != draft.after:
            draft = replace(draft, after=head)
            theirs = None if draft.head is None else TreeReader(repository.objects, draft.head)
            check(diff_trees(base, theirs), head)
            base, draft = theirs, replace(draft, parents=() if draft.head is None else (draft.head,))

    def commit() -> Committed | Unchanged | LostRace:
        built_on = {*draft.parents, *draft.taken_from, *([] if base is None else [base.commit_id])}
        repository.objects.check_stored(sorted(built_on))
        repository.refs.check_mover(draft.after, writer.author, merge=len(draft.parents) > 1)
        with Session.open(repository, writer) as session, Uploader(session) as uploader:
            for commit_id in sorted(built_on - {draft.head}):  # the branch protects its own from gc
                check_whole(session, draft.dataset, commit_id)
            made = changes(uploader)
            rebase(look())
            tree = write_tree(uploader, base, made)
            uploader.finish()  # contents that were lost, or only referred to, may be stored now
            newest = look()  # what follows is stored only if the way is still free
            done = (
                _publish_tree(session, draft, tree)
                if newest is None or newest == draft.after
                else LostRace(newest)
            )
        if isinstance(done, LostRace):
            rebase(done.winner)  # which reports a conflict at once
        elif isinstance(done, Committed):
            tidy(repository, writer)
            done = replace(done, uploaded_bytes=uploader.uploaded_bytes)
        return done

    return commit() if check is None else cast("Committed | Unchanged", publish_in_turn(commit))


def _publish_tree(session: Session, draft: Draft, tree: WrittenTree) -> Committed | Unchanged | LostRace:
    repository, writer = session.repository, session.writer
    if _same_as_parent(repository, draft, tree):
        return Unchanged(draft.parents[0] if draft.parents else None)
    commit = new_commit(repository, writer, draft, tree)
    if tree.links_moved:
        _check_links(TreeReader(repository.objects, session.put_commit(commit, tree.locator)), draft)
    return publish_commit(session, writer, draft, commit, tree.locator, is_stored=tree.links_moved)


def new_commit(
    repository: Repository, writer: WriterIdentity, draft: Draft, tree: WrittenTree | CommitRecord
) -> CommitRecord:
    """Return the commit, for a caller that needs its id before it is published. In a job its message names the run."""
    job = repository.made_by()
    message = draft.message if job is None else with_made_by(draft.message, job.run)
    commit = CommitRecord(
        root=tree.root,
        level=tree.level,
        parents=draft.parents,
        author=writer.author if draft.author is None else draft.author,
        time_ms=repository.clock() if draft.time_ms is None else draft.time_ms,
        message=message if len(message) <= LONG_MAX else draft.message,
        files=tree.files,
        bytes=tree.bytes,
        entries=tree.entries,
    )
    return repository.named(commit, draft.dataset, draft.branch)


def publish_commit(
    session: Session,
    writer: WriterIdentity,
    draft: Draft,
    commit: CommitRecord,
    locator: Locator | None,
    before_ref: Callable[[], None] = lambda: None,
    *,
    is_stored: bool = False,
) -> Committed | LostRace:
    """Store a commit of a stored tree, unless `is_stored`; move the branch. before_ref: `Session.publish`."""
    commit_id = commit.id
    entry = RefEntry.of(writer, session.repository.clock(), commit_id, draft.action)
    put_commit = (lambda: None) if is_stored else partial(session.put_commit, commit, locator)
    moved = session.publish(draft.dataset, draft.branch, draft.after, entry, before_ref, put_commit)
    if not isinstance(moved, Head):
        return moved
    if (job := session.repository.made_by()) is not None:
        from dsv.repo.job_notes import NotedCommit

        job.note("made", NotedCommit(draft.dataset, commit_id, commit.root))
    return Committed(commit_id, commit, moved)


def _same_as_parent(repository: Repository, draft: Draft, tree: WrittenTree) -> bool:
    if not draft.parents:
        return not tree.entries
    return len(draft.parents) == 1 and repository.objects.commit(draft.parents[0]).root == tree.root


def _check_links(tree: TreeReader, draft: Draft) -> None:
    """Raises `Unsupported` for a symlink that leads out, also by others: all are read if any was changed."""
    escaping = link_escapes(tree.links())
    if escaping:
        more = f", and {len(escaping) - 1:,} more" if len(escaping) > 1 else ""
        raise Unsupported(
            f"the symlink {show(escaping[0])} would lead out of dataset {draft.dataset}{more}; nothing was published",
            subject=escaping[0].decode("utf-8", "backslashreplace"),
            hint="leave the symlink out, or change or remove it too",
        )
