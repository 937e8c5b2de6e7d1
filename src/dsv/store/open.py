"""From a store's URL to a store."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from dsv.errors import Unreachable, UsageError
from dsv.store.base import Store
from dsv.store.directory import DirectoryStore
from dsv.store.opened import OpenStore, Unavailable
from dsv.store.options import StoreOptions
from dsv.store.retry import Retrying


def open_store(
    url: str, options: StoreOptions | None = None, *, create: bool = False, names: str | None = None
) -> OpenStore:
    """Open the store that `url` names, with retries.

    names: where its names are kept, if elsewhere; a URL or folder like the other.

    `url` is an absolute path, `file:///path`, `s3://bucket/prefix`, `gs://…`, `az://container/prefix` or
    `memory://name`. `create` makes a directory store's folder, but not that of its names; buckets are never made. No
    request is sent.
    Raises UsageError for any other URL, Denied without credentials, Unreachable for a folder that is absent.
    """
    known = options or StoreOptions()
    data = Retrying(open_raw(url, known, create=create))
    later = partial(open_names, options=known)
    if names is None:
        return OpenStore(data, None, later)
    try:
        return OpenStore(data, open_names(names, known), later)
    except BaseException:
        data.close()
        raise


def open_names(names: str, options: StoreOptions, *, create: bool = False) -> Store:
    """Even if they can't be reached: the data may be all that is asked for."""
    try:
        return Retrying(open_raw(names, options, create=create))
    except Unreachable as error:
        hint = f"is it mounted? ls -ld {names}; if it has moved: dsv config stores.NAME.names LOCATION"
        return Unavailable(names, Unreachable(error.message, subject=names, hint=hint))


SCHEMES: Final = ("file", "memory", "s3", "gs", "az")


def open_raw(url: str, options: StoreOptions, *, create: bool = False) -> Store:
    """Return the store itself, without retries: for tests, and for wrappers that belong below them."""
    scheme = "file" if url.startswith("/") else url.partition("://")[0]
    if scheme == url or scheme not in SCHEMES:
        raise UsageError(
            f"{url} is no store",
            subject=url,
            hint="name an absolute folder, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix",
        )
    if scheme == "file":
        return _open_directory(url, create)
    if scheme == "memory":
        from dsv.store.memory import MemoryStore

        return MemoryStore.named(url.removeprefix("memory://"))
    from dsv.store import clients  # the library is imported when the first object store is opened

    open_one = {"s3": clients.open_s3, "gs": clients.open_gcs, "az": clients.open_azure}[scheme]
    return open_one(url, options)


def _open_directory(url: str, create: bool) -> Store:
    if url.startswith("/"):
        return DirectoryStore(Path(url), create=create)
    from urllib.parse import unquote, urlsplit

    split = urlsplit(url)
    if split.netloc not in ("", "localhost") or not split.path.startswith("/"):
        raise UsageError(f"{url} is no folder of this machine", subject=url, hint="file:///absolute/path")
    return DirectoryStore(Path(unquote(split.path)), create=create)
