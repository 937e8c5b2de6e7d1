"""Names in a cache: which store a dataset's paths belong to, and symlinks for tags."""

from __future__ import annotations

import contextlib
import os

import msgspec
from blake3 import blake3

from dsv.cache.root import CachePlace, CacheRoot, folder_name, places_in
from dsv.errors import Conflict, IntegrityError, UsageError
from dsv.files.shared_path import SharedPath
from dsv.files.small_files import list_names, read_json, read_small
from dsv.values.ids import StoreId
from dsv.values.names import DatasetName, TagName

PREFIX = "@"


def show_tag(root: CacheRoot, place: CachePlace, tag: TagName) -> None:
    """Make the tag's link lead to a place that is a whole commit. Leave anything else with that name alone.

    The caller has a claim on the place and has seen that it is visible. Raises `OSError`.
    """
    link = _path(root, place.dataset, PREFIX + tag.component)
    found = _target(link)
    if found == place.name:
        return
    if found is None and link.exists():  # a foreign file
        return
    draft = root.temporary / os.urandom(12).hex()
    draft.symlink_to(place.name)
    try:
        if found is None:
            with contextlib.suppress(FileExistsError):  # another process made it
                link.hardlink_to(draft)
        else:
            draft.rename(link)
    finally:
        draft.unlink(missing_ok=True)


def is_tag_link(path: SharedPath) -> bool:
    """Return whether a name beside the commits of a dataset is a tag's link, dangling or not."""
    return path.name.startswith(PREFIX) and _target(path) is not None


def hide_tags(root: CacheRoot, place: CachePlace, known: dict[str, dict[str, str]]) -> list[TagName]:
    """Remove the links to a place before it is renamed away; return their tags. Raises `OSError`, and keeps them then.

    known: the links of each dataset as first listed, filled and kept up to date here.
    """
    if place.dataset not in known:
        names = [name for name in list_names(root.top / place.dataset) if name.startswith(PREFIX)]
        targets = ((name, _target(_path(root, place.dataset, name))) for name in names)
        known[place.dataset] = {name: target for name, target in targets if target is not None}
    links = known[place.dataset]
    hidden: list[TagName] = []
    try:
        for name in [name for name, target in links.items() if target == place.name]:
            _path(root, place.dataset, name).unlink(missing_ok=True)
            del links[name]
            hidden.append(TagName(name.removeprefix(PREFIX).replace("%2F", "/")))
    except BaseException:
        for tag in hidden:
            with contextlib.suppress(OSError):
                show_tag(root, place, tag)
        raise
    return hidden


def remove_dangling(root: CacheRoot, dataset: str, name: str) -> None:
    """Remove a link whose commit is gone, and the dataset's folder if it is then empty. Raises `OSError`."""
    link = _path(root, dataset, name)
    target = _target(link)
    if target is not None and not (link.parent / target).exists():
        link.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            link.parent.rmdir()


def _path(root: CacheRoot, dataset: str, name: str) -> SharedPath:
    return root.top / dataset / name


def _target(link: SharedPath) -> str | None:
    """Return the name of the commit that a link is for, or None if the link is not dsv's."""
    try:
        target = link.readlink()
    except OSError:
        return None
    place = CachePlace.parse(link.parent.name, target)
    return target if place is not None and place.selection is None else None


_ADDRESS = "address-"
_IN_USE = ("lease-", "pin-", "intent-")


class _Binding(msgspec.Struct, frozen=True):
    version: int
    store: str


_BINDING = msgspec.json.Decoder(_Binding)


