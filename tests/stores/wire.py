"""A server on loopback that answers each connection as a test says, down to the byte."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from tests.waiting import PATIENCE

DATED = 'Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\nETag: "x"\r\n'


def answer(status: str, body: bytes = b"", *, headers: str = "", length: int | None = None) -> bytes:
    """An HTTP answer; `length` is what it claims to carry."""
    size = len(body) if length is None else length
    head = f"HTTP/1.1 {status}\r\n{DATED}{headers}Content-Length: {size}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


def s3_error(status: str, code: str) -> bytes:
    return answer(
        status, f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>m</Message></Error>".encode()
    )


@dataclass
class Wire:
    """The requests, and the answers to them: `answers` in turn, the last one for good. None: silence."""

    endpoint: str
    answers: list[bytes | None]
    asked: list[str] = field(default_factory=list)


@contextmanager
def serving(
    *answers: bytes | None, tls: ssl.SSLContext | None = None, relay: Callable[[bytes], bytes] | None = None
) -> Iterator[Wire]:
    """A server with these answers, or one whose answers `relay` makes of the requests."""
    listener = socket.create_server(("127.0.0.1", 0))
    scheme = "https" if tls else "http"
    wire = Wire(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}", [*answers])
    open_sockets: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        # A client may be gone at any moment, which is no failure of the server's.
        with connection, suppress(OSError):
            stream = tls.wrap_socket(connection, server_side=True) if tls else connection
            request = _request(stream)
            wire.asked.append(request.partition(b"\r\n\r\n")[0].decode())
            said = relay(request) if relay else wire.answers[0]
            if len(wire.answers) > 1:
                wire.answers.pop(0)
            if said is None:
                stream.recv(1)
                return
            stream.sendall(said)
            stream.shutdown(socket.SHUT_WR)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            open_sockets.append(connection)
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield wire
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for each in open_sockets:
            each.close()
        thread.join(5)


def _request(stream: socket.socket) -> bytes:
    """One request with its whole body."""
    stream.settimeout(PATIENCE)
    data = b""
    while b"\r\n\r\n" not in data:
        part = stream.recv(65536)
        if not part:
            raise OSError("the client went away")
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    length = next((int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")), 0)
    while len(body) < length:
        part = stream.recv(65536)
        if not part:
            raise OSError("the client went away")
        body += part
    return head + b"\r\n\r\n" + body
