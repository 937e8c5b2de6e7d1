"""dsv import dvc+…: each revision of a git repository with data in DVC has what `dvc checkout` gives."""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fsspec")
from fsspec.asyn import get_loop, sync

from dsv.errors import UsageError
from dsv.exchange.remote import storage_options
from dsv.exchange.revisions import may_name
from dsv.stores.options import StoreOptions
from tests.kit.dsv import Dsv, write_files
from tests.kit.web import web_server
from tests.labs.s3_server import S3Server

REPOSITORIES = Path(__file__).parent / "dvc_repositories"
"""Made by DVC itself, of the last version before 3.0 and of one since; see `make.sh` there."""
VERSIONS = ("dvc-2.58.2", "dvc-3.67.1")
FIRST, BIRDS, STAGE, LAST = 0, 2, 3, 4
FIRST_TIME, LAST_TIME = "1970-01-01T00:00:00", "9999-12-3"
CONTENTS = 6
"""How many contents all revisions have, the empty one too."""


class Theirs:
    """A git repository with data in DVC, and its remote beside it."""

    def __init__(self, folder: Path, version: str = VERSIONS[1]) -> None:
        self.repository, self.remote = folder / "repo", folder / "remote"
        self.bundle = REPOSITORIES / version / "repository.bundle"
        shutil.copytree(REPOSITORIES / version / "remote", self.remote)
        subprocess.run(["git", "clone", "-q", self.bundle, self.repository], check=True)
        self.url = f"dvc+{self.repository}"
        self.commits = self.git("rev-list", "--reverse", "HEAD").split()
        expected = json.loads((REPOSITORIES / version / "checkouts.json").read_text())
        self.expected = {
            one: {path: text.encode() for path, text in files.items()} for one, files in expected.items()
        }

    def git(self, *words: str) -> str:
        argv = ["git", "-C", self.repository, "-c", "user.name=Eve", "-c", "user.email=e@x.org", *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, files: dict[str, bytes]) -> str:
        write_files(self.repository, files)
        self.git("add", "-Af", ".")
        self.git("commit", "-qm", "change")
        return self.git("rev-parse", "HEAD")

    def keep_at(self, url: str, **more: str) -> None:
        """Name another place for the remote."""
        lines = "".join(f"    {key} = {value}\n" for key, value in more.items())
        config = f"[core]\n    remote = storage\n['remote \"storage\"']\n    url = {url}\n{lines}"
        self.commit({".dvc/config": config.encode()})

    def object(self, text: bytes) -> Path:
        [found] = [path for path in self.remote.rglob("*") if path.is_file() and path.read_bytes() == text]
        return found


@pytest.fixture
def theirs(tmp_path: Path) -> Theirs:
    (tmp_path / "theirs").mkdir()
    return Theirs(tmp_path / "theirs")


@pytest.fixture
def lab(dsv: Dsv, tmp_path: Path) -> Dsv:
    here = dsv.at(dsv.cwd, DSV_STORE=str(tmp_path / "store"), DSV_CACHE=str(tmp_path / "cache"))
    write_files(here.cwd, {"own.txt": b"own\n"})
    here.ok("init", "own")
    here.ok("sync")
    return here.at(here.cwd.parent)


def log(dsv: Dsv, dataset: str) -> list[dict[str, Any]]:
    """The commits, oldest first."""
    found: list[dict[str, Any]] = dsv.ok("log", dataset, "--json").json["items"]
    return found[::-1]


