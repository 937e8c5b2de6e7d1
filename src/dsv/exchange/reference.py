"""Files that a dataset refers to and does not store: importing them, and reading them later.

An import reads each file once, for its ids, like all later reads: what was imported can be read.
"""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import replace as with_fields
from http import HTTPStatus
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dsv.errors import NotFound, Unsupported, UsageError
from dsv.exchange.bodies import PIECE, ask_web, at_most, encoding_of, get_part
from dsv.exchange.remote import HTTP, S3, RemoteRoot, changed, hub_headers, open_place, path_in, split_url
from dsv.exchange.sources import FolderSource, RemoteFile
from dsv.files.errors import as_error
from dsv.files.small_files import open_plain
from dsv.format.external import MAX_TEXT, ExternalSource
from dsv.format.recipe import SINGLE_CHUNK_MAX
from dsv.repo.objects.externals import Found, ReadSource
from dsv.stores.options import StoreOptions
from dsv.transfer.save import ReadInto
from dsv.values.json import is_text
from dsv.values.paths import TAR_ENDINGS, show
from dsv.values.secrets import hide_in_urls


class SourceReader:
    """Reads referenced files of this machine, web servers and S3. Safe in threads and forked processes."""

    def __init__(self, options: StoreOptions) -> None:
        """options: those of the store. The S3 server is that of the file."""
        self._options = options
        self._places: dict[tuple[int, str, str], RemoteRoot] = {}
        self._lock = threading.Lock()

    def __call__(self, source: ExternalSource, start: int, length: int) -> Found:
        """Raises as `ReadSource`."""
        scheme = source.url.partition("://")[0]
        if scheme == "file":
            return _read_file(source, start, length)
        if scheme not in (*S3, *HTTP):
            shown = hide_in_urls(source.url)
            raise Unsupported(f"{shown} can't be read", subject=shown)
        place = self._place(scheme, source)
        from fsspec.asyn import sync

        with place.at_work("read"):
            read = _read_http if scheme in HTTP else _read_s3
            return sync(place.fs.loop, read, place, source, start, length)  # type: ignore[no-any-return]

    def _place(self, scheme: str, source: ExternalSource) -> RemoteRoot:
        key = os.getpid(), scheme, source.endpoint
        with self._lock:
            place = self._places.get(key)
            if place is None:
                there = source.endpoint or None
                options = replace(self._options, endpoint=there, s3_endpoint=there)
                place = self._places[key] = open_place(source.url, options)
        return with_fields(place, shown=hide_in_urls(source.url))


def _read_file(source: ExternalSource, start: int, length: int) -> Found:
    path = Path(source.url.removeprefix("file://"))
    try:
        with open_plain(path) as file:
            file.seek(start)
            data, now = file.read(length), os.fstat(file.fileno())
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EINVAL):
            raise as_error(error, path) from error
        raise NotFound(f"there is no file at {source.url}", subject=source.url) from None
    return data, replace(source, size=now.st_size, version="", tag=str(now.st_mtime_ns))


async def _read_s3(place: RemoteRoot, source: ExternalSource, start: int, length: int) -> Found:
    bucket, _, key = source.url.partition("://")[2].partition("/")
    which = {"Bucket": bucket, "Key": key}
    if source.version:
        which["VersionId"] = source.version
    try:
        answer, data = await get_part(place, which, start, length)
    except OSError as error:
        response = getattr(error.__cause__, "response", None) or {}
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if status != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        answer = await place.fs._call_s3("head_object", **which)  # it has become shorter
        return b"", _seen(source, answer, int(answer["ContentLength"]))
    total = str(answer.get("ContentRange", "")).rpartition("/")[2]
    return data, _seen(source, answer, int(total) if total.isdigit() else len(data))


def _seen(source: ExternalSource, answer: dict[str, Any], size: int) -> ExternalSource:
    version = str(answer.get("VersionId") or "")
    version = "" if version == "null" else version
    return replace(source, size=size, version=version, tag=_tag(answer.get("ETag")))


def _tag(text: object) -> str:
    return "" if text is None else str(text).replace('"', "")


async def _read_http(place: RemoteRoot, source: ExternalSource, start: int, length: int) -> Found:
    part = f"bytes={start}-{start + length - 1}"
    async with await ask_web(place, source.url, part, **hub_headers(source.url)) as answer:
        total = answer.headers.get("Content-Range", "").rpartition("/")[2]
        if answer.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:  # it has become shorter
            return b"", _seen_http(source, answer, int(total) if total.isdigit() else 0)
        place.fs._raise_not_found_for_status(answer, source.url)
        if answer.status != HTTPStatus.PARTIAL_CONTENT:
            size = int(answer.headers.get("Content-Length", -1))
            if start or not 0 <= size <= PIECE:
                raise _unfit(place.shown, "its server does not give parts of files")
            total = str(size)
        if encoding := encoding_of(answer):
            raise _unfit(place.shown, f"its server packs it by {encoding}")
        is_part = answer.status == HTTPStatus.PARTIAL_CONTENT
        data = await at_most(answer.content, length if is_part else size)
        found = _seen_http(source, answer, int(total) if total.isdigit() else -1)
        return data if is_part else data[:length], found


