"""From a target to a place in a cache, by what the cache and this machine know, else by the store."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from blake3 import blake3

from dsv.cache.fill.request import HelperSpec
from dsv.cache.names import bind, bound_store, known_store, met, show_tag
from dsv.cache.root import CacheRoot, Place, explain, folder_name, own_folder
from dsv.errors import Denied, DsvError, NotFound, Unreachable, UsageError
from dsv.fs.files import FULL, list_names, read_small, replace_file
from dsv.repo.tracking import file_of, read
from dsv.values.ids import CommitId
from dsv.values.names import MAIN, BranchName, DatasetName, Rev, TagName, clean_path
from dsv.values.paths import PathSet
from dsv.values.units import format_duration

if TYPE_CHECKING:
    from dsv.api.context import Context
    from dsv.api.settings import Settings
    from dsv.cache.fill.source import StoreSource
    from dsv.repo.refs.resolve import Resolved
    from dsv.repo.repository import Repository
    from dsv.repo.tracking import Tracked, Tracking
    from dsv.values.ids import StoreId
    from dsv.values.names import DatasetName, Target
    from dsv.workspace.open import Copies
    from dsv.workspace.workspace import Workspace


@dataclass(frozen=True, slots=True)
class LastKnown:
    """The last answers of one store, in a cache and in the workspace around the caller. Raises `OSError`."""

    root: CacheRoot
    store: StoreId
    workspace: Workspace | None = None

    def of(self, dataset: DatasetName) -> Tracking:
        """Return the newest answer about each name of a dataset."""
        found = tracked(self.root, self.store, dataset)
        here = self.workspace
        if here is None or here.store_id != self.store or here.dataset != dataset:
            return found
        return found.newest(here.tracking())


def tracked(root: CacheRoot, store: StoreId, dataset: DatasetName) -> Tracking:
    """Return what a cache knows of a dataset. Raises `OSError`."""
    return read(file_of(root.store(store), dataset))


def last_known(context: Context, root: CacheRoot, target: Target | None) -> LastKnown | None:
    """Return the names of the store that a target (None: the workspace) belongs to; None if the store is not known."""
    workspace = context.workspace_or_none()
    dataset = None if target is None else target.dataset
    if dataset is None:
        return None if workspace is None else LastKnown(root, workspace.store_id, workspace)
    store = bound_store(root, dataset)
    if store is None and workspace is not None and workspace.dataset == dataset:
        store = workspace.store_id
    if store is None:
        store = store_in_effect(context, root)
    return None if store is None else LastKnown(root, store, workspace)


def store_in_effect(context: Context, root: CacheRoot) -> StoreId | None:
    """The id of the store that the settings name, if the cache has met it. Raises `OSError`."""
    try:
        return known_store(root, address(context))
    except DsvError:  # none is set up: what is cached can still be used, by full id or offline
        return None


def address(context: Context) -> str:
    """The store's URL, and the endpoint that decides where it leads. Raises `UsageError`, `NotFound`."""
    choice = context.settings.store()
    options = context.store_options(choice)
    scheme = choice.url.partition("://")[0]
    own = {"s3": options.s3_endpoint, "gs": options.gcs_endpoint, "az": options.azure_endpoint}.get(scheme)
    return f"{choice.url} {options.endpoint or own or ''}"


def say_how_old(context: Context, root: CacheRoot, dataset: DatasetName, rev: Rev, known: Tracked) -> None:
    """Tells the caller which commit a branch is taken to be at, and how long ago the store said so."""
    from dsv.cache.evict.inventory import server_now

    age = format_duration(max(0.0, server_now(root) - known.time_ms / 1000))
    context.progress.note(f"{dataset}@{rev} as the store said {age} ago: {str(known.commit)[:12]}")


def note_cache(settings: Settings, path: Path) -> None:
    """Remembers a cache that somebody used. It does no harm if that can't be written."""
    name = settings.state / "caches" / blake3(bytes(path)).hexdigest(length=16)
    with suppress(OSError):
        if not name.exists():
            name.parent.mkdir(parents=True, exist_ok=True)
            replace_file(name, bytes(path), sync=False)


def nearby_caches(settings: Settings) -> list[Path]:
    """Their folders, the one in effect first. Asks none of them."""
    found: list[Path] = []
    for text in (None, *settings.names("caches")):
        with suppress(DsvError):
            found.append(settings.cache(text).path)
    with suppress(OSError):
        noted = [
            read_small(settings.state / "caches" / name) for name in list_names(settings.state / "caches")
        ]
        found += [Path(path.decode("utf-8", "surrogateescape")) for path in noted if path]
    return list(dict.fromkeys(found))


@contextmanager
def lending(context: Context, repository: Repository, dataset: DatasetName) -> Iterator[Copies | None]:
    """What this machine's caches have of a dataset. They are asked when it is first needed, for metadata too."""
    from dsv.cache.lending import Lenders

    roots = nearby_caches(context.settings)
    if not roots:
        yield None
        return
    own = context.metadata_folder(repository.id)
    lenders = Lenders(roots, repository.id, dataset, own, context.progress.note)
    repository.objects.also_read(lenders)
    try:
        yield lenders
    finally:
        lenders.close()


