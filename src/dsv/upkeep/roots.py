"""The commits that names in a store lead to, from listings that are checked to be complete."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec
from blake3 import blake3

from dsv.errors import UPGRADE, DsvError, IntegrityError, Unsupported, UsageError
from dsv.files.small_files import replace_file
from dsv.format import keys
from dsv.format.records import SessionVerdict
from dsv.repo.errors import broken, read_record
from dsv.repo.expiry import read_expiry
from dsv.repo.objects.objects import Objects
from dsv.repo.refs.branches import is_deleted_dataset
from dsv.repo.repository import Repository
from dsv.stores.base import ListedObject, StoreBackend, ask_each, batches, if_there, parsed, together
from dsv.values.ids import CommitId, IndexId, Nonce, SessionId
from dsv.values.names import MAIN, BranchName, DatasetName, TagName

Freed = Callable[[DatasetName], Collection[CommitId]]
"""Returns the commits of a dataset whose content may be removed, though a branch or run names them."""
Named = list[tuple[DatasetName | None, CommitId]]

_ROUNDS = 3
"""Attempts to list the names until all listings agree: another command may write a name in between."""
_AT_ONCE = 128
"""Records and commits that are asked for together."""
_RUN_MAX = 32 << 20
_RUN_PART = re.compile(r"record|start(-[0-9]+)?", re.ASCII)
_FIRST = (
    *("branches/main/ffffffffffffffff", "main/ffffffffffffffff", "ffffffffffffffff"),
    *("value", "start", "open"),
)
"""The key, below its folder, that every dataset, branch, tag, run and session has."""


T = TypeVar("T")
Parts = TypeVar("Parts", bound=tuple[object, ...])


class Known(dict[str, Named]):
    """The commits that moves, tags and run records name, by their keys. These records never change, so a
    second look reads only new ones."""

    def __init__(self) -> None:
        super().__init__()
        self.nonces: dict[str, Nonce] = {}
        """The nonces of moves, by their keys."""


class IncompleteListing(IntegrityError):
    """Listings of a store contradict each other, or lack a key that is known to exist."""


class Name(NamedTuple):
    """Something that names a commit of a dataset."""

    dataset: DatasetName | None
    """None for a session with an old commit, which does not name its dataset."""
    commit: CommitId
    why: str
    """Such as `scans@main`, `tag scans@v1`, `run 20261120-132145-1f2e3d4c`, `session 1f2e…`."""
    branch: BranchName | None = None
    """The branch of which this is a move."""
    holds: bool = True
    """Rules do not expire the commit: the head of a branch, a tag of a dataset that is not deleted, or a
    session at work. A freed commit is no root even so."""


def read_roots(
    repository: Repository,
    freed: Freed | None = None,
    known: Known | None = None,
    following: list[CommitId] | None = None,
    holding: list[CommitId] | None = None,
) -> list[CommitId]:
    """Return every named commit with all its ancestors, except freed ones.

    Names are all moves of all branches, including deleted ones, all tags and run records, and the verdicts of
    sessions that are not closed. freed: None for the expiry logs. known: what this process has read before;
    new records are added. following: gets the commits that no name leads to and whose parent is the head of
    their branch: a sync was interrupted, or the move to it is lost. holding: gets the heads and tags.

    Raises `IntegrityError` if a listing or the moves of a branch have a gap (`IncompleteListing`), or a
    record can't be read: an error never counts as absence. Sessions are listed first, so a commit that is
    published at the same time is found by its session or by its branch.
    """

    def look() -> list[CommitId]:
        names = read_names(repository, known=known)
        parents = Parents(repository.objects)
        commits = kept(parents, names, freed or (lambda dataset: read_expiry(repository.refs, dataset).freed))
        others = _check_commits(repository, parents.known, names)
        if following is not None:
            following[:] = others
        if holding is not None:
            holding[:] = dict.fromkeys(name.commit for name in names if name.holds)
        return commits

    return _until_complete(look)


def read_names(
    repository: Repository, only: DatasetName | None = None, known: Known | None = None
) -> list[Name]:
    """Return everything that names a commit, as for `read_roots`, the moves of a branch from the last one on.
    only: a dataset, whose names are returned, without sessions."""
    found = list(names_of_sessions(repository)) if only is None else []
    found += names_of_refs(repository, only, known)
    found += names_of_runs(repository, only, known)
    return found


def kept(parents: Parents, names: Iterable[Name], freed: Freed = lambda _: ()) -> list[CommitId]:
    """Return the commits of these names and their ancestors, each once, without those in `freed`."""
    by_dataset: dict[DatasetName | None, list[CommitId]] = {}
    for name in names:
        by_dataset.setdefault(name.dataset, []).append(name.commit)
    commits: dict[CommitId, None] = {}
    for dataset, some in by_dataset.items():
        gone = frozenset() if dataset is None else frozenset(freed(dataset))
        commits.update((commit_id, None) for commit_id in parents.walk(some, set()) if commit_id not in gone)
    return list(commits)


class Parents:
    """The parents of commits, each read once."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.known: dict[CommitId, tuple[CommitId, ...]] = {}

    def walk(self, starts: Iterable[CommitId], seen: set[CommitId]) -> Iterator[CommitId]:
        """Yield these commits and their ancestors, except those in `seen`, and add them to it."""
        waiting = [commit for commit in dict.fromkeys(starts) if commit not in seen]
        while waiting:
            seen.update(waiting)
            read = ask_each(self._objects.commit, [commit for commit in waiting if commit not in self.known])
            self.known.update((commit, record.parents) for commit, record in read)
            yield from waiting
            above = dict.fromkeys(parent for commit in waiting for parent in self.known[commit])
            waiting = [commit for commit in above if commit not in seen]


