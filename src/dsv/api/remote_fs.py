"""Places that fsspec knows how to reach: opened by their URL, and what goes wrong there told as dsv's errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dsv.api.remote_errors import BY_SSH, check_url, missing_package, telling
from dsv.errors import UsageError
from dsv.model.secret_shapes import hide_in_urls
from dsv.store.options import StoreOptions

_ETAGS = ("ETag", "etag", "blob_id", "md5Hash", "crc32c", "content_md5", "Content-MD5", "Digest")
_TIMES = ("LastModified", "Last-Modified", "last_modified", "updated", "mtime", "created")
S3 = ("s3", "s3a")


@dataclass(frozen=True, slots=True)
class Place:
    """A file system, and where in it the URL leads. shown: the URL without what is secret.

    turn: to be held by one thread at a time, if the file system can't be used by several.
    """

    fs: Any
    root: str
    protocol: str
    shown: str
    turn: AbstractContextManager[object]

    @property
    def takes_turns(self) -> bool:
        return not isinstance(self.turn, nullcontext)

    @property
    def by_ssh(self) -> bool:
        return self.protocol in BY_SSH

    @contextmanager
    def at_work(self, done: str) -> Iterator[None]:
        """For everything that is asked of the file system. done: what could not be done if it fails, such as `read`."""
        with telling(self.shown, done), self.turn:
            yield


def open_place(url: str, options: StoreOptions, *, inside: str = "") -> Place:
    """inside: a file system inside of what lies at the URL, such as `tar://`.

    Raises `Unsupported` if a package is missing, and `UsageError` for a URL that no package knows.
    """
    shown = hide_in_urls(url)
    check_url(shown, url)
    protocol = url.partition("://")[0].partition("::")[0]
    try:
        from fsspec.core import url_to_fs

        with telling(shown, "reached"):
            try:
                whole = f"{inside}::{url}" if inside else url
                fs, root = url_to_fs(whole, **storage_options(protocol, options))
            except ValueError as error:
                raise UsageError(
                    f"{shown} is no URL that can be reached: {error}",
                    subject=shown,
                    hint="dsv import --help shows URLs of each kind",
                ) from None
    except ImportError as error:
        raise missing_package(url, error) from None
    # paramiko mixes up the answers of two threads, and a tar is one file that is read from one place at a time
    alone = inside or protocol in BY_SSH
    return Place(fs, root.rstrip("/"), protocol, shown, threading.Lock() if alone else nullcontext())


def version_of(info: dict[str, Any]) -> str | None:
    """Size, entity tag and time, if the server gives one of the latter two."""
    etag = next((info[name] for name in _ETAGS if info.get(name)), None)
    time = next((info[name] for name in _TIMES if info.get(name)), None)
    if isinstance(time, str):
        with suppress(ValueError):
            time = datetime.fromisoformat(time)
    if isinstance(time, datetime):  # some file systems write one time in several ways
        time = time.timestamp()
    return None if etag is None and time is None else f"{info.get('size')} {etag} {time}"


def storage_options(protocol: str, options: StoreOptions) -> dict[str, Any]:
    """For s3:// what dsv's own stores are reached by. Other protocols find their credentials themselves."""
    if protocol in BY_SSH:
        from dsv.api.ssh_hosts import ssh_options

        return ssh_options()
    if protocol not in S3:
        return {}
    client = {"endpoint_url": options.endpoint or options.s3_endpoint, "region_name": options.region}
    if options.ca_file:
        client["verify"] = options.ca_file
    found: dict[str, Any] = {"client_kwargs": {name: value for name, value in client.items() if value}}
    if options.anonymous:
        return {**found, "anon": True}
    named = {
        "key": options.access_key,
        "secret": options.secret_key,
        "token": options.session_token,
        "profile": options.profile if not options.access_key else None,
    }
    return {**found, **{name: value for name, value in named.items() if value}}
