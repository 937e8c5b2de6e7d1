"""Reading a store that has mirrors: they give what it has lost, and stand in for it if it does not answer.

Objects are found by their ids in the mirror's own index, as its packs are others; so it does not matter how complete a
mirror is, and what it has is checked like everything else. Names come from a mirror only if the store can't be opened.
"""

from __future__ import annotations

import os
import threading
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
    from dsv.format.locator import ObjectKind
    from dsv.format.records import Commit
    from dsv.repo.repository import MetadataFolder, Repository
    from dsv.store.options import StoreOptions
    from dsv.values.ids import CommitId, Id
    from dsv.values.names import Target

Opener = Callable[[], "Repository"]
Place = tuple[str, str | None, "StoreOptions"]
"""A store's URL, where its names are if elsewhere, and how it is reached."""


class Mirrors:
    """The mirrors of one store, in their order. Each is opened when it is first needed; thread-safe."""

    def __init__(self, url: str, openers: tuple[Opener, ...], tell: Callable[[str], None]) -> None:
        """url: of the store. tell: is given one line when something is first read from a mirror."""
        self._url = url
        self._openers = list(openers)
        """Of those that were not opened yet."""
        self._tell = tell
        self._opened: list[Repository] = []
        self._told: set[str] = set()
        self._lock = threading.Lock()

    def read(self, kind: ObjectKind, object_id: Id, why: DsvError) -> bytes | None:
        """Return an object, checked, from the first mirror that has it."""
        for mirror in self._all():
            with suppress(DsvError):
                data = mirror.objects.read(kind, object_id)
                self._say(mirror, why)
                return data
        return None

    def commit(self, commit_id: CommitId, why: DsvError) -> Commit | None:
        """Return a commit, checked, from the first mirror that has it."""
        for mirror in self._all():
            with suppress(DsvError):
                found = mirror.objects.commit_or_none(commit_id)
                if found is not None:
                    self._say(mirror, why)
                    return found
        return None

    def stand_in(self, why: DsvError) -> Repository | None:
        """Return the first mirror that can be opened, to be read in place of the store."""
        for mirror in self._all():
            what = "does not answer" if isinstance(why, Unreachable) else "can't be opened"
            self._tell(
                f"{self._url} {what} ({why.message}); its mirror {mirror.store.url} is read instead, whose "
                "branches and tags may be older"
            )
            return mirror
        return None

    def close(self) -> None:
        """Close the stores that were opened."""
        with self._lock:
            opened, self._opened, self._openers = self._opened, [], []
        for one in opened:
            one.store.close()

    def _all(self) -> Iterator[Repository]:
        """Yield those that are open, then open the next one."""
        number = 0
        while (mirror := self._get(number)) is not None:
            yield mirror
            number += 1

    def _get(self, number: int) -> Repository | None:
        with self._lock:
            while number == len(self._opened) and self._openers:
                try:
                    self._opened.append(self._openers.pop(0)())
                except DsvError as error:
                    self._tell(f"a mirror of {self._url} can't be read: {error.message}")
            return self._opened[number] if number < len(self._opened) else None

    def _say(self, mirror: Repository, why: DsvError) -> None:
        url = mirror.store.url
        if url not in self._told:
            self._told.add(url)
            self._tell(f"{why.message}; it was read from the mirror {url}, as further objects may be")


def mirrors_of(
    url: str, places: list[Place], metadata: MetadataFolder, tell: Callable[[str], None]
) -> Mirrors:
    """Return the mirrors at these places, of the store with this URL."""
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