def list_all(store: StoreBackend, prefix: str, depth: int = 0) -> list[ListedObject]:
    """Return a listing. Raises `IncompleteListing` where other listings show that it was cut short.

    No key may follow its last one, and the folders below the prefix, down to this depth, must be those of its
    keys. Others may write in between, so differing listings are made again.
    """
    return _until_complete(partial(_list_all, store, prefix, depth))


def _until_complete(look: Callable[[], T]) -> T:
    for _ in range(_ROUNDS - 1):
        try:
            return look()
        except IncompleteListing:
            continue
    return look()


def _list_all(store: StoreBackend, prefix: str, depth: int) -> list[ListedObject]:
    found = list(store.list(prefix))
    last = max((item.key for item in found), default=None)
    further = next(iter(store.list(prefix, last)), None)
    if further is not None:
        raise cut_short(store, prefix, f"it lacked {further.key}")
    folders: dict[str, set[str]] = {prefix: set()} if depth else {}
    for item in found:
        parts = item.key[len(prefix) :].split("/")
        for level in range(min(depth, len(parts) - 1)):
            above = prefix + "".join(f"{part}/" for part in parts[:level])
            folders.setdefault(above, set()).add(parts[level])
    together([partial(_check_folders, store, above, known) for above, known in folders.items()])
    return found


def _check_folders(store: StoreBackend, above: str, known: set[str]) -> None:
    named = set(store.folders(above))
    lacking = min(known - named, default=None)
    if lacking is not None:
        raise cut_short(store, above, f"it lacked the folder {lacking}, which has keys")
    for extra in sorted(named - known):  # a folder on a disk may be empty
        below = f"{above}{extra}/"
        if next(iter(store.list(below)), None) is not None or any(
            _exists(store, below + one) for one in _FIRST
        ):
            raise cut_short(store, above, f"it lacked all keys of {below}")


def _exists(store: StoreBackend, key: str) -> bool:
    return if_there(partial(store.get, key, _RUN_MAX)) is not None


def cut_short(store: StoreBackend, prefix: str, what: str) -> IncompleteListing:
    """Return the error for a listing that contradicts another one."""
    return IncompleteListing(
        f"a listing of {prefix} in {store.url} is not complete: {what}",
        subject=prefix,
        hint="run the same command again; if it stays so, look at the store's own tools",
    )


def _read(
    known: Known, key: Callable[..., str], read: Callable[..., Named], wanted: Iterable[Parts]
) -> Iterator[tuple[Parts, Named]]:
    """Yield the parts of each record's key with what the record names. Unknown records are read together."""
    for some in batches(wanted, _AT_ONCE):
        new = [parts for parts in some if key(*parts) not in known]
        known.update((key(*parts), named) for parts, named in ask_each(lambda parts: read(*parts), new))
        yield from ((parts, known[key(*parts)]) for parts in some)


