"""Making the names of a store anew from its commits, after the place where they were kept is lost."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import partial

from dsv.api.context import Context
from dsv.api.init import make_place, prove_names
from dsv.errors import Conflict, DsvError, UsageError
from dsv.model import keys
from dsv.model.commit import Commit
from dsv.model.ids import CommitId, Nonce
from dsv.model.names import MAIN, BranchName, DatasetName
from dsv.model.records import RefEntry
from dsv.repo.layout import Format, make_names, read_data_layout
from dsv.repo.lost_names import FoundCommit, find_heads
from dsv.repo.metadata import MetadataCache
from dsv.repo.names_move import Stamp, note_place
from dsv.repo.objects import Objects
from dsv.repo.refs import LostRace, Refs
from dsv.store.base import Store
from dsv.store.split import SplitStore, split_of
from dsv.store.together import together

_AT_ONCE = 256
"""Commits that are asked for together."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """commits: all that the store has. names: where the branches were made, or would be."""

    commits: list[FoundCommit]
    names: str


def rebuild_names(context: Context, *, dry_run: bool = False) -> Rebuilt:
    """Makes a branch of each line of commits that the store holds, at the place that is configured for its names.

    The place must be empty, or hold what an interrupted call has made: it becomes usable by the last write. Raises
    `UsageError` if no place is configured, `Conflict` if there are names already, `Unsupported` if it can't hold any.
    """
    with context.store() as store:
        split = split_of(store)
        if split is None:
            raise UsageError(
                f"no place is configured for the names of {store.url}",
                subject=store.url,
                hint="dsv config stores.NAME.names PLACE",
            )
        layout = read_data_layout(split.data)
        _check_lost(split, layout)
        objects = Objects(split.data, MetadataCache(context.metadata_folder(layout.store_id)))
        found = find_heads(_commits(split.data, objects))
        if not dry_run:
            _make(context, split, layout, found)
        return Rebuilt(found, split.names.url)


def _commits(data: Store, objects: Objects) -> list[tuple[CommitId, Commit]]:
    listed = [keys.parse_commit_key(item.key) for item in data.list(keys.COMMIT_PREFIX)]
    ids = [commit_id for commit_id in listed if commit_id is not None]
    read = [
        commit
        for begin in range(0, len(ids), _AT_ONCE)
        for commit in together([partial(objects.commit, one) for one in ids[begin : begin + _AT_ONCE]])
    ]
    return list(zip(ids, read, strict=True))


def _make(context: Context, split: SplitStore, layout: Format, found: list[FoundCommit]) -> None:
    layout.check(split.data.url, writing=True)
    make_place(context, split)
    if _is_taken(split.names):
        raise Conflict(
            f"{split.names.url} has names already",
            subject=split.names.url,
            hint="dsv config stores.NAME.names PLACE, with an empty place",
        )
    proof = prove_names(split.names)
    refs = Refs(split.names)
    refs.named = layout.named_records
    refs.store_id = layout.store_id
    heads = [(one.dataset, one.head_of, one.id) for one in found if one.head_of is not None]
    with_main = {dataset for dataset, branch, _ in heads if branch == MAIN}
    for dataset in sorted(
        {dataset for dataset, _, _ in heads} - with_main
    ):  # without a `main` it is no dataset
        _place(context, refs, dataset, MAIN, None)
    for dataset, branch, commit_id in heads:
        _place(context, refs, dataset, branch, commit_id)
    make_names(split.names, layout, ordered=proof.ordered, nonce=Nonce.random(), time_ms=context.clock())
    if (
        layout.entries[-1].names is not None
    ):  # they had moved, and the data's log would lead to where they were
        stamp = Stamp(context.writer.author, context.writer.tool, context.clock)
        note_place(split.data, split.names, split.names.url, stamp)


def _check_lost(split: SplitStore, layout: Format) -> None:
    """Raises `Conflict` if the names can be read where the data's log says that they have moved to."""
    place = layout.entries[-1].names
    if place is None:
        return
    try:
        with closing(split.open_names(place)) as noted:
            found = noted.url if _is_taken(noted) else None
    except DsvError:
        return  # it is lost, or out of reach
    if found is not None and found != split.names.url:
        raise Conflict(
            f"the names of {split.data.url} are not lost: they have moved to {found}",
            subject=found,
            hint=f"dsv config stores.NAME.names {found}; if they are damaged there: first move that place away, so "
            "that nobody goes on with them, then the same command again",
        )


def _is_taken(names: Store) -> bool:
    return any(keys.parse_format_key(item.key) is not None for item in names.list(keys.FORMAT_PREFIX))


def _place(
    context: Context, refs: Refs, dataset: DatasetName, branch: BranchName, commit: CommitId | None
) -> None:
    entry = RefEntry(
        commit=commit,
        deleted=False,
        nonce=Nonce.random(),
        time_ms=context.clock(),
        author=context.writer.author,
        action="rebuild-names",
    )
    moved = refs.move(dataset, branch, None, entry)
    if isinstance(moved, LostRace) and moved.winner.commit != commit:
        raise Conflict(
            f"branch {branch} of {dataset} is made already, at another commit",
            subject=f"{dataset}@{branch}",
            hint="somebody else is making these names: wait for them, or name another place",
        )
