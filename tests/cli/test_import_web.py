"""dsv import of what a web server sends: packed, without end, broken off, a page instead of a file, odd names."""

from __future__ import annotations

import gzip
import http.server
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from dsv.exchange import bodies
from tests.kit.dsv import Dsv
from tests.kit.web import web_server

pytest.importorskip("aiohttp")
BIG = random.Random(9).randbytes(20 << 20)
ZEROS = b"10000\r\n" + bytes(65536) + b"\r\n"


@dataclass
class Answers:
    """A web server that answers as the test says. files: the contents by path. asked: the headers of GETs."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    on_get: dict[str, str] = field(default_factory=dict)
    """More headers for a GET."""
    gives_parts: bool = True
    breaks_after: int | None = None
    endless: bool = False
    status: int = 200
    """Of answers with whole files."""
    asked: list[dict[str, str]] = field(default_factory=list)
    sent: int = 0


@pytest.fixture
def web() -> Iterator[Answers]:
    said = Answers()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._begin(200, str(len(said.files[self.path])), said.headers)

        def do_GET(self) -> None:
            said.asked.append(dict(self.headers))
            data, start = said.files[self.path], 0
            more = {**said.headers, **said.on_get}
            if said.gives_parts and "Range" in self.headers:
                first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
                start = int(first)
                more["Content-Range"] = f"bytes {start}-{last or len(data) - 1}/{len(data)}"
                data = data[start : int(last) + 1] if last else data[start:]
            if said.endless:
                self._begin(206 if "Content-Range" in more else 200, None, more)
                for _ in range(100_000):
                    self.wfile.write(ZEROS)
                    said.sent += 65536
                return
            self._begin(206 if "Content-Range" in more else said.status, str(len(data)), more)
            if said.breaks_after is not None and len(data) > said.breaks_after:
                data = data[: said.breaks_after]
                self.close_connection = True
            self.wfile.write(data)

        def _begin(self, status: int, length: str | None, more: dict[str, str]) -> None:
            self.send_response(status)
            self.send_header("ETag", '"one"')
            name, value = ("Content-Length", length) if length else ("Transfer-Encoding", "chunked")
            for key, text in {name: value, **more}.items():
                self.send_header(key, text)  # type: ignore[arg-type]
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with web_server(Handler) as port:
        said.url = f"http://127.0.0.1:{port}"
        yield said


TEXT = b"a,b\n1,2\n" * 1000


def stored(pets: Dsv, name: str) -> bytes:
    pets.ok("export", f"pets:{name}", "out")
    out = pets.cwd / "out"
    data = out.read_bytes()
    out.unlink()
    return data


def test_a_server_is_asked_not_to_pack(pets: Dsv, web: Answers) -> None:
    web.files = {"/a.csv": TEXT, "/big": BIG}
    for name in ("a.csv", "big"):
        pets.ok("import", f"{web.url}/{name}", "pets:raw/")
    assert {one["Accept-Encoding"] for one in web.asked} == {"identity"}


@pytest.mark.parametrize("name", ["x.csv.gz", "x.tgz", "X.GZ"])
def test_a_packed_file_stays_packed_whatever_the_server_calls_it(pets: Dsv, web: Answers, name: str) -> None:
    packed = gzip.compress(TEXT)
    web.files, web.headers = {f"/{name}": packed}, {"Content-Encoding": "gzip"}
    if name.endswith("tgz"):
        assert pets("import", f"{web.url}/{name}", "pets:raw").code == 5, "it is no tar"
        return
    pets.ok("import", f"{web.url}/{name}", "pets:raw/")
    assert stored(pets, f"raw/{name}") == packed


@pytest.mark.parametrize("where", ["headers", "on_get"])
def test_what_is_packed_on_the_way_is_stored_as_a_browser_saves_it_and_a_note_says_so(
    pets: Dsv, web: Answers, where: str
) -> None:
    data = BIG if where == "headers" else TEXT
    web.files = {"/a.csv": gzip.compress(data, 1)}
    setattr(web, where, {"Content-Encoding": "gzip"})
    done = pets("import", f"{web.url}/a.csv", "pets:raw/")
    if where == "on_get":  # the length that HEAD gives is that of what is packed
        assert done.code == 4 and pets("ls", "pets:raw").code == 3, done
        return
    assert done.code == 0 and "packed by gzip" in done.err and "stored unpacked" in done.err, done
    assert stored(pets, "raw/a.csv") == data


def test_what_is_packed_in_several_members_is_read_to_its_end(
    pets: Dsv, web: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    web.files = {"/a.csv": gzip.compress(TEXT) + gzip.compress(b"end")}
    web.headers = {"Content-Encoding": "gzip"}
    pets.ok("import", f"{web.url}/a.csv", "pets:raw/")
    assert stored(pets, "raw/a.csv") == TEXT + b"end"
    assert not caplog.records, "the body was read beyond its end"


@pytest.mark.parametrize("status", [204, 206])
def test_an_answer_without_the_whole_file_is_no_file(pets: Dsv, web: Answers, status: int) -> None:
    web.files, web.status = {"/a.csv": b"" if status == 204 else TEXT}, status
    done = pets("import", f"{web.url}/a.csv", "pets:raw/")
    assert done.code == 9 and f"the server answers {status}" in done.err, done
    assert pets("ls", "pets:raw").code == 3


def test_what_is_packed_and_cut_is_not_stored(pets: Dsv, web: Answers) -> None:
    web.files, web.headers = {"/a.csv": gzip.compress(TEXT)[:-9]}, {"Content-Encoding": "gzip"}
    done = pets("import", f"{web.url}/a.csv", "pets:raw/")
    assert done.code == 6 and pets("ls", "pets:raw").code == 3, done


def test_a_packing_that_dsv_does_not_know_is_refused(pets: Dsv, web: Answers) -> None:
    web.files, web.headers = {"/a.csv": b"?"}, {"Content-Encoding": "br"}
    done = pets("import", f"{web.url}/a.csv", "pets:raw/")
    assert done.code == 9 and "packed by br" in done.err and "curl --compressed" in done.err, done


def test_what_is_packed_is_not_referred_to(pets: Dsv, web: Answers) -> None:
    web.files, web.on_get = {"/a.csv": TEXT}, {"Content-Encoding": "gzip"}
    done = pets("import", f"{web.url}/a.csv", "pets:raw/", "--reference")
    assert done.code == 9 and "its server packs it by gzip" in done.err, done


@pytest.mark.parametrize("how", [[], ["--reference"]])
@pytest.mark.parametrize("size", [100, 3_000_000])
def test_a_body_without_end_is_read_no_further_than_it_was_said_to_go(
    pets: Dsv, web: Answers, size: int, how: list[str]
) -> None:
    web.files, web.endless = {"/a": bytes(size)}, True
    done = pets("import", f"{web.url}/a", "pets:raw/", *how)
    assert done.code in (4, 9) and pets("ls", "pets:raw").code == 3, done
    assert web.sent < 40 << 20, "what the sockets hold, and no more"


@pytest.mark.parametrize("gives_parts", [True, False])
@pytest.mark.parametrize("size", [5 << 20, 20 << 20])
def test_a_body_that_breaks_off_is_continued(pets: Dsv, web: Answers, size: int, gives_parts: bool) -> None:
    web.files, web.gives_parts = {"/a.bin": BIG[:size]}, gives_parts
    web.breaks_after = 3 << 20
    done = pets("import", f"{web.url}/a.bin", "pets:raw/")
    if gives_parts:
        assert done.code == 0 and stored(pets, "raw/a.bin") == BIG[:size], done
        assert len(web.asked) > 1
    else:
        assert done.code == 6 and pets("ls", "pets:raw").code == 3, done
        assert "after 3,145,728 bytes" in done.err and "TransferEncoding" not in done.err, done


def test_a_large_file_is_read_from_a_server_that_gives_no_parts(pets: Dsv, web: Answers) -> None:
    web.files, web.gives_parts = {"/a.bin": BIG}, False
    pets.ok("import", f"{web.url}/a.bin", "pets:raw/")
    assert stored(pets, "raw/a.bin") == BIG and len(web.asked) == 1


def test_a_server_that_hangs_up_is_not_taken_for_one_without_the_file(
    pets: Dsv, web: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler of a path that it does not have raises, and the connection ends without an answer."""
    done = pets("import", f"{web.url}/a.bin", "pets:raw/")
    assert done.code == 6, done


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/a%20b.csv", "a b.csv"),
        ("/a.csv?download=1", "a.csv"),
        ("/na%C3%AFve.csv", "naïve.csv"),
        ("/a%3Fb", "a?b"),
    ],
)
def test_a_file_has_the_name_that_a_browser_gives_it(pets: Dsv, web: Answers, path: str, name: str) -> None:
    web.files = {path: TEXT}
    pets.ok("import", web.url + path, "pets:raw/")
    assert stored(pets, f"raw/{name}") == TEXT


