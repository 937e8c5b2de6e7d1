"""`import dsv`: a program gets the settings of the command line, commits that it can read, and edits."""

from __future__ import annotations

import os
import pickle
import random
import re
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

import pytest

import dsv
from dsv.api import environment
from dsv.api.branches import tag
from dsv.api.cache import cache
from dsv.api.clone import init
from dsv.api.datasets import resolve
from dsv.api.settings import BUILT_IN
from dsv.api.sync import SyncRequest, sync
from dsv.values.names import DatasetName, TagName, Target
from tests.api.pets_in_python import BIG, SMALL, of
from tests.exhaustive import is_full
from tests.labs.s3_server import S3Server

PAGE = Path(__file__).parents[2] / "docs/guide/python.md"


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An empty home, on a machine without settings, with git's own out of reach."""
    monkeypatch.setattr(environment, "SYSTEM_CONFIG", tmp_path / "none.toml")
    home = tmp_path / "home"
    home.mkdir()
    return {"HOME": str(home), "PATH": "/usr/bin:/bin", "DSV_AUTHOR": "ann"}


def make_pets(environ: dict[str, str], folder: Path, files: Mapping[str, str] = MappingProxyType({})) -> None:
    folder.mkdir()
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    context = dsv.store(environ=environ, cwd=folder).context
    init(context, folder, DatasetName.parse("pets"))
    (folder / "labels.csv").write_text("a,b\n")
    sync(context, SyncRequest(message="first"))
    tag(context, TagName.parse("v1"), Target())


def test_settings_come_from_keywords_workspace_environment_and_files_in_this_order(
    environ: dict[str, str], tmp_path: Path
) -> None:
    config = Path(environ["HOME"]) / ".config/dsv/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('store = "/in/file"\ncache = "/in/file"\n')
    assert dsv.store(environ={"HOME": "/nowhere"}, cwd=tmp_path).context.settings.store().origin == BUILT_IN
    assert dsv.store(environ=environ, cwd=tmp_path).context.settings.store().url == "/in/file"
    named = {**environ, "DSV_STORE": "/in/environment"}
    assert dsv.store(environ=named, cwd=tmp_path).context.settings.store().url == "/in/environment"
    assert (
        dsv.store("/named", environ=named, cwd=tmp_path, cache="c").context.settings.store().url == "/named"
    )
    make_pets(named | {"DSV_STORE": str(tmp_path / "store")}, tmp_path / "work")
    assert dsv.store(environ=named, cwd=tmp_path / "work").context.settings.store().url == str(
        tmp_path / "store"
    )
    assert str(dsv.store(environ=named, cwd=tmp_path).context.settings.cache().path) == "/in/file"


def test_the_author_is_the_one_of_the_keyword_then_of_the_environment(
    environ: dict[str, str], tmp_path: Path
) -> None:
    assert dsv.store(environ=environ, cwd=tmp_path).context.writer.author == "ann"
    assert dsv.store(environ=environ, cwd=tmp_path, author="bo").context.writer.author == "bo"


def test_offline_asks_no_store(environ: dict[str, str], tmp_path: Path) -> None:
    make_pets(environ, tmp_path / "work")
    away = dsv.store(environ=environ, cwd=tmp_path / "work", offline=True).context
    Path(away.settings.store().url).rename(tmp_path / "away")
    for name in ("@main", "@v1"):
        assert resolve(away, Target.parse(name)).commit == away.workspace().base()
    with pytest.raises(dsv.Unreachable, match="is not asked"):
        resolve(away, Target.parse("@v2"))


def test_offline_neither_publishes_nor_takes_a_branch_for_just_seen(
    environ: dict[str, str], tmp_path: Path
) -> None:
    make_pets(environ, tmp_path / "work")
    target = Target.parse("pets@main")
    here, away = (
        dsv.store(environ=environ, cwd=tmp_path, offline=offline).context for offline in (False, True)
    )
    folder = here.settings.cache().path
    [item] = cache(here, folder, [target])
    [known] = folder.glob(".dsv/stores/*/tracking/pets.json")
    known.write_bytes(re.sub(rb'"time_ms":[0-9]+', b'"time_ms":1', known.read_bytes()))
    assert cache(away, folder, [target])[0].path == item.path
    assert set(re.findall(rb'"time_ms":([0-9]+)', known.read_bytes())) == {b"1"}
    (tmp_path / "work/new.csv").write_text("new")
    with pytest.raises(dsv.Unreachable, match="not asked offline"):
        sync(dsv.store(environ=environ, cwd=tmp_path / "work", offline=True).context, SyncRequest())