def names_of_refs(
    repository: Repository, only: DatasetName | None, known: Known | None = None
) -> Iterator[Name]:
    """Yield what the moves and tags of a dataset name; None: of all datasets. A dataset includes its former
    names: their moves are the older part of its history, and its log alone says what is freed."""
    store, refs, known = repository.store, repository.refs, Known() if known is None else known
    names = [] if only is None else refs.former_names(only)
    prefixes = [(keys.dataset_prefix(former_name), 2) for former_name in names] or [(keys.REFS_PREFIX, 3)]
    branches: dict[tuple[DatasetName, BranchName], set[int]] = {}
    values, deleted = set[tuple[DatasetName, TagName]](), set[tuple[DatasetName, TagName]]()
    for item in chain.from_iterable(list_all(store, prefix, depth) for prefix, depth in prefixes):
        if (move := keys.parse_branch_key(item.key)) is not None:
            branches.setdefault(move[:2], set()).add(move[2])
        elif (tag := keys.parse_tag_key(item.key)) is not None:
            (deleted if tag[2] else values).add(tag[:2])
    homes = dict(ask_each(refs.home, sorted({one for one, _ in (*branches, *values)})))
    for (dataset, branch), numbers in branches.items():
        for name in _of_branch(repository, dataset, branch, numbers, known):
            yield name._replace(dataset=homes[dataset])
    gone = {
        one for one, home in homes.items() if one != home or is_deleted_dataset(refs.last_read(one, MAIN))
    }
    for tagged, named in _read(known, keys.tag_key, partial(_tag, repository), sorted(values - deleted)):
        for _, commit_id in named:
            yield Name(homes[tagged[0]], commit_id, "tag {}@{}".format(*tagged), holds=tagged[0] not in gone)


def _of_branch(
    repository: Repository, dataset: DatasetName, branch: BranchName, numbers: set[int], known: Known
) -> Iterator[Name]:
    """Yield what the moves of a branch name, from the last one on."""
    last = max(numbers)
    moves = [(dataset, branch, number) for number in range(last, -1, -1)]
    for move, named in _read(known, keys.branch_key, partial(_move, repository, known), moves):
        if move[2] not in numbers:
            lacked = keys.branch_key(*move)
            raise cut_short(repository.store, keys.branch_prefix(dataset, branch), f"it lacked {lacked}")
        for _, commit_id in named:
            yield Name(dataset, commit_id, f"{dataset}@{branch}", branch, holds=move[2] == last)


def _move(
    repository: Repository, known: Known, dataset: DatasetName, branch: BranchName, number: int
) -> Named:
    entry, key = repository.refs.entry(dataset, branch, number), keys.branch_key(dataset, branch, number)
    if entry is None:
        raise cut_short(repository.store, keys.branch_prefix(dataset, branch), f"{key} is gone")
    known.nonces[key] = entry.nonce
    return [] if entry.commit is None else [(dataset, entry.commit)]


def _tag(repository: Repository, dataset: DatasetName, tag: TagName) -> Named:
    value, key = repository.refs.tag_record(dataset, tag), keys.tag_key(dataset, tag)
    if value is None:
        raise IntegrityError(f"tag {tag} of {dataset} is lost", subject=key, hint="dsv verify --repair")
    return [(dataset, value.commit)]


