"""A small S3 server on loopback that can be made to misbehave at any request.

It speaks as much as dsv asks of a store: get (whole or a range), put with If-None-Match, list, delete.
"""

from __future__ import annotations

import enum
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from msgspec import structs

from dsv.stores.options import StoreOptions

BUCKET = "lake"
STORE = f"s3://{BUCKET}/dsv"
_PREFIX = f"/{BUCKET}/"
_OF_AN_OBJECT = {"Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT", "ETag": '"x"'}


class Trouble(enum.Enum):
    """What a request gets instead of its answer."""

    ERROR_500 = "500 InternalError"
    ERROR_503 = "503 SlowDown"
    HANG_UP = "the connection is closed, and nothing was done"
    LOST_ANSWER = "it is done, and the connection is closed"
    TRUNCATED = "half of the body that was announced, then the connection is closed"
    SHORT = "half of the body, announced as all of it"
    SILENCE = "nothing, for as long as one waits"
    EXPIRED = "403 ExpiredToken"
    PORTAL = "200 and the page of a hotel's network"


_CODES = {Trouble.ERROR_500: 500, Trouble.ERROR_503: 503, Trouble.EXPIRED: 403}
_PAGE = b"<!DOCTYPE html><html><body><h1>Welcome!</h1>Please accept our terms.</body></html>\n"


@dataclass
class Server:
    """`objects` is what is stored, `log` each request's method, path and range.

    `trouble` says what the n-th request from now (from 1) gets. `absent` counts the questions for keys that are not
    there; from the one with the number `nodes_down` on (from 1) they get 500, as nodes that may have them are down.
    """

    endpoint: str
    objects: dict[str, bytes] = field(default_factory=dict)
    trouble: Callable[[int], Trouble | None] = lambda number: None
    requests: int = 0
    nodes_down: int | None = None
    absent: int = 0
    log: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def environ(self) -> dict[str, str]:
        """Return the environment that makes dsv talk to this server."""
        return {
            "DSV_STORE": STORE,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }

    def heal(self) -> None:
        self.misbehave(lambda number: None)

    def misbehave(self, trouble: Callable[[int], Trouble | None]) -> None:
        with self.lock:
            self.requests, self.trouble = 0, trouble
            self.log.clear()

    def fail(self, trouble: Trouble, first: int = 1, count: int | None = None) -> None:
        """From the `first` request on, `count` of them (None: all)."""
        self.misbehave(
            lambda number: trouble if number >= first and (count is None or number < first + count) else None
        )

    def refs(self) -> dict[str, bytes]:
        return {key: data for key, data in self.objects.items() if key.startswith("dsv/refs/")}


@contextmanager
def troubled_server() -> Iterator[Server]:
    state = Server("")

    class Handler(_Handler):
        server_state = state

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    state.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.over.set()
        server.shutdown()
        server.server_close()
        thread.join(5)


