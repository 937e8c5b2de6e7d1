"""An S3 server that notes every request: what was asked, how much was sent, what ran at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote

from tests.labs.s3_server import S3Server
from tests.stores.servers_on_moto import ServerOnMoto


@dataclass(frozen=True, slots=True)
class Request:
    """One request. begin, end: seconds, of a clock of the server's own. `what` is for whoever reads a failure."""

    what: str
    up: int
    down: int
    begin: float
    end: float

    def __str__(self) -> str:
        return f"{self.what} (up {self.up}, down {self.down})"


@dataclass
class Seen:
    """The requests of one command, in the order in which they came."""

    requests: list[Request] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.requests)

    def __str__(self) -> str:
        return "\n".join(str(request) for request in self.requests)

    @property
    def up(self) -> int:
        """Bytes of bodies that were sent to the store."""
        return sum(request.up for request in self.requests)

    @property
    def down(self) -> int:
        """Bytes of bodies that the store answered with."""
        return sum(request.down for request in self.requests)

    @property
    def rounds(self) -> int:
        """The most requests of which each began only after the one before had been answered.

        That many round trips the command takes, however many requests are under way at once.
        """
        count, last = 0, float("-inf")
        for request in sorted(self.requests, key=lambda one: one.end):
            if request.begin >= last:
                count, last = count + 1, request.end
        return count


class ObservedServer(ServerOnMoto):
    """`delay`: seconds that each answer is held back, as a network would."""

    def __init__(self) -> None:
        self.delay = 0.0
        self._seen = Seen()
        self._noting = threading.Lock()
        super().__init__()
        self.s3 = S3Server(self.endpoint, "testing", "secret-testing")

    @contextmanager
    def watch(self, delay: float = 0.0) -> Iterator[Seen]:
        """Give the requests that are made inside the block."""
        seen = Seen()
        self.delay, self._seen = delay, seen
        try:
            yield seen
        finally:
            self.delay, self._seen = 0.0, Seen()

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        begin, seen = time.monotonic(), self._seen
        body = super()._answer(environ, start_response)
        time.sleep(self.delay)
        down = sum(map(len, body)) if environ["REQUEST_METHOD"] != "HEAD" else 0
        up = int(environ.get("CONTENT_LENGTH") or 0)
        with self._noting:
            seen.requests.append(Request(_what(environ), up, down, begin, time.monotonic()))
            seen.requests.sort(key=lambda one: one.begin)
        return body


def _what(environ: dict[str, Any]) -> str:
    """`GET packs/ab/abcd… 0-99`, or `LIST refs/`."""
    path = unquote(environ["RAW_URI"].partition("?")[0]).lstrip("/").partition("/")[2]
    query = parse_qs(environ.get("QUERY_STRING", ""))
    if "list-type" in query:
        after = query.get("start-after", [""])[0]
        return f"LIST {query.get('prefix', [''])[0]}" + (f" after {after}" if after else "")
    span = environ.get("HTTP_RANGE", "").removeprefix("bytes=")
    return f"{environ['REQUEST_METHOD']} {path} {span}".rstrip()
