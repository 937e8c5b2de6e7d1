"""`dsv.open` and `dsv.edit`: what a commit lists and reads, with how many requests, and how edits are published."""

from __future__ import annotations

import io
import os
import pickle
import random
import re
from pathlib import Path

import pytest
from blake3 import blake3

import dsv
from dsv.api.clone import init
from dsv.api.open_commits import _processes
from dsv.stores.open import OpenStore, RequestCounts
from dsv.values.names import DatasetName
from tests.api.pets_in_python import BIG, SMALL, SOME, of


@pytest.fixture
def pets(folder: Path) -> dsv.Commit:
    return of(folder).open("pets@v1")


def test_a_folder_lists_what_is_in_itself(pets: dsv.Commit) -> None:
    found = {one.path: (one.kind, one.size, one.target) for one in pets.ls()}
    assert found == {
        "big-link": ("symlink", 0, "big.bin"),
        "big.bin": ("file", len(BIG), None),
        "empty": ("file", 0, None),
        "images": ("directory", 0, None),
        "labels.csv": ("file", 8, None),
        "last": ("symlink", 0, "images/0"),
        "me": ("symlink", 0, "me"),
        "nothing": ("directory", 0, None),
        "run.sh": ("executable", 10, None),
    }
    assert [one.path for one in pets.ls("images/")] == [*(f"images/{n}" for n in range(7)), "images/up"]
    assert {one.path: one.size for one in pets.ls("images/3")} == {
        path: len(data) for path, data in SMALL.items() if path.startswith("images/3/")
    }
    assert [one.path for one in pets.ls("nothing")] == ["nothing/here"]
    assert pets.ls("nothing/here") == []
    assert pets.ls("labels.csv") == [pets.info("labels.csv")]
    assert pets.info("labels.csv").id == blake3(b"a,b\n1,2\n").hexdigest()
    for missing in ("image", "images/9", "labels.csv/x", "big.bi"):
        with pytest.raises(dsv.NotFound, match="is not in pets@"):
            pets.ls(missing)


def test_a_walk_is_that_of_the_folder(pets: dsv.Commit, folder: Path) -> None:
    """As of `os.walk`, but that symlinks count as files."""
    there = {}
    for root, folders, files in os.walk(folder / "pets"):
        if ".dsv" in folders:
            folders.remove(".dsv")
        links = [name for name in folders if os.path.islink(f"{root}/{name}")]
        here = os.path.relpath(root, folder / "pets")
        there["" if here == "." else here] = ({*folders} - {*links}, {*files, *links})
    assert {path: ({*folders}, {*files}) for path, folders, files in pets.walk()} == there
    walked = []
    for path, folders, _ in pets.walk("images"):
        walked.append(path)
        folders[:] = [name for name in folders if name in "25"]
    assert walked == ["images", "images/2", "images/5"]


@pytest.mark.parametrize(
    "pattern",
    ["*", "*.csv", "images/*", "images/*/*7.png", "**/*.png", "images/**/00?1.png", "labels.csv", "images/", "**",
     "*/up", "no*", "images/[35]/*", "nothing/*", "images/3", "missing"],
)  # fmt: skip
def test_a_glob_finds_what_its_pattern_matches_among_all_paths(pets: dsv.Commit, pattern: str) -> None:
    every = {one.path: one.kind == "directory" for path, _, _ in pets.walk() for one in pets.ls(path)}
    text = re.escape(pattern.strip("/"))
    for shell, regular in ((r"\*\*/", "(?:.*/)?"), (r"\*\*", ".*"), (r"\*", "[^/]*"), (r"\?", "[^/]")):
        text = text.replace(shell, regular)
    matches = re.compile(text.replace(r"\[35\]", "[35]"))
    wanted = {path for path, is_folder in every.items() if matches.fullmatch(path)}
    found = pets.glob(pattern)
    assert len(found) == len(set(found)) and set(found) == wanted


def test_a_tree_of_many_segments_is_listed_walked_and_searched(folder: Path) -> None:
    """Folders begin and end within segments, and span several."""
    store = of(folder)
    names = [f"{a}/{b}/{c:04}" for a in "abc" for b in ("one", "one.x", "two") for c in range(1200)]
    names += [f"flat-{number:05}" for number in range(9000)]
    with store.edit("many", create=True) as edits:
        for name in names:
            edits.put(name, b"x")
    many = edits.commit
    tree = many._tree
    assert len(tree.leaves()) > 5
    assert [one.path for one in many.ls()] == [
        "a",
        "b",
        "c",
        *(name for name in names if name.startswith("flat")),
    ]
    assert [one.path for one in many.ls("b")] == ["b/one", "b/one.x", "b/two"]
    for path in ("a/one", "b/one.x", "c/two"):
        assert [one.path for one in many.ls(path)] == [name for name in names if name.startswith(f"{path}/")]
    walked = {path: len(files) for path, _, files in many.walk()}
    assert walked == {
        "": 9000,
        **dict.fromkeys("abc", 0),
        **{f"{a}/{b}": 1200 for a in "abc" for b in ("one", "one.x", "two")},
    }
    assert many.glob("*/one/0007") == many.glob("**/one/0007") == ["a/one/0007", "b/one/0007", "c/one/0007"]


