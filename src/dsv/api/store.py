"""Make and maintain a store: test its guarantees, merge its indexes, and move or rebuild its names."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import structs

from dsv.api.context import Context
from dsv.errors import Conflict, DsvError, Unsupported, UsageError
from dsv.format import keys
from dsv.format.records import CommitRecord, Feature, FormatEntry, RefEntry, signed
from dsv.repo.format_log import (
    DATA_ELSEWHERE,
    ERASED_CONTENTS,
    EXTERNAL_FEATURE,
    NAMES_ELSEWHERE,
    NAMES_MOVING,
    FormatLog,
    make_names,
    read_data_layout,
    read_format,
    read_layout,
)
from dsv.repo.merge_indexes import IndexMergeResult, merge_indexes
from dsv.repo.move_refs import NamesMove, moves_elsewhere, note_place
from dsv.repo.objects.metadata import MetadataCache
from dsv.repo.objects.objects import Objects
from dsv.repo.refs.branches import LostRace, Refs
from dsv.repo.repository import Repository
from dsv.stores.base import PutResult, StoreBackend, ask_each, parsed
from dsv.stores.open import BELOW, OpenStore, Unavailable, open_names, split_of
from dsv.stores.probe import Proof, prove, prove_data, same_place
from dsv.values.ids import CommitId
from dsv.values.names import MAIN, MAX_COMPONENT, BranchName, DatasetName


def merge_index_files(context: Context) -> IndexMergeResult:
    """Merge until nothing is left to merge or to delete. Raises `Denied` if this user may not write."""
    merged = deleted = 0
    with context.repository() as repository:
        while True:
            done = merge_indexes(repository, context.writer)
            merged, deleted = merged + done.merged, deleted + done.deleted
            if not done.merged and not done.deleted:
                return IndexMergeResult(merged, done.files, deleted)


def create_repository(context: Context, store: StoreBackend, *, single_writer: bool) -> Repository:
    """Test that each location of the store gives the guarantees for its use; then make a repository."""
    split = split_of(store)
    if split is not None and single_writer:
        raise UsageError(
            "names that are elsewhere are there for several writers", hint="leave out --single-writer"
        )
    if split is not None:
        make_place(context, split)
    proof = prove_names(store if split is None else split.names, single_writer=single_writer)
    if split is not None:
        if same_place(split.names, split.data):
            raise UsageError(
                f"{split.names.url} is the place of the data itself",
                subject=split.names.url,
                hint="leave out --names, or name another place: a folder, or another bucket's URL",
            )
        split.data.conditional = prove(split.data).put_if_absent_ok
        if findings := prove_data(split.data):
            raise Unsupported(
                f"{store.url} can't keep data: {'; '.join(findings)}",
                subject=store.url,
                hint="dsv init --store with another bucket; docs/reference/s3-servers.md has each server's settings",
            )
    return Repository.create(
        store,
        context.metadata_folder,
        author=context.writer.author,
        tool=context.writer.tool,
        single_writer=not proof.put_if_absent_ok,
        ordered=proof.ordered,
        clock=context.clock,
    )


def make_place(context: Context, split: OpenStore) -> None:
    """Make the folder for new names. Existing names whose folder is missing are on a missing mount."""
    if isinstance(split.names, Unavailable):
        options = context.store_options(context.settings.store())
        split.names = open_names(split.names.url, options, create=True)


def prove_names(store: StoreBackend, *, single_writer: bool = False) -> Proof:
    """Test a location for names, and return the result. Raises `Unsupported` if it can't hold them."""
    proof = prove(store)
    if proof.unsupported and single_writer:
        store.conditional = False
        proof = structs.replace(prove(store, writers=1, rounds=1), put_if_absent_ok=False)
    if not proof.put_if_absent_ok and not single_writer:
        what = (
            f"{store.url} has no put-if-absent: {'; '.join(proof.findings)}"
            if proof.unsupported
            else f"{store.url} let several writers win one key: it ignores If-None-Match, so two syncs could lose data"
        )
        raise Unsupported(
            what,
            subject=store.url,
            hint="keep its names where one writer wins: dsv init --names DIR (on NFS for a team) or another bucket; "
            "or --single-writer if only one person ever writes to it",
        )
    if not proof.listing_ok:
        raise Unsupported(
            f"{store.url} does not list what was just written to it, so dsv cannot work there",
            subject=store.url,
        )
    return proof


