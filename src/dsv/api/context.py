"""The context of every call of `dsv.api`: settings, access to stores and their mirrors, author and progress.

Code that reads stores is imported when a store is first opened: `dsv status` mostly needs none of it.

Mirrors provide objects that a store has lost, or replace a store that does not answer. Objects are found by
id in the mirror's own index, because its packs differ; so a mirror may be incomplete, and its objects are
verified like all others. Names are read from a mirror only if the store can't be opened.
"""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
from blake3 import blake3
from msgspec.structs import replace

from dsv.api.settings import BUILT_IN, Settings, StoreChoice, parse_setting
from dsv.errors import Conflict, Denied, DsvError, IntegrityError, NoStore, NotFound, Unreachable, UsageError
from dsv.files.folders import bound_folder, make_durable, make_shared_folder
from dsv.files.shared_path import AnyPath, SharedPath
from dsv.files.small_files import read_small, replace_file
from dsv.periodic import Clock, now_ms
from dsv.repo.objects.access import Access, LastSeen
from dsv.repo.objects.trim import STORES, CopyLimits
from dsv.values.ids import CommitId, Id, StoreId
from dsv.values.names import DatasetName, Target, clean_path
from dsv.values.progress import NoProgress, Progress
from dsv.workspace.workspace import DOT_FOLDER, Workspace

if TYPE_CHECKING:
    from dsv.format.locator import ObjectKind
    from dsv.format.records import CommitRecord, WriterIdentity
    from dsv.repo.job_notes import JobNotes
    from dsv.repo.objects.externals import ReadSource
    from dsv.repo.objects.objects import Objects
    from dsv.repo.refs.branches import Refs
    from dsv.repo.repository import MetadataFolder, Repository
    from dsv.repo.resolve import Resolved
    from dsv.run.record_store import RunStore
    from dsv.stores.base import Bytes
    from dsv.stores.open import OpenStore
    from dsv.stores.options import StoreOptions

T = TypeVar("T")
_OFTEN_ENOUGH_MS = 1000
"""How long an unchanged answer is not written into a workspace again only to renew its time."""