# A hit is answered in less time than importing what fills takes, so that is imported when it is called for.

_WHOLE_ID = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Found:
    """What a target means in a cache. resolved: what the store said just now, if it was asked. tag: that named it."""

    dataset: DatasetName
    commit: CommitId
    selection: PathSet
    store: StoreId
    resolved: Resolved | None = None
    tag: TagName | None = None

    @property
    def place(self) -> Place:
        return Place.of(folder_name(self.dataset), self.commit, self.selection.id)


class Targets:
    """Finds targets in one cache. Opens the store when first needed, and closes it at the end.

    offline: never opens it; a branch is what it was when last heard of.
    """

    def __init__(self, context: Context, root: CacheRoot, *, offline: bool = False) -> None:
        self.root = root
        self._context = replace(context, metadata=root.dot)
        self._offline = offline or context.offline
        self._stack = ExitStack()
        self._repository: Repository | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def find(self, target: Target) -> Found:
        """For `cache` and `run`: the store is asked unless the answer can't have changed and the commit is
        there. Of a tag that the cache knows it is asked only if that was deleted; if it can't be asked, the tag counts.

        Raises `UsageError` for an empty target, `NotFound`, `Unreachable`, `Conflict`.
        """
        if not str(target):
            raise UsageError(
                "empty target",
                hint="dsv cache DATASET, or @REV in a workspace; is a variable unset?",
            )
        selection = PathSet.of([clean_path(target.path)])
        try:
            known = self._known(target, selection)
            if known is not None and (self._offline or self._is_there(known)):
                if known.tag is not None and not self._offline:
                    self._check_tag(known.dataset, known.tag)
                return known
            if self._offline:
                raise Unreachable(  # only the store knows what is not there
                    f"{target} is not known to the cache {self.root.path}, and the store is not asked",
                    subject=str(target),
                    hint=f"without --offline the store is asked: dsv cache {target}",
                )
            return self._ask(target, selection)
        except OSError as error:
            raise explain(error, self.root.path) from error

    def find_cached(self, target: Target) -> list[Place]:
        """For claims and evictions: what is cached of a target, by what the cache knows, else by asking
        the store.

        A target without a path means all that is cached of its commit. Raises `NotFound` if nothing is,
        and `Conflict` for a symlink in its place.
        """
        from dsv.cache.evict.inventory import find_places

        selection = PathSet.of([clean_path(target.path)])
        try:
            found = self._known(target, selection, branches=True)
            if found is None and not self._offline:
                found = self._ask(target, selection)
            places = [] if found is None else find_places(self.root, found.dataset)
        except OSError as error:
            raise explain(error, self.root.path) from error
        wanted = [place for place in places if found is not None and place.commit == found.commit]
        if found is not None and not selection.whole:
            wanted = [place for place in wanted if place == found.place]
        for place in wanted:
            own_folder(self.root.visible(place))
        if not wanted:
            raise NotFound(
                f"{target} is not in the cache {self.root.path}",
                subject=str(target),
                hint="dsv cached shows what is",
            )
        return wanted

    def find_exactly(self, target: Target) -> Place:
        """What `find_cached` finds, but the whole commit alone for a target without a path, and not its parts.

        Raises `NotFound` if that is not cached.
        """
        places = self.find_cached(target)
        for place in places:
            if (place.selection is None) == (not clean_path(target.path)):
                return place
        raise NotFound(
            f"{self.root.path} has parts of {target}, but not all of it",
            subject=str(target),
            hint=f"dsv cache {target}, or name the part: {target}:PATH",
        )

    @property
    def repository(self) -> Repository:
        """The store that is in effect. Raises `NotFound`, `Unreachable`, `Denied`, `Unsupported`."""
        return self._open()

    def source(self) -> StoreSource:
        from dsv.cache.fill.source import StoreSource

        return StoreSource(lambda: self.repository)

    def helper(self) -> HelperSpec | None:
        """How a helper process reaches the same store; None if only this process can."""
        choice = self._context.settings.store()
        if choice.url.startswith("memory:"):
            return None
        options = asdict(self._context.store_options(choice))
        arguments = {"url": choice.url, "names": choice.names, "options": options, "dot": str(self.root.dot)}
        return HelperSpec("dsv.api.cache_targets:open_source", arguments)

    def bind(self, found: Found) -> None:
        """Makes the dataset's visible paths this store's. Raises `Conflict` if they are another's."""
        try:
            bind(self.root, found.dataset, found.store)
        except OSError as error:
            raise explain(error, self.root.path) from error

    def _known(self, target: Target, selection: PathSet, *, branches: bool = False) -> Found | None:
        """What the cache knows by itself; None if the store has to be asked."""
        dataset, rev = self._dataset(target), target.rev
        store = bound_store(self.root, dataset)
        if store is None or not (branches or self._offline or store == self._store_in_effect(target)):
            return None
        if target.dataset is None and rev is None:
            base = self._context.workspace().base()
            return None if base is None else Found(dataset, base, selection, store)
        tag = self._known_tag(dataset, rev, store)
        if tag is not None:
            return Found(dataset, tag[1], selection, store, tag=tag[0])
        commit = self._known_commit(dataset, rev or Rev(MAIN), store, branches=branches or self._offline)
        return None if commit is None else Found(dataset, commit, selection, store)

    def _known_tag(
        self, dataset: DatasetName, rev: Rev | None, store: StoreId
    ) -> tuple[TagName, CommitId] | None:
        if rev is None or rev.ancestor or rev.commit_prefix is not None:
            return None
        tag = TagName.parse(rev.text)
        known = tracked(self.root, store, dataset).tag(tag)
        return None if known is None or known.commit_id is None else (tag, known.commit_id)

    def _check_tag(self, dataset: DatasetName, tag: TagName) -> None:
        """Raises `NotFound` if the store says that the tag was deleted. If the store can't be asked, a line says that
        the tag is taken for what it was."""
        try:
            refs = self._open().refs
            deleted = refs.is_deleted(dataset, tag)
        except (Unreachable, Denied, NotFound) as error:
            self._context.progress.note(
                f"{dataset}@{tag} is taken for what this cache knows: the store can't say if it was deleted since "
                f"({error.message})"
            )
            return
        if deleted:
            raise refs.no_name(dataset, tag)

    def _known_commit(
        self, dataset: DatasetName, rev: Rev, store: StoreId, *, branches: bool
    ) -> CommitId | None:
        """For what is no tag that the cache knows."""
        if rev.ancestor:
            return None
        if _WHOLE_ID.fullmatch(rev.text):
            return CommitId.parse(rev.text)
        if rev.commit_prefix is not None:
            return self._by_prefix(dataset, rev.commit_prefix) if branches else None
        known = LastKnown(self.root, store, self._context.workspace_or_none())
        branch = known.of(dataset).branch(BranchName.parse(rev.text)) if branches else None
        if branch is None:
            return None
        if self._offline:
            say_how_old(self._context, self.root, dataset, rev, branch)
        return branch.commit_id

    def _by_prefix(self, dataset: DatasetName, prefix: str) -> CommitId | None:
        from dsv.cache.evict.inventory import find_places

        commits = {place.commit for place in find_places(self.root, dataset)}
        fitting = [commit for commit in commits if str(commit).startswith(prefix)]
        return fitting[0] if len(fitting) == 1 else None

    def _open(self, target: Target | None = None) -> Repository:
        """target: what it is going to be asked."""
        if self._repository is None:
            if self._offline:
                raise Unreachable("the store is not asked, as --offline says", hint="leave out --offline")
            self._repository = self._stack.enter_context(self._context.repository(target))
        return self._repository

    def _ask(self, target: Target, selection: PathSet) -> Found:
        try:
            repository = self._open(target)
            resolved = self._context.resolve(repository, target)
        except Unreachable as error:
            if self._known(target, selection, branches=True) is not None:
                offline = f"the cache knows {target}: --offline takes it as it last was"
                error.hint = f"{offline}; {error.hint}" if error.hint else offline
            raise
        return Found(resolved.dataset, resolved.commit, selection, repository.id, resolved, resolved.tag)

    def remember(self, found: Found) -> None:
        """Records what the store said, unless this user may not write here. The cache must exist."""
        if found.resolved is None:
            return
        note_cache(self._context.settings, self.root.path)
        try:
            met(self.root, found.store, address(self._context))
        except PermissionError:
            return
        except OSError as error:
            if error.errno not in FULL:
                raise explain(error, self.root.path) from error
        from dsv.api.context import write_tracking

        write_tracking(self._context, self.repository)

    def show_tags(self, found: Found, *, filled: bool) -> None:
        """Makes a visible commit be found under its tag, or if it was just filled under all tags that are known here.

        The caller has a claim on it. It does no harm if no link can be made.
        """
        if not found.selection.whole:
            return
        with suppress(OSError):
            tags = {found.tag} if found.tag is not None else set()
            if filled:
                known = tracked(self.root, found.store, found.dataset).there("tags")
                tags |= {TagName.parse(name) for name, one in known.items() if one.commit_id == found.commit}
            for tag in tags:
                show_tag(self.root, found.place, tag)

    def _is_there(self, found: Found) -> bool:
        return self.root.visible(found.place).is_dir()

    def _dataset(self, target: Target) -> DatasetName:
        return target.dataset if target.dataset is not None else self._context.workspace().dataset

    def _store_in_effect(self, target: Target) -> StoreId | None:
        """Its id, as far as that is known without asking."""
        if target.dataset is None:
            return self._context.workspace().store_id
        return store_in_effect(self._context, self.root)


def open_source(url: str, names: str | None, options: dict[str, object], dot: str) -> StoreSource:
    """What a helper process of a fill calls, with the arguments of `Targets.helper`."""
    from dsv.cache.fill.source import StoreSource
    from dsv.repo.repository import Repository
    from dsv.store.open import open_store
    from dsv.store.options import StoreOptions

    root = CacheRoot(Path(dot).parent)
    store = open_store(url, StoreOptions(**options), names=names)  # type: ignore[arg-type]
    return StoreSource(lambda: Repository.open(store, root.metadata))
