"""An S3 server that answers from memory, so that a benchmark measures the client: no disk, no checks, no journal.

`python -m benchmarks.memory_server` prints its port and serves one bucket until it is ended. It knows the requests that
dsv and s5cmd make, and keeps a process for each core busy with `sendfile`.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import sys
import threading
from contextlib import suppress
from http.client import parse_headers
from typing import IO
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_TIME = "Thu, 01 Jan 2026 00:00:00 GMT"
_ISO = "2026-01-01T00:00:00.000Z"
_objects: dict[str, tuple[int, int, str]] = {}
"""By key: the descriptor of its memory, its size, its entity tag."""
_parts: dict[str, dict[int, bytes]] = {}
_lock = threading.Lock()


def _store(key: str, body: bytes, *, only_new: bool = False) -> str | None:
    """Return the entity tag; None if it is there already and may not be replaced."""
    descriptor = os.memfd_create("object")
    view = memoryview(body)
    while view:
        view = view[os.write(descriptor, view) :]
    tag = hashlib.blake2b(body[:4096] + str(len(body)).encode(), digest_size=16).hexdigest()
    with _lock:
        if only_new and key in _objects:
            os.close(descriptor)
            return None
        _objects[key] = descriptor, len(body), tag
    return tag


def _listing(query: dict[str, list[str]]) -> bytes:
    def one(name: str) -> str:
        return query.get(name, [""])[0]

    prefix, delimiter = one("prefix"), one("delimiter")
    after = max(one("start-after"), one("continuation-token"), one("marker"))
    keys = sorted(key for key in _objects if key.startswith(prefix) and key > after)
    rows, folders = list[str](), dict[str, None]()
    for key in keys:
        below, slash, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
        if slash:
            folders[prefix + below + slash] = None
            continue
        if len(rows) == 1000:
            break
        _, size, tag = _objects[key]
        rows.append(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{_ISO}</LastModified><ETag>&quot;{tag}&quot;</ETag>"
            f"<Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        )
    more = len(rows) == 1000
    last = re.search("<Key>(.*?)</Key>", rows[-1])[1] if more else ""  # type: ignore[index]
    prefixes = "".join(
        f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in folders
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>bucket</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(rows)}</KeyCount><MaxKeys>1000</MaxKeys>"
        f"<IsTruncated>{str(more).lower()}</IsTruncated>"
        + (f"<NextContinuationToken>{last}</NextContinuationToken>" if more else "")
        + "".join(rows) + prefixes + "</ListBucketResult>"
    ).encode()  # fmt: skip


def _body(file: IO[bytes], headers: dict[str, str]) -> bytes:
    body = file.read(int(headers.get("content-length", 0)))
    if "aws-chunked" not in headers.get("content-encoding", "") and not headers.get(
        "x-amz-content-sha256", ""
    ).startswith("STREAMING"):
        return body
    pieces, at = list[bytes](), 0
    while at < len(body):
        end = body.index(b"\r\n", at)
        size = int(body[at:end].split(b";")[0], 16)
        if not size:
            break
        pieces.append(body[end + 2 : end + 2 + size])
        at = end + 4 + size
    return b"".join(pieces)


def _serve(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    file = connection.makefile("rb")

    def answer(status: str, body: bytes = b"", *more: str, length: int | None = None) -> None:
        head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", *more]
        connection.sendall("\r\n".join([*head, "", ""]).encode() + body)

    with connection, file:
        while line := file.readline():
            method, target, _ = line.decode().split()
            headers = {name.lower(): value for name, value in parse_headers(file).items()}
            url = urlsplit(target)
            key = unquote(url.path).lstrip("/").partition("/")[2]
            query = parse_qs(url.query, keep_blank_values=True)
            if "100-continue" in headers.get("expect", ""):
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            if method == "GET" and not key:
                answer("200 OK", _listing(query), "Content-Type: application/xml")
            elif method in ("GET", "HEAD"):
                _give(connection, answer, method, _objects.get(key), headers.get("range"))
            elif method == "PUT" and "partNumber" in query:
                body, upload = _body(file, headers), query["uploadId"][0]
                _parts[upload][int(query["partNumber"][0])] = body
                answer("200 OK", b"", 'ETag: "part"')
            elif method == "PUT":
                body, only_new = _body(file, headers), headers.get("if-none-match") == "*"
                if (tag := _store(key, body, only_new=only_new) if key else "") is None:
                    answer("412 Precondition Failed", b"<Error><Code>PreconditionFailed</Code></Error>")
                else:
                    answer("200 OK", b"", f'ETag: "{tag}"')
            elif method == "POST" and "uploads" in query:
                upload = os.urandom(8).hex()
                _parts[upload] = {}
                text = f"<Key>{escape(key)}</Key><UploadId>{upload}</UploadId>"
                answer(
                    "200 OK",
                    f"<InitiateMultipartUploadResult>{text}</InitiateMultipartUploadResult>".encode(),
                )
            elif method == "POST" and "uploadId" in query:
                _body(file, headers)
                parts = _parts.pop(query["uploadId"][0])
                tag = _store(key, b"".join(parts[number] for number in sorted(parts)))
                text = f"<Key>{escape(key)}</Key><ETag>&quot;{tag}&quot;</ETag>"
                answer(
                    "200 OK",
                    f"<CompleteMultipartUploadResult>{text}</CompleteMultipartUploadResult>".encode(),
                )
            elif method == "DELETE":
                if (gone := _objects.pop(key, None)) is not None:
                    os.close(gone[0])
                answer("204 No Content")
            else:
                _body(file, headers)
                answer("501 Not Implemented")


def _give(connection, answer, method, found, wanted) -> None:  # type: ignore[no-untyped-def]
    if found is None:
        answer("404 Not Found", b"" if method == "HEAD" else b"<Error><Code>NoSuchKey</Code></Error>")
        return
    descriptor, size, tag = found
    start, stop, status, more = 0, size, "200 OK", [f'ETag: "{tag}"', f"Last-Modified: {_TIME}"]
    if wanted:
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start, stop = (
            (int(first), min(size, int(last) + 1 if last else size)) if first else (size - int(last), size)
        )
        if start >= size:
            answer("416 Range Not Satisfiable", b"<Error><Code>InvalidRange</Code></Error>")
            return
        status = "206 Partial Content"
        more.append(f"Content-Range: bytes {start}-{stop - 1}/{size}")
    answer(status, b"", "Accept-Ranges: bytes", *more, length=stop - start)
    while method == "GET" and start < stop:
        start += os.sendfile(connection.fileno(), descriptor, start, stop - start)


def main() -> None:
    with socket.create_server(("127.0.0.1", int(sys.argv[1]) if sys.argv[1:] else 0), backlog=128) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            threading.Thread(target=_quietly, args=(server.accept()[0],), daemon=True).start()


def _quietly(connection: socket.socket) -> None:
    with suppress(OSError):  # the client has gone
        _serve(connection)


if __name__ == "__main__":
    main()