class Context(msgspec.Struct, frozen=True):
    """Made by `dsv.store` or the command line, and passed to each function of `dsv.api`."""

    settings: Settings
    options: StoreOptions
    writer: WriterIdentity
    metadata: Path
    """The folder of local copies of immutable metadata, with one folder for each store."""
    cwd: Path
    shared: SharedPath | None = None
    """The folder of a cache that is used in place of `metadata`."""
    progress: Progress = msgspec.field(default_factory=NoProgress)
    clock: Clock = now_ms
    offline: bool = False
    """Read only what this machine's cache knows, and ask no store."""
    offline_hint: str | None = None
    """The command line to suggest if the store can't be reached but the same could be read offline."""
    open_offline: Callable[[Context, Target | None], Repository] | None = None
    """A function that opens a repository offline; None if that is not possible."""
    override: str | None = None
    """The reason to override the rules of protected branches; None to respect them."""
    job: JobNotes | None = None
    """The run whose job this process belongs to."""
    moved: Callable[[str, str, str], None] = lambda *_: None
    """Called for a store whose names have moved, with its URL, the given location of names, and the new."""

    def note_read(self, dataset: DatasetName, commit: CommitId, record: CommitRecord | None) -> None:
        """Note for the record of a run that its job has opened the data of a commit. record: None if it is not known"""
        if self.job is not None and record is not None:
            from dsv.repo.job_notes import NotedCommit

            self.job.note("read", NotedCommit(dataset, commit, record.root))

    @contextmanager
    def sending_events(
        self, environ: Mapping[str, str]
    ) -> Iterator[Callable[[StoreId, RunStore, str, Bytes], None]]:
        """Yield what sends the events of runs, as `LiveEvents.add`; nothing unless a setting says where to."""
        setting = self.settings.get("lineage.openlineage")
        if setting is None or environ.get("OPENLINEAGE_DISABLED", "").lower() == "true":
            yield lambda *_: None
            return
        from dsv.api.openlineage import LiveEvents  # takes a while to import

        with closing(LiveEvents(setting.value, environ, self.progress.note)) as live:
            yield live.add

    def metadata_folder(self, store_id: StoreId) -> Path:
        return self.metadata / STORES / str(store_id) / "objects"

    @property
    def copy_limits(self) -> CopyLimits:
        """The limits of the local copies of all stores. Raises `UsageError`."""
        given = {name: self.settings.get(f"metadata.{name}") for name in CopyLimits.__struct_fields__}
        return CopyLimits(**{name: parse_setting(setting) for name, setting in given.items() if setting})

    def copies_folder(self, store_id: StoreId) -> AnyPath:
        """Return the folder that copies are added to: the cache's, if it has them for its users."""
        return copies_below(self.shared or self.metadata, store_id)

    def copies_beside(self, cache: SharedPath) -> list[AnyPath]:
        """Return the folders of all local copies of metadata: this user's, and those in a cache's dot folder."""
        own, shared = self.metadata / STORES, cache / STORES
        return [shared] if own == shared.path else [own, shared]

    def store_options(self, choice: StoreChoice) -> StoreOptions:
        """Return the environment's options, overridden by the configuration of this store."""
        return self.options.overridden(
            endpoint=choice.endpoint, region=choice.region, profile=choice.profile, ca_file=choice.ca_bundle
        )

    def store(self, text: str | None = None, *, create: bool = False) -> closing[OpenStore]:
        """Like `open_store`, but close the store at the end."""
        return closing(self.open_store(text, create=create))

    def open_store(self, text: str | None = None, *, create: bool = False) -> OpenStore:
        """Open the store that `text` names (None: the current one). The caller closes it.

        create: make the folder of a directory store, but not that of its names.
        """
        if self.offline:
            raise Unreachable("this needs the store, which is not asked offline", hint="leave out offline")
        from dsv.stores.open import local_folder, open_store

        choice = self.settings.store(text)
        folder = local_folder(choice.url) if create or choice.origin == BUILT_IN else None
        is_absent = folder is not None and not folder.exists()
        was_there = is_absent and _notes(self, choice.url)[0].exists()
        if was_there and create:
            raise Unreachable(
                f"the store's folder {choice.url} is not there, and it was once",
                subject=choice.url,
                hint=f"check that it is mounted (ls -ld {choice.url}); to begin an empty store there: "
                f"mkdir -p {'-m 700 ' * (choice.origin == BUILT_IN)}{shlex.quote(choice.url)}",
            )
        if is_absent and not was_there and choice.origin == BUILT_IN and not create:
            raise NoStore(
                "no store is set up for you yet",
                subject=choice.url,
                hint="dsv config store URL names your team's; dsv init in a folder of data makes one of your own",
            )
        if is_absent and create and choice.origin == BUILT_IN:
            make_durable(Path(choice.url), mode=0o700)
        notice = None if isinstance(self.progress, NoProgress) else self.progress.note
        options = self.store_options(choice)
        return open_store(choice.url, options, create=create, names=choice.names, notice=notice)

    @contextmanager
    def repository(self, target: Target | None = None, *, mirrors: bool = False) -> Iterator[Repository]:
        """Open the repository in the current store. Raises `NotFound` if there is none.

        target: the target that the caller will resolve. mirrors: open like `open_to_read`, with mirrors.
        """
        if self.offline:
            yield self.offline_repository(target)
            return
        try:
            with ExitStack() as stack:
                repository = open_to_read(self, target, stack, mirrors=mirrors)
                stack.enter_context(explaining(repository))
                yield repository
        except Unreachable as error:
            if self.offline_hint is not None and self._can_answer_offline(target or Target()):
                offer = f"from what is cached here: {self.offline_hint}"
                error.hint = f"{error.hint}; {offer}" if error.hint else offer
            raise

    def _can_answer_offline(self, target: Target) -> bool:
        """Return whether the target's commit, tree and file can be read without the store."""
        from dsv.repo.tree.reader import TreeReader

        try:
            repository = replace(self, progress=NoProgress()).offline_repository(target)
            tree = TreeReader(repository.objects, self.resolve(repository, target).commit)
            path = clean_path(target.path)
            found = tree.entry(path) if tree.leaves() and path else None
            if found is not None and found[0].is_file and repository.access.copy_of is not None:
                repository.access.copy_of(found[0])
        except DsvError:
            return False
        return True

    def offline_repository(self, target: Target | None) -> Repository:
        if self.open_offline is None:
            raise Unreachable(
                "no store is asked, and nothing else can be read here", hint="leave out --offline"
            )
        return self.open_offline(self, target)

    def open_repository(
        self, store: OpenStore, target: Target | None = None, commit: CommitId | None = None, *,
        mirrors: Mirrors | None = None, tracked: bool = False,
    ) -> Repository:  # fmt: skip
        """Return the repository in `store`; its threads end when that is closed.

        target, commit: what the caller will pass to `resolve` and `Objects.stored_commit`. tracked: the answers are
        written to the tracking files in the end, and the workspace's branch must be where it was last seen.
        """
        from dsv.repo.repository import Repository
        from dsv.stores.open import split_of

        ahead = self._expecting(target)
        read_source = reads_outside(lambda: self.store_options(self.settings.store()))
        access = Access(
            self.clock, read_source, mirrors, override=self.override, tell=self.progress.note,
            last_seen=self._last_seen() if tracked else None, copies=self.copy_limits, job=self.job,
        )  # fmt: skip
        repository = Repository.open(store, self.copies_folder, access, ahead=ahead, commit=commit)
        if tracked:
            store.before_close.append(partial(write_tracking, self, repository))
        left, split = repository.format.left, split_of(store)
        if left is not None and split is not None:
            self.moved(store.url, left, split.names.url)
        return repository

    def opener(self) -> Callable[[], Repository] | None:
        """Return a function with which another process opens the current repository; None if only this one can."""
        if self.offline or (place := self.place()) is None:
            return None
        copies = partial(copies_below, self.shared or self.metadata)
        return partial(open_beside, place, mirror_places(self), copies)

    def place(self) -> Place | None:
        """Return the current store, for another process; None for one in this process's memory."""
        choice = self.settings.store()
        if choice.url.startswith("memory:"):
            return None
        return choice.url, choice.names, self.store_options(choice), self.copy_limits

    def _last_seen(self) -> LastSeen | None:
        with suppress(DsvError, OSError):  # a command that needs the workspace reports the error
            here = self.workspace_or_none()
            if here is not None and (last := here.tracking().branches.get(str(here.branch))) is not None:
                return here.store_id, here.dataset, here.branch, last
        return None

    def _expecting(self, target: Target | None) -> Callable[[Refs], None]:
        dataset = None if target is None else target.dataset
        if target is not None and target.rev is not None and dataset is None:
            workspace = self.workspace_or_none()
            dataset = None if workspace is None else workspace.dataset
        if target is None or dataset is None:
            return lambda _: None
        from dsv.repo.resolve import expect

        return lambda refs: expect(refs, dataset, target.rev)

    def workspace(self) -> Workspace:
        """Return the workspace around the working folder. Raises `NotFound`."""
        found = Workspace.find(self.cwd)
        if found is None:
            if (hidden := bound_folder(self.cwd, unreadable=True)) is not None:
                raise Denied(
                    f"this user can't read the workspace {hidden}",
                    subject=str(hidden),
                    hint=f"ls -ld {shlex.quote(str(hidden / DOT_FOLDER))}",
                )
            raise NotFound(
                f"{self.cwd} is not inside a dsv workspace",
                subject=str(self.cwd),
                hint="dsv init, or dsv clone DATASET",
            )
        return found

    def workspace_or_none(self) -> Workspace | None:
        return Workspace.find(self.cwd)

    def workspace_of(self, target: str) -> Workspace:
        """Return the workspace that a target without a dataset refers to. Raises `UsageError`."""
        found = self.workspace_or_none()
        if found is None:
            raise UsageError(
                f"{target or 'the target'} names no dataset, and this is not a workspace",
                subject=target or None,
                hint=f"write DATASET{target}; dsv datasets lists the names",
            )
        return found

    @contextmanager
    def bound_repository(self, workspace: Workspace) -> Iterator[Repository]:
        """Open the repository of a workspace. Raises `Conflict` for another store."""
        with self.repository() as repository:
            check_binding(workspace, repository)
            yield repository

    def resolve(self, repository: Repository, target: Target, *, expired_too: bool = False) -> Resolved:
        """Return the commit that a target means, in a workspace or outside. Raises `UsageError`, `NotFound`.

        An expired commit is not found, unless `expired_too` or if it is the base of the workspace.
        """
        from dsv.repo.resolve import Resolved, resolve

        dataset = target.dataset
        if dataset is None:
            workspace = self.workspace_of(str(target))
            check_binding(workspace, repository)
            dataset = workspace.dataset
            if target.rev is None:
                base = workspace.base()
                if base is None:
                    where = str(workspace.root)
                    raise NotFound(f"{where} has no commit yet", subject=where, hint="dsv sync makes one")
                return Resolved(dataset, base)
        try:
            return resolve(repository.refs, repository.objects, dataset, target.rev, expired_too=expired_too)
        except NotFound as error:
            here = self.workspace_or_none()
            if target.rev is None and here is not None and not repository.refs.exists(dataset):
                heads, tags = repository.refs.names(here.dataset)
                if dataset in [*(str(head.branch) for head in heads), *(str(tag) for tag, _ in tags)]:
                    error.hint = f"did you mean @{dataset}?"
                elif target.path is None and os.path.lexists(here.root / dataset):
                    error.hint = f"did you mean :{dataset}? For dsv log and dsv diff: -- {dataset}"
            raise