def test_the_examples_of_the_page_work(environ: dict[str, str], tmp_path: Path) -> None:
    make_pets(environ, tmp_path / "pets", {"images/1.png": "one", "images/2.png": "two"})
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra/notes.txt").write_text("n")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    context = dsv.store(environ=environ, cwd=tmp_path / "pets").context
    first, synced = resolve(context, Target.parse("@v1")).commit, context.workspace().base()
    edited = resolve(context, Target.parse("@main")).commit
    assert re.sub("20[-0-9]+ [:0-9]+[+]00:00", "TIME", done.stdout).splitlines() == [
        f"{first} first 3", "images/1.png 3", "images/2.png 3", "['labels.csv']", " 1", "images 2",
        "a,b", "", "b'b'", "2", "['first'] () ann TIME", "[]", "a,b", "", "[('pets', 3)]", f"{synced} 4",
        f"{edited} [('removed', 'images/1.png'), ('removed', 'images/2.png'), ('renamed', 'labels2.csv'), "
        "('added', 'more/extra/notes.txt'), ('added', 'more.csv'), ('added', 'stats.json')]",
    ]  # fmt: skip


@pytest.fixture
def pets(folder: Path) -> dsv.Commit:
    return of(folder).open("pets@v1")


def test_threads_share_a_commit(pets: dsv.Commit) -> None:
    chance = random.Random(5)
    paths = chance.choices(list(SMALL), k=300)

    def read(path: str) -> bool:
        at = SMALL[path][0] * 30_000
        with pets.open("big.bin") as file:
            file.seek(at)
            return pets.read_bytes(path) == SMALL[path] and file.read(9999) == BIG[at : at + 9999]

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(read, paths))


def test_a_pickle_has_no_secrets_of_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("DSV_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush")
    monkeypatch.setenv("DSV_STORE", str(folder / "store"))
    monkeypatch.setenv("HOME", str(folder))
    pickled = pickle.dumps(dsv.open("pets@v1"))
    assert b"hush" not in pickled
    monkeypatch.setenv("DSV_STORE", "/nowhere")  # a server of forks may have begun with other variables
    assert pickle.loads(pickled).read_bytes("labels.csv") == b"a,b\n1,2\n"


def script(folder: Path, code: str, *arguments: str, **environ: str) -> str:
    """Run a program as that person."""
    known = {"HOME": str(folder), "PATH": os.environ["PATH"], "DSV_STORE": str(folder / "store"), **environ}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=known, cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_is_there_before_something_is_read(folder: Path) -> None:
    """No thread of Python's or of a library's, no socket, no file that stays open."""
    code = """
import os, pickle, dsv
from dsv.api import program, open_commits, connection
def tasks(): return len(os.listdir("/proc/self/task")) if os.path.exists("/proc/self/task") else 1
before = len(os.listdir("/dev/fd"))
commits = [dsv.open("pets@v1"), dsv.store("s3://nowhere/at-all").open("pets")]
commits.append(pickle.loads(pickle.dumps(dsv.open("pets"))))
editing = dsv.edit("pets")
print(tasks(), len(os.listdir("/dev/fd")) - before, not open_commits._processes[-1].opened)
"""
    assert script(folder, code).split() == ["1", "0", "True"]


def test_importing_dsv_imports_no_part_and_reads_no_environment() -> None:
    code = """
import os, sys
kept, os.environ, os.getenv, before = os.environ, None, None, set(sys.modules)
import dsv
print(*sorted(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["__future__", "dsv"]


def test_the_function_store_is_not_hidden_by_the_package_of_its_name(folder: Path) -> None:
    code = """
import dsv.stores.base as base
import dsv
from dsv import store, NotFound
print(callable(dsv.store), store is dsv.store, base is dsv.stores.base, dsv.store().open("pets@v1").files)
"""
    files = len(SMALL) + 4
    assert script(folder, code).split() == ["True", "True", "True", str(files)]


CHILDREN = """
import multiprocessing, os, sys, threading
import dsv