def rebuild_names(context: Context, *, dry_run: bool = False) -> tuple[list[FoundCommit], str]:
    """Make a branch of each line of commits in the store, at the location configured for its names.

    Return all commits, with the branches that were, or would be, made, and the location. It must be empty, or
    have the output of an interrupted call; the last write makes it usable. Raises `UsageError` if no location
    is configured, `Conflict` if it has names, `Unsupported` if it can't hold any.
    """
    with context.store() as store:
        split = split_of(store)
        if split is None:
            raise UsageError(
                f"no place is configured for the names of {store.url}",
                subject=store.url,
                hint="dsv config stores.NAME.names LOCATION",
            )
        layout = read_data_layout(split.data)
        _check_lost(split, layout)
        objects = Objects(split.data, MetadataCache(context.metadata_folder(layout.store_id)))
        commits = parsed(keys.parse_commit_key, split.data.list(keys.COMMIT_PREFIX))
        found = find_heads(ask_each(objects.commit, commits))
        if not dry_run:
            _make(context, split, layout, found)
        return found, split.names.url


def _make(context: Context, split: OpenStore, layout: FormatLog, commits: list[FoundCommit]) -> None:
    layout.check(split.data.url, writing=True)
    make_place(context, split)
    _check_empty(split.names)
    proof = prove_names(split.names)
    own = bytes(layout.store_id)
    is_ours = split.names.put_if_absent(keys.REBUILT_FOR_KEY, own) is PutResult.WON
    if not is_ours and split.names.get(keys.REBUILT_FOR_KEY) != own:
        raise Conflict(
            f"the names of another store are being rebuilt in {split.names.url}",
            subject=split.names.url,
            hint="dsv config stores.NAME.names LOCATION, with an empty place",
        )
    _check_empty(split.names)  # another process may have made names here before the claim
    refs = Refs(split.names)
    refs.named = layout.named_records
    refs.store_id = layout.store_id
    heads = [(item.dataset, item.head_of, item.id) for item in commits if item.head_of is not None]
    with_main = {dataset for dataset, branch, _ in heads if branch == MAIN}
    without = sorted({dataset for dataset, _, _ in heads} - with_main)  # need a main to be datasets
    for dataset, branch, commit in [*((name, MAIN, None) for name in without), *heads]:
        _place(context, refs, dataset, branch, commit)
    more: list[str | Feature] = []
    if any(parsed(keys.parse_erasure_key, split.data.list(keys.ERASURE_PREFIX))):
        more.append(ERASED_CONTENTS)
    if any(pack.is_external for pack in parsed(keys.parse_pack_key, split.data.list(keys.PACK_PREFIX))):
        more.append(EXTERNAL_FEATURE)
    entry = signed(layout.entries[-1], context.writer, context.clock())
    make_names(split.names, entry, *more, ordered=proof.ordered)
    if layout.entries[-1].names is not None:  # they had moved, and the data's log still points there
        note_place(split.data, split.names, split.names.url, context.writer, context.clock())


def _check_empty(names: StoreBackend) -> None:
    if _is_taken(names):
        raise Conflict(
            f"{names.url} has names already",
            subject=names.url,
            hint="dsv config stores.NAME.names LOCATION, with an empty place",
        )


