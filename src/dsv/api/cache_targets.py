"""From a target to a place in a cache: by what the cache itself knows if that is enough, else by asking
the store.
"""

from __future__ import annotations

import re
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from dsv.api.context import Context
from dsv.api.last_known import LastKnown, address, say_how_old, store_in_effect
from dsv.api.nearby_caches import note_cache
from dsv.cache.bindings import bind, bound_store, met
from dsv.cache.disk import explain, own_folder
from dsv.cache.filling.context import HelperSpec
from dsv.cache.known_refs import KnownRefs
from dsv.cache.layout import Place, folder_name
from dsv.cache.root import CacheRoot
from dsv.cache.tag_links import show_tag
from dsv.errors import Denied, NotFound, Unreachable, UsageError
from dsv.fs.files import FULL
from dsv.model.ids import CommitId, StoreId
from dsv.model.names import MAIN, BranchName, DatasetName, Rev, TagName, Target, clean_path
from dsv.model.path_set import PathSet
from dsv.repo.resolve import Resolved

# A hit is answered in less time than importing what fills takes, so that is imported when it is called for.
if TYPE_CHECKING:
    from dsv.cache.filling.source import StoreSource
    from dsv.repo.repository import Repository

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
        from dsv.cache.eviction.inventory import find_places

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
        from dsv.cache.filling.source import StoreSource

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
        known = KnownRefs(self.root, store).tag(dataset, tag)
        return None if known is None else (tag, known.commit)

    def _check_tag(self, dataset: DatasetName, tag: TagName) -> None:
        """Raises `NotFound` if the store says that the tag was deleted. If the store can't be asked, a line says that
        the tag is taken for what it was."""
        try:
            refs = self._open().refs
            stands = refs.tag_stands(dataset, tag)
        except (Unreachable, Denied, NotFound) as error:
            self._context.progress.note(
                f"{dataset}@{tag} is taken for what this cache knows: the store can't say if it was deleted since "
                f"({error.message})"
            )
            return
        if not stands:
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
        branch = known.branch(dataset, BranchName.parse(rev.text)) if branches else None
        if branch is None:
            return None
        if self._offline:
            say_how_old(self._context, self.root, dataset, rev, branch)
        return branch.commit

    def _by_prefix(self, dataset: DatasetName, prefix: str) -> CommitId | None:
        from dsv.cache.eviction.inventory import find_places

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
        resolved = found.resolved
        if resolved is None:
            return
        note_cache(self._context.settings, self.root.path)
        try:
            met(self.root, found.store, address(self._context))
            refs = KnownRefs(self.root, found.store)
            if resolved.tag is not None:
                refs.saw_tag(resolved.dataset, resolved.tag, resolved.commit)
            if resolved.branch is not None:
                refs.saw_branch(resolved.dataset, resolved.branch, resolved.commit)
        except PermissionError:
            return
        except OSError as error:
            if error.errno not in FULL:
                raise explain(error, self.root.path) from error

    def show_tags(self, found: Found, *, filled: bool) -> None:
        """Makes a visible commit be found under its tag, or if it was just filled under all tags that are known here.

        The caller has a claim on it. It does no harm if no link can be made.
        """
        if not found.selection.whole:
            return
        with suppress(OSError):
            tags = {found.tag} if found.tag is not None else set()
            if filled:
                known = KnownRefs(self.root, found.store).tags(found.dataset)
                tags |= {tag for tag, ref in known.items() if ref.commit == found.commit}
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
    from dsv.cache.filling.source import StoreSource
    from dsv.repo.repository import Repository
    from dsv.store.open import open_store
    from dsv.store.options import StoreOptions

    root = CacheRoot(Path(dot).parent)
    store = open_store(url, StoreOptions(**options), names=names)  # type: ignore[arg-type]
    return StoreSource(lambda: Repository.open(store, root.metadata))