def reads_outside(options: Callable[[], StoreOptions]) -> ReadSource:
    """Return a reader of files outside the store that it refers to. options: called at the first file."""

    @cache
    def reader() -> ReadSource:
        from dsv.exchange.reference import SourceReader

        return SourceReader(options())

    return lambda source, start, length: reader()(source, start, length)


@contextmanager
def explaining(repository: Repository) -> Iterator[None]:
    """If a missing object belongs to an expired commit, raise that error instead."""
    try:
        yield
    except IntegrityError as error:
        from dsv.repo.expiry import explained

        raise explained(repository, error) from error


def write_tracking(context: Context, repository: Repository) -> None:
    """Write the store's answers to the tracking files. Failures are ignored: nothing depends on them."""
    answers, names, now_ms = repository.refs.answers, repository.names_url, repository.clock()
    answers.write_all(context.copies_folder(repository.id).parent, names, now_ms)
    with suppress(DsvError, OSError):
        workspace = context.workspace_or_none()
        if workspace is not None and workspace.store_id == repository.id:
            path, often = workspace.tracking_path, _OFTEN_ENOUGH_MS
            answers.write(path, workspace.dataset, names, now_ms, renewed_ms=often)


def check_binding(workspace: Workspace, repository: Repository) -> None:
    """Raises `Conflict` if the workspace is bound to another store."""
    if workspace.store_id != repository.id:
        raise Conflict(
            f"{workspace.root} belongs to another store than {repository.store.url}",
            subject=str(workspace.root),
            hint="dsv config store shows which store is in effect and why",
        )


