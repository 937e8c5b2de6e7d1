"""Find the cache entry of a target from what the cache and this machine know, or else from the store."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from blake3 import blake3
from msgspec.structs import replace

from dsv.api.context import Context, Place, mirror_places, open_beside, write_tracking
from dsv.cache.names import bind, bound_store, known_store, note_address, show_tag
from dsv.cache.record import erasures_folder
from dsv.cache.root import CachePlace, CacheRoot, explain, explaining, folder_name, own_folder
from dsv.errors import Denied, DsvError, NotFound, Unreachable, UsageError
from dsv.files.small_files import FULL, list_names, read_small, replace_file
from dsv.repo.tracking import Tracked, Tracking, file_of, read
from dsv.values.ids import CommitId, StoreId
from dsv.values.names import MAIN, BranchName, DatasetName, Rev, TagName, Target, clean_path
from dsv.values.paths import PathSet
from dsv.values.units import format_duration

if TYPE_CHECKING:
    from dsv.api.settings import Settings
    from dsv.cache.fill.helper_process import OpenSource
    from dsv.cache.fill.source import StoreSource
    from dsv.repo.objects.objects import Objects
    from dsv.repo.repository import Repository
    from dsv.repo.resolve import Resolved
    from dsv.workspace.open import LocalCopies
    from dsv.workspace.workspace import Workspace


def tracked(
    root: CacheRoot, store: StoreId, dataset: DatasetName, workspace: Workspace | None = None
) -> Tracking:
    """Return the newest that a cache and a workspace know of each name of a dataset. Raises `OSError`."""
    found = read(file_of(root.store(store), dataset))
    if workspace is None or workspace.store_id != store or workspace.dataset != dataset:
        return found
    return found.newest(workspace.tracking())


def store_in_effect(context: Context, root: CacheRoot) -> StoreId | None:
    """Return the id of the store that the settings name, if the cache knows it. Raises `OSError`."""
    try:
        return known_store(root, address(context))
    except DsvError:  # no store is set up: cached data can still be used, by full id or offline
        return None


def address(context: Context) -> str:
    """Return the store's URL, and the endpoint that it is reached at. Raises `UsageError`, `NotFound`."""
    choice = context.settings.store()
    options = context.store_options(choice)
    scheme = choice.url.partition("://")[0]
    own = {"s3": options.s3_endpoint, "gs": options.gcs_endpoint, "az": options.azure_endpoint}.get(scheme)
    return f"{choice.url} {options.endpoint or own or ''}"


def note_branch_age(
    context: Context, root: CacheRoot, dataset: DatasetName, rev: Rev, known: Tracked
) -> None:
    """Note the commit that a branch is assumed to be at, and how long ago the store reported it."""
    from dsv.cache.inventory import server_now

    age = format_duration(max(0.0, server_now(root) - known.time_ms / 1000))
    context.progress.note(f"{dataset}@{rev} as the store said {age} ago: {str(known.commit)[:12]}")


def note_cache(settings: Settings, path: Path) -> None:
    """Remember that this user has used a cache. Failures are ignored."""
    name = settings.state / "caches" / blake3(bytes(path)).hexdigest(length=16)
    with suppress(OSError):
        if not name.exists():
            name.parent.mkdir(parents=True, exist_ok=True)
            replace_file(name, bytes(path), sync=False)


def nearby_caches(settings: Settings) -> list[Path]:
    """Return the folders of the caches that are configured or were used, the current one first."""
    found: list[Path] = []
    for text in (None, *settings.names("caches")):
        with suppress(DsvError):
            found.append(settings.cache(text).path)
    with suppress(OSError):
        folder = settings.state / "caches"
        noted = [read_small(folder / name) for name in list_names(folder)]
        found += [Path(path.decode("utf-8", "surrogateescape")) for path in noted if path]
    return list(dict.fromkeys(found))


@contextmanager
def lending(context: Context, repository: Repository, dataset: DatasetName) -> Iterator[LocalCopies | None]:
    """Open the caches of this machine that have data or metadata of a dataset, when first needed."""
    from dsv.cache.lending import Lenders

    roots = nearby_caches(context.settings)
    if not roots:
        yield None
        return
    own = context.copies_folder(repository.id)
    lenders = Lenders(roots, repository.id, dataset, own, context.progress.note)
    repository.objects.also_read(lenders)
    with closing(lenders):
        yield lenders


# Serving a hit takes less time than importing the modules that fill, so these are imported where they are used.

_WHOLE_ID = re.compile(r"[0-9a-f]{64}")
_ASK_SECONDS = 3600.0
"""How often a cache asks the store which files were erased, if it has all data asked for."""