def exported(dsv: Dsv, name: str, tmp_path: Path) -> dict[str, bytes]:
    out = tmp_path / f"out{len(list(tmp_path.glob('out*')))}"
    dsv.ok("export", name, str(out))
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("how", [[], ["--reference"]])
def test_each_revision_has_what_dvc_checks_out(
    lab: Dsv, tmp_path: Path, version: str, how: list[str]
) -> None:
    (tmp_path / "theirs").mkdir()
    theirs = Theirs(tmp_path / "theirs", version)
    done = lab.ok("import", theirs.url, "pets:", "--create", "--history", *how, "--json").json
    assert done["read"] == CONTENTS
    with_data = [theirs.commits[at] for at in (FIRST, BIRDS, STAGE, LAST)]
    commits = log(lab, "pets")
    assert [one["revision"] for one in done["revisions"]] == with_data
    assert [one["commit"] for one in done["revisions"]] == [one["commit"] for one in commits]
    for commit, name in zip(commits, with_data, strict=True):
        form = "%an <%ae>%n%at%n%B"
        author, time, message = theirs.git("show", "-s", f"--format={form}", name).split("\n", 2)
        assert commit["author"] == author
        assert commit["message"] == f"{message}\n\nImported-from: {theirs.url}@{name}"
        when = subprocess.check_output(["date", "-u", "-d", f"@{time}", "+%Y-%m-%dT%H:%M:%S"], text=True)
        assert commit["time"].startswith(when.strip())
        assert exported(lab, f"pets@{commit['commit']}", tmp_path) == theirs.expected[name]
    assert (tmp_path / "out3/stage/out.txt").stat().st_mode & 0o111
    theirs.object(b"new\n").unlink()
    if how:
        refused = lab("cat", "pets:data/x")
        assert refused.code == 5 and "data/x" in refused.err and str(theirs.remote) in refused.err
    else:
        assert lab.ok("cat", "pets:data/x").out == "new\n"


def test_an_import_continues_after_the_last_revision_that_it_has_committed(lab: Dsv, theirs: Theirs) -> None:
    lab.ok("import", f"{theirs.url}@v1", "pets:raw", "--create", "--history")
    lab.ok("put", str(theirs.repository / "README.md"), "pets:mine.md")
    dry = lab.ok("import", theirs.url, "pets:raw", "--history", "--dry-run", "--json").json
    assert [one["revision"] for one in dry["revisions"]] == [theirs.commits[LAST]]
    done = lab.ok("import", theirs.url, "pets:raw", "--history", "--json").json
    assert [one["revision"] for one in done["revisions"]] == [
        theirs.commits[at] for at in (BIRDS, STAGE, LAST)
    ]
    assert done["read"] == 2  # the others were read before
    assert lab.ok("ls", "pets").lines == ["mine.md", "raw/data/x", "raw/stage/out.txt"]
    again = lab.ok("import", theirs.url, "pets:raw", "--history", "--json").json
    assert (again["any_change"], again["revisions"], again["read"]) == (False, [], 0)
    assert again["commit"] == done["commit"]
    lab.ok("import", theirs.url, "pets:second", "--rev", "v1", "--rev", "v2")
    assert len(log(lab, "pets")) == 5 + 2


@pytest.mark.parametrize(
    ("options", "revisions"),
    [
        (["--rev", "v2", "--rev", "v1"], [STAGE, FIRST]),
        (["--rev", "v1..v2"], [BIRDS, STAGE]),
        (["--rev", "v1..", "--rev", "v1"], [BIRDS, STAGE, LAST, FIRST]),
    ],
)
def test_revisions_are_committed_in_the_order_in_which_they_are_named(
    lab: Dsv, theirs: Theirs, tmp_path: Path, options: list[str], revisions: list[int]
) -> None:
    done = lab.ok("import", theirs.url, "pets:", "--create", *options, "--json").json
    assert [one["revision"] for one in done["revisions"]] == [theirs.commits[at] for at in revisions]
    assert exported(lab, "pets", tmp_path) == theirs.expected[theirs.commits[revisions[-1]]]


def test_one_revision_is_a_commit_of_whoever_imports_it(lab: Dsv, theirs: Theirs, tmp_path: Path) -> None:
    lab.ok("import", f"{theirs.url}@v1", "pets:", "--create", "-m", "mine")
    [commit] = log(lab, "pets")
    assert (
        commit["message"].startswith("mine\n\nImported-from: dvc+")
        and commit["author"] != "ann Lee <ann@example.org>"
    )
    assert exported(lab, "pets", tmp_path) == theirs.expected[theirs.commits[FIRST]]
    lab.ok("import", theirs.url, "pets:", "--mirror", "--allow-removals")
    assert exported(lab, "pets", tmp_path) == theirs.expected[theirs.commits[LAST]]


def test_a_repository_of_another_machine_is_cloned_for_a_while(
    lab: Dsv, theirs: Theirs, tmp_path: Path
) -> None:
    (tmp_path / "short").mkdir()
    here = lab.at(lab.cwd, TMPDIR=str(tmp_path / "short"))
    url = f"dvc+{theirs.bundle}"
    relative = here.process("import", url, "pets:", "--create")
    assert relative.code == 2 and "--dvc-remote" in relative.err, relative
    done = here.process("import", url, "pets:", "--create", "--history", "--dvc-remote", str(theirs.remote))
    assert done.code == 0, done
    assert exported(lab, "pets", tmp_path) == theirs.expected[theirs.commits[LAST]]
    assert list((tmp_path / "short").iterdir()) == []