Place = tuple[str, str | None, "StoreOptions", CopyLimits]
"""A store's URL, the location of its names if elsewhere, its options, and the limits of its local copies."""


class Mirrors:
    """The mirrors of one store, in their order. Each is opened when first needed. Thread-safe."""

    def __init__(
        self, url: str, places: list[Place], metadata: MetadataFolder, tell: Callable[[str], None]
    ) -> None:
        """url: of the store. tell: receives one line when something is first read from a mirror."""
        self._url = url
        self._openers = [partial(open_place, place, metadata, mirror_of=url) for place in places]
        self._tell = tell
        self._opened: list[Repository] = []
        self._reported: set[str] = set()
        self._lock = threading.Lock()

    def read(self, kind: ObjectKind, object_id: Id, why: DsvError) -> bytes | None:
        """Return an object, verified, from the first mirror that has it."""
        return self._first(lambda objects: objects.read(kind, object_id), why)

    def commit(self, commit_id: CommitId, why: DsvError) -> CommitRecord | None:
        """Return a commit, verified, from the first mirror that has it."""
        return self._first(lambda objects: objects.commit_or_none(commit_id), why)

    def _first(self, get: Callable[[Objects], T | None], why: DsvError) -> T | None:
        for mirror in self._all():
            with suppress(DsvError):
                found = get(mirror.objects)
                if found is not None:
                    url = mirror.store.url
                    if url not in self._reported:
                        self._reported.add(url)
                        self._tell(
                            f"{why.message}; it was read from the mirror {url}, as further objects may be"
                        )
                    return found
        return None

    def stand_in(self, why: DsvError) -> Repository:
        """Return the first mirror that can be opened, to be read instead of the store. If none can, raise `why`."""
        for mirror in self._all():
            what = "does not answer" if isinstance(why, Unreachable) else "can't be opened"
            self._tell(
                f"{self._url} {what} ({why.message}); its mirror {mirror.store.url} is read instead, whose "
                "branches and tags may be older"
            )
            return mirror
        raise why

    def close(self) -> None:
        with self._lock:
            opened, self._opened, self._openers = self._opened, [], []
        for one in opened:
            one.store.close()

    def _all(self) -> Iterator[Repository]:
        """Yield the open mirrors, then open the others one by one."""
        number = 0
        while True:
            with self._lock:
                while number == len(self._opened) and self._openers:
                    try:
                        self._opened.append(self._openers.pop(0)())
                    except DsvError as error:
                        self._tell(f"a mirror of {self._url} can't be read: {error.message}")
                if number == len(self._opened):
                    return
                mirror = self._opened[number]
            yield mirror
            number += 1