def bind(root: CacheRoot, dataset: DatasetName, store: StoreId, lease: str = "") -> None:
    """Give the dataset's paths to this store. Raises `Conflict` if another store has something there; `OSError`.

    lease: the id of the caller's lease of the dataset, taken before: see rule N7 of the cache protocol.
    """
    owner = bound_store(root, dataset)
    if owner is None:
        _put_back(root, root.binding(folder_name(dataset)))
        owner = bound_store(root, dataset)
    if owner not in (None, store) and _release(root, dataset, lease):
        owner = None
    if owner is None:
        if root.write_once(root.binding(folder_name(dataset)), msgspec.json.encode(_Binding(1, str(store)))):
            return
        owner = bound_store(root, dataset)
    if owner is None:
        path = root.binding(folder_name(dataset))
        raise IntegrityError(
            f"{path} does not say which store's dataset {dataset} is in {root.path}",
            subject=str(dataset),
            hint=f"dsv cache writes it anew after: rm {path}",
        )
    if owner != store:
        raise Conflict(
            f"{root.path} holds another store's dataset {dataset}",
            subject=str(dataset),
            hint=f"{_how_to_free(root, dataset)}; or use a cache of its own: --cache DIR",
        )


def _release(root: CacheRoot, dataset: DatasetName, lease: str) -> bool:
    """Remove the note of the store whose dataset it is, if nothing of it is cached or in use any more."""
    note = root.binding(folder_name(dataset))
    if _is_used(root, dataset, lease):
        return False
    away = note.with_name(f".released-{note.name}")
    with contextlib.suppress(FileNotFoundError):  # another command of this kind was faster
        note.rename(away)
    if _is_used(root, dataset, lease):  # a command of that store has come meanwhile
        _put_back(root, note)
        return False
    away.unlink(missing_ok=True)
    return True


def _put_back(root: CacheRoot, note: SharedPath) -> None:
    """Give the dataset its note again, if a release has renamed it away and then found it in use, or was killed."""
    data = read_small(note.with_name(f".released-{note.name}"))
    if data is not None:
        root.write_once(note, data)
        note.with_name(f".released-{note.name}").unlink(missing_ok=True)


def _is_used(root: CacheRoot, dataset: DatasetName, lease: str) -> bool:
    folder = folder_name(dataset)
    claims = root.dot / "claims" / folder
    root.reach(root.top / folder)
    root.reach(claims)
    names = [name for place in list_names(claims) for name in list_names(claims / place)]
    return (
        bool(places_in(root.top / folder))
        or bool(list_names(root.dot / "fill" / folder))
        or any(name.startswith(_IN_USE) and not name.startswith(f"lease-{lease}.") for name in names)
    )


def _how_to_free(root: CacheRoot, dataset: DatasetName) -> str:
    commits = dict.fromkeys(str(place.commit)[:12] for place in places_in(root.top / folder_name(dataset)))
    targets = " ".join(f"{dataset}@{commit}" for commit in commits)
    return f"dsv evict {targets} frees the name" if targets else "dsv cached shows who uses it"


def bound_store(root: CacheRoot, dataset: DatasetName) -> StoreId | None:
    """Return the store that filled this dataset first; None if no store did. Raises `OSError`."""
    binding = read_json(root.binding(folder_name(dataset)), _BINDING)
    try:
        return None if binding is None else StoreId.parse(binding.store)
    except UsageError:
        return None


def note_address(root: CacheRoot, store: StoreId, address: str) -> None:
    """Remember that this address led to this store, so that a cached commit needs no request next time.

    `address` is a URL and everything else that decides where it leads. Raises `OSError`.
    """
    name = _address_name(address)
    for other in list_names(root.dot / "stores"):
        if other != str(store):  # the address led there before
            (root.dot / "stores" / other / name).unlink(missing_ok=True)
    path = root.store(store) / name
    if not path.exists():
        root.write_once(path, address.encode())


def known_store(root: CacheRoot, address: str) -> StoreId | None:
    """Return the store that this address led to at the last request. Raises `OSError`."""
    name = _address_name(address)
    for store in list_names(root.dot / "stores"):
        if (root.dot / "stores" / store / name).exists():
            try:
                return StoreId.parse(store)
            except UsageError:
                continue
    return None


def _address_name(address: str) -> str:
    return f"{_ADDRESS}{blake3(address.encode()).hexdigest(length=16)}"