def test_the_name_of_a_repository_may_be_not_utf_8(lab: Dsv, theirs: Theirs, tmp_path: Path) -> None:
    folder = theirs.repository.parent.rename(tmp_path / os.fsdecode(b"\xff"))
    url = f"dvc+{folder}/repo"
    lab.ok("import", url, "pets:", "--create", "--rev", "v1..v2")
    assert log(lab, "pets")[0]["message"].endswith(f"/?/repo@{theirs.commits[BIRDS]}")
    assert lab.ok("import", url, "pets:", "--rev", "v1..v2", "--json").json["revisions"] == []


@pytest.mark.parametrize("folder", [False, True])
def test_a_content_with_another_md5_is_refused(lab: Dsv, theirs: Theirs, folder: bool) -> None:
    damaged = next(theirs.remote.rglob("*.dir")) if folder else theirs.object(b"cat\n")
    damaged.chmod(0o644)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    for more in ([], ["--reference"]):
        done = lab("import", theirs.url, "pets:", "--create", "--history", *more)
        assert done.code == 5 and str(damaged) in done.err and "md5:" in done.err, done
    assert lab("ls", "pets").code == 3 or folder


def test_what_the_remote_does_not_have_is_listed(lab: Dsv, theirs: Theirs, tmp_path: Path) -> None:
    gone = theirs.object(b"cat\n")
    gone.unlink()
    outside = b"outs:\n- md5: d41d8cd98f00b204e9800998ecf8427e\n  hash: md5\n  path: ../../x\n"
    no_md5 = b"outs:\n- md5: ../../../../etc/passwd\n  hash: md5\n  path: passwd\n"
    theirs.commit({"a/outside.dvc": outside, "a/passwd.dvc": no_md5})
    done = lab("import", theirs.url, "pets:", "--create")
    assert done.code == 9, done
    for text in (
        "stage/out.txt",
        "does not have files/md5/54/b8",
        "../x",
        "outside of",
        "a/passwd",
        "no MD5",
    ):
        assert text in done.err
    lab.ok("import", theirs.url, "pets:", "--create", "--skip-unsupported")
    assert exported(lab, "pets", tmp_path) == {"data/x": b"new\n"}


@pytest.mark.parametrize("how", [[], ["--reference"]])
def test_a_remote_on_s3_is_reached_as_its_configuration_says(
    lab: Dsv, theirs: Theirs, ceph_s3: S3Server, tmp_path: Path, how: list[str]
) -> None:
    bucket = ceph_s3.bucket()
    for path in theirs.remote.rglob("*"):
        if path.is_file():
            key = f"dvc/{path.relative_to(theirs.remote)}"
            ceph_s3.client().put_object(Bucket=bucket, Key=key, Body=path.read_bytes())
    theirs.keep_at(f"s3://{bucket}/dvc", endpointurl=ceph_s3.endpoint)
    credentials = {key: value for key, value in ceph_s3.env.items() if not key.startswith("AWS_ENDPOINT")}
    here = lab.at(lab.cwd, **credentials)
    here.ok("import", theirs.url, "pets:", "--create", "--history", *how)
    assert exported(here, "pets", tmp_path) == theirs.expected[theirs.commits[LAST]]
    assert exported(here, "pets@main~3", tmp_path) == theirs.expected[theirs.commits[FIRST]]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(folder: Path, answers: type[Quiet] = Quiet) -> Iterator[str]:
    with web_server(functools.partial(answers, directory=str(folder))) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("how", [[], ["--reference"]])
def test_a_remote_on_a_web_server(lab: Dsv, theirs: Theirs, tmp_path: Path, how: list[str]) -> None:
    with served(theirs.remote) as url:
        theirs.keep_at(url)
        theirs.object(b"one,1\n").unlink()
        done = lab("import", theirs.url, "pets:", "--create", "--history", *how)
        assert done.code == 9 and "labels.csv" in done.err, done
        done = lab("import", theirs.url, "pets:", "--create", "--rev", "HEAD~1", *how)
        assert done.code == 0, done
        assert exported(lab, "pets", tmp_path) == theirs.expected[theirs.commits[LAST]]