def open_place(
    place: Place, metadata: MetadataFolder, mirrors: Mirrors | None = None, *, mirror_of: str | None = None
) -> Repository:
    """Open a store with its mirrors, or the mirror of a store, which is only read."""
    from dsv.repo.repository import Repository
    from dsv.stores.open import open_store

    url, names, options, copies = place
    store = open_store(url, options, names=names)
    if mirror_of is not None:
        message = f"{mirror_of} does not answer, and nothing is written to its mirror {url}"
        store.refusal = Unreachable(message, subject=mirror_of)
    try:
        access = Access(read_source=reads_outside(lambda: options), mirrors=mirrors, copies=copies)
        return Repository.open(store, metadata, access)
    except BaseException:
        store.close()
        raise


def open_beside(place: Place, mirrors: list[Place], metadata: MetadataFolder) -> Repository:
    """Open a store with its mirrors, or else its first mirror, in another process."""
    others = Mirrors(place[0], mirrors, metadata, lambda _: None)
    try:
        return open_place(place, metadata, others if mirrors else None)
    except (Unreachable, IntegrityError) as error:
        return others.stand_in(error)


def copies_below(folder: AnyPath, store_id: StoreId) -> AnyPath:
    return folder / STORES / str(store_id) / "objects"


def mirror_places(context: Context) -> list[Place]:
    mirrors, limits = context.settings.mirrors(), context.copy_limits
    return [(mirror.url, mirror.names, context.store_options(mirror), limits) for mirror in mirrors]


def open_to_read(
    context: Context, target: Target | None, closing: ExitStack, *, mirrors: bool = True
) -> Repository:
    """Open the current store with its mirrors, or else its first mirror, under the store's own id.

    It stays open until `closing` is closed, if ever. target: see `Context.repository`. If no mirror answers,
    or this machine does not know the store's id, raises the store's error: `Unreachable`, or `IntegrityError`
    if its format log is missing or damaged.
    """
    choice = context.settings.store()
    url = choice.url
    places = mirror_places(context) if mirrors else []
    found = Mirrors(url, places, context.copies_folder, context.progress.note)
    closing.callback(found.close)
    try:
        store = context.open_store()
        closing.callback(store.close)
        repository = context.open_repository(store, target, mirrors=found if places else None, tracked=True)
    except (Unreachable, IntegrityError) as error:
        if not places:
            raise
        return _stand_in(context, found, _notes(context, url), error)
    # Commands that ask the store alone note its id too.
    if choice.name is not None and context.settings.get(f"stores.{choice.name}.mirrors") is not None:
        note_store(context, url, repository.id)
    return repository


def note_store(context: Context, url: str, store_id: StoreId) -> None:
    """Note the id of the store with this URL, so that nothing takes an absent one for one that never was."""
    for note in _notes(context, url):
        with suppress(OSError):
            if read_small(note) != str(store_id).encode():
                make_shared_folder(note.parent)
                replace_file(note, str(store_id).encode(), sync=False)


def _notes(context: Context, url: str) -> list[AnyPath]:
    """Return the files that hold the id of the store with this URL: this user's, and the cache's."""
    name = blake3(os.fsencode(url)).hexdigest()[:32]
    return [
        folder / "addresses" / name for folder in (context.settings.state, context.shared or context.metadata)
    ]


def _stand_in(context: Context, mirrors: Mirrors, notes: list[AnyPath], away: DsvError) -> Repository:
    known = None
    for note in notes:
        with suppress(DsvError, OSError):
            noted = read_small(note)
            known = known or (None if noted is None else StoreId.parse(noted.decode("ascii", "replace")))
    if known is None:
        raise type(away)(
            f"{away.message}; and its mirrors can't be read in its place, as this machine has not reached it since "
            "they were configured",
            subject=away.subject,
            hint="name a mirror itself: --store NAME",
        ) from away
    found = mirrors.stand_in(away)
    found.id = known  # workspaces and caches belong to the store, not to its mirror
    return found
