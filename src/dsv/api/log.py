"""Show history: the commits of a branch, the changes of one file, and the moves of a branch."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, count, islice, pairwise
from typing import TYPE_CHECKING

import msgspec

from dsv.api.branches import BranchPath, dataset_of
from dsv.api.context import Context, check_binding
from dsv.errors import NotFound
from dsv.format.records import Action, CommitRecord, RefEntry, TagValue
from dsv.repo import history
from dsv.repo.expiry import ExpiryState, check_not_expired, read_expiry
from dsv.repo.history import Commits, KeptParents, PathHistory
from dsv.repo.resolve import Resolved
from dsv.stores.base import together
from dsv.values.ids import CommitId
from dsv.values.names import BranchName, DatasetName, Rev, TagName, Target
from dsv.values.paths import WHOLE, PathSet, Scope, show
from dsv.values.units import format_count

if TYPE_CHECKING:
    from dsv.diff.paths import Difference, PathDifferences
    from dsv.format.tree import Entry
    from dsv.repo.objects.objects import Objects
    from dsv.repo.refs.branches import Head
    from dsv.repo.repository import Repository
    from dsv.repo.tree.reader import TreeReader


Walked = tuple[CommitId, tuple[CommitId, ...], bool]
"""A commit of a walk, its parents, and whether it is shown."""


def shown_parents(walked: Sequence[Walked]) -> dict[CommitId, tuple[CommitId, ...]]:
    """Return the nearest shown ancestors of each shown commit, without ancestors of other ones.

    walked: children precede their parents. Parents not in it are left out.
    """
    places = {commit_id: at for at, (commit_id, _, _) in enumerate(walked)}
    nearest: dict[CommitId, tuple[CommitId, ...]] = {}
    above: dict[CommitId, tuple[CommitId, ...]] = {}  # of commits that are not shown
    for commit_id, parents, is_shown in reversed(walked):
        found: dict[CommitId, None] = {}
        for parent in parents:
            found.update(dict.fromkeys((parent,) if parent in nearest else above.get(parent, ())))
        (nearest if is_shown else above)[commit_id] = _without_ancestors(tuple(found), nearest, places)
    return nearest


def _without_ancestors(
    commits: tuple[CommitId, ...], parents: dict[CommitId, tuple[CommitId, ...]], places: dict[CommitId, int]
) -> tuple[CommitId, ...]:
    """Return the commits that are not ancestors of another commit in the list."""
    if len(commits) < 2:
        return commits
    left = set(commits)
    last = max(places[one] for one in commits)
    waiting = [
        (places[parent], parent) for one in commits for parent in parents[one] if places[parent] <= last
    ]
    heapq.heapify(waiting)
    seen: set[CommitId] = set()
    while waiting and len(left) > 1:
        _, one = heapq.heappop(waiting)
        if one in seen:
            continue
        seen.add(one)
        left.discard(one)
        for parent in parents[one]:
            if places[parent] <= last:
                heapq.heappush(waiting, (places[parent], parent))
    return tuple(one for one in commits if one in left)


def follow(objects: Objects, start: CommitId, path: bytes, kept: KeptParents) -> Iterator[LogItem]:
    """Yield the commits that changed the file at this path, newest first, back to the commit that added it.

    At a merge, follow the parent whose file it took, else the first parent that has it. Freed commits are
    skipped. Raises `NotFound` if the commit has no such file.
    """
    from dsv.repo.tree.reader import TreeReader

    entry = TreeReader(objects, start).entry(path)
    if entry is None:
        raise NotFound(
            f"{show(path)} is not a file of {str(start)[:12]}",
            subject=path.decode("utf-8", "backslashreplace"),
            hint=f"dsv ls @{str(start)[:12]} lists its files",
        )
    now: Entry | None = entry[0]
    commit_id, commit = start, objects.commit(start)
    looked = PathHistory(objects, PathSet.of([path]), kept.freed)
    found_content = False
    while now is not None:
        parents = [(parent, objects.commit(parent)) for parent in kept.of(commit)]
        same = next((one for one in parents if not looked.differs(one[0], commit_id)), None)
        if same is not None:
            commit_id, commit = same
            continue
        step = _step(objects, commit_id, [parent for parent, _ in parents], now)
        made_content = step.before is None or step.content_changed
        present = made_content and not found_content
        yield LogItem(commit_id, commit, difference=step, present=present)
        found_content = found_content or made_content
        if step.before is None:
            return
        if step.before.path != now.path:
            looked = PathHistory(objects, PathSet.of([step.before.path]), kept.freed)
        now = step.before
        commit_id, commit = next(
            one for one in parents if len(parents) == 1 or TreeReader(objects, one[0]).entry(now.path)
        )


def _step(objects: Objects, commit_id: CommitId, before: list[CommitId], now: Entry) -> Difference:
    """Return what a commit changed in the file, compared with the first parent that has it."""
    from dsv.diff.paths import Difference
    from dsv.repo.tree.diff import What
    from dsv.repo.tree.reader import TreeReader

    after = TreeReader(objects, commit_id)
    parents = [TreeReader(objects, parent) for parent in before]
    for parent in parents:
        if parent.entry(now.path) is not None:
            return changes_between(objects, parent, after, PathSet.of([now.path])).differences[0]
    for parent in parents:
        differences = changes_between(objects, parent, after, WHOLE).differences
        renamed = next((difference for difference in differences if difference.path == now.path), None)
        if renamed is not None and renamed.what is What.RENAMED:
            return renamed
    return Difference(What.ADDED, None, now)


_LATE = 5
"""More consecutive commits before `since` than this end the walk: clocks differ a little."""
LogEntry = tuple[CommitId, CommitRecord]
Chosen = tuple[CommitId, CommitRecord, bool]


class LogItem(msgspec.Struct, frozen=True):
    """A commit of a history, with the branches and tags that name it now."""

    id: CommitId
    commit: CommitRecord
    names: tuple[str, ...] = ()
    above: tuple[CommitId, ...] = ()
    """Its parents, or in a graph of selected commits its nearest ancestors among them."""
    found: PathDifferences | None = None
    """The change from the first parent, if requested."""
    difference: Difference | None = None
    """The change of the file whose history is shown."""
    present: bool = False
    """The file's content is unchanged since this commit, under any name."""
    expired: ExpiryState | None = None