def counted(store: dsv.Store, commit: dsv.Commit) -> OpenStore:
    """The store that this process has open for the commit."""
    _ = commit._tree
    [found] = [one for one in _processes[-1].opened.values() if one is commit._opened]
    assert isinstance(found.repository.store, OpenStore)
    return found.repository.store


def asked(store: OpenStore, before: RequestCounts) -> RequestCounts:
    return store.counts - before


def test_a_range_reads_only_the_chunks_that_have_it(folder: Path, pets: dsv.Commit) -> None:
    """Chunks have 4 MiB at most, and about 1 MiB."""
    store = counted(of(folder), pets)
    pets.info("big.bin")
    for start, stop in [
        (0, 10),
        (5_000_000, 5_000_010),
        (-10, None),
        (2_000_000, 7_000_000),
        (7, 7),
        (9, 3),
        (0, 1 << 60),
    ]:
        before = store.counts
        assert pets.read_bytes("big.bin", start, stop) == BIG[start:stop]
        done = asked(store, before)
        assert done.bytes_down <= len(BIG[start:stop]) + 2 * (4 << 20)
        assert done.requests <= 2  # and the recipe, the first time
    before = store.counts
    assert pets.read_bytes("big.bin", 5, 5) == b""
    assert asked(store, before).requests == 0
    assert pets.read_bytes("empty") == b""


def test_a_thousand_neighbouring_files_come_with_few_requests(folder: Path, tmp_path: Path) -> None:
    """Of somebody who has no local copies of anything yet; in any order."""
    environ = {"HOME": str(tmp_path), "DSV_STORE": str(folder / "store"), "PATH": "/usr/bin:/bin"}
    pets = dsv.store(environ=environ, cwd=tmp_path).open("pets@v1")
    shuffled = random.Random(1).sample(list(SMALL), len(SMALL))
    assert pets.id
    store = pets._opened.repository.store
    assert isinstance(store, OpenStore)
    before = store.counts
    found = pets.read_many(shuffled)
    assert found == SMALL and list(found) == shuffled
    assert asked(store, before).requests == 3  # the root, a segment, and the files
    before = store.counts
    assert pets.read_many([*shuffled, *shuffled, "big.bin"]) == {**SMALL, "big.bin": BIG}
    assert asked(store, before).ranges <= 4
    with pytest.raises(dsv.NotFound, match="'nope' is not in pets@"):
        pets.read_many([*shuffled, "nope"])
    assert pets.read_many([]) == {}


def test_an_open_file_is_sought_and_read_as_any_other(pets: dsv.Commit) -> None:
    chance = random.Random(3)
    for size in (1, 1000, 1 << 17, 1 << 23):
        with pets.open("big.bin", buffer_size=size) as file, io.BytesIO(BIG) as same:
            assert file.seekable() and file.readable() and not file.writable()
            for _ in range(30):
                place, whence = chance.choice(
                    [(chance.randrange(10_000_000), 0), (chance.randrange(-9_000_000, 0), 2)]
                )
                assert file.seek(place, whence) == same.seek(place, whence)
                count = chance.choice([0, 1, 100, 100_000, 3_000_000])
                assert file.read(count) == same.read(count)
                assert file.tell() == same.tell()
            file.seek(123)
            assert file.read() == BIG[123:]
            assert file.read() == file.read(5) == b""
    pieces = []
    with pets.open("big.bin") as file:
        while piece := file.read(65_537):
            pieces.append(piece)
        with pytest.raises(ValueError):
            file.seek(-1)
        with pytest.raises(ValueError, match=r"big\.bin can't seek with whence"):
            file.seek(0, os.SEEK_DATA)
    assert b"".join(pieces) == BIG
    with pytest.raises(ValueError):
        file.read()
    with io.TextIOWrapper(pets.open("labels.csv")) as text:
        assert list(text) == ["a,b\n", "1,2\n"]


