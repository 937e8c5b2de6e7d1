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
from dsv.errors import DsvError, lacks
from dsv.site.blocks import INDEX, image_of
from dsv.site.build import open_source, plan
from dsv.site.folder import STATIC, TEMPLATES, Renderer, visible
from dsv.values.names import DatasetName

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from dsv.site.source import Folder, Source

_FRESH_SECONDS = 5.0
"""How long names and runs are not read again; longer if reading them took that long."""
_POLICY = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'"
HEADERS: Final = {
    "Content-Security-Policy": f"{_POLICY}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
}  # fmt: skip


class SiteServer:
    """folder: of all paths. Browsers send cookies to all ports of a host, where others may listen, but only with paths
    of the folder. hosts: what the header `Host` may say. opened: what pages are made from; the caller closes it."""

    def __init__(self, port: int, open_in: Callable[[ExitStack, Folder], Source]) -> None:
        self.token, self.folder = token_urlsafe(24), f"/{token_urlsafe(12)}/"
        self.hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self._cookie, self._open, self._renderer, self._lock = f"dsv-{port}", open_in, Renderer(), Lock()
        self.opened, self._images, self._fresh_until = ExitStack(), dict[str, bytes](), 0.0
        self._source: Source | None = None

    def answer(self, request: Request) -> Response:
        from starlette.responses import PlainTextResponse, RedirectResponse, Response

        path, sent = request.path_params["path"] or INDEX, request.cookies.get(self._cookie, "")
        if request.headers.get("host") not in self.hosts:
            return PlainTextResponse("this is another host", 421, HEADERS)
        if compare_digest(request.query_params.get("token", "").encode(), self.token.encode()):
            response = RedirectResponse(self.folder, 303, HEADERS)
            response.set_cookie(self._cookie, self.token, path=self.folder, httponly=True, samesite="lax")
            return response
        if not compare_digest(sent.encode(), self.token.encode()):
            return PlainTextResponse("open the address that dsv site --serve has printed", 403, HEADERS)
        try:
            with self._lock:
                body = (TEMPLATES / path).read_bytes() if path in STATIC else self._page(path)
        except DsvError as error:
            return PlainTextResponse(visible(str(error)), 500, HEADERS)
        if body is None:
            return PlainTextResponse("there is no such page", 404, HEADERS)
        kind = "image/webp" if path in self._images else mimetypes.guess_type(path)[0]
        return Response(body, 200, HEADERS, kind)

    def _page(self, path: str) -> bytes | None:
        if (began := time.monotonic()) > self._fresh_until or self._source is None:
            self.opened.close()
            self._source = self._open(self.opened, self._images)
            plan(self._source)
            for erasure in self._source.objects.erasures.known.values():
                for file in erasure.files:
                    self._images.pop(image_of(file), None)
            self._fresh_until = max(began + _FRESH_SECONDS, 2 * time.monotonic() - began)
        make = self._source.pages.get(path)
        return self._images.get(path) if make is None else self._renderer.html(make(), path)


def serve(
    context: Context, environ: Mapping[str, str], only: Sequence[DatasetName], tell: Callable[[str], None]
) -> None:
    """Serve at a free port of 127.0.0.1 until a signal. tell: called with the address, which has the token."""
    try:
        import uvicorn
        from starlette.applications import Starlette
        from starlette.routing import Route
    except ImportError as error:
        raise lacks(error, "site") from error
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        server = SiteServer(port, lambda stack, images: open_source(stack, context, environ, images, only))
        tell(f"http://127.0.0.1:{port}{server.folder}?token={server.token}")
        app = Starlette(routes=[Route(f"{server.folder}{{path:path}}", server.answer, methods=["GET"])])
        config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False)
        with server.opened:
            uvicorn.Server(config).run(sockets=[listening])