@pytest.mark.parametrize("path", ["/a%2Fb.csv", "/..%2F..%2Fetc", "/a%00b", "/%FF.csv", "/%2Egit"])
def test_a_name_that_no_file_may_have_is_refused(pets: Dsv, web: Answers, path: str) -> None:
    web.files = dict.fromkeys((path, "/.git", path.replace("%2E", ".")), TEXT)
    done = pets("import", web.url + path, "pets:raw/")
    assert done.code == 9 and "can't be stored" in done.err, done


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.tar.gz", "a.zip", "a.png", "a.json"])
def test_a_page_instead_of_a_file_is_refused(pets: Dsv, web: Answers, name: str) -> None:
    """As a network sends it to who has not logged in."""
    web.files = {f"/{name}": b"<html>log in</html>"}
    web.headers = {"Content-Type": "text/html; charset=utf-8"}
    done = pets("import", f"{web.url}/{name}", "pets:raw/")
    assert done.code == 9 and "is a web page" in done.err and "in a browser" in done.err, done


@pytest.mark.parametrize("name", ["a.html", "a", "a.php", "v1.2"])
def test_a_page_is_imported_where_one_may_be(pets: Dsv, web: Answers, name: str) -> None:
    web.files, web.headers = {f"/{name}": b"<html>"}, {"Content-Type": "text/html"}
    pets.ok("import", f"{web.url}/{name}", "pets:raw/")
    assert stored(pets, f"raw/{name}") == b"<html>"


def test_no_more_than_a_piece_is_in_memory(pets: Dsv, web: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    read = bodies.WebFile.read_at

    def counted(self: bodies.WebFile, at: int, most: int) -> bytes:
        asked.append(most)
        return read(self, at, most)

    monkeypatch.setattr(bodies.WebFile, "read_at", counted)
    web.files = {"/a.bin": BIG}
    pets.ok("import", f"{web.url}/a.bin", "pets:raw/")
    assert asked and max(asked) <= bodies.PIECE