def test_what_can_not_be_imported(lab: Dsv, theirs: Theirs) -> None:
    for code, why, *words in (
        (3, "v9", theirs.url, "--rev", "v9"),
        (3, "--output=x", theirs.url, "--rev", "--output=x"),
        (3, "no DVC remote other; it has storage", theirs.url, "--dvc-remote", "other"),
        (3, "git can't read", f"dvc+{theirs.remote}"),
        (3, "git can't read", f"dvc+{theirs.remote}/none"),
        (2, "has no revisions", str(theirs.remote), "--history"),
        (2, "has no revisions", str(theirs.remote), "--dvc-remote", "storage"),
        (2, "can't be used together", theirs.url, "--rev", "v1", "--history"),
        (2, "can't be used together", theirs.url, "--materialize", "--history"),
        (2, "can't be used together", theirs.url, "-m", "mine", "--history"),
    ):
        done = lab("import", *words[:1], "pets:", "--create", *words[1:])
        assert done.code == code and why in done.err, done
    assert "has revisions and a remote;" in lab("import", str(theirs.remote), "pets:", "--history").err
    theirs.keep_at("s3://lake/dvc", version_aware="true")
    done = lab("import", theirs.url, "pets:", "--create")
    assert done.code == 9 and "cloud versioning" in done.err, done


LOCK, YAML = "dvc.lock", "dvc.yaml"
STAGE_A = b"schema: '2.0'\nstages: {a: {outs: []}}\n"


@pytest.mark.parametrize(
    ("files", "damaged", "why"),
    [
        ({"x.dvc": b"outs: ["}, "x.dvc", "is not YAML"),
        ({"x.dvc": b"outs: 2001-99-99"}, "x.dvc", "is not YAML"),
        ({"x.dvc": b"outs: 5"}, "x.dvc", "is not a DVC file"),
        ({"x.dvc": b"outs: [a]"}, "x.dvc", "is not a DVC file"),
        ({"x.dvc": b"outs: [null]"}, "x.dvc", "is not a DVC file"),
        ({"x.dvc": b"outs: {a: b}"}, "x.dvc", "is not a DVC file"),
        ({"x.dvc": b"outs: [{md5: d41d8cd98f00b204e9800998ecf8427e}]"}, "x.dvc", "is not a DVC file"),
        ({"x.dvc": b"outs: [{path: 0x" + b"f" * 5000 + b"}]"}, "x.dvc", "is not a DVC file"),
        ({LOCK: b"schema: '2.0'\nstages: [a]"}, LOCK, "is not a DVC file"),
        ({LOCK: b"schema: '2.0'\nstages: {1: {outs: []}}"}, LOCK, "is not a DVC file"),
        ({LOCK: STAGE_A, YAML: b"stages: [1]"}, LOCK, "is not a DVC file"),
        ({LOCK: STAGE_A, YAML: b"stages: {a: b}"}, LOCK, "is not a DVC file"),
        ({LOCK: STAGE_A, YAML: b"stages: {a: {do: b}}"}, LOCK, "is not a DVC file"),
        ({LOCK: STAGE_A, YAML: b"stages: {"}, YAML, "is not YAML"),
    ],
)
def test_a_damaged_file_of_dvc_is_named(
    lab: Dsv, theirs: Theirs, files: dict[str, bytes], damaged: str, why: str
) -> None:
    commit = theirs.commit(files)
    done = lab("import", theirs.url, "pets:", "--create")
    assert done.code == 5 and f"{damaged} of git commit {commit} {why}" in done.err, done


def test_a_file_of_dvc_may_be_without_outputs_and_a_submodule_may_have_its_name(
    lab: Dsv, theirs: Theirs, tmp_path: Path
) -> None:
    theirs.commit(
        {"list.dvc": b"- 1", "empty.dvc": b"", "none.dvc": b"outs:", LOCK: b"schema: '2.0'\nstages:"}
    )
    theirs.git("update-index", "--add", "--cacheinfo", f"160000,{theirs.commits[FIRST]},sub.dvc")
    theirs.git("commit", "-qm", "submodule")
    lab.ok("import", theirs.url, "pets:", "--create")
    assert exported(lab, "pets", tmp_path) == {"data/x": b"new\n"}


