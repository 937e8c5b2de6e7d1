"""moto's S3 behind a server of the tests' own, which may change what is asked of it and what it answers.

`GcsOnMoto` is as much of Google Cloud Storage's XML interface as the client uses. That interface is S3's but
for names: the header of the condition, and the one with an object's generation. It shows that a gs://
store asks the right things; of Google's own servers it shows nothing.

`LaxServer` is like rclone's S3 server: it ignores the condition of a put, and ranges.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote, unquote

TOKEN = "a-bearer-token"
SCOPE = "testing/20260101/us-east-1/s3/aws4_request"


class ServerOnMoto:
    """A server in this process, on loopback, with moto's buckets behind it."""

    extra_headers: tuple[tuple[str, str], ...] = ()

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import (
            DomainDispatcherApplication,
            MotoRequestHandler,
            create_backend_app,
        )
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # no line for each request
        self._inner = DomainDispatcherApplication(create_backend_app)
        # Checking and storing are two steps in moto; only one request at a time makes them one.
        self._lock = threading.Lock()
        self._server = make_server(
            "127.0.0.1", 0, self._answer, threaded=True, request_handler=MotoRequestHandler
        )
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()

    def change(self, environ: dict[str, Any]) -> None:
        """Makes of a request what moto is to see; here it is what was asked."""

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        def begin(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            return start_response(status, [*headers, *self.extra_headers], *rest)

        self.change(environ)
        with self._lock:
            return [*self._inner(environ, begin)]


class SmallPages(ServerOnMoto):
    """Its listings have pages of 100 in place of 1,000 objects, so that several pages are soon made."""

    def change(self, environ: dict[str, Any]) -> None:
        query = environ.get("QUERY_STRING", "")
        if "list-type=2" in query and "max-keys" not in query:
            environ["QUERY_STRING"] = f"{query}&max-keys=100"


class GcsOnMoto(ServerOnMoto):
    extra_headers = (("x-goog-generation", "1"),)

    def change(self, environ: dict[str, Any]) -> None:
        # Without the token it is a request from outside, which speaks S3.
        if environ.get("HTTP_AUTHORIZATION") != f"Bearer {TOKEN}":
            return
        environ["HTTP_AUTHORIZATION"] = f"AWS4-HMAC-SHA256 Credential={SCOPE}"
        if environ.pop("HTTP_X_GOOG_IF_GENERATION_MATCH", None) == "0":
            environ["HTTP_IF_NONE_MATCH"] = "*"
        # Google's client encodes what S3's leaves as it is, and moto compares the encoded bucket name.
        path, mark, query = environ["RAW_URI"].partition("?")
        environ["RAW_URI"] = environ["REQUEST_URI"] = quote(unquote(path), safe="/~") + mark + query


class LaxServer(ServerOnMoto):
    def change(self, environ: dict[str, Any]) -> None:
        environ.pop("HTTP_IF_NONE_MATCH", None)
        environ.pop("HTTP_RANGE", None)