def readable_names(
    repository: Repository, dataset: DatasetName, failed: Callable[[str, str, DsvError], None]
) -> Iterator[Name]:
    """Yield the readable names of commits in the branches, tags and runs of a dataset. failed: called for
    each unreadable one with its kind, its name, and the error."""
    refs, store = repository.refs, repository.store
    moves, tags = dict[BranchName, set[int]](), dict[TagName, bool]()
    for item in store.list(keys.dataset_prefix(dataset)):
        if (move := keys.parse_branch_key(item.key)) is not None:
            moves.setdefault(move[1], set()).add(move[2])
        elif (tag := keys.parse_tag_key(item.key)) is not None:
            tags[tag[1]] = tags.get(tag[1], False) or tag[2]
    for branch, numbers in moves.items():
        last, why = max(numbers), f"{dataset}@{branch}"
        for number in range(last, -1, -1):
            try:
                entry = refs.entry(dataset, branch, number)
                if entry is None:
                    key = keys.branch_key(dataset, branch, number)
                    raise IntegrityError(f"move {number} of branch {branch} of {dataset} is gone ({key})")
            except IntegrityError as error:
                failed("branch", why, error)
                continue
            if entry.commit is not None:
                yield Name(dataset, entry.commit, why, branch, holds=number == last)
    runs = list(parsed(keys.parse_run_key, store.list(keys.runs_prefix(dataset))))
    reads: list[tuple[str, str, Callable[[], Named]]] = [
        *(
            ("tag", f"{dataset}@{tag_name}", partial(_tag, repository, dataset, tag_name))
            for tag_name in tags
            if not tags[tag_name]
        ),
        *(("run", run[1], partial(_run, store, *run)) for run in runs if _RUN_PART.fullmatch(run[2])),
    ]
    for what, name, read in reads:
        try:
            named = if_there(read)
        except IntegrityError as error:
            failed(what, name, error)
            continue
        for of, commit_id in named or ():  # None if it was deleted since
            yield Name(of, commit_id, f"{what} {name}", holds=what == "tag")


def names_of_sessions(repository: Repository) -> Iterator[Name]:
    """Yield what the verdicts of sessions that are not closed name."""
    listed = list(parsed(keys.parse_session_key, list_all(repository.store, keys.SESSIONS_PREFIX, 1)))
    known, closed = {one for one, _ in listed}, {one for one, part in listed if part == "closed"}
    for session_id, verdict in ask_each(partial(_verdict, repository.store), sorted(known - closed)):
        if verdict is not None and verdict.commit is not None:
            dataset = repository.objects.commit(verdict.commit).dataset
            home = None if dataset is None else repository.refs.home(dataset)
            yield Name(home, verdict.commit, f"session {session_id}")


def _verdict(store: StoreBackend, session_id: SessionId) -> SessionVerdict | None:
    return if_there(
        partial(read_record, SessionVerdict.decode, store, keys.session_key(session_id, "verdict"))
    )


class _Named(msgspec.Struct):
    dataset: str
    commit: str


class _Tree(msgspec.Struct):
    tree: str | None = None


class _Run(_Named):
    """The members of a run's record that name commits."""

    kind: str
    version: int
    data: list[_Named]
    code: _Tree | None = None
    output: _Tree | None = None


_RUN: Final = msgspec.json.Decoder(_Run)


def names_of_runs(
    repository: Repository, only: DatasetName | None = None, known: Known | None = None
) -> Iterator[Name]:
    """Yield what records of runs name. only: the runs of this dataset and its former names; None: all."""
    store, home = repository.store, cache(repository.refs.home)
    known = Known() if known is None else known
    names = [] if only is None else repository.refs.former_names(only)
    prefixes = [(keys.runs_prefix(former_name), 1) for former_name in names] or [(keys.RUNS_PREFIX, 2)]
    items = chain.from_iterable(list_all(store, prefix, depth) for prefix, depth in prefixes)
    parts = [run_key for run_key in parsed(keys.parse_run_key, items) if _RUN_PART.fullmatch(run_key[2])]
    for (_, run, _), named in _read(known, keys.run_key, partial(_run, store), parts):
        for dataset, commit_id in dict.fromkeys(named):
            yield Name(home(dataset), commit_id, f"run {run}", holds=False)


def _run(store: StoreBackend, dataset: DatasetName, run: str, part: str) -> Named:
    """Return the commits that one part of a run's record names, each with its dataset."""
    key = keys.run_key(dataset, run, part)
    try:
        record = _RUN.decode(store.get(key, _RUN_MAX))
        if record.kind != "dsv run" or record.dataset != dataset or record.version < 1:
            raise ValueError("it is of something else")
        if record.version > 1:
            raise Unsupported(f"{key} in {store.url} was written by a newer dsv", subject=key, hint=UPGRADE)
        trees = [one.tree for one in (record.code, record.output) if one is not None and one.tree is not None]
        named = [(data.dataset, data.commit) for data in (record, *record.data)]
        named += [(record.dataset, tree) for tree in trees]
        return [(DatasetName.parse(of), CommitId.parse(commit_id)) for of, commit_id in named]
    except (msgspec.DecodeError, RecursionError, ValueError, UsageError) as error:
        raise broken(key, f"the record of a run can't be read: {error} ({key} in {store.url})") from error


