"""The same pages, alive and read-only, for whoever has the token: other users of a machine reach its loopback too."""

from __future__ import annotations

import mimetypes
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from hmac import compare_digest
from secrets import token_urlsafe
from threading import Lock
from typing import TYPE_CHECKING, Final

from dsv.api.context import Context
from dsv.api.runs import open_runs
from dsv.errors import DsvError, Unsupported, UsageError
from dsv.site.blocks import INDEX
from dsv.site.build import PlannedPage, plan
from dsv.site.decoding import Decoder
from dsv.site.folder import STATIC, TEMPLATES, Images, Renderer, visible
from dsv.site.source import Source
from dsv.values.names import DatasetName

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

_FRESH_SECONDS = 5.0
"""How long names and runs are not read again."""
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class SiteServer:
    """hosts: what the header `Host` may say."""

    def __init__(
        self, context: Context, environ: Mapping[str, str], only: Sequence[DatasetName], port: int
    ) -> None:
        self.token, self.hosts = token_urlsafe(24), {f"127.0.0.1:{port}", f"localhost:{port}"}
        self._cookie = f"dsv-{port}"
        self._context, self._environ, self._only = context, environ, only
        self._renderer, self._images, self._lock = Renderer(), Images(), Lock()
        self._opened, self._pages, self._read_at = ExitStack(), dict[str, PlannedPage](), float("-inf")

    def app(self) -> Starlette:
        from starlette.applications import Starlette
        from starlette.routing import Route

        return Starlette(routes=[Route("/{path:path}", self.answer, methods=["GET"])])

    def answer(self, request: Request) -> Response:
        from starlette.responses import PlainTextResponse, RedirectResponse, Response

        if request.headers.get("host") not in self.hosts:
            return PlainTextResponse("this is another host", 421, HEADERS)
        if self._is_token(request.query_params.get("token", "")):
            response = RedirectResponse("/", 303, HEADERS)
            response.set_cookie(self._cookie, self.token, httponly=True, samesite="lax")
            return response
        if not self._is_token(request.cookies.get(self._cookie, "")):
            return PlainTextResponse("open the address that dsv site --serve has printed", 403, HEADERS)
        path = request.path_params["path"] or INDEX
        try:
            with self._lock:
                body = self._body(path)
        except DsvError as error:
            return PlainTextResponse(visible(str(error)), 500, HEADERS)
        if body is None:
            return PlainTextResponse("there is no such page", 404, HEADERS)
        kind = "image/webp" if path.endswith(".webp") else mimetypes.guess_type(path)[0]
        return Response(body, 200, HEADERS, kind)

    def _is_token(self, text: str) -> bool:
        return compare_digest(text.encode(), self.token.encode())

    def _body(self, path: str) -> bytes | None:
        if path in STATIC:
            return (TEMPLATES / path).read_bytes()
        if path in self._images:
            return self._images[path]
        if time.monotonic() - self._read_at > _FRESH_SECONDS:
            self.close()
            opened = self._opened.enter_context(open_runs(self._context, self._environ))
            decoder = self._opened.enter_context(Decoder())
            self._pages = plan(Source(self._context, opened, self._images, decoder, self._only))
            self._read_at = time.monotonic()
        planned = self._pages.get(path)
        return None if planned is None else self._renderer.html(planned.make(), path)

    def close(self) -> None:
        self._opened.close()


def serve(
    context: Context,
    environ: Mapping[str, str],
    only: Sequence[DatasetName],
    port: int,
    tell: Callable[[str], None],
) -> None:
    """Serve until a signal. port: 0 for any free one. tell: called with the address, which has the token."""
    try:
        import uvicorn
    except ImportError as error:
        text, hint = (
            f"pages are served with {error.name}, which is not installed",
            "pip install 'dsv-data[site]'",
        )
        raise Unsupported(text, subject=error.name, hint=hint) from error
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
            listening.listen()
        except OSError as error:
            text = f"port {port} can't be served: {error.strerror}"
            raise UsageError(text, subject=str(port), hint="leave out --port") from error
        port = listening.getsockname()[1]
        server = SiteServer(context, environ, only, port)
        tell(f"http://127.0.0.1:{port}/?token={server.token}")
        config = uvicorn.Config(server.app(), log_level="warning", access_log=False, server_header=False)
        try:
            uvicorn.Server(config).run(sockets=[listening])
        finally:
            server.close()