def _seen_http(source: ExternalSource, answer: Any, size: int) -> ExternalSource:
    """Return the file as found. The Hub's redirect names its content; the tag of its target may change."""
    last = answer.headers
    hub = [one.headers for one in (*answer.history, answer) if "X-Repo-Commit" in one.headers]
    if hub:
        own = last.get("ETag") if hub[-1] is last else None
        tag = next((one["X-Linked-ETag"] for one in hub if "X-Linked-ETag" in one), own)
        return replace(source, size=size, tag=_tag(tag).removeprefix("W/"))
    return replace(source, size=size, tag=_tag(last.get("ETag") or last.get("Last-Modified")))


def _unfit(shown: str, reason: str) -> Unsupported:
    hint = "without --reference what is there is stored"
    return Unsupported(f"{shown} can't be referred to: {reason}", subject=shown, hint=hint)


class ReferredSource(FolderSource):
    """The files at a URL to refer to. The state of each file is recorded when it is read."""

    def __init__(self, place: RemoteRoot, read: ReadSource, endpoint: str) -> None:
        """endpoint: the S3 server."""
        super().__init__(place)
        self._read_source = read
        self._scheme = place.protocol or "file"
        self._endpoint = endpoint if self._scheme in S3 else ""
        self._sources: dict[str, ExternalSource] = {}

    def source(self, file: RemoteFile) -> ExternalSource:
        """Return the state of a file at its first read, which must have happened."""
        return self._sources[file.key]

    def read(self, file: RemoteFile) -> bytes:
        return self._piece(file, 0, file.size or 0)

    def open(self, file: RemoteFile) -> ReadInto:
        at, size = 0, self._size(file)

        def read(buffer: memoryview) -> int:
            nonlocal at
            data = self._piece(file, at, min(len(buffer), PIECE, size - at)) if at < size else b""
            buffer[: len(data)] = data
            at += len(data)
            return len(data)

        return read

    def _size(self, file: RemoteFile) -> int:
        if file.size is None:
            raise _unfit(show(file.path), "its server does not say how large it is")
        return file.size

    def _piece(self, file: RemoteFile, start: int, length: int) -> bytes:
        if not length:
            return b""
        known = self._sources.get(file.key)
        data, found = self._read_source(known or self._expected(file), start, length)
        if known is None:
            tag = file.info.get("ETag")
            if found.size != file.size or (tag and found.tag and _tag(tag) != found.tag):
                raise changed(found.url)
            self._sources[file.key] = found
            if self._scheme in HTTP and found.size > SINGLE_CHUNK_MAX:
                self._read_source(found, found.size - 1, 1)  # readers will ask for parts
        if not (known or found).is_at(found) or len(data) != length:
            raise changed(found.url)
        return data

    def _expected(self, file: RemoteFile) -> ExternalSource:
        url = file.key if self._scheme in HTTP else f"{self._scheme}://{file.key}"
        if not is_text(url) or len(url.encode()) > MAX_TEXT or "\0" in url:
            raise _unfit(show(file.path), "its URL is too long, or not UTF-8")
        return ExternalSource(url, self._endpoint, "", "", self._size(file))


def open_referred(url: str, options: StoreOptions) -> ReferredSource:
    """Raises `Unsupported` for a URL that can't be referred to, and `UsageError` for a secret in a URL."""
    shown = hide_in_urls(url)
    scheme = url.partition("://")[0] if "://" in url else "file"
    if shown != url or "@" in split_url(url).netloc:
        text = f"{shown} has a secret in it, and everybody who reads the store could see it"
        hint = "without --reference the files are stored, and the URL is not"
        raise UsageError(text, subject=shown, hint=hint)
    if scheme not in ("file", *S3, *HTTP) or "::" in url:
        raise _unfit(shown, "only s3://, http(s):// and files of this machine can be")
    place = open_place(url, options)
    if path_in(url).endswith(TAR_ENDINGS) and place.info(place.root).get("type") != "directory":
        raise _unfit(shown, "what is in a tar has no URL of its own")
    endpoint = options.endpoint or options.s3_endpoint or ""
    if place.protocol not in ("file", *S3, *HTTP):
        place = with_fields(place, protocol="file")
    return ReferredSource(place, SourceReader(options), endpoint)
