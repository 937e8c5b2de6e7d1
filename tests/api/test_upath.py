"""`UPath("dsv://…")` of universal_pathlib, with every warning an error."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import dsv
from tests.api.pets_in_python import close_all, environ_of, make_store, of

upath = pytest.importorskip("upath", reason="needs universal_pathlib")
NAMES = ["a b", "c#d?x", "[x].txt", "%2F", "new\nline", "\u202ebidi", "~", "ü" * 100]


@pytest.fixture(autouse=True)
def _no_warning() -> Iterator[None]:
    with warnings.catch_warnings(action="error"):
        yield


@pytest.fixture
def top(tmp_path: Path) -> Iterator[Any]:
    make_store(tmp_path)
    with of(tmp_path).edit("team/pets", create=True) as edits:
        edits.put("labels.csv", b"a,b\n")
        for number, name in enumerate(NAMES):
            edits.put(f"odd/{name}/{name}", b"%d" % number)
    yield upath.UPath("dsv://team%2Fpets@main", environ=environ_of(tmp_path), cwd=tmp_path)
    close_all()


def test_a_process_that_knows_nothing_of_dsv_gets_a_path_without_a_warning(tmp_path: Path, top: Any) -> None:
    code = "from upath import UPath; print((UPath('dsv://team%2Fpets@main') / 'labels.csv').read_text())"
    argv = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(argv, env=environ_of(tmp_path), cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "a,b\n\n", "")
    assert entry_points(group="universal_pathlib.implementations")["dsv"].load() is type(top)


def test_paths_are_joined_listed_searched_and_read(top: Any) -> None:
    file = top / "labels.csv"
    assert str(file) == "dsv://team%2Fpets@main/labels.csv" == file.as_uri()
    assert file.parent == top and (file.name, file.stem, file.suffix) == ("labels.csv", "labels", ".csv")
    assert file.read_bytes() == b"a,b\n" and file.read_text() == "a,b\n" and file.open("rb").read(1) == b"a"
    assert file.exists() and file.is_file() and file.stat().st_size == 4
    assert top.is_dir() and (top / "odd").is_dir() and not (top / "no").exists()
    assert [*top.iterdir()] == [file, top / "odd"] and [*top.glob("*.csv")] == [file]
    assert pickle.loads(pickle.dumps(file)).read_text() == "a,b\n"
    with pytest.raises(FileNotFoundError):
        (top / "no").read_bytes()
    assert {str(dataset) for dataset in top.parent.iterdir()} == {"dsv://first", "dsv://team%2Fpets"}


def test_odd_names_lead_to_their_files_and_to_no_others(top: Any) -> None:
    assert {folder.name for folder in (top / "odd").iterdir()} == {*NAMES}
    found = [file for file in top.rglob("*") if file.is_file() and file.name != "labels.csv"]
    assert {file.name: file.read_bytes() for file in found} == {
        name: b"%d" % number for number, name in enumerate(NAMES)
    }
    assert all((top / "odd" / name / name).parent.name == name for name in NAMES)


def test_another_store_and_writing(tmp_path: Path, top: Any) -> None:
    store = quote(f"{tmp_path}/store", safe="")
    other = upath.UPath(f"dsv://({store})/team%2Fpets/odd", **top.storage_options)
    assert {folder.name for folder in other.iterdir()} == {*NAMES} and other.parent.parent.is_dir()
    (top / "new.txt").write_text("n")
    assert (top / "new.txt").read_text() == "n"
    (top / "new.txt").unlink()
    assert not (top / "new.txt").exists() and "new.txt" not in os.listdir(tmp_path)
    commit = of(tmp_path).open("team/pets").id
    with pytest.raises(dsv.UsageError):
        (top.parent / f"team%2Fpets@{commit}" / "x").write_text("n")
