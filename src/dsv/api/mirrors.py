"""Reading a store that has mirrors: they give what it has lost, and stand in for it if it does not answer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from blake3 import blake3

from dsv.api.context import explaining, reads_outside, tracking
from dsv.errors import DsvError, IntegrityError, Unreachable
from dsv.fs.files import read_small, replace_file
from dsv.fs.folders import make_shared_folder
from dsv.values.ids import StoreId

if TYPE_CHECKING:
    from dsv.api.context import Context
    from dsv.repo.mirrors import Mirrors
    from dsv.repo.repository import MetadataFolder, Repository
    from dsv.store.options import StoreOptions
    from dsv.values.names import Target

Place = tuple[str, str | None, "StoreOptions"]
"""A store's URL, where its names are if elsewhere, and how it is reached."""


def mirrors_of(
    url: str, places: list[Place], metadata: MetadataFolder, tell: Callable[[str], None]
) -> Mirrors:
    """Return the mirrors at these places, of the store with this URL."""
    from dsv.repo.mirrors import Mirrors

    return Mirrors(url, tuple(partial(_open, url, place, metadata) for place in places), tell)


def _open(of: str, place: Place, metadata: MetadataFolder) -> Repository:
    from dsv.repo.repository import Repository
    from dsv.store.open import open_store

    url, names, options = place
    store = open_store(url, options, names=names)
    store.refusal = Unreachable(
        f"{of} does not answer, and nothing is written to its mirror {url}", subject=of
    )
    try:
        repository = Repository.open(store, metadata)
    except BaseException:
        store.close()
        raise
    store.before_close.append(repository.objects.threads.close)
    repository.objects.externals.read_source = reads_outside(lambda: options)
    return repository


def mirror_places(context: Context) -> list[Place]:
    """Return the places of the mirrors of the store in effect."""
    return [(one.url, one.names, context.store_options(one)) for one in context.settings.mirrors()]


@contextmanager
def reading(context: Context, target: Target | None) -> Iterator[Repository]:
    """Open the store in effect for reading, with its mirrors; or else the first of these, under the store's own id.

    target: as of `Context.repository`. If none answers, or nothing here knows the store's id, raises what opening the
    store raised: `Unreachable`, or `IntegrityError` if its format log is gone or damaged.
    """
    if context.offline or not context.settings.mirrors():
        with context.repository(target) as repository:
            yield repository
        return
    with ExitStack() as stack:
        repository, stands_in = _with_mirrors(context, target, stack)
        if stands_in:
            yield repository
            return
        with tracking(context, repository), explaining(repository):
            yield repository


def open_to_read(context: Context, target: Target | None, closing: ExitStack) -> Repository:
    """As `reading`, for a repository that stays open until `closing` is closed, or for good."""
    if context.offline:
        return context.offline_repository(target)
    if context.settings.mirrors():
        return _with_mirrors(context, target, closing)[0]
    store = context.open_store()
    closing.callback(store.close)
    return context.open_repository(store, target)


def _with_mirrors(context: Context, target: Target | None, closing: ExitStack) -> tuple[Repository, bool]:
    """Open the store in effect with its mirrors, or one of these, which then stands in for it."""
    url = context.settings.store().url
    mirrors = mirrors_of(url, mirror_places(context), context.metadata_folder, context.progress.note)
    closing.callback(mirrors.close)
    try:
        store = context.open_store()
        closing.callback(store.close)
        repository = context.open_repository(store, target)
    except (Unreachable, IntegrityError) as error:
        return _stand_in(context, mirrors, _notes(context, url), error), True
    use_mirrors(repository, mirrors)
    for note in _notes(context, url):
        with suppress(OSError):
            if read_small(note) != str(repository.id).encode():
                make_shared_folder(note.parent)
                replace_file(note, str(repository.id).encode(), sync=False)
    return repository, False


def use_mirrors(repository: Repository, mirrors: Mirrors) -> None:
    """Read what the store has lost, or can't give any more, from its mirrors."""
    from dsv.store.open import OpenStore

    repository.objects.mirrors = mirrors
    if isinstance(repository.store, OpenStore):
        repository.store.has_mirrors = True


def _notes(context: Context, url: str) -> list[Path]:
    """Return the files that have the id of the store with this URL: for this user, and for those of a cache."""
    name = blake3(os.fsencode(url)).hexdigest()[:32]
    return [folder / "addresses" / name for folder in (context.settings.state, context.metadata)]


def _known_id(context: Context, notes: list[Path]) -> StoreId | None:
    for note in notes:
        with suppress(DsvError, OSError):
            noted = read_small(note)
            if noted is not None:
                return StoreId.parse(noted.decode("ascii", "replace"))
    return None


def _stand_in(context: Context, mirrors: Mirrors, notes: list[Path], away: DsvError) -> Repository:
    known = _known_id(context, notes)
    if known is None:
        raise type(away)(
            f"{away.message}; and its mirrors can't be read in its place, as this machine has never reached it",
            subject=away.subject,
            hint="name a mirror itself: --store NAME",
        ) from away
    found = mirrors.stand_in(away)
    if found is None:
        raise away
    found.id = known  # so that workspaces and caches belong to the store, and not to its mirror
    return found


def open_with(
    opened: Callable[[], Repository], url: str, places: list[Place], metadata: MetadataFolder
) -> Repository:
    """Open a store with its mirrors, or else the first of these, in a process of a fill, which only reads objects."""
    mirrors = mirrors_of(url, places, metadata, lambda _: None)
    try:
        repository = opened()
    except (Unreachable, IntegrityError) as error:
        found = mirrors.stand_in(error)
        if found is None:
            raise
        return found
    use_mirrors(repository, mirrors)
    return repository