def test_a_configuration_of_a_repository_starts_nothing(lab: Dsv, theirs: Theirs, tmp_path: Path) -> None:
    ran, program = tmp_path / "ran", tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {ran}\nexit 1\n")
    program.chmod(0o755)
    theirs.commit({"x.dvc": b"outs: []\n"})
    lost = theirs.git("rev-parse", "HEAD:x.dvc")
    for key, value in (
        ("core.repositoryformatversion", "1"),
        ("extensions.partialClone", "origin"),
        ("remote.origin.promisor", "true"),
        ("remote.origin.uploadpack", str(program)),
        ("core.fsmonitor", str(program)),
        ("core.sshCommand", str(program)),
    ):
        theirs.git("config", key, value)
    (theirs.repository / ".git/objects" / lost[:2] / lost[2:]).unlink()
    done = lab("import", theirs.url, "pets:", "--create")
    assert done.code == 5 and f"it lacks the object {lost}" in done.err, done
    lab.ok("import", theirs.url, "pets:", "--create", "--rev", "v1")
    assert not ran.exists()


def test_a_repository_from_elsewhere_names_only_places_of_its_own_kind(
    lab: Dsv, theirs: Theirs, tmp_path: Path
) -> None:
    whole = theirs.expected[theirs.commits[LAST]]
    with served(tmp_path) as here:
        elsewhere = here.replace("127.0.0.1", "localhost")
        for place, is_read in (
            (str(theirs.remote), False),
            (f"file://{theirs.remote}", False),
            ("../../remote", False),
            (f"{elsewhere}/theirs/remote", False),
            (f"http://2130706433:{here.rpartition(':')[2]}/theirs/remote", False),
            ("ssh://localhost/remote", False),
            ("s3://lake/dvc", False),
            ("simplecache::" + str(theirs.remote), False),
            (f"{here}/theirs/remote", True),
        ):
            theirs.keep_at(place)
            bare = tmp_path / "bare.git"
            shutil.rmtree(bare, ignore_errors=True)
            subprocess.run(["git", "clone", "-q", "--bare", theirs.repository, bare], check=True)
            subprocess.run(["git", "-C", bare, "update-server-info"], check=True)
            url = f"dvc+{here}/bare.git"
            done = lab("import", url, "pets:", "--create")
            if "2130706433" in place and done.code == 9:
                continue  # newer aiohttps take no such name, and for dsv there is nothing
            assert done.code == (0 if is_read else 2), (place, done)
            if not is_read:
                assert "may not name" in done.err and "--dvc-remote URL" in done.err, done
                named = lab("import", url, "pets:", "--create", "--dvc-remote", "storage")
                assert named.code == 2 and "may not name" in named.err, named
                lab.ok("import", url, "trusted:", "--create", "--dvc-remote", str(theirs.remote))
        assert exported(lab, "pets", tmp_path) == exported(lab, "trusted", tmp_path) == whole


@pytest.mark.parametrize(
    ("git", "url", "may"),
    [
        ("https://example.org/a.git", "https://8.8.8.8/dvc", True),
        ("https://example.org/a.git", "http://8.8.8.8/dvc", True),
        ("git@example.org:a/b.git", "ssh://8.8.8.8/dvc", False),
        ("git@example.org:a/b.git", "ssh://example.org:2222/dvc", False),
        ("git://example.org/a.git", "git://example.org/dvc", False),
        ("git@example.org:a/b.git", "ssh://me@example.org/dvc", True),
        ("git@example.org:a/b.git", "https://8.8.8.8/dvc", False),
        ("https://example.org/a.git", "ssh://8.8.8.8/dvc", False),
        ("https://example.org/a.git", "https://8.8.8.8::file:///etc", False),
        ("https://example.org/a.git", "https://8.8.8.8:x/dvc", False),
        ("https://10.1.2.3/a.git", "https://10.1.2.3/dvc", True),
        ("https://example.org/a.git", "remote://other/dvc", False),
    ],
)
def test_what_a_repository_from_elsewhere_may_name(git: str, url: str, may: bool) -> None:
    assert may_name(git, url) is may


