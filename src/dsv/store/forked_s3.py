"""S3 in a process that was forked from one that has used obstore, whose threads are not there any more.

botocore has no threads of its own. It takes more of a processor for each byte, and so is used nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NoReturn, TypeVar

from dsv.errors import Unsupported
from dsv.store.base import (
    LARGEST,
    Bytes,
    Item,
    Put,
    check_folder,
    check_key,
    check_prefix,
    check_range,
    cut_short,
    is_component,
    too_large,
)
from dsv.store.credentials import boto_client
from dsv.store.object_errors import as_store_error
from dsv.store.options import StoreOptions

_T = TypeVar("_T")

_KINDS: Final = {
    "EndpointConnectionError": "Connect",
    "ConnectTimeoutError": "Connect",
    "ReadTimeoutError": "Timeout",
}


class ForkedS3:
    """One prefix of one bucket, to be read alone. A fork of its process makes its own."""

    conditional = True

    def __init__(self, url: str, bucket: str, prefix: str, options: StoreOptions) -> None:
        self.url = url
        self.ordered_listing = options.ordered_listing
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        limits = {"connect_timeout": options.connect_timeout, "read_timeout": options.read_timeout}
        self._client = boto_client(url, options, **limits, attempts=1)

    def get(self, key: str, limit: int = LARGEST) -> bytes:
        name = self._prefix + check_key(key)

        def read() -> bytes:
            body = self._client.get_object(Bucket=self._bucket, Key=name)["Body"]
            return _closed(body, limit + 1)

        data = self._asked(key, read)
        if len(data) > limit:
            raise too_large(self.url, key, limit)
        return data

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        check_range(start, length)
        name = self._prefix + check_key(key)
        if length == 0:
            return memoryview(b"")

        def read() -> memoryview:
            wanted = f"bytes={start}-{start + length - 1}"
            answer = self._client.get_object(Bucket=self._bucket, Key=name, Range=wanted)
            if "ContentRange" in answer:
                return memoryview(_closed(answer["Body"], length))
            return memoryview(_closed(answer["Body"], start + length))[start:]

        data = self._asked(key, read, beyond=memoryview(b""))
        if len(data) != length:
            raise cut_short(self.url, key, start, length, len(data))
        return data

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[Item]:
        check_prefix(prefix)
        further = (
            {}
            if start_after is None or not self.ordered_listing
            else {"StartAfter": self._prefix + start_after}
        )
        for page in self._pages(Prefix=self._prefix + prefix, **further):
            for row in page.get("Contents", ()):
                key = row["Key"].removeprefix(self._prefix)
                if start_after is None or key > start_after:
                    yield Item(key, row["Size"])

    def folders(self, prefix: str) -> Sequence[str]:
        check_folder(prefix)
        above = self._prefix + prefix
        pages = self._pages(Prefix=above, Delimiter="/")
        found = (row["Prefix"] for page in pages for row in page.get("CommonPrefixes", ()))
        return sorted(filter(is_component, {path.removeprefix(above).rstrip("/") for path in found}))

    def modified(self, key: str) -> float:
        name = self._prefix + check_key(key)
        head = self._asked(key, lambda: self._client.head_object(Bucket=self._bucket, Key=name))
        return float(head["LastModified"].timestamp())

    def put_if_absent(self, key: str, data: Bytes) -> Put:
        self._refuse()

    def delete(self, key: str) -> None:
        self._refuse()

    def free_bytes(self) -> int | None:
        return None

    def close(self) -> None:
        self._client.close()

    def _pages(self, **wanted: Any) -> Iterator[dict[str, Any]]:
        further: dict[str, str] = {}
        while True:
            page: dict[str, Any] = self._asked(
                None,
                lambda: self._client.list_objects_v2(Bucket=self._bucket, **wanted, **further),  # noqa: B023
            )
            yield page
            if not page.get("IsTruncated"):
                return
            further = {"ContinuationToken": page["NextContinuationToken"]}

    def _asked(self, key: str | None, ask: Callable[[], _T], beyond: _T | None = None) -> _T:
        """beyond: the answer for a range that begins behind the end."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return ask()
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            code = error.response.get("Error", {}).get("Code", "")
            if status == 416 and beyond is not None:
                return beyond
            text = f"status code: {status} <Code>{code}</Code>"
            raise as_store_error(RuntimeError(text), self.url, self._client.meta.endpoint_url, key) from error
        except BotoCoreError as error:
            text = f"{error} (kind: {_KINDS.get(type(error).__name__, 'Request')}, )"
            raise as_store_error(RuntimeError(text), self.url, self._client.meta.endpoint_url, key) from error

    def _refuse(self) -> NoReturn:
        raise Unsupported(
            f"{self.url} can only be read in a process that was forked from one that has used an object store",
            subject=self.url,
            hint="start processes by spawn or forkserver, or before anything is read",
        )


def _closed(body: Any, size: int) -> bytes:
    """Read so many bytes at most, and give the connection back."""
    try:
        return bytes(body.read(size))
    finally:
        body.close()
