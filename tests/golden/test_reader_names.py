"""How the independent reader resolves names, and what it says where it can't."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dsv import reader
from dsv.format import envelope, keys
from dsv.format.records import Feature, FeatureRule, FormatEntry
from dsv.format.tree import Kind
from dsv.reader import StoreError
from dsv.values.ids import CommitId, Nonce
from dsv.values.names import MAIN, BranchName, DatasetName, TagName
from tests.golden import make
from tests.golden.building import StoreMaker, name_of
from tests.golden.stores import SET, named, refused, stored
from tests.golden.test_golden import GOLDEN, MOVED, NAMED, NAMED_STORE, STORE, files_of


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nope", "no dataset nope; there are: demo/letters"),
        ("demo/letters@nope", "no branch or tag nope"),
        ("demo/letters@gone", "no branch or tag gone"),
        ("demo/letters@old/try", "no branch or tag old/try"),
        ("demo/letters@main~2", "goes back further"),
        ("demo/letters@00000000", "0 commits begin with 00000000"),
        ("demo/letters@v1~x", "not a revision"),
        ("../x", "not a name"),
        ("demo/letters@../../x", "not a name"),
    ],
)
def test_names_that_are_not_there(tmp_path: Path, target: str, message: str) -> None:
    refused(tmp_path, GOLDEN, message, target)


def test_a_ref_that_names_no_commit(tmp_path: Path) -> None:
    refused(tmp_path, named(None), "names no commit yet")


def test_a_ref_that_names_a_commit_that_is_not_there(tmp_path: Path) -> None:
    refused(tmp_path, named(CommitId(b"c" * 32)), "there is no commit 6363")


def test_a_commit_whose_parent_is_missing(tmp_path: Path) -> None:
    maker = StoreMaker()
    commit = maker.commit({b"a": (Kind.FILE, b"x")}, (CommitId(b"p" * 32),), "", 0, "")
    found = {**maker.keys, **named(commit)}
    refused(tmp_path, found, "there is no commit 7070", "set@main~2")
    shutil.rmtree(tmp_path / "store")
    reader.restore(stored(tmp_path, found), "set", tmp_path / "out")


LETTERS = DatasetName.parse("demo/letters")


@pytest.mark.parametrize(
    ("copied", "onto", "target"),
    [
        (keys.branch_key(LETTERS, MAIN, 1), keys.branch_key(LETTERS, MAIN, 3), "demo/letters"),
        (keys.branch_key(LETTERS, MAIN, 2), keys.branch_key(LETTERS, BranchName("b"), 2), "demo/letters@b"),
        (keys.branch_key(LETTERS, MAIN, 2), keys.branch_key(SET, MAIN, 2), "set"),
        (keys.tag_key(LETTERS, TagName("v1")), keys.tag_key(LETTERS, TagName("v2")), "demo/letters@v2"),
    ],
)
def test_an_entry_that_was_copied_to_another_key(tmp_path: Path, copied: str, onto: str, target: str) -> None:
    refused(tmp_path, {**NAMED, onto: NAMED[copied]}, "it was written for", target)


def test_a_commit_of_another_dataset(tmp_path: Path) -> None:
    commit = CommitId.parse(next(key for key in NAMED if key.startswith("commits/")).removeprefix("commits/"))
    refused(
        tmp_path,
        {**NAMED, **named(commit)},
        f"{commit} is none of dataset set, but of demo/letters",
        f"set@{commit}",
    )


def test_no_store(tmp_path: Path) -> None:
    refused(tmp_path, {"README.txt": b""}, "is not a dsv store")


@pytest.mark.parametrize(("rule", "fine"), [("ignore", True), ("read-only", True), ("refuse", False)])
def test_features(tmp_path: Path, rule: str, fine: bool) -> None:
    entry = FormatEntry(
        name_of("s").store, Nonce(bytes(16)), 0, "", "", features=(Feature("x", FeatureRule(rule)),)
    )
    found = {**GOLDEN, keys.format_key(2): entry.encode()}
    if fine:
        reader.restore(stored(tmp_path, found), "demo/letters", tmp_path / "out")
    else:
        refused(tmp_path, found, r"uses \['x', 'refuse'\]", "demo/letters")


def test_a_newer_version_is_named_as_such(tmp_path: Path) -> None:
    key = keys.branch_key(DatasetName.parse("demo/letters"), MAIN, 2)
    refused(tmp_path, {**GOLDEN, key: b"dsv ref 3\n..."}, "newer version", "demo/letters")


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"\x91" * 5000, b"\xdd\xff\xff\xff\xff", b"\x96\xce\xff\xff\xff\xff" + bytes(9)]
)
def test_a_record_that_is_no_msgpack(tmp_path: Path, body: bytes) -> None:
    key = keys.tag_key(DatasetName.parse("demo/letters"), TagName("v1"))
    refused(
        tmp_path, {**GOLDEN, key: envelope.sealed(b"dsv tag 1\n" + body)}, "tag is damaged", "demo/letters@v1"
    )


def test_it_never_writes_over_anything(tmp_path: Path) -> None:
    store = stored(tmp_path, GOLDEN)
    (tmp_path / "out").symlink_to("nowhere")
    with pytest.raises(StoreError, match="already exists"):
        reader.restore(store, "demo/letters", tmp_path / "out")


def test_as_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = stored(tmp_path, GOLDEN)
    assert reader.main([str(store), "demo/letters", str(tmp_path / "out")]) == 0
    assert "9 entries, 7340080 bytes" in capsys.readouterr().err
    assert reader.main([str(store), "demo/letters", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.startswith("reader: ")
    assert reader.main(["--help"]) == 2
    assert "usage: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("installed", "lacking"),
    [
        ((), "zstandard"),
        (("zstandard",), "blake3"),
        (("zstandard", "blake3"), "msgspec"),
        (("zstandard", "blake3", "msgspec"), None),
    ],
)
def test_without_a_package_that_it_needs(
    tmp_path: Path, installed: tuple[str, ...], lacking: str | None
) -> None:
    """In a Python that has these packages, and no others."""
    (tmp_path / "packages").mkdir()
    for name in installed:
        folder = Path(str(importlib.import_module(name).__file__)).parent
        (tmp_path / "packages" / name).symlink_to(folder)
    done = subprocess.run(
        [sys.executable, "-S", reader.__file__, str(STORE), "demo/letters", str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "packages")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (tmp_path / "out").exists() == (lacking is None)
    assert done.returncode == (0 if lacking is None else 1), done.stderr
    if lacking is not None:
        sentence, hint = done.stderr.splitlines()
        assert sentence.startswith("reader: ") and f"'{lacking}'" in sentence
        assert hint == f"hint: {sys.executable} -m pip install blake3 zstandard msgpack"


def places(folder: Path) -> tuple[Path, Path]:
    """The golden store whose names have moved, as one whose names were elsewhere from the beginning: data, names."""
    store = stored(folder, MOVED)
    names = folder / "elsewhere"
    (store / make.MOVED_TO).rename(names)
    shutil.rmtree(store / "format")
    for place, feature in ((store, "names-elsewhere"), (names, "data-elsewhere")):
        entry = FormatEntry(
            name_of("store").store,
            Nonce(bytes(16)),
            0,
            "",
            "",
            features=(Feature(feature, FeatureRule.REFUSE),),
        )
        (place / "format").mkdir(exist_ok=True)
        (place / keys.format_key(0)).write_bytes(entry.encode())
    return store, names


@pytest.mark.parametrize(
    ("target", "files"), [("demo/letters", make.SECOND), ("demo/letters@v1", make.FIRST)]
)
def test_names_that_have_moved_within_the_store_are_found(
    tmp_path: Path, target: str, files: dict[bytes, make.File]
) -> None:
    reader.restore(stored(tmp_path, MOVED), target, tmp_path / "out")
    assert files_of(tmp_path / "out") == files


def test_names_in_another_place_are_reported(tmp_path: Path) -> None:
    store, names = places(tmp_path)
    with pytest.raises(StoreError, match="--names DIR says where"):
        reader.restore(store, "demo/letters", tmp_path / "out")
    assert reader.main(["--names", str(names), str(store), "demo/letters", str(tmp_path / "out")]) == 0
    assert files_of(tmp_path / "out") == make.SECOND
    names.rename(tmp_path / "away")
    commit, *_ = reader.restore(tmp_path / "store", f"demo/letters@{head_of()}", tmp_path / "by id")
    assert (commit.hex(), files_of(tmp_path / "by id")) == (head_of(), make.SECOND)


def test_names_of_another_store_are_refused(tmp_path: Path) -> None:
    store, names = places(tmp_path)
    entry = FormatEntry(
        name_of("other").store,
        Nonce(bytes(16)),
        0,
        "",
        "",
        features=(Feature("data-elsewhere", FeatureRule.REFUSE),),
    )
    (names / keys.format_key(0)).write_bytes(entry.encode())
    with pytest.raises(StoreError, match="another store"):
        reader.restore(store, "demo/letters", tmp_path / "out", names)
    with pytest.raises(StoreError, match="whose data is elsewhere"):
        reader.restore(names, "demo/letters", tmp_path / "out")


def head_of() -> str:
    return reader.resolve(reader.StoreFolder(NAMED_STORE), "demo/letters").hex()