class LogQuery(msgspec.Struct, frozen=True):
    """Which commits of a history to return, and what to return of each."""

    limit: int | None = None
    paths: tuple[bytes, ...] = ()
    """Only commits that changed something at these paths of the dataset."""
    since_ms: float | None = None
    until_ms: float | None = None
    filters: Sequence[Callable[[CommitRecord], bool]] = ()
    """Only commits for which each of these is true."""
    first_parent: bool = False
    stat: bool = False
    """Also return the change of each commit."""
    follow: bytes | None = None
    """Only commits that changed this file, under all names that it had."""
    graph: bool = False
    """Return each commit's nearest ancestors, to draw lines. Unless every commit fits, all are read first."""

    @property
    def takes_all(self) -> bool:
        asked = (self.since_ms, self.until_ms, self.follow)
        return not self.paths and not self.filters and all(value is None for value in asked)

    def fits(self, commit: CommitRecord) -> bool:
        return (
            (self.since_ms is None or commit.time_ms >= self.since_ms)
            and (self.until_ms is None or commit.time_ms <= self.until_ms)
            and all(fits(commit) for fits in self.filters)
        )


@contextmanager
def log(context: Context, target: Target, query: LogQuery | None = None) -> Iterator[Iterator[LogItem]]:
    """Open the commit that `target` means and its ancestors, newest first, and children before their parents.

    In a workspace, an empty target means the head of its branch. Raises `NotFound` for a path in none of them.
    """
    query = query or LogQuery()
    here = context.workspace_or_none() if target.dataset is None and target.rev is None else None
    # Without the store it is the workspace's store that counts, which a dataset's name alone does not say.
    wanted = target if here is None or context.offline else Target(here.dataset, Rev(here.branch))
    with context.repository(wanted) as repository:
        followed = None
        if here is not None:
            check_binding(here, repository)
            followed = repository.refs.head_or_none(here.dataset, here.branch)
        if followed is not None and followed.commit is not None:
            start = Resolved(followed.dataset, followed.commit, followed.branch)
        else:
            start = context.resolve(repository, target, expired_too=True)
        dataset = start.dataset
        heads, tags = repository.refs.names(dataset)
        names = names_by_commit(heads, tags)
        expired = read_expiry(repository.refs, dataset).states
        repository.objects.expect_walk(start.commit, query.limit if query.takes_all else None)
        kept = KeptParents(repository.objects, {commit for commit, state in expired.items() if state.freed})
        if query.follow is not None and start.commit in kept.freed:
            check_not_expired(repository.refs, dataset, start.commit)

        def items() -> Iterator[LogItem]:
            for item in _items(repository.objects, start.commit, query, kept):
                state = expired.get(item.id)
                has_trees = state is None or not state.freed
                scope = PathSet.of(query.paths)
                change = _change(repository, item, kept, scope) if query.stat and has_trees else None
                yield msgspec.structs.replace(
                    item, names=tuple(names.get(item.id, ())), found=change, expired=state
                )
            if kept.passed:
                passed = format_count(len(kept.passed), "expired commit")
                context.progress.note(
                    f"gc has removed the content of {passed} on the way: what changed there shows as a change of the "
                    "next commit that is left"
                )

        yield items()