@pytest.mark.parametrize(
    ("host", "port", "may"),
    [
        ("8.8.8.8", 443, True),
        ("2001:4860:4860::8888", 443, True),
        ("10.0.0.1", 8080, True),
        ("10.0.0.1", 9200, False),
        ("10.0.0.2", 8080, False),
        ("127.0.0.1", 443, False),
        ("localhost", 443, False),
        ("169.254.169.254", 80, False),
        ("0.0.0.0", 80, False),
        ("224.0.0.1", 80, False),
        ("240.0.0.1", 80, False),
        ("::", 80, False),
        ("::1", 80, False),
        ("fe80::1%1", 80, False),
        ("ff0e::1", 80, False),
        ("::ffff:10.0.0.1", 80, False),
        ("64:ff9b::a00:1", 80, False),
        ("2002:a00:1::", 80, False),
    ],
)
def test_where_a_remote_that_a_repository_from_elsewhere_names_may_lead(
    host: str, port: int, may: bool
) -> None:
    """The address that is connected to is looked at, and not what a name server said before."""
    loop = get_loop()
    connector = sync(loop, made, "https://10.0.0.1:8080/a.git")
    with nullcontext() if may else pytest.raises(UsageError, match="may not name"):
        assert sync(loop, connector._resolve_host, host, port)[0]["host"] == host
    sync(loop, connector.close)


async def made(git: str) -> Any:
    return storage_options("https", StoreOptions(named_by=git))["client_kwargs"]["connector"]


@pytest.mark.parametrize("how", [[], ["--reference"]])
def test_a_redirect_of_a_remote_leads_to_no_other_server_of_this_network(
    lab: Dsv, theirs: Theirs, tmp_path: Path, how: list[str]
) -> None:
    class Redirects(Quiet):
        def send_head(self) -> Any:
            if "/files/md5/" not in self.path:
                return super().send_head()
            self.send_response(302)
            self.send_header("Location", elsewhere + self.path)
            self.end_headers()
            return None

    with served(tmp_path) as other, served(tmp_path, Redirects) as here:
        elsewhere = other.replace("127.0.0.1", "localhost")
        theirs.keep_at(f"{here}/theirs/remote")
        subprocess.run(["git", "clone", "-q", "--bare", theirs.repository, tmp_path / "bare.git"], check=True)
        subprocess.run(["git", "-C", tmp_path / "bare.git", "update-server-info"], check=True)
        done = lab("import", f"dvc+{here}/bare.git", "pets:", "--create", *how)
        assert done.code == 2 and "may not name a remote at localhost" in done.err, done
        trusted = f"{here}/theirs/remote"
        lab.ok("import", f"dvc+{here}/bare.git", "pets:", "--create", "--dvc-remote", trusted, *how)
    if not how:
        assert exported(lab, "pets", tmp_path) == theirs.expected[theirs.commits[LAST]]


def test_a_repository_of_very_many_paths_is_refused(lab: Dsv, theirs: Theirs) -> None:
    """Ten folders that each list the one below ten times: 10^10 paths in some kB."""

    def tree(rows: str) -> str:
        argv = ["git", "-C", theirs.repository, "mktree"]
        return subprocess.run(argv, input=rows, check=True, capture_output=True, text=True).stdout.strip()

    below = theirs.git("rev-parse", "HEAD:.dvc")
    for _ in range(10):
        below = tree("".join(f"040000 tree {below}\t{name}\n" for name in range(10)))
    theirs.git("update-ref", "HEAD", theirs.git("commit-tree", "-m", "many", below))
    done = lab("import", theirs.url, "pets:", "--create")
    assert done.code == 9 and "prints more than 268 MB" in done.err and "hint:" in done.err, done
    children = subprocess.run(
        ["ps", "--ppid", str(os.getpid()), "-o", "comm="], capture_output=True, check=True
    )
    assert b"git" not in children.stdout


def output(md5: str, path: str, more: str = "") -> bytes:
    return f"outs:\n- md5: {md5}\n  hash: md5\n  path: {path}\n{more}".encode()


