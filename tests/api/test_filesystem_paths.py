"""Paths of `dsv://`: what moves and is removed, names that look like patterns, listings without an answer, pickles."""

from __future__ import annotations

import asyncio
import errno
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

import dsv
from dsv.api.edits import Put
from dsv.api.program import Commit, Info
from dsv.filesystem import DsvFileSystem
from tests.api.pets_in_python import BIG, close_all, environ_of, make_home, of

_COUNT = iter(range(1_000_000))
TREE = {"m/a": b"a", "m/b": b"b", "m/d/x": b"x", "q/a": b"qa", "top": b"top"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield make_home(tmp_path_factory.mktemp("ann"))
    close_all()


@pytest.fixture
def fs(home: Path) -> DsvFileSystem:
    more = {"create": True, "allow_removals": True, "skip_instance_cache": True}
    return DsvFileSystem(environ=environ_of(home), cwd=home, **more)


@pytest.fixture
def top(fs: DsvFileSystem) -> str:
    name = f"p{next(_COUNT)}"
    fs.pipe({f"{name}/{path}": data for path, data in TREE.items()})
    return name


def files(fs: DsvFileSystem, top: str) -> dict[str, bytes]:
    found = fs.cat(fs.find(top))
    return {path.removeprefix(f"{top}/"): data for path, data in found.items()}


def paths(top: str, given: Any) -> Any:
    return (
        [f"{top}/{one}" for one in given] if isinstance(given, list) else f"{top}/{given}".removesuffix("/.")
    )


@pytest.mark.parametrize(
    ("source", "to", "options"),
    [
        ("m", ".", {"recursive": True}), ("m/", "m", {"recursive": True}), ("m", "m/", {"recursive": True}),
        ("m", "m", {}), ("m/*", "m/", {"recursive": True}), (["m/a", "m/b"], "m/", {}), ("m/a", "m/", {}),
        ("m/a", "m/a", {}), (["m/a", "q/a"], ["m/a", "q/a"], {}),
    ],
)  # fmt: skip
def test_what_moves_to_where_it_is_stays(
    fs: DsvFileSystem, top: str, source: Any, to: Any, options: Any
) -> None:
    before = fs._at(top)[0].id
    fs.mv(paths(top, source), paths(top, to), **options)
    assert files(fs, top) == TREE and fs._stores[""].open(top).id == before


@pytest.mark.parametrize(
    ("source", "to", "options", "moved"),
    [
        ("m", "n", {"recursive": True}, {"m/a": "n/a", "m/b": "n/b", "m/d/x": "n/d/x"}),
        ("m", "q", {"recursive": True}, {"m/a": "q/m/a", "m/b": "q/m/b", "m/d/x": "q/m/d/x"}),
        ("m/d", ".", {"recursive": True}, {"m/d/x": "d/x"}),
        ("m", "n", {"recursive": True, "maxdepth": 1}, {"m/a": "n/a", "m/b": "n/b"}),
        ("m/[ab]", "n/", {}, {"m/a": "n/a", "m/b": "n/b"}),
        ("m/*", "n/", {"recursive": True}, {"m/a": "n/a", "m/b": "n/b", "m/d/x": "n/d/x"}),
        (["m/a", "top"], "n/", {}, {"m/a": "n/a", "top": "n/top"}),
        (["m/a", "m/b"], ["m/b", "m/c"], {}, {"m/a": "m/b", "m/b": "m/c"}),
        ("m/a", "q/", {}, {"m/a": "q/a"}),
    ],
)
def test_what_moves_is_at_its_new_path(
    fs: DsvFileSystem, top: str, source: Any, to: Any, options: Any, moved: dict[str, str]
) -> None:
    fs.mv(paths(top, source), paths(top, to), **options)
    kept = {path: data for path, data in TREE.items() if path not in moved}
    assert files(fs, top) == kept | {moved[path]: TREE[path] for path in moved}


@pytest.mark.parametrize(
    ("source", "to", "options", "kind"),
    [
        ("m", "m/n", {"recursive": True}, OSError), ("m/d", "m/d/e", {"recursive": True}, OSError),
        ("m/*", "m/d/", {"recursive": True}, OSError), ("m", "n", {}, IsADirectoryError),
        ("*", "n/", {}, IsADirectoryError), (["m", "top"], "n/", {}, IsADirectoryError),
        ("no", "n", {}, FileNotFoundError), (["m/a", "no"], "n/", {}, FileNotFoundError),
        (["m/a", "q/a"], "n/", {}, dsv.Conflict), ("m/a", "top/x", {}, dsv.Conflict),
    ],
)  # fmt: skip
def test_a_move_that_would_lose_something_is_refused_as_a_whole(
    fs: DsvFileSystem, top: str, source: Any, to: Any, options: Any, kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        fs.mv(paths(top, source), paths(top, to), **options)
    assert files(fs, top) == TREE


def test_a_pattern_moves_links_and_empty_folders_of_whole_folders(
    fs: DsvFileSystem, top: str, tmp_path: Path
) -> None:
    (tmp_path / "tree/sub/empty").mkdir(parents=True)
    (tmp_path / "tree/sub/dangling").symlink_to("nowhere")
    (tmp_path / "tree/x").write_bytes(b"x")
    fs._publish(("", f"{top}@main"), [Put("tree", tmp_path / "tree")])
    fs.mv(f"{top}/tree/*", f"{top}/n/", recursive=True)
    assert fs.ls(f"{top}/n/sub", detail=False) == [f"{top}/n/sub/dangling", f"{top}/n/sub/empty"]


def test_two_sources_of_one_name_are_refused(fs: DsvFileSystem, top: str, tmp_path: Path) -> None:
    for name in ("a/x", "b/x"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(name.encode())
    with pytest.raises(dsv.Conflict, match="two files of one call"):
        fs.put([str(tmp_path / "a/x"), str(tmp_path / "b/x")], f"{top}/n/")
    with pytest.raises(dsv.Conflict, match="two files of one call"):
        fs.cp([f"{top}/m/a", f"{top}/q/a"], f"{top}/n/")
    with pytest.raises(dsv.Conflict, match="two files of one call"):
        fs.pipe({f"{top}/n": b"1", f"dsv://{top}/n": b"2"})
    assert files(fs, top) == TREE
    with fs.transaction:  # one after the other
        fs.pipe(f"{top}/n", b"1")
        fs.pipe(f"{top}/n", b"2")
    assert files(fs, top) == TREE | {"n": b"2"}


def test_other_branches_get_no_moves(fs: DsvFileSystem, top: str) -> None:
    with pytest.raises(dsv.Conflict, match="to another branch"):
        fs.mv(f"{top}/m/a", f"{top}2/a")
    assert files(fs, top) == TREE


def test_a_name_that_exists_is_no_pattern(fs: DsvFileSystem, top: str, tmp_path: Path) -> None:
    names = ["a[1].txt", "a1.txt", "b*", "bb", "c?/x", "cc/x"]
    fs.pipe({f"{top}/{name}": name.encode() for name in names})
    assert fs.cat(f"{top}/a[1].txt") == b"a[1].txt"
    assert fs.expand_path([f"{top}/b*", f"{top}/c?"], recursive=True) == [
        f"{top}/{one}" for one in ("b*", "c?", "c?/x")
    ]
    fs.get(f"{top}/a[1].txt", str(tmp_path / "got"))
    assert (tmp_path / "got/a[1].txt").read_bytes() == b"a[1].txt"
    fs.rm(f"{top}/a[1].txt")
    fs.rm_file(f"{top}/b*")
    fs.mv(f"{top}/c?", f"{top}/d", recursive=True)
    assert set(files(fs, top)) == {*TREE, "a1.txt", "bb", "cc/x", "d/x"}
    for pattern in ("a[1].txt", "b*", "*", "m/*"):
        with pytest.raises(FileNotFoundError):
            fs.rm_file(f"{top}/{pattern}")
    with pytest.raises(IsADirectoryError):
        fs.rm_file(f"{top}/m")
    assert set(files(fs, top)) == {*TREE, "a1.txt", "bb", "cc/x", "d/x"}
    fs.rm(f"{top}/b*")
    assert not fs.exists(f"{top}/bb")


ASKS: dict[str, Callable[[Any, str, Path], Any]] = {
    "find": lambda fs, top, _: fs.find(top),
    "find in it": lambda fs, top, _: fs.find(f"{top}/m"),
    "walk": lambda fs, top, _: [*fs.walk(top)],
    "walk up": lambda fs, top, _: [*fs.walk(top, topdown=False, on_error="omit")],
    "glob": lambda fs, top, _: fs.glob(f"{top}/**"),
    "du": lambda fs, top, _: fs.du(top),
    "expand_path": lambda fs, top, _: fs.expand_path(top, recursive=True),
    "get": lambda fs, top, to: fs.get(top, str(to / "got"), recursive=True),
    "cp": lambda fs, top, _: fs.cp(f"{top}/", f"{top}/copy", recursive=True),
    "mv": lambda fs, top, _: fs.mv(f"{top}/*", f"{top}/moved/", recursive=True),
    "rm": lambda fs, top, _: fs.rm(f"{top}/**", recursive=True, maxdepth=3),
    "cat": lambda fs, top, _: fs.cat(top, recursive=True),
    "ls": lambda fs, top, _: fs.ls(f"{top}/m"),
    "exists": lambda fs, top, _: fs.exists(f"{top}/m"),
    "isdir": lambda fs, top, _: fs.isdir(f"{top}/m"),
    "isfile": lambda fs, top, _: fs.isfile(f"{top}/m"),
    "_walk": lambda fs, top, _: asyncio.run(_walked(fs, top)),
    "_find": lambda fs, top, _: asyncio.run(fs._find(top)),
    "_glob": lambda fs, top, _: asyncio.run(fs._glob(f"{top}/**")),
    "_exists": lambda fs, top, _: asyncio.run(fs._exists(f"{top}/m")),
    "_isdir": lambda fs, top, _: asyncio.run(fs._isdir(f"{top}/m")),
}


async def _walked(fs: DsvFileSystem, top: str) -> list[Any]:
    return [one async for one in fs._walk(top)]


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (dsv.Denied, PermissionError), (dsv.Unreachable, dsv.Unreachable), (dsv.Unreachable, OSError),
        (dsv.IntegrityError, dsv.IntegrityError),
        (OSError, OSError),
    ],
)  # fmt: skip
def test_a_folder_that_can_not_be_listed_is_not_empty(
    ask: str, error: type[Exception], kind: type[Exception], fs: DsvFileSystem, top: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    ls, info = Commit.ls, Commit.info

    def failing_ls(self: Commit, path: str = "") -> list[Info]:
        if path == "m":
            raise error("no answer")
        return ls(self, path)

    def failing_info(self: Commit, path: str, **options: Any) -> Info:
        if path == "m" and ask.lstrip("_") in ("exists", "isdir", "isfile"):
            raise error("no answer")
        return info(self, path, **options)

    monkeypatch.setattr(Commit, "ls", failing_ls)
    monkeypatch.setattr(Commit, "info", failing_info)
    with pytest.raises(kind):
        ASKS[ask](fs, top, tmp_path)
    monkeypatch.undo()
    assert files(fs, top) == TREE


def test_what_is_missing_is_still_an_empty_answer(fs: DsvFileSystem, top: str) -> None:
    assert fs.find(f"{top}/no") == fs.find("nope") == fs.glob(f"{top}/no*") == []
    assert [*fs.walk(f"{top}/no")] == [] and not fs.exists("nope/x")


def test_a_damaged_or_erased_file_is_not_missing(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    fs = DsvFileSystem(environ=environ_of(home), cwd=home)
    where = BIG[4_000_000:4_001_000]
    for pack in (home / "store/packs").rglob("*"):
        if pack.is_file() and where in (data := pack.read_bytes()):
            pack.chmod(0o600)
            pack.write_bytes(data.replace(where, bytes(1000)))
    for read in (
        lambda: fs.cat("pets/big.bin"), lambda: fs.open("pets/big.bin").read(),
        lambda: fs.head("pets/big.bin", 5_000_000), lambda: fs.get("pets/big.bin", str(tmp_path / "got")),
        lambda: fs.cat_file("pets/big.bin"),
        lambda: fsspec.open("dsv://pets/big.bin", environ=environ_of(home), cwd=home).open().read(),
        lambda: of(home).open("pets").read_bytes("big.bin"), lambda: of(home).open("pets").open("big.bin").read(),
    ):  # fmt: skip
        with pytest.raises(dsv.IntegrityError):
            read()
    with fs.open("pets/big.bin", block_size=0) as file, pytest.raises(OSError) as failed:
        file.read()
    again = pickle.loads(pickle.dumps(failed.value))
    assert (failed.value.errno, type(again), str(again)) == (errno.EIO, dsv.IntegrityError, str(failed.value))
    for pack in (home / "store/packs").rglob("*"):
        if pack.is_file():
            pack.unlink()
    fresh = DsvFileSystem(environ=environ_of(home), cwd=home, skip_instance_cache=True)
    with pytest.raises(dsv.IntegrityError):
        fresh.cat("pets/labels.csv")
    close_all()


def test_put_raises_for_a_local_folder_that_can_not_be_listed(
    fs: DsvFileSystem, top: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "given/deep/closed").mkdir(parents=True)
    (tmp_path / "given/deep/closed/x").write_bytes(b"x")
    (tmp_path / "given/a").write_bytes(b"a")
    scandir = os.scandir

    def closed(path: Any) -> Any:
        if os.fspath(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    for source in ("given", "given/", "given/*", ["given"]):
        local = (
            [str(tmp_path / one) for one in source] if isinstance(source, list) else f"{tmp_path}/{source}"
        )
        with pytest.raises(PermissionError):
            fs.put(local, f"{top}/new", recursive=True)
    monkeypatch.undo()
    assert files(fs, top) == TREE
    fs.put(f"{tmp_path}/given", f"{top}/new", recursive=True)
    assert files(fs, top) == TREE | {"new/a": b"a", "new/deep/closed/x": b"x"}


def test_an_open_file_can_be_pickled(fs: DsvFileSystem, home: Path) -> None:
    file = fs.open("pets/big.bin", block_size=1 << 16)
    file.seek(1000)
    assert file.read(10) == BIG[1000:1010]
    copy = pickle.loads(pickle.dumps(file))
    assert (copy.tell(), copy.path, copy.size, copy.mode) == (1010, "pets/big.bin", len(BIG), "rb")
    assert copy.read(5) == BIG[1010:1015] and file.read(5) == BIG[1010:1015]
    assert pickle.loads(pickle.dumps(copy)).read() == BIG[1015:]
    mine = of(home).open("pets").open("big-link")
    assert pickle.loads(pickle.dumps(mine)).read() == BIG
    [opened] = fsspec.open_files("dsv://pets/labels.csv", "rt", environ=environ_of(home), cwd=home)
    with pickle.loads(pickle.dumps(opened)) as text:
        assert text.read() == "a,b\n1,2\n"
    file.close()
    with pytest.raises(ValueError, match="closed"):
        pickle.dumps(file)


def test_a_pickled_file_stays_at_its_commit(fs: DsvFileSystem, top: str) -> None:
    file = fs.open(f"{top}/top")
    data = pickle.dumps(file)
    fs.pipe(f"{top}/top", b"changed")
    assert pickle.loads(data).read() == b"top" and fs.open(f"{top}/top").read() == b"changed"


@pytest.mark.parametrize("size", [0, -1, None, 1, "default", 1 << 20])
def test_any_block_size_reads_the_file(fs: DsvFileSystem, size: Any) -> None:
    with fs.open("pets/big.bin", block_size=size) as file:
        assert file.read(10) == BIG[:10] and file.seek(-5, os.SEEK_END) and file.read() == BIG[-5:]
    with fs.open("pets/labels.csv", "r", block_size=size) as text:
        assert [*text] == ["a,b\n", "1,2\n"]


def test_xarray_reads_chunks_in_other_processes(fs: DsvFileSystem, top: str, home: Path) -> None:
    xarray, *_ = [pytest.importorskip(name) for name in ("xarray", "dask", "h5netcdf", "h5py")]
    np = pytest.importorskip("numpy")
    data = xarray.Dataset({"t": ("x", np.arange(1000.0))})
    fs.pipe(f"{top}/t.nc", bytes(data.to_netcdf(engine="h5netcdf")))
    with fs.open(f"{top}/t.nc") as file:
        found = xarray.open_dataset(file, engine="h5netcdf", chunks={"x": 100})
        assert float(found.t.sum().compute(scheduler="processes", num_workers=2)) == 499_500.0