def _check_lost(split: OpenStore, layout: FormatLog) -> None:
    """Raises `Conflict` if the names are readable at the location in the data's log."""
    place = layout.entries[-1].names
    if place is None:
        return
    try:
        with closing(split.open_names(place)) as noted:
            found = noted.url if _is_taken(noted) else None
    except DsvError:
        return  # they are lost or unreachable
    if found is not None and found != split.names.url:
        raise Conflict(
            f"the names of {split.data.url} are not lost: they have moved to {found}",
            subject=found,
            hint=f"dsv config stores.NAME.names {found}; if they are damaged there: first move that place away, so "
            "that nobody uses them, then run the same command again",
        )


def _is_taken(names: StoreBackend) -> bool:
    return any(keys.parse_format_key(item.key) is not None for item in names.list(keys.FORMAT_PREFIX))


def _place(
    context: Context, refs: Refs, dataset: DatasetName, branch: BranchName, commit: CommitId | None
) -> None:
    entry = RefEntry.of(context.writer, context.clock(), commit, "rebuild-names")
    moved = refs.move(dataset, branch, None, entry)
    if isinstance(moved, LostRace) and moved.winner.commit != commit:
        raise Conflict(
            f"branch {branch} of {dataset} already exists, at another commit",
            subject=f"{dataset}@{branch}",
            hint="somebody else is making these names: wait for them, or name another place",
        )


_BELOW_DATA = f"{BELOW}names/"


@dataclass(frozen=True, slots=True)
class MovedNames:
    names: str
    """Their location now."""
    before: str
    """Their previous location; the same if nothing was moved."""
    keys: int = 0
    """How many keys were copied."""
    taken_back: bool = False
    """An interrupted move was undone."""
    configure: tuple[str, str | None] | None = None
    """The setting that every user has to change, and its value, None to remove it."""


def move_names(context: Context, place: str) -> MovedNames:
    """Move the names of the current store to a folder, to a bucket, or to the data's own location.

    No other process may write during this. If it is interrupted, the same call finishes it; a call with the
    present location undoes it. Raises `Conflict` if another process wrote or moves them elsewhere, or if the
    location has other names, and `Unsupported` if it can't hold any.
    """
    choice = context.settings.store()
    wanted = context.settings.location(place)
    with context.store() as places:
        log, going = _find(places)
        old = places.names
        log.check(old.url, writing=True)  # data that a newer version keeps elsewhere would not be copied
        there = wanted == old.url or (wanted == places.data.url and old.url.startswith(_below(places)))
        if there:
            return _stay(context, places, log, going)
        target = _target(places, wanted, log, going)
        with _opened(context, places, target) as new:
            move = NamesMove(places.data, old, new, target, context.writer, context.clock)
            proof = prove_names(new)
            copied = 0
            if going is None:
                if not log.has(NAMES_MOVING):
                    move.check_free()
                copied = _copied(move)
                move.decide()
            move.finish(ordered=proof.ordered)
            setting = f"stores.{choice.name or 'NAME'}.names"
            value = None if target.startswith(BELOW) else target
            return MovedNames(new.url, old.url, copied, configure=(setting, value))


def _copied(move: NamesMove) -> int:
    """Copy the names and return the number of keys. On a `Conflict`, undo a move that was begun here."""
    first = move.begin()
    try:
        copied = move.copy()
        move.check_unchanged()
        return copied
    except Conflict:
        if first:
            with suppress(Conflict):  # another process has decided it
                move.take_back()
        raise


def _find(places: OpenStore) -> tuple[FormatLog, FormatEntry | None]:
    """Follow the names to their last complete location. Return its format log and unfinished move."""
    named = places.names
    layout = read_layout(places)
    if layout.has(DATA_ELSEWHERE) or not layout.has(NAMES_ELSEWHERE):
        return layout, None
    # Only the data's log was read: the names can't be reached, or a process was killed while it moved them.
    places.follow(named)
    log = FormatLog(tuple(read_format(named)))
    while (said := log.entries[-1]).names is not None and not log.has(NAMES_MOVING):
        new = places.open_names(said.names)
        entries = read_format(new)
        if not entries:
            return log, said
        places.follow(new)
        log = FormatLog(tuple(entries))
    return log, None


