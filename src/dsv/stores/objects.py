"""Object stores: S3 and services that speak it, Google Cloud Storage, Azure Blob Storage.

The client is obstore, whose calls release the interpreter's lock, so threads transfer in parallel. Its own
retries are off: `retry` does them, because only that module knows what a lost answer means.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotModifiedError, PreconditionError

from dsv.errors import DsvError, Unreachable, Unsupported
from dsv.format.keys import FORMAT_PREFIX, PACK_PREFIX, first_stays, format_key
from dsv.stores.base import (
    KEY_CHARACTERS,
    LARGEST,
    Bytes,
    ListedObject,
    PutResult,
    check_folder,
    check_key,
    check_prefix,
    check_range,
    cut_short,
    if_there,
    is_component,
    too_large,
)
from dsv.stores.object_errors import PAGE, ErrorMeaning, as_store_error, no_object_store

if TYPE_CHECKING:
    from datetime import datetime

    from obstore import GetResult


#: Uploads of at least this size use the client that is patient with a slow line.
BULK: Final = 1 << 20
_LIST_BATCH: Final = 1000
_PART: Final = 64 << 10  # bytes of a body that are read at a time
_began_in: int | None = None
"""The process in which the client was first used, or of which this one is a fork."""


def lost_threads() -> bool:
    """Return whether this process was forked from one that has used the client. Its threads do not exist
    here, so every call would hang."""
    return _began_in not in (None, os.getpid())


class ObjectStore:
    """One prefix of one bucket, through obstore.

    Both clients reach the same bucket: `quick` gives up on a silent server after seconds, `patient` gives an
    upload minutes. A subclass reads in another way.
    """

    def __init__(self, url: str, endpoint: str, prefix: str, quick: Any, patient: Any) -> None:
        self.url = url
        self.ordered_listing = True
        self.conditional = True
        self._endpoint = endpoint
        self._prefix = f"{prefix}/" if prefix else ""
        self._quick = quick
        self._patient = patient
        self._lists = False  # a listing has had a row

    def get(self, key: str, limit: int = LARGEST) -> bytes:
        path = self._path(key)
        try:
            data = self._whole(path, limit)
        except (BaseError, OSError) as error:
            raise self._error(error, key) from error
        if data is None or len(data) > limit:
            raise too_large(self.url, key, limit)
        return data

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        check_range(start, length)
        path = self._path(key)
        if length == 0:
            return memoryview(b"")
        try:
            data = self._part(path, start, length)
        except (BaseError, OSError) as error:
            if ErrorMeaning.of(error).beyond_the_end:
                raise cut_short(self.url, key, start, length, 0) from error
            raise self._error(error, key) from error
        if len(data) != length:
            raise cut_short(self.url, key, start, length, len(data))
        return data

    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        path = self._path(key)
        client = self._patient if len(data) >= BULK else self._quick
        mode: Literal["create", "overwrite"] = "create" if self.conditional else "overwrite"
        try:
            if not self.conditional and first_stays(key) and self._has(path):
                return PutResult.LOST
            obstore.put(client, path, data, mode=mode, use_multipart=False)
        except (AlreadyExistsError, PreconditionError, NotModifiedError):
            # 412, 409, and the 304 of some older servers.
            return PutResult.LOST
        except (BaseError, OSError) as error:
            raise self._error(error, None if isinstance(error, FileNotFoundError) else key) from error
        return PutResult.WON

    def _has(self, path: str) -> bool:
        try:
            obstore.head(self._quick, path)
        except FileNotFoundError:
            return False
        return True

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ListedObject]:
        check_prefix(prefix)
        self._check_process()
        return self._list(prefix, start_after)

    def _list(self, prefix: str, start_after: str | None) -> Iterator[ListedObject]:
        after = max(start_after or "", _just_before(prefix) or "") if self.ordered_listing else None
        try:
            for path, size in self._checked(prefix, self._prefix + after if after else None):
                key = path.removeprefix(self._prefix)
                if key.startswith(prefix):
                    if start_after is None or key > start_after:
                        yield ListedObject(key, size)
                elif self.ordered_listing and key > prefix:
                    return
        except (BaseError, OSError) as error:
            raise self._error(error, None) from error

    def _checked(self, prefix: str, after: str | None) -> Iterator[tuple[str, int]]:
        """Yield as `_rows` does. Raises `Unreachable` for what is no listing. obstore ends where a page does not
        name the next one, and does not end where pages repeat."""
        first, count, is_full = "", 0, True
        while is_full:
            is_full = False
            for path, size in self._rows(self._prefix + prefix, after):
                if path == first:
                    raise no_object_store(self._endpoint, f": a listing repeats {path}")
                self._lists, first, count, after = True, first or path, count + 1, path
                is_full = self.ordered_listing and count % _LIST_BATCH == 0
                yield path, size
        if not count and prefix.count("/") < 4:  # the moves of one branch are asked for one by one
            self._confirm_empty()

    def _confirm_empty(self) -> None:
        """Raises `Unreachable` if listings lack the format log: obstore takes any XML for an empty listing."""
        self._lists = self._lists or next(self._rows(self._prefix + FORMAT_PREFIX, None), None) is not None
        if not self._lists and if_there(lambda: self.get(format_key(0))) is not None:
            raise no_object_store(self._endpoint, ": its listings lack what is there")

    def folders(self, prefix: str) -> Sequence[str]:
        check_folder(prefix)
        self._check_process()
        above = self._prefix + prefix
        try:
            names = {path.removeprefix(above).rstrip("/") for path in self._below(above)}
            if not names:
                self._confirm_empty()
        except (BaseError, OSError) as error:
            raise self._error(error, None) from error
        return sorted(filter(is_component, names))

    def modified(self, key: str) -> float:
        path = self._path(key)
        try:
            return self._time(path).timestamp()
        except (BaseError, OSError) as error:
            raise self._error(error, key) from error

    def delete(self, key: str) -> None:
        path = self._path(key)
        try:
            obstore.delete(self._quick, path)
        except FileNotFoundError as error:
            missing, absent_key = self._error(error, key), ("", "NoSuchKey", "BlobNotFound")
            if isinstance(missing, Unreachable) or ErrorMeaning.of(error).code not in absent_key:
                raise missing from error
        except (BaseError, OSError) as error:
            raise self._error(error, key) from error

    def free_bytes(self) -> int | None:
        return None

    def close(self) -> None:
        """Do nothing: obstore's connections end with its clients."""

    def _whole(self, path: str, limit: int) -> bytes | None:
        """Return an object; None, or more than `limit` bytes, if it is larger, whatever its headers say."""
        answer = self._ask(path)
        return None if answer.meta["size"] > limit else _beginning(answer, limit + 1)

    def _part(self, path: str, start: int, length: int) -> memoryview:
        """Return a range, even if the server answers every range with the whole object."""
        try:
            return memoryview(obstore.get_range(self._quick, path, start=start, length=length))
        except (BaseError, OSError) as error:
            if not ErrorMeaning.of(error).ranges_unusable:
                raise
        return memoryview(_beginning(self._ask(path), start + length))[start:]

    def _ask(self, path: str) -> GetResult:
        """Ask for an object. Raises `Unreachable` for a web page. A pack may begin as one."""
        answer = obstore.get(self._quick, path)
        if not str(answer.attributes.get("Content-Type")).startswith("text/html"):
            return answer
        self._refuse_page(path, _beginning(answer, 1024))
        return obstore.get(self._quick, path)

    def _refuse_page(self, path: str, data: bytes) -> None:
        if PAGE.search(data[:1024].decode("latin-1")) and not path.startswith(self._prefix + PACK_PREFIX):
            raise no_object_store(self._endpoint, ": a web page came")

    def _rows(self, prefix: str, after: str | None) -> Iterator[tuple[str, int]]:
        """Yield path and size of at least all objects with the prefix that are after `after`."""
        folder = prefix.rpartition("/")[0] or None
        stream: Iterator[Any] = obstore.list(self._quick, prefix=folder, offset=after, chunk_size=_LIST_BATCH)
        for batch in stream:
            for row in batch:
                yield row["path"], row["size"]

    def _below(self, above: str) -> Sequence[str]:
        """Return the prefixes directly below one that is empty or ends with a slash."""
        return obstore.list_with_delimiter(self._quick, above.rstrip("/") or None)["common_prefixes"]

    def _time(self, path: str) -> datetime:
        return obstore.head(self._quick, path)["last_modified"]

    def _path(self, key: str) -> str:
        self._check_process()
        return self._prefix + check_key(key)

    def _check_process(self) -> None:
        global _began_in
        if lost_threads():
            raise Unsupported(
                f"{self.url} can't be used in a process that was forked from one that has used an object store",
                subject=self.url,
                hint="start processes by spawn or forkserver, or before anything is read",
            )
        _began_in = os.getpid()

    def _error(self, error: BaseException, key: str | None) -> DsvError:
        return as_store_error(error, self.url, self._endpoint, key)


def _beginning(answer: GetResult, limit: int) -> bytes:
    """Return the first `limit` bytes of a body, or all of a shorter one. The rest is not read."""
    parts: list[bytes] = []
    missing = limit
    for part in answer.stream(min_chunk_size=_PART):
        parts.append(bytes(part) if len(part) <= missing else bytes(memoryview(part)[:missing]))
        missing -= len(parts[-1])
        if not missing:
            break
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _just_before(prefix: str) -> str | None:
    """Return a string that sorts before every key that begins with `prefix`, and after most others.

    Only useful inside a folder, because the listing begins at the folder anyway.
    """
    folder, slash, name = prefix.rpartition("/")
    smaller = [character for character in KEY_CHARACTERS if name and character < name[-1]]
    # The previous last character, then the largest key after it.
    return f"{folder}{slash}{name[:-1]}{smaller[-1]}~" if smaller else None
