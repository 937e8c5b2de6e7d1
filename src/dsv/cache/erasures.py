"""Removal from a cache of what was erased from its store.

Each command that uses the cache and has asked the store does so, and confirms it by a key in the store. Files
are removed from cached commits even while they are read; a later check does not miss them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from dsv.cache.inventory import find_visible
from dsv.cache.names import bound_store
from dsv.cache.record import erased_count, erasures_folder, read_record
from dsv.cache.root import dataset_of
from dsv.errors import Denied, DsvError, Unsupported
from dsv.files.descent import Descent, split
from dsv.files.shared_path import SharedPath
from dsv.files.small_files import list_names, read_small
from dsv.format import keys
from dsv.repo.tree.reader import TreeReader
from dsv.values.ids import Nonce
from dsv.values.paths import PathSet
from dsv.values.units import format_count

if TYPE_CHECKING:
    from dsv.cache.root import CachePlace, CacheRoot
    from dsv.repo.repository import Repository
    from dsv.values.ids import ErasureId

_ID = "cache-id"


class Obeyed(msgspec.Struct, frozen=True):
    """A cache's confirmation in the store. `cache` is the random id of the cache."""

    cache: str
    host: str
    path: str
    time_ms: int


OBEYED = msgspec.json.Decoder(Obeyed)


def obey(root: CacheRoot, repository: Repository, note: Callable[[str], None]) -> None:
    """Remove what was erased since this cache last looked, and confirm that in the store. Raises `OSError`.

    What can't be removed is reported, and tried again by the next command.
    """
    new = _not_obeyed(root, repository)
    if not new:
        return
    places, closed = _places(root, repository)
    failed = sum(not obey_at(root, place, repository) for place in places) + len(closed)
    if failed:
        note(
            f"the cache {root.path} still has files that were erased from {repository.store.url}: "
            f"{format_count(failed, 'commit')} can't be changed by this user"
        )
    elif not _is_busy(root):
        _tell(root, repository, erasures_folder(root, repository.id), new)


def still_cached(root: CacheRoot, repository: Repository) -> list[ErasureId]:
    """Return the erasures whose files this cache may still have. Changes nothing. Raises `OSError`, and `Denied`
    if that can't be seen.
    """
    new = _not_obeyed(root, repository)
    if not new:
        return []
    places, closed = _places(root, repository)
    if closed and not places:
        raise Denied(f"this user can't read {root.path / closed[0]}", subject=closed[0])
    return new if places or _is_busy(root) else []


def _not_obeyed(root: CacheRoot, repository: Repository) -> list[ErasureId]:
    erasures = repository.objects.erasures
    if not erasures or not root.exists():
        return []
    done = set(list_names(erasures_folder(root, repository.id) / "obeyed"))
    return [one for one in erasures.known if str(one) not in done]


def _places(root: CacheRoot, repository: Repository) -> tuple[list[CachePlace], list[str]]:
    """Return the cached commits of the store, by their records: a name may have passed to another store.

    And the folders of its datasets that this user can't read.
    """
    found = []
    seen = find_visible(root)
    for place in sorted(seen.places):
        record = read_record(root, place)
        store = str(bound_store(root, place.dataset_name)) if record is None else record.store
        if store == str(repository.id):
            found.append(place)
    closed = (name for name in sorted(seen.closed) if bound_store(root, dataset_of(name)) == repository.id)
    return found, list(closed)


def obey_at(root: CacheRoot, place: CachePlace, repository: Repository) -> bool:
    """Remove erased files from one cached commit, and record how many it lacks; False if it can't."""
    try:
        record = read_record(root, place)
        selection = PathSet() if record is None else record.paths
        erased = [
            entry.path
            for entry, _ in TreeReader(repository.objects, place.commit).within(selection)
            if repository.objects.erasures.of(entry) is not None
        ]
        with Descent(root.visible(place)) as descent:
            for path in erased:
                above, name = split(path)
                with suppress(FileNotFoundError, NotADirectoryError):
                    os.unlink(name, dir_fd=descent.at(above))
        if erased:
            count = erased_count(root, place, repository.id)
            root.make_directory(count.parent)
            root.replace(count, str(len(erased)).encode())
    except FileNotFoundError:
        return True  # it is no longer cached
    except (PermissionError, DsvError):
        return False
    return True


def _is_busy(root: CacheRoot) -> bool:
    """Return whether files of commits that are not visible may exist."""
    fills = root.dot / "fill"
    return any(name != root.spare_folder.name for name in list_names(root.trash)) or any(
        list_names(fills / dataset) for dataset in list_names(fills)
    )


def _tell(root: CacheRoot, repository: Repository, folder: SharedPath, new: list[ErasureId]) -> None:
    root.make_directory(folder / "obeyed")
    root.write_once(folder / _ID, Nonce.random().hex().encode())
    known = read_small(folder / _ID)
    if known is None:
        return
    cache = known.decode("ascii", "replace")
    said = Obeyed(cache, socket.gethostname(), str(root.path), repository.clock())
    for one in new:
        try:
            repository.store.put_if_absent(keys.obeyed_key(one, cache), msgspec.json.encode(said))
        except (Denied, Unsupported):
            pass  # to ask again, each command of this user would read all cached trees
        except DsvError:
            return  # the next command confirms the rest
        root.write_once(folder / "obeyed" / str(one), b"")