def _below(places: OpenStore) -> str:
    return f"{places.data.url.rstrip('/')}/{_BELOW_DATA.removeprefix(BELOW)}"


def _target(places: OpenStore, wanted: str, log: FormatLog, decided: FormatEntry | None) -> str:
    """Return the location as the log has it. Below the data it is always new: old names remain there."""
    under_way = decided or (log.entries[-1] if log.has(NAMES_MOVING) else None)
    going = None if under_way is None else under_way.names
    target = wanted
    if wanted == places.data.url:
        begun = going is not None and going.startswith(_BELOW_DATA)
        target = going if going is not None and begun else f"{_BELOW_DATA}{secrets.token_hex(8)}"
    if under_way is not None and target != going:
        raise moves_elsewhere(places.names.url, under_way)
    return target


def _opened(context: Context, places: OpenStore, target: str) -> closing[StoreBackend]:
    below = f"{places.data.url.rstrip('/')}/{target.removeprefix(BELOW)}"
    url = below if target.startswith(BELOW) else target
    return closing(open_names(url, context.store_options(context.settings.store()), create=True))


def _stay(context: Context, places: OpenStore, log: FormatLog, going: FormatEntry | None) -> MovedNames:
    old = places.names
    if going is not None:
        raise moves_elsewhere(old.url, going)
    began = log.has(NAMES_MOVING)
    if began:
        NamesMove(places.data, old, old, old.url, context.writer, context.clock).take_back()
    elif (
        places.is_split
        and not old.url.startswith(_below(places))
        and read_format(places.data)[-1].names is not None
    ):  # moved before, and the process that moved them may have been killed before it noted that
        note_place(places.data, old, old.url, context.writer, context.clock())
    return MovedNames(old.url, old.url, taken_back=began)


RECOVERED: Final = DatasetName.parse("recovered")
"""The dataset of commits that do not name theirs."""


class FoundCommit(msgspec.Struct, frozen=True):
    """A commit of the store, its dataset, and the branch whose head it becomes, if any."""

    id: CommitId
    commit: CommitRecord
    dataset: DatasetName
    head_of: BranchName | None = None


def find_heads(commits: Iterable[tuple[CommitId, CommitRecord]]) -> list[FoundCommit]:
    """Return every commit, by dataset and newest first.

    The commits made for one branch form lines. The newest commit that is no parent of another becomes the
    branch's head. Each further one becomes the head of a branch `BRANCH-<12 digits of its id>`, unless a
    commit of another branch has it as a parent. Commits of stores too old to record datasets count as made
    for the main branch of `RECOVERED`, where lines of several datasets become branches.
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
            (commit_id for commit_id in ids if commit_id not in parents), key=lambda tip: _age(tip, known)
        )
        for number, tip in enumerate(tips):
            if not number:
                heads[tip] = branch
            elif tip not in followed:
                heads[tip] = _further(branch, tip)
    items = [
        FoundCommit(commit_id, commit, _dataset(commit), heads.get(commit_id))
        for commit_id, commit in known.items()
    ]
    return sorted(items, key=lambda item: (str(item.dataset), *_age(item.id, known)))


def _further(branch: BranchName, tip: CommitId) -> BranchName:
    """Return a name for another line of a branch, with as much of the branch's name as fits."""
    end = f"-{str(tip)[:12]}"
    begin = str(branch)
    while len(begin.replace("/", "%2F")) + len(end) > MAX_COMPONENT:
        begin = begin[:-1].rstrip("/")
    return BranchName.parse(f"{begin}{end}")


def _dataset(commit: CommitRecord) -> DatasetName:
    return RECOVERED if commit.dataset is None else commit.dataset


def _age(commit_id: CommitId, known: dict[CommitId, CommitRecord]) -> tuple[int, str]:
    return -known[commit_id].time_ms, str(commit_id)