def read(commit):
    assert commit.read_bytes("big.bin", 8_999_990) == bytes.fromhex(sys.argv[-1])
    assert len(commit.read_many(commit.glob("images/3/*"))) == 143

def child(commit, last):
    sys.argv[-1] = last
    read(commit)
    pool = [threading.Thread(target=read, args=(commit,)) for _ in range(3)]
    for one in pool: one.start()
    for one in pool: one.join()

if __name__ == "__main__":
    method, rounds = sys.argv[1], int(sys.argv[2])
    commit = dsv.open("pets@v1")
    read(commit)
    done = threading.Event()
    def go_on():
        while not done.is_set():
            read(commit)
            read(dsv.open("pets"))
    others = [threading.Thread(target=go_on) for _ in range(3)]  # locks are taken while processes are made
    for one in others: one.start()
    context = multiprocessing.get_context(method)
    try:
        for number in range(rounds):
            one = context.Process(target=child, args=(commit if number % 2 else dsv.open("pets@v1"), sys.argv[-1]))
            one.start()
            one.join()
            assert one.exitcode == 0, one.exitcode
    finally:
        done.set()
    read(commit)
    print("done")
"""


def in_processes(folder: Path, method: str, rounds: int, **environ: str) -> None:
    program = folder / f"children-{method}.py"
    program.write_text(CHILDREN)
    known = {"HOME": str(folder), "PATH": os.environ["PATH"], "DSV_STORE": str(folder / "store"), **environ}
    done = subprocess.run(
        [sys.executable, str(program), method, str(rounds), BIG[8_999_990:].hex()],
        env=known, cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.strip() == "done", done.stderr


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_processes_read_the_commit_that_they_were_given(folder: Path, method: str) -> None:
    in_processes(folder, method, 100 if is_full() else {"fork": 12, "forkserver": 3, "spawn": 2}[method])


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_processes_read_from_s3(folder: Path, moto_s3: S3Server, method: str) -> None:
    """The client's threads are not in a fork of a process that has read: there is another one."""
    bucket, client, lake = moto_s3.bucket(), moto_s3.client(), folder / "store"
    for path in lake.rglob("*"):
        if path.is_file() and ".tmp" not in path.parts:
            client.upload_file(str(path), bucket, f"lake/{path.relative_to(lake)}")
    in_processes(folder, method, 2, **{**moto_s3.env, "DSV_STORE": f"s3://{bucket}/lake"})


@pytest.mark.exhaustive  # .ci/run has mypy look at the package; this takes as long
def test_the_types_are_there_for_users(tmp_path: Path) -> None:
    """Under mypy's strict rules, by the stubs that the package itself is."""
    (tmp_path / "user.py").write_text(
        """
import io
from pathlib import Path
import dsv

commit: dsv.Commit = dsv.open("pets@v1")
data: dict[str, bytes] = commit.read_many(commit.glob("*.png"))
file: io.BufferedReader = commit.open("a")
folder: Path = commit.cache(hold="3d")
lake: dsv.Store = dsv.store("s3://lake/dsv", author="ann")
with lake.edit("pets", message="m", create=True) as edits:
    edits.put("a", b"b")
    edits.put("c", Path("c"))
made: str = edits.commit.id
names: list[str] = [str(item.dataset) for item in dsv.datasets()]
runs: list[str] = [view.record.run for view in dsv.runs("pets", where=["a=1"])]
try:
    kinds: list[str] = [info.kind for info in commit.ls()]
except dsv.NotFound as error:
    text: str = error.message
reveal_type(commit.diff("@main"))
"""
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "user.py"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert "Success: no issues found" in done.stdout and "Listed[dsv.api.program.Change]" in done.stdout, (
        done.stdout
    )


def test_a_commit_is_shown_as_it_was_named(folder: Path) -> None:
    opened = of(folder).open("pets@v1")
    assert repr(opened) == "<dsv.Commit pets@v1>"  # the store was not asked
    about = re.escape(f"{opened.message.partition(chr(10))[0]!r}")
    assert re.fullmatch(rf"<dsv.Commit pets@v1: [\d,]+ files?, \d.*B, 20.*Z, {about}>", repr(opened))
    assert repr(pickle.loads(pickle.dumps(opened))) == repr(opened)