@pytest.mark.parametrize("how", [[], ["--reference"]])
def test_an_output_is_read_from_its_own_remote_and_a_subrepository_from_its_own(
    lab: Dsv, theirs: Theirs, tmp_path: Path, how: list[str]
) -> None:
    remotes = {name: tmp_path / name for name in ("first", "second", "sub")}
    md5s = {}
    for name, remote in remotes.items():
        md5s[name] = hashlib.md5(name.encode()).hexdigest()
        write_files(remote, {f"files/md5/{md5s[name][:2]}/{md5s[name][2:]}": name.encode()})
    sections = "".join(f"['remote \"{name}\"']\n    url = {remotes[name]}\n" for name in ("first", "second"))
    lock = f"schema: '2.0'\nstages:\n  s:\n    outs:\n    - path: out\n      hash: md5\n      md5: {md5s['second']}\n"
    theirs.git("rm", "-rqf", ".")
    theirs.commit(
        {
            ".dvc/config": f"[core]\n    remote = first\n{sections}".encode(),
            "a.dvc": output(md5s["first"], "a"),
            "b.dvc": output(md5s["second"], "b", "  remote: second\n"),
            "deep/sub/.dvc/config": f"[core]\nremote = it\n['remote \"it\"']\nurl = {remotes['sub']}\n".encode(),
            "deep/sub/data/c.dvc": output(md5s["sub"], "c"),
            "stage/dvc.lock": lock.encode(),
            "stage/dvc.yaml": b"stages:\n  s:\n    cmd: x\n    outs:\n    - out:\n        remote: second\n",
        }
    )
    lab.ok("import", theirs.url, "pets:", "--create", *how)
    assert exported(lab, "pets", tmp_path) == {
        "a": b"first", "b": b"second", "deep/sub/data/c": b"sub", "stage/out": b"second",
    }  # fmt: skip
    [kept] = [path for path in remotes["second"].rglob("*") if path.is_file()]
    kept.unlink()
    done = lab("import", theirs.url, "more:", "--create", *how)
    assert done.code == 9 and "the DVC remote second does not have" in done.err, done
    theirs.commit({"b.dvc": output(md5s["second"], "b", "  remote: none\n")})
    done = lab("import", theirs.url, "more:", "--create", *how)
    assert done.code == 3 and "has no DVC remote none; it has first, second" in done.err, done


@pytest.mark.parametrize("name", ["x.dvc", "dvc.lock", "dvc.yaml"])
def test_yaml_that_stands_for_far_more_is_refused(lab: Dsv, theirs: Theirs, name: str) -> None:
    bomb = ['a: &a ["x","x","x","x","x","x","x","x","x"]']
    bomb += [f"{new}: &{new} [{','.join(['*' + old] * 9)}]" for old, new in pairwise("abcdefghi")]
    bomb.append("outs:\n- {md5: 5d41402abc4b2a76b9719d911017c592, path: *i}")
    beside = {} if name == "x.dvc" else {"dvc.lock": STAGE_A, "dvc.yaml": b"stages: {}"}
    theirs.git("rm", "-rqf", "stage")
    for text, why in (("\n".join(bomb), "an alias of YAML"), ("[" * 900 + "]" * 900, "64 nested")):
        theirs.commit({**beside, name: text.encode()})
        done = lab("import", theirs.url, "pets:", "--create")
        assert done.code == 9 and why in done.err and name in done.err, done
    theirs.commit({**beside, name: b"#" * (65 << 20)})
    done = lab("import", theirs.url, "pets:", "--create")
    assert done.code == 9 and "at most" in done.err, done


@pytest.mark.parametrize(
    ("date", "expected"),
    [("-86400 +0000", FIRST_TIME), ("99999999999999 +0000", LAST_TIME), ("9" * 20 + " +0000", LAST_TIME)],
)
def test_a_revision_of_an_impossible_date_has_the_nearest_one(
    lab: Dsv, theirs: Theirs, date: str, expected: str
) -> None:
    """Before 1970, for which some versions of git have no text, and far ahead."""
    head = theirs.git("cat-file", "commit", "HEAD")
    lines = [
        f"{line.rpartition('>')[0]}> {date}" if line.startswith(("author", "committer")) else line
        for line in head.split("\n")
    ]
    argv = ["git", "-C", theirs.repository, "hash-object", "-t", "commit", "-w", "--stdin", "--literally"]
    done = subprocess.run(argv, input="\n".join(lines) + "\n", check=True, capture_output=True, text=True)
    theirs.git("update-ref", "HEAD", done.stdout.strip())
    said = lab.ok("import", theirs.url, "pets:", "--create", "--history")
    assert "revisions:" in said.err and done.stdout[:12] in said.err, said
    last = lab.ok("log", "pets", "--json").json["items"][0]
    assert last["time"].startswith(expected), last
