"""A registry of one image on loopback, which can only be read: so engines know the image by its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from tests.labs.images import SEARCH_PATH

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_CONFIG = "application/vnd.docker.container.image.v1+json"
_LAYER = "application/vnd.docker.image.rootfs.diff.tar"


@contextmanager
def serving(root: Path) -> Iterator[str]:
    """Serve an image of this root file system (a tar file). Yield its name, as `127.0.0.1:PORT/lab@sha256:…`."""
    layer = root.read_bytes()
    system = {"type": "layers", "diff_ids": [_digest(layer)]}
    run = {"Env": [f"PATH={SEARCH_PATH}"]}
    config = json.dumps({"architecture": "amd64", "os": "linux", "config": run, "rootfs": system}).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": {"mediaType": _CONFIG, "size": len(config), "digest": _digest(config)},
            "layers": [{"mediaType": _LAYER, "size": len(layer), "digest": _digest(layer)}],
        }
    ).encode()
    kinds = {manifest: _MANIFEST, config: "application/octet-stream", layer: "application/octet-stream"}
    blobs = {_digest(each): (each, kind) for each, kind in kinds.items()}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            found = (b"{}", "application/json") if self.path.rstrip("/") == "/v2" else blobs.get(name)
            data, kind = found or (b"", "text/plain")
            self.send_response(200 if found else 404)
            for header, value in (("Content-Type", kind), ("Content-Length", str(len(data)))):
                self.send_header(header, value)
            if name in blobs:
                self.send_header("Docker-Content-Digest", name)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        do_HEAD = do_GET  # noqa: N815 (http.server's word)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}/lab@{_digest(manifest)}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
