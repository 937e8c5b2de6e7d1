"""Web servers on loopback."""

from __future__ import annotations

import http.server
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *where: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # the client has gone
            super().handle_error(*where)


@contextmanager
def web_server(
    handler: Callable[..., http.server.BaseHTTPRequestHandler], certificate: Path | None = None
) -> Iterator[int]:
    """Answer by this class while the block runs. Yield the port. certificate: with its key, for HTTPS."""
    with _Server(("127.0.0.1", 0), handler) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
