"""Which store a dataset belongs to and what its names mean, as far as that is known without asking the store."""

from __future__ import annotations

from dataclasses import dataclass

from dsv.api.context import Context
from dsv.cache.bindings import bound_store, known_store
from dsv.cache.known_refs import KnownRef, KnownRefs
from dsv.cache.root import CacheRoot
from dsv.errors import DsvError
from dsv.model.ids import StoreId
from dsv.model.names import BranchName, DatasetName, Rev, TagName, Target
from dsv.model.units import format_duration
from dsv.worktree.workspace import Workspace


@dataclass(frozen=True, slots=True)
class LastKnown:
    """The names of one store, as the cache and the workspace around the caller know them. Raises `OSError`."""

    root: CacheRoot
    store: StoreId
    workspace: Workspace | None = None

    def tag(self, dataset: DatasetName, tag: TagName) -> KnownRef | None:
        return KnownRefs(self.root, self.store).tag(dataset, tag)

    def branch(self, dataset: DatasetName, branch: BranchName) -> KnownRef | None:
        """The newest of what is known about the branch."""
        heard = [KnownRefs(self.root, self.store).branch(dataset, branch), self._seen(dataset, branch)]
        return max((ref for ref in heard if ref is not None), key=lambda ref: ref.seen, default=None)

    def tags(self, dataset: DatasetName) -> dict[TagName, KnownRef]:
        return KnownRefs(self.root, self.store).tags(dataset)

    def branches(self, dataset: DatasetName) -> dict[BranchName, KnownRef]:
        found = KnownRefs(self.root, self.store).branches(dataset)
        names = set(found) | ({self.workspace.branch} if self._is_here(dataset) and self.workspace else set())
        known = {name: self.branch(dataset, name) for name in names}
        return {name: ref for name, ref in known.items() if ref is not None}

    def _seen(self, dataset: DatasetName, branch: BranchName) -> KnownRef | None:
        if self.workspace is None or not self._is_here(dataset) or self.workspace.branch != branch:
            return None
        commit, time = self.workspace.seen(), self.workspace.seen_time()
        return None if commit is None or time is None else KnownRef(commit, time)

    def _is_here(self, dataset: DatasetName) -> bool:
        """Whether the workspace is one of this dataset."""
        here = self.workspace
        return here is not None and here.store_id == self.store and here.dataset == dataset


def last_known(context: Context, root: CacheRoot, target: Target | None) -> LastKnown | None:
    """The names of the store that a target (None: the workspace) belongs to; None if that store is not known here."""
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


def say_how_old(context: Context, root: CacheRoot, dataset: DatasetName, rev: Rev, known: KnownRef) -> None:
    """Tells the caller which commit a branch is taken to be at, and how long ago the store said so."""
    from dsv.cache.eviction.inventory import server_now

    age = format_duration(max(0.0, server_now(root) - known.seen))
    context.progress.note(f"{dataset}@{rev} as the store said {age} ago: {str(known.commit)[:12]}")
