"""dsv site --serve: whom it answers, and what."""

from __future__ import annotations

import http.client
import signal
import subprocess
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.cli.test_site import png
from tests.kit.dsv import Dsv, write_files
from tests.waiting import PATIENCE, until

pytest.importorskip("uvicorn")


class Served:
    """A server, and its address with the token."""

    def __init__(self, process: subprocess.Popen[bytes], address: str) -> None:
        self.process, self.address = process, urlsplit(address)
        self.cookie, self.folder = "", self.address.path.rstrip("/")

    def ask(self, path: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
        assert self.address.port is not None
        connection = http.client.HTTPConnection("127.0.0.1", self.address.port, timeout=PATIENCE)
        sent = {"Host": f"127.0.0.1:{self.address.port}", "Cookie": self.cookie, **headers}
        connection.request(method, self.folder + path, headers=sent)
        response = connection.getresponse()
        response.text = response.read().decode("utf-8", "replace")  # type: ignore[attr-defined]
        connection.close()
        return response


@pytest.fixture
def served(dsv: Dsv) -> Iterator[tuple[Dsv, Served]]:
    here = dsv.at(dsv.cwd, DSV_CACHE=str(dsv.home / "cache"))
    write_files(here.cwd, {"circle/1.png": png(), "circle/<b>.txt": b"<script>"})
    here.ok("init", "shapes")
    here.ok("sync", "-m", "first")
    process = here.start("site", "--serve")
    assert process.stdout is not None
    try:
        yield here, Served(process, process.stdout.readline().decode().strip())
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)


def test_only_who_has_the_token_is_answered(served: tuple[Dsv, Served]) -> None:
    _, server = served
    assert server.address.hostname == "127.0.0.1" and server.address.query.startswith("token=")
    assert server.ask("/").status == 403
    assert server.ask("/?token=wrong").status == 403 and server.ask("/?token=%ff").status == 403
    first = server.ask(f"/?{server.address.query}")
    cookie = first.headers["Set-Cookie"]
    assert (first.status, first.headers["Location"]) == (303, f"{server.folder}/")
    assert {"HttpOnly", "SameSite=lax", f"Path={server.folder}/"} <= set(
        cookie.split("; ")
    )  # a host's ports share it
    server.cookie = cookie.partition(";")[0]
    for host in ("example.org", f"example.org:{server.address.port}", "127.0.0.1"):
        assert server.ask("/", Host=host).status == 421
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert server.ask("/", method).status == 405
    page = server.ask("/")
    assert page.status == 200 and "shapes" in page.text  # type: ignore[attr-defined]
    assert "frame-ancestors 'none'" in page.headers["Content-Security-Policy"]
    assert page.headers["X-Content-Type-Options"] == "nosniff" and page.headers["Cache-Control"] == "no-store"
    server.folder, folder = "", server.folder
    assert server.ask("/").status == server.ask(f"/?{server.address.query}").status == 404
    server.folder = folder
    assert server.ask("/", "HEAD").text == ""  # type: ignore[attr-defined]


def test_the_pages_are_those_of_now(served: tuple[Dsv, Served]) -> None:
    here, server = served
    server.cookie = f"dsv-{server.address.port}={server.address.query.removeprefix('token=')}"
    here.ok("site", str(here.home / "pages"))
    for path in sorted((here.home / "pages").rglob("*.*"), key=lambda path: path.suffix != ".html"):
        name = str(path.relative_to(here.home / "pages"))
        if path.suffix in (".html", ".css", ".js", ".svg", ".webp"):
            response = server.ask(f"/{name}")
            assert response.status == 200, name
            same = path.suffix == ".webp" or response.text == path.read_text("utf-8")  # type: ignore[attr-defined]
            assert same or name in ("caches.html", "index.html"), name
    [image] = (f"/images/{path.name}" for path in (here.home / "pages/images").iterdir())
    here.ok("erase", "shapes:circle/1.png", "--reason", "consent withdrawn", "--yes")
    write_files(here.cwd, {"circle/1.png": png(shade=9)})
    here.ok("sync", "-m", "drawn anew")
    until(lambda: "drawn anew" in server.ask("/").text, "the new commit")  # type: ignore[attr-defined]
    assert server.ask(image).status == 404
    for path in ("/nothing", "/../../etc/passwd", "/pages/..%2f..%2fetc/passwd", "/.dsv-site.json"):
        assert server.ask(path).status == 404