def _items(objects: Objects, start: CommitId, query: LogQuery, kept: KeptParents) -> Iterator[LogItem]:
    if query.follow is not None:
        made = follow(objects, start, query.follow, kept)
        return islice((one for one in made if query.fits(one.commit)), query.limit)
    walked = _line(objects, start) if query.first_parent else history.walk(objects, [start])
    chosen = _chosen(objects, _until_too_old(walked, query.since_ms), query, kept)
    if query.graph and not query.takes_all:
        return _graph(chosen, query)
    items = (LogItem(one, commit, above=_parents(commit, query)) for one, commit, fits in chosen if fits)
    return islice(items, query.limit)


def _parents(commit: CommitRecord, query: LogQuery) -> tuple[CommitId, ...]:
    return commit.parents[:1] if query.first_parent else commit.parents


def _graph(chosen: Iterable[Chosen], query: LogQuery) -> Iterator[LogItem]:
    walked, fitting = list[Walked](), list[tuple[CommitId, CommitRecord]]()
    for commit_id, commit, fits in chosen:
        walked.append((commit_id, _parents(commit, query), fits))
        if fits:
            fitting.append((commit_id, commit))
            if len(fitting) == query.limit:
                break
    above = shown_parents(walked)
    for commit_id, commit in fitting:
        yield LogItem(commit_id, commit, above=above[commit_id])


def _line(commits: Commits, start: CommitId) -> Iterator[LogEntry]:
    current: CommitId | None = start
    while current is not None:
        commit = commits.commit(current)
        yield current, commit
        current = commit.parents[0] if commit.parents else None


def _until_too_old(walked: Iterable[LogEntry], since_ms: float | None) -> Iterator[LogEntry]:
    late = 0
    for commit_id, commit in walked:
        late = late + 1 if since_ms is not None and commit.time_ms < since_ms else 0
        if late > _LATE:
            return
        yield commit_id, commit


def _chosen(
    objects: Objects, walked: Iterable[LogEntry], query: LogQuery, kept: KeptParents
) -> Iterator[Chosen]:
    """Yield each commit of the walk, and whether it fits. If paths are given, freed commits never fit."""
    if not query.paths:
        for commit_id, commit in walked:
            yield commit_id, commit, query.fits(commit)
        return
    looked = PathHistory(objects, PathSet.of(query.paths), kept.freed)
    any_change = False
    for one in walked:
        touches = _touches(looked, one, query, kept)
        any_change = any_change or touches
        yield *one, touches and query.fits(one[1])
    if not any_change and query.since_ms is None and query.until_ms is None:
        which = "no commit that gc has left" if kept.passed else "no commit"
        raise NotFound(
            f"{which} has {' or '.join(map(show, query.paths))}",
            subject=query.paths[0].decode("utf-8", "backslashreplace"),
            hint="dsv ls TARGET lists the paths of a commit",
        )


