"""A proxy in front of a real S3 server that behaves as some servers do: with conditions, absent keys, listings.

What it passes on it signs anew, so that it may change what was asked.
"""

from __future__ import annotations

import http.client
import random
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, parse_qsl, quote, unquote, urlencode, urlsplit

from tests.labs.s3_server import S3Server
from tests.waiting import PATIENCE

_ENTRY = re.compile(rb"<Contents>.*?<Key>(.*?)</Key>.*?</Contents>", re.S)
_PASSED_ON = ("range", "content-type", "if-none-match", "content-length")


@dataclass
class Behaviour:
    """How the server treats requests from now on. Every test changes it as it likes.

    ignores_condition: every put-if-absent wins. condition_answer: the status that a put-if-absent gets instead.
    two_winners: the chance that the condition of a put is ignored. nodes_down: absent keys are answered with 500.
    hidden_from_listings: of each new key, how many listings do not have it. slow_down, cut_body: every n-th request
    gets 503, or half a body. swap: what is given for a whole key instead of its bytes, once it was read as often as
    `swap_after` says; None for one that stays.
    """

    ignores_condition: bool = False
    condition_answer: int | None = None
    two_winners: float = 0.0
    nodes_down: bool = False
    hidden_from_listings: int = 0
    slow_down: int = 0
    cut_body: int = 0
    swap: Callable[[str, bytes], bytes | None] = lambda key, data: None
    swap_after: int = 1
    reads: Counter[str] = field(default_factory=Counter)
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    requests: int = 0
    log: list[str] = field(default_factory=list)
    hidden: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def proxy(server: S3Server, at: socket.socket | None = None) -> Iterator[tuple[S3Server, Behaviour]]:
    """The proxied server and what it does, which is at first what the real one does.

    at: a listening socket to serve, as one in another network; by default one on loopback.
    """
    behaviour = Behaviour()

    class Handler(_Handler):
        behind, does = server, behaviour
        connections = threading.local()

    listener = _Server(("127.0.0.1", 0), Handler, bind_and_activate=at is None)
    if at is not None:
        listener.socket.close()
        listener.socket = at
        listener.server_address = at.getsockname()
    thread = threading.Thread(target=listener.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    host, port = listener.socket.getsockname()[:2]
    endpoint = f"http://{host}:{port}"
    try:
        yield S3Server(endpoint, server.access_key, server.secret_key, server.region), behaviour
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join(5)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128


class _Handler(BaseHTTPRequestHandler):
    behind: S3Server
    does: Behaviour
    connections: threading.local
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def do_PUT(self) -> None:
        self._serve()

    do_GET = do_HEAD = do_DELETE = do_POST = do_PUT  # noqa: N815

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else b""
        does = self.does
        with does.lock:
            does.requests += 1
            number = does.requests
            does.log.append(f"{self.command} {self.path}")
            ignored = does.ignores_condition or does.chance.random() < does.two_winners
        headers = {name: self.headers[name] for name in _PASSED_ON if name in self.headers}
        if does.slow_down and number % does.slow_down == 0:
            self._answer(503, _error("SlowDown"), {})
            return
        if "if-none-match" in headers and self.command == "PUT":
            if does.condition_answer is not None:
                self._answer(does.condition_answer, _error("NotImplemented"), {})
                return
            if ignored:
                del headers["if-none-match"]
        status, answer, found = self._ask(headers, body)
        if status == 404 and does.nodes_down and self.command in ("GET", "HEAD"):
            status, answer, found = 500, _error("InternalError"), {}
        if status == 200 and self.command == "PUT" and does.hidden_from_listings:
            with does.lock:
                does.hidden[unquote(urlsplit(self.path).path).split("/", 2)[2]] = does.hidden_from_listings
        if status == 200 and "list-type" in parse_qs(urlsplit(self.path).query):
            answer = self._listing(answer)
        if status == 200 and self.command == "GET" and "?" not in self.path:
            answer = self._swapped(answer)
        cut = bool(
            does.cut_body and number % does.cut_body == 0 and self.command == "GET" and len(answer) > 1
        )
        self._answer(status, answer, found, cut=cut)

    def _swapped(self, data: bytes) -> bytes:
        key = unquote(self.path).split("/", 2)[2]
        with self.does.lock:
            other = self.does.swap(key, data)
            if other is None:
                return data
            self.does.reads[key] += 1
            return other if self.does.reads[key] > self.does.swap_after else data

    def _listing(self, answer: bytes) -> bytes:
        def kept(match: re.Match[bytes]) -> bytes:
            key = match[1].decode()
            with self.does.lock:
                left = self.does.hidden.get(key, 0)
                if left:
                    self.does.hidden[key] = left - 1
            return b"" if left else match[0]

        return _ENTRY.sub(kept, answer)

    def _ask(self, headers: dict[str, str], body: bytes) -> tuple[int, bytes, dict[str, str]]:
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        server, split = self.behind, urlsplit(self.path)
        # As the server will spell it when it checks the signature.
        query = urlencode(parse_qsl(split.query, keep_blank_values=True), quote_via=quote, safe="-_.~")
        path = quote(unquote(split.path), safe="/-_.~") + (f"?{query}" if query else "")
        request = AWSRequest(self.command, f"{server.endpoint}{path}", headers=dict(headers), data=body)
        request.context["client_config"] = None
        S3SigV4Auth(Credentials(server.access_key, server.secret_key), "s3", server.region).add_auth(request)
        prepared: Any = request.prepare()
        address = urlsplit(server.endpoint).netloc
        for attempt in (1, 2):
            connection = getattr(self.connections, "one", None) or http.client.HTTPConnection(
                address, timeout=PATIENCE
            )
            self.connections.one = connection
            try:
                connection.request(self.command, path, body=body, headers=dict(prepared.headers))
                answer = connection.getresponse()
                data = answer.read()
                break
            except (OSError, http.client.HTTPException):
                connection.close()
                self.connections.one = None
                if attempt == 2:
                    raise
        dropped = {"transfer-encoding", "connection", "content-length", "date", "server"}
        return (
            answer.status,
            data,
            {k: v for k, v in answer.getheaders() if k.lower() not in dropped}
            | (
                {"Content-Length": answer.getheader("Content-Length") or "0"}
                if self.command == "HEAD"
                else {}
            ),
        )

    def _answer(self, status: int, body: bytes, headers: dict[str, str], *, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers and status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self.close_connection = True


def _error(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
