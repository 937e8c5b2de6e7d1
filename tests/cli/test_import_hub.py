"""dsv import hf://datasets/…: each revision of a dataset of the Hugging Face Hub has what the Hub has of it."""

from __future__ import annotations

import hashlib
import http.server
import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest

from tests.kit.dsv import Dsv, Result, write_files

constants = pytest.importorskip("huggingface_hub.constants", reason="needs huggingface_hub")

URL = "hf://datasets/team/pets"
TOKEN = "hf_" + "swordfish" * 4
BIG = random.Random(5).randbytes((8 << 20) + 100)
"""More than an import reads at once."""
LFS = (".bin", ".png")
ODD = "data/ä #1%20@b+c.txt"
HISTORY: list[tuple[str, str, dict[str, bytes]]] = [
    ("initial commit", "", {".gitattributes": b"*.bin filter=lfs\n"}),
    ("Add pets", "", {".gitattributes": b"*.bin filter=lfs\n", "data/cat.png": b"cat\n", ODD: b"odd\n"}),
    ("Add more (#1)", "\n\n\n- Add big.bin (1234)\n", {"data/cat.png": b"cat\n", "big.bin": BIG, "empty": b""}),
    ("Move", "", {"moved.png": b"cat\n", "data/cat.png": b"another cat\n", "big.bin": BIG, "empty": b""}),
]  # fmt: skip
CONTENTS = 6
"""How many contents all revisions have, the empty one too."""


def blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Hub:
    """Stands for the Hub, which tests can't reach: huggingface_hub asks it, and it answers as the Hub's API does.

    Everybody needs the token. It redirects to another server for LFS files, and to another path for others.
    """

    def __init__(self) -> None:
        self.commits = [hashlib.sha1(title.encode()).hexdigest() for title, _, _ in HISTORY]
        self.refs = {"main": len(HISTORY) - 1, "v1": 1, "refs/convert/parquet": 2}
        self.refusal: tuple[int, str] | None = None
        self.seen: list[tuple[str, str | None]] = []
        self.seen_elsewhere: list[tuple[str, str | None]] = []
        self.elsewhere: dict[str, bytes] = {}
        """What the server of LFS files has, by SHA-256."""
        self.tag = "1" * 64
        """Of that server: another hash than that of the content."""
        for _, _, files in HISTORY:
            self.elsewhere |= {hashlib.sha256(content).hexdigest(): content for content in files.values()}
        self.servers = [
            http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (kind,), {"hub": self}))
            for kind in (OfHub, OfElsewhere)
        ]
        self.url, self.other = (f"http://127.0.0.1:{one.server_port}" for one in self.servers)


class Answers(http.server.BaseHTTPRequestHandler):
    hub: Hub

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def content(self, body: bytes, **headers: str) -> None:
        asked = self.headers["Range"]
        if asked is None:
            return self.answer(200, body, **headers)
        first, last = asked.removeprefix("bytes=").split("-")
        part = body[int(first) : int(last) + 1]
        shown = f"bytes {first}-{int(first) + len(part) - 1}/{len(body)}"
        return self.answer(206, part, Content_Range=shown, **headers)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        raise NotImplementedError

    def log_message(self, *_: object) -> None:
        pass


class OfElsewhere(Answers):
    def do_GET(self) -> None:
        self.hub.seen_elsewhere.append((self.path, self.headers["Authorization"]))
        self.content(self.hub.elsewhere[urlsplit(self.path).path[1:]], ETag=f'"{self.hub.tag}"')