class CacheTarget(msgspec.Struct, frozen=True):
    """The meaning of a target in a cache."""

    dataset: DatasetName
    commit: CommitId
    selection: PathSet
    store: StoreId
    resolved: Resolved | None = None
    """The store's answer, if it was asked."""
    tag: TagName | None = None

    @property
    def place(self) -> CachePlace:
        return CachePlace.of(folder_name(self.dataset), self.commit, self.selection.id)


class Targets(AbstractContextManager["Targets"]):
    """Find targets in one cache. The store is opened when first needed (never if `offline`), then closed."""

    def __init__(self, context: Context, root: CacheRoot, *, offline: bool = False) -> None:
        self.root = root
        self._context = replace(context, shared=root.dot)
        self._offline = offline or context.offline
        self._stack = ExitStack()
        self._repository: Repository | None = None

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def find(self, target: Target) -> CacheTarget:
        """Find a target for `cache` or `run`. The store is not asked if the answer can't have changed and the
        commit is cached. For a known tag, it is asked only whether the tag was deleted; without an answer,
        the tag is used. Raises `UsageError` for an empty target, `NotFound`, `Unreachable`, `Conflict`.
        """
        if not str(target):
            raise UsageError(
                "empty target", hint="dsv cache DATASET, or @REV in a workspace; is a variable unset?"
            )
        selection = PathSet.of([clean_path(target.path)])
        with explaining(self.root.path):
            known = self._known(target, selection)
            if known is not None and (self._offline or self.root.visible(known.place).is_dir()):
                if known.tag is not None and not self._offline:
                    self._check_tag(known.dataset, known.tag)
                elif not self._offline and self._is_long_ago(known.store):
                    with suppress(DsvError):  # cached data is used even if the store does not answer
                        self._open(target)
                return known
            if self._offline:
                raise Unreachable(  # only the store knows whether it exists
                    f"{target} is not known to the cache {self.root.path}, and the store is not asked",
                    subject=str(target),
                    hint=f"without --offline the store is asked: dsv cache {target}",
                )
            return self._ask(target, selection)

    def find_cached(self, target: Target) -> list[CachePlace]:
        """Return the cache entries of a target, from what the cache knows, or else from the store.

        Without a path: of all parts of its commit. Raises `NotFound`, and `Conflict` for a symlink in the
        way.
        """
        from dsv.cache.inventory import find_places

        selection = PathSet.of([clean_path(target.path)])
        with explaining(self.root.path):
            found = self._known(target, selection, branches=True)
            if found is None and not self._offline:
                found = self._ask(target, selection)
            places = [] if found is None else find_places(self.root, found.dataset)
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

    def find_exactly(self, target: Target) -> CachePlace:
        """Like `find_cached`, but without a path only the whole commit, not its parts. Raises `NotFound`."""
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
        """Return the current store. Raises `NotFound`, `Unreachable`, `Denied`, `Unsupported`."""
        return self._open()

    @property
    def objects(self) -> Objects | None:
        """The objects of the store; None while it is not open."""
        return None if self._repository is None else self._repository.objects

    def source(self) -> StoreSource:
        from dsv.cache.fill.source import StoreSource

        return StoreSource(lambda: self.repository)

    def helper(self) -> OpenSource | None:
        """Return a function with which a helper process opens this store; None if only this process can."""
        place = self._context.place()
        return place and partial(open_source, self.root, place, mirror_places(self._context))

    def bind(self, found: CacheTarget, lease: str) -> None:
        """Bind the dataset's visible paths to this store. Raises `Conflict` if another store has them."""
        with explaining(self.root.path):
            bind(self.root, found.dataset, found.store, lease)

    def _known(self, target: Target, selection: PathSet, *, branches: bool = False) -> CacheTarget | None:
        """Return what the cache alone knows; None if the store has to be asked."""
        here = None if target.dataset is not None else self._context.workspace()
        dataset = target.dataset or self._context.workspace().dataset
        branches = branches or self._offline
        store = bound_store(self.root, dataset)
        if store is None:
            return None
        if not branches and store != (here.store_id if here else store_in_effect(self._context, self.root)):
            return None
        if here is not None and target.rev is None:
            base = here.base()
            return None if base is None else CacheTarget(dataset, base, selection, store)
        rev = target.rev or Rev(MAIN)
        if rev.ancestor:
            return None
        if rev.commit_prefix is not None:
            commit = self._by_prefix(dataset, rev.text, branches)
            return None if commit is None else CacheTarget(dataset, commit, selection, store)
        tag = TagName.parse(rev.text)
        named = None if target.rev is None else tracked(self.root, store, dataset).tag(tag)
        if named is not None and named.commit_id is not None:
            return CacheTarget(dataset, named.commit_id, selection, store, tag=tag)
        if not branches:
            return None
        known = tracked(self.root, store, dataset, self._context.workspace_or_none())
        branch = known.branch(BranchName.parse(rev.text))
        if branch is None or branch.commit_id is None:
            return None
        if self._offline:
            note_branch_age(self._context, self.root, dataset, rev, branch)
        return CacheTarget(dataset, branch.commit_id, selection, store)

    def _by_prefix(self, dataset: DatasetName, prefix: str, cached: bool) -> CommitId | None:
        """Return the commit with this full id, or the only cached commit whose id begins with the prefix."""
        if _WHOLE_ID.fullmatch(prefix):
            return CommitId.parse(prefix)
        from dsv.cache.inventory import find_places

        places = find_places(self.root, dataset) if cached else []
        fitting = {place.commit for place in places if str(place.commit).startswith(prefix)}
        return fitting.pop() if len(fitting) == 1 else None

    def _check_tag(self, dataset: DatasetName, tag: TagName) -> None:
        """Raises `NotFound` if the store reports the tag as deleted. If it can't be asked, note that."""
        try:
            refs = self._open().refs
            deleted = refs.is_deleted(dataset, tag)
        except (Unreachable, Denied, NotFound) as error:
            self._context.progress.note(
                f"{dataset}@{tag} is used as this cache knows it: the store can't say if it was deleted since "
                f"({error.message})"
            )
            return
        if deleted:
            raise refs.no_name(dataset, tag)

    def _open(self, target: Target | None = None) -> Repository:
        """Open the store once. target: what the caller will look up in it."""
        if self._repository is None:
            if self._offline:
                raise Unreachable("the store is not asked, as --offline says", hint="leave out --offline")
            self._repository = self._stack.enter_context(self._context.repository(target, mirrors=True))
            if self._repository.objects.erasures:  # what was erased since the last such command
                from dsv.cache.erasures import obey

                with explaining(self.root.path):
                    obey(self.root, self._repository, self._context.progress.note)
        return self._repository

    def _is_long_ago(self, store: StoreId) -> bool:
        """Return whether the store was last asked for erasures over an hour ago, and record a new request.

        False if this user may not record that.
        """
        note = erasures_folder(self.root, store) / "asked"
        with suppress(FileNotFoundError):
            if abs(time.time() - note.stat().st_mtime) < _ASK_SECONDS:
                return False
        try:
            self.root.make_directory(note.parent)
            self.root.replace(note, b"")
        except OSError:
            return False
        return True

    def _ask(self, target: Target, selection: PathSet) -> CacheTarget:
        try:
            repository = self._open(target)
            resolved = self._context.resolve(repository, target)
        except Unreachable as error:
            if self._known(target, selection, branches=True) is not None:
                offline = f"the cache knows {target}: --offline uses it as last seen"
                error.hint = f"{offline}; {error.hint}" if error.hint else offline
            raise
        return CacheTarget(
            resolved.dataset, resolved.commit, selection, repository.id, resolved, resolved.tag
        )

    def remember(self, found: CacheTarget) -> None:
        """Record what the store reported, unless this user may not write to the cache, which must exist."""
        if found.resolved is None:
            return
        note_cache(self._context.settings, self.root.path)
        try:
            note_address(self.root, found.store, address(self._context))
            self._is_long_ago(found.store)
        except PermissionError:
            return
        except OSError as error:
            if error.errno not in FULL:
                raise explain(error, self.root.path) from error
        write_tracking(self._context, self.repository)

    def show_tags(self, target: CacheTarget, *, filled: bool) -> None:
        """Link a commit's tag to it, or after a fill all of its tags that are known here.

        The caller has a claim on the commit. Failures are ignored.
        """
        if not target.selection.whole:
            return
        with suppress(OSError):
            tags = {target.tag} if target.tag is not None else set()
            if filled:
                known = tracked(self.root, target.store, target.dataset).there("tags")
                tags |= {
                    TagName.parse(name) for name, record in known.items() if record.commit_id == target.commit
                }
            for tag in tags:
                show_tag(self.root, target.place, tag)


def open_source(root: CacheRoot, place: Place, mirrors: list[Place]) -> StoreSource:
    """Open the source of a fill in a helper process."""
    from dsv.cache.fill.source import StoreSource

    return StoreSource(partial(open_beside, place, mirrors, root.metadata))
