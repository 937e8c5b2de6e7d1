"""An open store, whose format was read and checked."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING
from weakref import ref

from msgspec.structs import replace

from dsv.errors import Unreachable
from dsv.files.shared_path import AnyPath
from dsv.format import keys
from dsv.format.records import (
    BranchLimits,
    CommitRecord,
    Feature,
    FormatEntry,
    RefEntry,
    WriterIdentity,
    signed,
)
from dsv.periodic import Clock, now_ms
from dsv.repo.errors import explain_denied_write
from dsv.repo.format_log import (
    ERASED_CONTENTS,
    NAMED_RECORDS,
    NAMES_ELSEWHERE,
    NODE_LOCATORS,
    UNCONDITIONAL_WRITES,
    UNORDERED_LISTING,
    FormatLog,
    check_log,
    features,
    make_layout,
    read_layout,
    with_features,
)
from dsv.repo.objects.access import STORE_ALONE, Access
from dsv.repo.objects.commits import HistoryReader, get_commit
from dsv.repo.objects.erasures import NONE, Erasures, local_erasures, stored_erasures
from dsv.repo.objects.metadata import MetadataCache
from dsv.repo.objects.objects import Objects
from dsv.repo.refs.branches import Refs, refused_mover, refused_removals
from dsv.repo.refs.listing import changed
from dsv.stores.base import PutResult, StoreBackend, both
from dsv.stores.open import OpenStore, names_of, split_of
from dsv.values.ids import CommitId, Nonce, StoreId

if TYPE_CHECKING:
    from dsv.repo.job_notes import JobNotes
    from dsv.values.names import BranchName, DatasetName

MetadataFolder = Callable[[StoreId], AnyPath]


class Repository:
    """The objects and names of one store. The caller owns the store and closes it."""

    def __init__(
        self, store: StoreBackend, layout: FormatLog, refs: Refs, metadata: MetadataCache, access: Access
    ) -> None:
        self.store = store
        self.id = layout.store_id
        self.clock = access.clock
        self.access = access
        self._job = access.job
        # In no cycle, as a program may run without the garbage collector: `refs` own what `objects` only look at.
        erasures = partial(_erasures, store, access, ref(refs))
        self.objects = Objects(store, metadata, refs.answers, access, erasures)
        self.objects.history = HistoryReader(self.objects, refs)
        self.refs = refs
        refs.bind(layout, partial(_refused, self.objects), access.override)
        if isinstance(store, OpenStore):
            store.has_mirrors = access.mirrors is not None
            store.before_close.append(self.objects.threads.close)

    def check_last_seen(self) -> None:
        """Raises `IntegrityError` if the branch was read, and the move where it was last seen has changed.

        A server that lets two writers win, and settles later which write stays, takes away a move that was already read
        back. The only proof is what a user saw of the branch. Sends no request unless the branch has moved on. In a
        restored or recreated store another move may have the number: then the commit is missing, or in the branch's
        history. A location that the names have left may have a move that does not count.
        """
        if self.access.last_seen is None:
            return
        store_id, dataset, branch, last = self.access.last_seen
        head = self.refs.last_read(dataset, branch)
        if last.commit_id is None or last.number is None or last.names not in (None, self.names_url):
            return
        if store_id != self.id or head is None or head.number < last.number:
            return
        now = head.entry if head.number == last.number else self.refs.entry(dataset, branch, last.number)
        if now is None or now.commit == last.commit_id or self.objects.stored_commit(last.commit_id) is None:
            return
        from dsv.repo.history import is_ancestor

        if head.commit is not None and is_ancestor(self.objects, last.commit_id, head.commit):
            return
        key = keys.branch_key(dataset, branch, last.number)
        what = f"move {last.number} of branch {branch} of {dataset}, to {str(last.commit)[:12]},"
        raise changed(self.objects.store.url, key, what, now)

    @property
    def may_have_erasures(self) -> bool:
        return _may_have_erasures(self.format)

    @property
    def format(self) -> FormatLog:
        assert self.refs.layout is not None
        return self.refs.layout

    @property
    def names_url(self) -> str:
        return names_of(self.store).url

    @classmethod
    def open(
        cls,
        store: StoreBackend,
        metadata: MetadataFolder | None,
        access: Access = STORE_ALONE,
        *,
        ahead: Callable[[Refs], None] = lambda _: None,
        commit: CommitId | None = None,
    ) -> Repository:
        """Read the format log. `metadata` returns the folder for local copies of a store's objects.

        ahead: sends requests for names at the same time (`Refs.expect`). commit: `Objects.stored_commit` will
        be asked for it. Raises `NotFound` if no store exists, and `Unsupported` if its format is newer.
        """
        refs = Refs(store)
        names = names_of(store)
        look = partial(get_commit, store, commit) if commit is not None else lambda: None
        layout, (_, found) = both(
            partial(read_layout, store), partial(both, partial(_unless_away, store, ahead, refs), look)
        )
        layout.check(store.url, writing=False)
        if names_of(store) is not names:
            refs.forget()  # answers read ahead may be from a location that the names have left
        if layout.has(UNORDERED_LISTING):
            store.ordered_listing = False
        if layout.has(UNCONDITIONAL_WRITES):
            store.conditional = False
        folder = None if metadata is None else metadata(layout.store_id)
        repository = cls(store, layout, refs, MetadataCache(folder, limits=access.copies), access)
        if commit is not None:
            repository.objects.stored(commit, found)
        return repository

    @classmethod
    def create(
        cls,
        store: StoreBackend,
        metadata: MetadataFolder | None,
        *,
        author: str,
        tool: str,
        single_writer: bool = False,
        ordered: bool = True,
        clock: Clock = now_ms,
    ) -> Repository:
        """Create the store, or adopt the one that another process created at the same moment.

        The caller has had the store proved: `single_writer` and `ordered` are results of that.
        """
        first = FormatEntry(
            store_id=StoreId.random(),
            nonce=Nonce.random(),
            time_ms=clock(),
            author=author,
            tool=tool,
            features=features(NAMED_RECORDS, NODE_LOCATORS, *(() if ordered else (UNORDERED_LISTING,))),
            single_writer=single_writer,
        )
        make_layout(store, first)
        return cls.open(store, metadata, Access(clock=clock))

    def add_feature(self, feature: Feature, writer: WriterIdentity) -> bool:
        """Note in the format log that the store uses a feature from now on; False if it already did."""
        while not self.format.has(feature.name):
            entries = self.format.entries
            later = signed(with_features(entries[-1], feature), writer, self.clock())
            self.format.check_at_rest(self.names_url)  # the next entry decides where the names are
            check_log(self.store)
            with explain_denied_write(self.store.url):
                self.refs.check_one_wins()
                put = self.store.put_if_absent(keys.format_key(len(entries)), later.encode())
            if put is PutResult.WON:
                self.refs.layout = replace(self.format, entries=(*entries, later))
                return True
            self.refs.check_not_moved(f"feature {feature.name}")
            self.format.check(self.store.url, writing=True)
        return False

    def made_by(self) -> JobNotes | None:
        """Return the run whose job makes commits here; None outside of a job, or after its end, which is said once."""
        if self._job is not None and self._job.is_over(self.store):
            self.access.tell(
                f"DSV_RUN names run {self._job.run}, which has ended: the commit does not name it"
            )
            self._job = None
        return self._job

    def named(self, commit: CommitRecord, dataset: DatasetName, branch: BranchName) -> CommitRecord:
        """Return the commit as this store keeps it: with its dataset and branch, except in an older store."""
        return replace(commit, dataset=dataset, branch=branch) if self.format.named_records else commit


def _refused(
    objects: Objects, limits: BranchLimits, before: CommitId | None, entry: RefEntry, merge: bool
) -> str | None:
    """Return why a protected branch may not move from `before` to what the entry names; None if it may.

    `Refs.move` calls this, so no command forgets it. Every dsv follows the rules; no store enforces them.
    """
    if entry.commit == before and not entry.deleted:
        return None  # the branch stays where it is, as when its rule is changed
    commit = None if entry.commit is None else objects.commit(entry.commit)
    merge = merge or (commit is not None and len(commit.parents) > 1)
    refused = refused_mover(limits, entry.author, merge=merge)
    if refused is not None:
        return refused
    if entry.deleted:
        return "it is neither deleted nor renamed"
    if before is None or commit is None or entry.commit is None or objects.stored_commit(before) is None:
        return None  # a head that the store has lost blocks no move
    from dsv.repo.history import is_ancestor

    if before not in commit.parents and not is_ancestor(objects, before, entry.commit):
        return f"{str(before)[:12]}, its head, would not be part of its history any more"
    if limits.max_removals is None:
        return None
    from dsv.repo.tree.diff import diff_trees
    from dsv.repo.tree.reader import TreeReader

    old = TreeReader(objects, before)
    removed = sum(change.after is None for change in diff_trees(old, TreeReader(objects, entry.commit)))
    return refused_removals(limits, removed, old.commit.entries)


def _erasures(store: StoreBackend, access: Access, refs: ref[Refs], metadata: MetadataCache) -> Erasures:
    """Return what was erased from the store. Sends no request if nothing was."""
    if access.copy_of is not None:  # the store is not asked
        return local_erasures(metadata)
    known = refs()
    layout = None if known is None else known.layout
    return stored_erasures(store, metadata) if layout is None or _may_have_erasures(layout) else NONE


def _may_have_erasures(layout: FormatLog) -> bool:
    return layout.has(ERASED_CONTENTS) or layout.has(NAMES_ELSEWHERE)


def _unless_away(store: StoreBackend, ahead: Callable[[Refs], None], refs: Refs) -> None:
    """Read names ahead. In a split store they may be out of reach, and not be needed."""
    try:
        ahead(refs)
    except Unreachable:
        if split_of(store) is None:
            raise