def _touches(looked: PathHistory, one: LogEntry, query: LogQuery, kept: KeptParents) -> bool:
    """Return whether a commit differs from every parent at the paths; a merge that took one side does not."""
    commit_id, commit = one
    if commit_id in kept.freed:
        kept.passed.add(commit_id)
        return False
    parents = kept.of(commit, first_only=query.first_parent)
    if not parents:
        return looked.differs(None, commit_id)
    return all(looked.differs(parent, commit_id) for parent in parents)


def _change(repository: Repository, item: LogItem, kept: KeptParents, scope: PathSet) -> PathDifferences:
    from dsv.repo.tree.reader import TreeReader

    objects = repository.objects
    parent = next(iter(kept.of(item.commit, first_only=True)), None)
    before = None if parent is None else TreeReader(objects, parent)
    return changes_between(objects, before, TreeReader(objects, item.id), scope)


def changes_between(
    objects: Objects, before: TreeReader | None, after: TreeReader | None, scope: Scope
) -> PathDifferences:
    """Return the differences of two trees (None: an empty tree), including renamed files."""
    from dsv.diff.paths import differences, find_renames
    from dsv.repo.objects.recipes import read_chunks
    from dsv.repo.tree.diff import diff_trees

    return find_renames(differences(diff_trees(before, after, scope)), partial(read_chunks, objects))


def names_by_commit(
    heads: Iterable[Head], tags: Iterable[tuple[TagName, TagValue]]
) -> dict[CommitId, list[str]]:
    """Return the branches and tags that name each commit now."""
    found: dict[CommitId, list[str]] = {}
    for head in heads:
        if head.commit is not None:
            found.setdefault(head.commit, []).append(str(head.branch))
    for tag, value in tags:
        found.setdefault(value.commit, []).append(str(tag))
    return found


_MOVES_AT_ONCE = 64


class MoveItem(msgspec.Struct, frozen=True):
    dataset: DatasetName
    branch: BranchName
    number: int
    """Counts from 0."""
    commit: CommitId | None
    """The branch's commit after the move, if any."""
    before: CommitId | None
    """The branch's commit before the move, if any."""
    deleted: bool
    author: str
    time_ms: int
    action: str
    forced: bool
    """The move overrode the rule of a protected branch."""
    message: str
    """The message of the move, or else of its commit."""


@contextmanager
def reflog(
    context: Context, name: BranchPath | None = None, limit: int | None = None
) -> Iterator[Iterator[MoveItem]]:
    """Open the moves of a branch (None: the workspace's), newest first; also if it is deleted.

    Reads `limit` moves and the one before them, several at a time. Raises `NotFound` if it never existed.
    """
    with context.repository() as repository:
        path = name or BranchPath(None, context.workspace().branch)
        dataset = dataset_of(context, repository, path.dataset)
        newest = repository.refs.newest(dataset, path.branch) or repository.refs.head(dataset, path.branch)
        entries = repository.refs.history(newest, None if limit is None else limit + 1)
        pairs = pairwise(chain(entries, (None,)))
        yield _move_items(repository, newest, islice(zip(count(newest.number, -1), pairs), limit))


def _move_items(
    repository: Repository, newest: Head, moves: Iterator[tuple[int, tuple[RefEntry | None, RefEntry | None]]]
) -> Iterator[MoveItem]:
    """moves: each with its number and the move before it."""
    while batch := [(at, now, before) for at, (now, before) in islice(moves, _MOVES_AT_ONCE) if now]:
        messages = together([partial(_message, repository, entry) for _, entry, _ in batch])
        for (number, entry, before), message in zip(batch, messages, strict=True):
            action = Action.parse(entry.action)
            yield MoveItem(
                newest.dataset, newest.branch, number, entry.commit, None if before is None else before.commit,
                entry.deleted, entry.author, entry.time_ms, action.verb, action.forced, message,
            )  # fmt: skip


def _message(repository: Repository, entry: RefEntry) -> str:
    message = Action.parse(entry.action).message
    if message or entry.commit is None:
        return message
    commit = repository.objects.commit_or_none(entry.commit)
    return "" if commit is None else commit.message