def test_reading_on_takes_ranges_that_grow(pets: dsv.Commit, folder: Path) -> None:
    store = counted(of(folder), pets)
    with pets.open("big.bin") as file:
        before = store.counts
        while file.read(50_000):
            pass
    done = asked(store, before)
    assert done.ranges <= 6 and done.bytes_down <= 2 * len(BIG)


def test_symlinks_are_followed_within_the_commit(pets: dsv.Commit) -> None:
    assert pets.read_bytes("big-link", 10, 20) == BIG[10:20]
    assert pets.read_bytes("images/up") == b"a,b\n1,2\n"
    assert pets.read_bytes("last/0007.png") == SMALL["images/0/0007.png"]
    assert pets.info("images/up").target == "../labels.csv"
    assert list(pets.read_many(["images/up", "last/0000.png"])) == ["images/up", "last/0000.png"]
    with pytest.raises(dsv.NotFound, match="leads to no file"):
        pets.open("me")
    for path in ("images", "nothing/here", "last", ""):
        with pytest.raises(dsv.UsageError, match="is a folder"):
            pets.read_bytes(path)


def test_a_damaged_chunk_is_never_returned(tmp_path: Path) -> None:
    home = tmp_path / "bo"
    home.mkdir()
    bo = of(home)
    (home / "work").mkdir()
    init(of(home, cwd=home / "work").context, home / "work", DatasetName.parse("other"))
    with bo.edit("pets", create=True) as edits:
        edits.put("a", SOME(1000))
        edits.put("big", BIG)
    for pack in (home / "store/packs").rglob("*"):
        if pack.is_file() and pack.stat().st_size > 100_000:
            pack.chmod(0o600)
            data = bytearray(pack.read_bytes())
            data[4_000_000] ^= 1
            pack.write_bytes(data)
    commit = bo.open("pets")
    with pytest.raises(dsv.IntegrityError, match="big can't be read"):
        commit.read_bytes("big")
    with pytest.raises(dsv.IntegrityError):
        commit.open("big").read()


def test_commits_are_equal_by_their_ids_and_know_their_history(folder: Path) -> None:
    store = of(folder)
    for number in range(3):
        with store.edit("told", message=f"number {number}", create=True) as edits:
            edits.put(f"{number}.txt", b"%d" % number)
    told = store.open("told")
    assert [one.message for one in told.log()] == ["number 2", "number 1", "number 0"]
    assert [one.message for one in told.log("1.txt")] == ["number 1"] and len(told.log(limit=2)) == 2
    [parent] = told.parents
    assert parent == store.open("told@main~1") == store.open(f"told@{parent.id[:12]}") != told
    assert len({told, edits.commit, store.open("told@main")}) == 1
    assert (told.author, told.dataset, told.files, told.size) == ("ann", "told", 3, 3)
    assert [(one.what, one.path) for one in parent.diff(told)] == [("added", "2.txt")]
    assert [(one.what, one.path) for one in told.diff("@main~2")] == [
        ("removed", "1.txt"),
        ("removed", "2.txt"),
    ]
    assert parent.diff(told, "0.txt") == []


def test_edits_are_published_together_or_not_at_all(folder: Path, tmp_path: Path) -> None:
    store = of(folder)
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra/x.bin").write_bytes(b"x")
    with store.edit("edited", message="first", create=True) as edits:
        with pytest.raises(dsv.Conflict, match="no commit of edited was published yet"):
            _ = edits.commit
        edits.put("a", b"a")
        edits.put("more/", tmp_path / "extra")
        edits.put("stream", io.BytesIO(b"streamed"))
        edits.move("a", "b")
        with pytest.raises(TypeError):
            edits.put("text", "text")  # type: ignore[arg-type]
    first = edits.commit
    assert {path: first.read_bytes(path) for path in ("b", "more/extra/x.bin", "stream")} == {
        "b": b"a", "more/extra/x.bin": b"x", "stream": b"streamed"
    }  # fmt: skip
    with pytest.raises(KeyError), store.edit("edited") as edits:
        edits.remove("b")
        raise KeyError
    with pytest.raises(dsv.NotFound), store.edit("edited") as edits:
        edits.put("c", b"c")
        edits.remove("nope")
    with store.edit("edited") as edits:
        pass
    assert store.open("edited") == first
    with pytest.raises(dsv.NotFound), store.edit("unknown") as edits:
        edits.put("c", b"c")
    with store.edit("edited") as edits:
        edits.remove("more", "*am")
    assert edits.commit.glob("*") == ["b"]