class OfHub(Answers):
    def do_POST(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub = self.hub
        hub.seen.append((self.path, self.headers["Authorization"]))
        form = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
        if hub.refusal is not None:
            return self.answer(hub.refusal[0], X_Error_Code=hub.refusal[1], X_Error_Message="no")
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            return self.answer(401, X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
        parts = urlsplit(self.path)
        path = parts.path.removeprefix("/api").removeprefix("/resolve-cache")
        if not path.startswith("/datasets/team/pets/"):
            return self.answer(404, X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
        action, revision, *rest = path.removeprefix("/datasets/team/pets/").split("/", 2)
        revision = unquote(revision)
        if revision not in (*hub.refs, *hub.commits):
            return self.answer(404, X_Error_Code="RevisionNotFound", X_Error_Message="Invalid rev id")
        at = hub.refs[revision] if revision in hub.refs else hub.commits.index(revision)
        if action == "resolve":
            return self.resolve(at, unquote(rest[0]), by="resolve-cache" not in parts.path)
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        if action == "revision":
            names = [{"rfilename": name} for name in HISTORY[at][2]]
            return self.listing(
                {"id": "team/pets", "sha": hub.commits[at], "private": True, "siblings": names}
            )
        if action == "commits":
            return self.page([self.commit_row(one) for one in range(at, -1, -1)], query, 2)
        if action == "tree":
            start = f"{unquote(rest[0])}/" if rest else ""
            found = {path: content for path, content in HISTORY[at][2].items() if path.startswith(start)}
            folders = sorted({path.rpartition("/")[0] for path in found if "/" in path[len(start) :]})
            if query["recursive"].lower() != "true":
                found = {path: content for path, content in found.items() if "/" not in path[len(start) :]}
            rows = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": one} for one in folders]
            return self.page(rows + [file_row(*one) for one in found.items()], query, 2)
        assert action == "paths-info", action
        wanted = parse_qs(form).get("paths", [])
        return self.listing([file_row(*one) for one in HISTORY[at][2].items() if one[0] in wanted])

    def commit_row(self, at: int) -> dict[str, Any]:
        title, message, _ = HISTORY[at]
        authors = [{"user": user, "avatar": "/a.svg"} for user in ("ann", "bob")[: at + 1]]
        date = f"2024-02-1{at}T10:57:45.000Z"
        return {
            "id": self.hub.commits[at],
            "title": title,
            "message": message,
            "authors": authors,
            "date": date,
        }

    def page(self, rows: list[dict[str, Any]], query: dict[str, str], size: int) -> None:
        start = int(query.get("cursor", 0))
        more = {}
        if start + size < len(rows):
            recursive = query.get("recursive", "")
            path = f"{self.hub.url}{urlsplit(self.path).path}?recursive={recursive}&cursor={start + size}"
            more = {"Link": f'<{path}>; rel="next"'}
        self.listing(rows[start : start + size], **more)

    def listing(self, found: object, **headers: str) -> None:
        self.answer(200, json.dumps(found).encode(), Content_Type="application/json", **headers)

    def resolve(self, at: int, path: str, *, by: bool) -> None:
        content = HISTORY[at][2].get(path)
        if content is None:
            return self.answer(404, X_Error_Code="EntryNotFound", X_Error_Message="Entry not found")
        hub, commit = self.hub, self.hub.commits[at]
        if path.endswith(LFS):
            sha256 = hashlib.sha256(content).hexdigest()
            where, size = f"{hub.other}/{sha256}?Signature={len(hub.seen)}", str(len(content))
            return self.answer(
                302, Location=where, X_Repo_Commit=commit, X_Linked_ETag=f'"{sha256}"', X_Linked_Size=size,
                ETag=f'W/"{len(hub.seen)}"',
            )  # fmt: skip
        if by:
            where = f"/api/resolve-cache/datasets/team/pets/resolve/{commit}/{quote(path)}"
            return self.answer(307, Location=where, X_Repo_Commit=commit, ETag=f'W/"{len(hub.seen)}"')
        return self.content(content, ETag=f'"{blob(content)}"', X_Repo_Commit=commit)


def file_row(path: str, content: bytes) -> dict[str, Any]:
    row = {"type": "file", "oid": blob(content), "size": len(content), "path": path}
    if path.endswith(LFS):
        lfs = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 132}
        row |= {"oid": blob(json.dumps(lfs).encode()), "lfs": lfs, "xetHash": "1" * 64}
    return row


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    found = Hub()
    threads = [threading.Thread(target=one.serve_forever) for one in found.servers]
    for one in threads:
        one.start()
    monkeypatch.setattr(constants, "ENDPOINT", found.url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield found
    for server, thread in zip(found.servers, threads, strict=True):
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def lab(dsv: Dsv, hub: Hub, tmp_path: Path) -> Dsv:
    more = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}
    here = dsv.at(dsv.cwd, DSV_STORE=str(tmp_path / "store"), DSV_CACHE=str(tmp_path / "cache"), **more)
    write_files(here.cwd, {"own.txt": b"own\n"})
    here.ok("init", "own")
    here.ok("sync")
    return here.at(here.cwd.parent)


def exported(dsv: Dsv, name: str, tmp_path: Path) -> dict[str, bytes]:
    out = tmp_path / f"out{len(list(tmp_path.glob('out*')))}"
    dsv.ok("export", name, str(out))
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def imported(done: Result) -> list[str]:
    assert done.code == 0, done
    return [one["revision"] for one in done.json["revisions"]]


@pytest.mark.parametrize("how", [[], ["--reference"]])
def test_each_revision_has_what_the_hub_has(lab: Dsv, hub: Hub, tmp_path: Path, how: list[str]) -> None:
    done = lab.process("import", URL, "pets:", "--create", "--history", *how, "--json")
    assert imported(done) == hub.commits
    assert done.json["read"] == CONTENTS
    commits = lab.ok("log", "pets", "--json").json["items"][::-1]
    for at, commit in enumerate(commits):
        title, message, files = HISTORY[at]
        assert commit["author"] == ("ann, bob" if at else "ann")
        assert commit["time"].startswith(f"2024-02-1{at}T10:57:45")
        said = f"{title}\n\n{message.strip()}".strip()
        assert commit["message"] == f"{said}\n\nImported-from: {URL}@{hub.commits[at]}"
        assert exported(lab, f"pets@{commit['commit']}", tmp_path) == files
    assert {token for path, token in hub.seen if "/datasets/" in path} == {f"Bearer {TOKEN}"}
    assert hub.seen_elsewhere and {token for _, token in hub.seen_elsewhere} == {None}
    assert TOKEN not in done.out + done.err
    stored = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(TOKEN.encode() in path.read_bytes() for path in stored)
    size = sum(path.stat().st_size for path in (tmp_path / "store").rglob("*") if path.is_file())
    assert (size < len(BIG)) == bool(how)


def test_an_import_continues_after_the_last_revision_that_it_has_committed(lab: Dsv, hub: Hub) -> None:
    how = ("--history", "--reference", "--json")
    assert imported(lab("import", f"{URL}@v1", "pets:raw", "--create", *how)) == hub.commits[:2]
    done = lab("import", URL, "pets:raw", *how)
    assert imported(done) == hub.commits[2:]
    assert done.json["read"] == 3  # the others were read before
    again = lab.ok("import", URL, "pets:raw", *how).json
    assert (again["any_change"], again["revisions"], again["read"]) == (False, [], 0)
    for words, expected in (
        (["--rev", "main", "--rev", "v1"], [3, 1]),
        (["--rev", "v1..main"], [2, 3]),
        (["--rev", "v1.."], [2, 3]),
        (["--rev", "refs/convert/parquet"], [2]),
    ):
        to = f"pets:{len(lab.ok('log', 'pets').out)}"
        found = imported(lab("import", URL, to, "--reference", "--json", *words))
        assert found == [hub.commits[at] for at in expected]


def test_one_revision_is_referred_to_and_stored_later(lab: Dsv, hub: Hub, tmp_path: Path) -> None:
    lab.ok("import", f"{URL}@v1", "pets:", "--create", "--reference", "-m", "mine")
    [commit] = lab.ok("log", "pets", "--json").json["items"]
    assert commit["message"] == "mine\n\nImported-from: hf://datasets/team/pets@v1"
    hub.tag = "2" * 64  # that server's own
    hub.seen.clear()
    assert exported(lab, "pets", tmp_path) == HISTORY[1][2]
    assert f"/datasets/team/pets/resolve/{hub.commits[1]}/data/cat.png" in [path for path, _ in hub.seen]
    assert lab.ok("import", URL, "pets:", "--materialize", "--json").json["found"] == len(HISTORY[1][2])
    hub.refusal = 403, "GatedRepo"
    assert exported(lab, "pets", tmp_path) == HISTORY[1][2]


def test_a_file_that_has_another_content_is_refused(
    lab: Dsv, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha256 = hashlib.sha256(b"cat\n").hexdigest()
    hub.elsewhere[sha256] = b"dog\n"
    for run, *how in (lab.process,), (lab, "--reference"):
        done = run("import", URL, "pets:", "--create", "--history", *how)
        assert done.code == 5 and "data/cat.png" in done.err and f"sha256:{sha256}" in done.err, done
    assert lab.ok("ls", "pets").lines == [".gitattributes"]  # of the revision before
    hub.elsewhere[sha256] = b"cat\n"
    lab.ok("import", f"{URL}@v1", "pets:", "--reference")
    lab.ok("verify", "--full")
    hub.elsewhere[sha256] = b"dog\n"
    done = lab("cat", "pets:data/cat.png")
    assert done.code == 5 and "data/cat.png" in done.err and hub.commits[1] in done.err, done
    monkeypatch.setitem(HISTORY[1][2], ODD, b"new\n")
    done = lab("cat", f"pets:{ODD}")
    assert done.code == 5 and blob(b"new\n") in done.err, done
    monkeypatch.delitem(HISTORY[1][2], ODD)
    done = lab("cat", f"pets:{ODD}")
    assert done.code == 5 and "is gone" in done.err, done


def test_access_is_denied_without_the_token(
    lab: Dsv, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.ok("import", f"{URL}@v1", "pets:", "--create", "--reference")
    monkeypatch.delenv("HF_TOKEN")
    for words in (
        ("import", URL, "pets:", "--history"),
        ("import", URL, "pets:", "--reference"),
        ("cat", "pets:data/cat.png"),
    ):
        done = lab(*words)
        assert done.code == 8 and "denied" in done.err and "HF_TOKEN" in done.err, done
    write_files(
        tmp_path / "none", {"huggingface_hub/__init__.py": b"raise ImportError('no huggingface_hub')"}
    )
    bare = lab.at(lab.cwd, PYTHONPATH=str(tmp_path / "none"))
    done = bare.process("import", URL, "pets:", "--history")
    assert done.code == 9 and "pip install huggingface_hub" in done.err, done


def test_what_can_not_be_imported(lab: Dsv, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for code, why, *words in (
        (3, f"nothing at {URL}@v9", URL, "--rev", "v9"),
        (3, f"nothing at {URL}@v9", f"{URL}@v9", "--history"),
        (3, f"nothing at {URL}@v9", URL, "--rev", "v9..main"),
        (3, f"nothing at {URL}s@main", f"{URL}s", "--history"),
        (2, "not a whole dataset", f"{URL}/data", "--reference"),
        (2, "has no DVC remote", URL, "--dvc-remote", "x"),
        (2, "has no revisions", "hf://team/pets", "--history"),
    ):
        done = lab("import", *words[:1], "pets:", "--create", *words[1:])
        assert done.code == code and why in done.err, done
    hub.refusal = 403, "GatedRepo"
    done = lab("import", URL, "pets:", "--create", "--history")
    assert done.code == 8 and "denied" in done.err, done
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    done = lab("import", URL, "pets:", "--create", "--history")
    assert done.code == 6 and "HF_ENDPOINT" in done.err, done