def _check_commits(
    repository: Repository, reached: Collection[CommitId], names: Iterable[Name]
) -> list[CommitId]:
    """Raises `IntegrityError` if the listing of all commits contradicts the names: if it lacks a named commit,
    or has one that was made for an existing branch that was not listed. Return those that follow a head."""
    store = repository.store
    listed = set(parsed(keys.parse_commit_key, list_all(store, keys.COMMIT_PREFIX)))
    lacking = min(set(reached) - listed, default=None)
    if lacking is not None:
        raise cut_short(
            store, keys.COMMIT_PREFIX, f"it lacked {keys.commit_key(lacking)}, or that commit is gone"
        )
    known = {(one.dataset, one.branch) for one in names}
    heads = {(one.dataset, one.branch, one.commit) for one in names if one.holds}
    asked, following = set[tuple[DatasetName, BranchName]](), list[CommitId]()
    for commit_id, commit in ask_each(repository.objects.commit_or_none, sorted(listed.difference(reached))):
        if commit is not None and commit.dataset is not None and commit.branch is not None:
            home = repository.refs.home(commit.dataset)
            asked.add((home, commit.branch))
            if any((home, commit.branch, parent) in heads for parent in commit.parents):
                following.append(commit_id)
    for dataset, branch in sorted(asked - known):
        if repository.refs.entry(dataset, branch, 0) is not None:
            raise cut_short(store, keys.REFS_PREFIX, f"it lacked {keys.branch_key(dataset, branch, 0)}")
    return following


Moves = dict[str, tuple[bytes, bytes]]
"""The nonce of each move and its commit (b"" for none), by key."""
_HASH = 32
_DECODER = msgspec.msgpack.Decoder(tuple[Moves, dict[bytes, bytes]])


def read_notes(path: Path) -> tuple[Moves, dict[IndexId, bytes]]:
    """Return the notes of `write_notes`, which save the next garbage collection requests: moves of branches,
    and the last 32 bytes of index files, which never change. Return nothing if the file is missing, damaged,
    or writable by others, because packs are deleted by it."""
    with suppress(OSError, msgspec.DecodeError, ValueError):
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read()
        mine = status.st_uid == os.geteuid() and not status.st_mode & 0o022
        if mine and blake3(data[:-_HASH]).digest() == data[-_HASH:]:
            moves, ends = _DECODER.decode(data[:-_HASH])
            return moves, {IndexId(one): end for one, end in ends.items()}
    return {}, {}


def write_notes(path: Path, known: Known, ends: dict[IndexId, bytes]) -> None:
    """Write what is known of moves and index files. Failures are ignored: the next one asks the store."""
    moves = {
        key: (bytes(nonce), b"".join(commit for _, commit in known[key]))
        for key, nonce in known.nonces.items()
        if key in known
    }
    data = msgspec.msgpack.encode((moves, {bytes(one): end for one, end in ends.items()}))
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, data + blake3(data).digest(), mode=0o600, sync=False)


def known_moves(repository: Repository, moves: Moves) -> Known:
    """Return the noted moves, except of branches whose last noted move differs in the store: a store restored
    from a backup may get other moves with the same numbers."""
    parts = {key: move for key in moves if (move := keys.parse_branch_key(key)) is not None}
    last: dict[tuple[DatasetName, BranchName], str] = {}
    for key in sorted(parts, reverse=True):  # the newest move has the smallest key
        last[parts[key][:2]] = key
    now = ask_each(lambda key: repository.refs.entry(*parts[key]), last.values())
    same = {parts[key][:2] for key, entry in now if entry is not None and entry.nonce == moves[key][0]}
    known = Known()
    for key, (dataset, branch, _) in parts.items():
        if (dataset, branch) in same:
            nonce, commit = moves[key]
            known[key] = [(dataset, CommitId(commit))] if commit else []
            known.nonces[key] = Nonce(nonce)
    return known