class _Handler(BaseHTTPRequestHandler):
    server_state: Server
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._serve(lambda: self._get())

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        self._serve(lambda: self._put(data))

    def do_DELETE(self) -> None:
        self._serve(lambda: self._delete())

    def log_message(self, *_: object) -> None:
        pass

    def _serve(self, effect: Callable[[], tuple[int, bytes, dict[str, str]]]) -> None:
        state = self.server_state
        with state.lock:
            state.requests += 1
            state.log.append(f"{self.command} {self.path} {self.headers.get('Range', '')}")
            trouble = state.trouble(state.requests)
        with suppress(OSError):  # a client may be gone at any moment
            if trouble in _CODES:
                self._error(trouble)
            elif trouble is Trouble.PORTAL:
                self._send(200, _PAGE, {"Content-Type": "text/html"}, dated=False)
            elif trouble is Trouble.SILENCE:
                self._wait()
            elif trouble is Trouble.HANG_UP:
                self.close_connection = True
            else:
                self._answer(trouble, *effect())

    def _answer(self, trouble: Trouble | None, status: int, body: bytes, headers: dict[str, str]) -> None:
        if trouble is Trouble.LOST_ANSWER or (trouble is not None and not body):
            self.close_connection = True
        elif trouble is Trouble.TRUNCATED:
            self._send(status, body[: len(body) // 2], headers, announced=len(body))
            self.close_connection = True
        elif trouble is Trouble.SHORT:
            self._send(status, body[: len(body) // 2], headers)
        else:
            self._send(status, body, headers)

    def _send(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str],
        announced: int | None = None,
        dated: bool = True,
    ) -> None:
        self.send_response(status)
        for name, value in {**(_OF_AN_OBJECT if dated else {}), **headers}.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body) if announced is None else announced))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def _error(self, trouble: Trouble) -> None:
        status, _, code = trouble.value.partition(" ")
        self._send(int(status), _xml("Error", f"<Code>{code}</Code><Message>no</Message>"), {})

    def _wait(self) -> None:
        """Until the client has had enough, or the test is over."""
        self.close_connection = True
        self.connection.settimeout(0.05)
        while not self.server_state.over.is_set():
            try:
                if not self.connection.recv(1, socket.MSG_PEEK):
                    return
            except TimeoutError:
                continue

    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix(_PREFIX)

    def _get(self) -> tuple[int, bytes, dict[str, str]]:
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        if "list-type" in query:
            return self._list({name: values[0] for name, values in query.items()})
        state = self.server_state
        with state.lock:
            data = state.objects.get(self._key())
            state.absent += data is None
            down = data is None and state.nodes_down is not None and state.absent >= state.nodes_down
        if down:
            return 500, _xml("Error", "<Code>InternalError</Code><Message>no</Message>"), {}
        if data is None:
            return 404, _xml("Error", "<Code>NoSuchKey</Code><Message>no</Message>"), {}
        asked = self.headers.get("Range")
        if asked is None:
            return 200, data, {}
        first, last = (int(part) for part in asked.removeprefix("bytes=").split("-"))
        if first >= len(data):
            return 416, _xml("Error", "<Code>InvalidRange</Code><Message>no</Message>"), {}
        part = data[first : last + 1]
        where = {"Content-Range": f"bytes {first}-{first + len(part) - 1}/{len(data)}"}
        return 206, part, where

    def _put(self, data: bytes) -> tuple[int, bytes, dict[str, str]]:
        key, objects = self._key(), self.server_state.objects
        with self.server_state.lock:
            if self.headers.get("If-None-Match") == "*" and key in objects:
                return 412, _xml("Error", "<Code>PreconditionFailed</Code><Message>no</Message>"), {}
            objects[key] = data
        return 200, b"", {}

    def _delete(self) -> tuple[int, bytes, dict[str, str]]:
        with self.server_state.lock:
            self.server_state.objects.pop(self._key(), None)
        return 204, b"", {}

    def _list(self, query: dict[str, str]) -> tuple[int, bytes, dict[str, str]]:
        after = query.get("continuation-token") or query.get("start-after") or ""
        with self.server_state.lock:
            found = sorted(
                (key, len(data))
                for key, data in self.server_state.objects.items()
                if key.startswith(query.get("prefix", "")) and key > after
            )
        page, rest = found[:1000], found[1000:]
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2015-10-21T07:28:00.000Z</LastModified>"
            f"<ETag>x</ETag><Size>{size}</Size></Contents>"
            for key, size in page
        )
        more = f"<NextContinuationToken>{escape(page[-1][0])}</NextContinuationToken>" if rest else ""
        body = f"<IsTruncated>{'true' if rest else 'false'}</IsTruncated><KeyCount>{len(page)}</KeyCount>"
        return 200, _xml("ListBucketResult", body + more + rows), {}


def _xml(name: str, body: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<{name}>{body}</{name}>'.encode()


def hasty(options: StoreOptions) -> StoreOptions:
    """The same options, but a silent server is given up after a moment."""
    return structs.replace(options, read_timeout=0.3, transfer_timeout=3.0)