def test_edits_outside_of_their_block_are_refused(folder: Path) -> None:
    store = of(folder)
    with store.edit("blocks", create=True) as edits:
        edits.put("a", b"a")
    with pytest.raises(dsv.Conflict, match="are made in its `with` block"):
        edits.put("b", b"b")
    with pytest.raises(dsv.Conflict, match="are made in its `with` block"):
        store.edit("blocks").remove("a")
    with pytest.raises(dsv.Conflict, match="was begun"), edits:
        pass
    failed = store.edit("blocks")
    with pytest.raises(dsv.NotFound), failed:
        failed.remove("nothing")
    with pytest.raises(dsv.Conflict, match="no commit of blocks"):
        failed.commit  # noqa: B018 (and not the one before)
    with pytest.raises(dsv.UsageError, match="is read once"), store.edit("blocks") as edits:
        file = io.BytesIO(b"x")
        edits.put("x", file)
        edits.put("y", file)
    for target in ("blocks:sub", ""):  # not at the top, without a word
        with pytest.raises(dsv.UsageError, match=r"names a path|is empty"):
            store.edit(target)
        with pytest.raises(dsv.UsageError, match=r"names a path|is empty"):
            store.open("blocks").diff(target)
    assert store.open("blocks").glob("**") == ["a"] and len(store.open("blocks").log()) == 1


def test_a_path_that_exists_is_no_pattern_of_samples(folder: Path) -> None:
    pytest.importorskip("numpy")
    with of(folder).edit("brackets", create=True) as edits:
        for name in ("a[1].txt", "a1.txt", "data[1]/x", "data1/y", "b2"):
            edits.put(name, name.encode())
    for pattern, chosen in {
        "a[1].txt": ["a[1].txt"], "data[1]": ["data[1]/x"], "b[2]": ["b2"], "a*": ["a1.txt", "a[1].txt"],
    }.items():  # fmt: skip
        samples = edits.commit.samples(pattern)
        assert [samples[number] for number in range(len(samples))] == [
            (name, name.encode()) for name in chosen
        ]


def test_a_branch_that_moves_changes_no_commit_that_was_read(folder: Path) -> None:
    store = of(folder)
    with store.edit("moving", create=True) as edits:
        edits.put("a", b"1")
    before, unread = store.open("moving"), store.open("moving")
    assert before.read_bytes("a") == b"1"
    with store.edit("moving") as edits:
        edits.put("a", b"2")
    assert before.read_bytes("a") == pickle.loads(pickle.dumps(before)).read_bytes("a") == b"1"
    assert unread.read_bytes("a") == b"2"


def test_cache_and_export(pets: dsv.Commit, folder: Path, tmp_path: Path) -> None:
    there = pets.cache("images/3", hold="2d")
    assert {f"images/3/{one.name}": one.read_bytes() for one in (there / "images/3").iterdir()} == {
        path: data for path, data in SMALL.items() if path.startswith("images/3/")
    }
    pets.export(tmp_path / "out", "images/3")
    assert len(os.listdir(tmp_path / "out")) == len(pets.ls("images/3"))
    pets.export(tmp_path / "labels.tar", "labels.csv")
    with pytest.raises(dsv.Conflict):
        pets.export(tmp_path / "out")


def test_names_that_are_not_there_and_targets_that_are_none(folder: Path) -> None:
    store = of(folder)
    for target in ("nope", "pets@nope", "pets@0123456789"):
        with pytest.raises(dsv.NotFound):
            _ = store.open(target).id
    for target in ("", "pets:images", "pets@", "a b"):
        with pytest.raises(dsv.UsageError):
            store.open(target)
    assert issubclass(dsv.NotFound, dsv.DsvError)
    assert {str(one.dataset) for one in store.datasets()} >= {"pets"}
    assert store.runs() == store.runs("pets") == []
    with pytest.raises(dsv.NotFound, match="no dataset nope"):
        store.runs("nope")
    with pytest.raises(dsv.UsageError):
        store.runs(where=["acc"])


def test_offline_reads_what_is_cached(folder: Path, tmp_path: Path) -> None:
    home = tmp_path / "bo"
    environ = {"HOME": str(home), "PATH": "/usr/bin:/bin", "DSV_STORE": str(folder / "store")}
    store, away = (dsv.store(environ=environ, cwd=tmp_path, offline=offline) for offline in (False, True))
    store.open("pets@v1").cache()
    pets = away.open("pets@v1")
    assert (
        pets.read_many(SMALL) == SMALL
        and pets.read_bytes("big.bin", 4_000_000, 5_000_000) == BIG[4_000_000:5_000_000]
    )
    with pytest.raises(dsv.Unreachable):
        away.open("pets@v2").ls()
