"""dsv export of shards, read back by the real WebDataset."""

from __future__ import annotations

import json
import os
import signal
import tarfile
from pathlib import Path
from typing import Any

import pytest

from dsv.exchange import shards as shards_module
from tests.kit.dsv import Dsv, assert_documented, made_once, write_files
from tests.waiting import until

webdataset = pytest.importorskip("webdataset")

LONG = "d/" + "n" * 120
HOSTILE = {
    "a.json": {"a.json": b"1", "a.k.x": b"", "a.png": b"\0" * 513},
    "a.k/x": {"a.k/x.json": b"2", "a.k/x.png": b"3"},
    "a.k/x.b/y": {"a.k/x.b/y.Seg.PNG": b"x" * 1024, "a.k/x.b/y.cls": b"7"},
    "a": {},
    "ä ö/\U0001f431": {"ä ö/\U0001f431.txt": "ß".encode()},
    LONG: {f"{LONG}.txt": b"long", f"{LONG}.b.txt": b"longer"},
    "d/": {"d/.hidden": b"h", "d/.b.c": b"b"},
    "new\nline": {"new\nline.a": b"n", "new\nline.a\n": b"m"},
    "end": {"end.": b"no suffix"},
    "run": {"run.sh": b"#!/bin/sh\n"},
}
FILES = {name: content for sample in HOSTILE.values() for name, content in sample.items()}
FILES |= {
    f"many/{at:03}.{suffix}": f"{at}{suffix}".encode() * at for at in range(60) for suffix in ("cls", "jpg")
}


@pytest.fixture
@made_once
def images(dsv: Dsv) -> Dsv:
    write_files(dsv.cwd / "in", FILES)
    (dsv.cwd / "in/run.sh").chmod(0o755)
    (dsv.cwd / "in/link.png").symlink_to("a.png")
    (dsv.cwd / "in/none").mkdir()
    dsv.at(dsv.cwd / "in").ok("init", "images")
    dsv.at(dsv.cwd / "in").ok("sync")
    return dsv


def samples_of(names: list[str]) -> dict[str, dict[str, bytes]]:
    """What a person expects: folder and name up to the first dot, and the rest."""
    found: dict[str, dict[str, bytes]] = {}
    for name in names:
        folder, slash, last = name.rpartition("/")
        key, _, suffix = last.partition(".")
        found.setdefault(folder + slash + key, {})[suffix.lower()] = FILES[name]
    return found


def read(folder: Path) -> dict[str, dict[str, bytes]]:
    paths = sorted(str(path) for path in folder.glob("*.tar"))
    found: dict[str, dict[str, bytes]] = {}
    for sample in webdataset.WebDataset(paths, shardshuffle=False, empty_check=False):
        key = sample["__key__"]
        assert key not in found, f"{key} was split"
        found[key] = {name: data for name, data in sample.items() if not name.startswith("__")}
    return found


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_webdataset_reads_every_sample_whole_and_no_shard_is_too_large(images: Dsv) -> None:
    for options in ((), ("--shuffle", "1")):
        to = images.cwd / f"out{len(options)}"
        done = images.ok(
            "export", "images", f"{to}/s-%05d.tar", "--shard-size", "20kB", *options, "--json"
        ).json
        expected = samples_of(list(FILES))
        assert read(to) == expected
        count = json.loads((to / "s.json").read_text())["shardlist"]
        assert (done["shards"], done["samples"], done["files"]) == (len(count), len(expected), len(FILES))
        assert done["left_out"] == 2 and done["bytes"] == sum(map(len, FILES.values()))
        assert_documented("export", done, "items")
        assert [(row["url"], row["filesize"]) for row in count] == sorted(
            (path.name, path.stat().st_size) for path in to.glob("*.tar")
        )
        assert all(row["filesize"] <= 20_000 for row in count) and len(count) > 3
        assert sum(row["nsamples"] for row in count) == len(expected)
        for row in count:
            with tarfile.open(to / row["url"]) as tar:
                members = tar.getmembers()
            assert len({samples_key(one.name) for one in members}) == row["nsamples"]
            assert all(one.mode == (0o755 if one.name == "run.sh" else 0o644) for one in members)
        assert {path.name for path in to.iterdir()} == {"s.json", *(row["url"] for row in count)}


def samples_key(name: str) -> str:
    folder, slash, last = name.rpartition("/")
    return folder + slash + last.partition(".")[0]


def test_a_shard_is_as_full_as_whole_samples_allow(images: Dsv) -> None:
    """A sample of two files of one block each takes 2,048 bytes, and the end of a tar 1,024."""
    for size, shards in (("5119B", 60), ("5120B", 30), ("1B", 60)):
        to = images.cwd / size
        write_files(images.cwd / "small", {f"{at}.{suffix}": b"x" for at in range(60) for suffix in "ab"})
        images.ok("put", "small", "small:", "--create") if size == "5119B" else None
        done = images.ok("export", "small:small", f"{to}/%d.tar", "--shard-size", size, "--json").json
        assert done["shards"] == shards and (to / "shards.json").is_file()


def test_a_seed_is_an_order(images: Dsv) -> None:
    def keys(name: str, *options: str) -> list[str]:
        images.ok("export", "images:many", f"{name}/s-%d.tar", *options)
        return list(read(images.cwd / name))

    plain = keys("plain")
    assert plain == sorted(plain) and len(plain) == 60
    one, again, two = keys("1", "--shuffle", "1"), keys("b", "--shuffle", "1"), keys("2", "--shuffle", "2")
    assert one == again and sorted(one) == sorted(two) == plain and len({*map(tuple, (plain, one, two))}) == 3
    assert bytes_of(images.cwd / "1") == bytes_of(images.cwd / "b")


def test_the_last_shard_is_the_last_one(images: Dsv, monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[str] = []
    plain = shards_module.put
    monkeypatch.setattr(
        shards_module,
        "put",
        lambda draft, path, **more: (named.append(path.name), plain(draft, path, **more)),
    )
    for seed in range(5):
        images.ok("export", "images", f"{seed}/s-%05d.tar", "--shard-size", "20kB", "--shuffle", str(seed))
        assert named[-1] == max(named) and len({*named}) == len(named) > 3
        named.clear()


@pytest.mark.parametrize("options", [(), ("--shuffle", "3")], ids=["plain", "shuffled"])
def test_the_same_command_after_a_kill_leaves_the_same(images: Dsv, options: tuple[str, ...]) -> None:
    argv = ("export", "images", "{}/s-%05d.tar", "--shard-size", "5kB", *options)
    command = lambda to: tuple(word.format(to) for word in argv)  # noqa: E731
    images.ok(*command("whole"))
    whole = bytes_of(images.cwd / "whole")
    to = images.cwd / "killed"
    with images.start(*command("killed")) as process:
        until(lambda: to.is_dir() and any(to.iterdir()), "the first file")
        process.send_signal(signal.SIGKILL)
    images.ok(*command("killed"))
    assert bytes_of(to) == whole
    before = {path.name: path.stat().st_mtime_ns for path in to.glob("*.tar")}
    (to / "s-00001.tar").unlink()
    (to / "s-00002.tar").write_bytes(b"cut")
    images.ok(*command("killed"))
    assert bytes_of(to) == whole
    after = {path.name: path.stat().st_mtime_ns for path in to.glob("*.tar")}
    assert {name for name in after if after[name] != before[name]} == {"s-00001.tar", "s-00002.tar"}


def test_a_failure_in_the_middle_leaves_whole_shards_alone(
    images: Dsv, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = shards_module.put

    def full(draft: Path, path: Path, **more: Any) -> None:
        if path.name == "s-00003.tar":
            raise OSError(28, "No space left on device", str(path))
        plain(draft, path, **more)

    with monkeypatch.context() as once:
        once.setattr(shards_module, "put", full)
        assert images("export", "images", "out/s-%05d.tar", "--shard-size", "5kB").code == 7
    assert sorted(os.listdir(images.cwd / "out")) == ["s-00000.tar", "s-00001.tar", "s-00002.tar", "s.json"]
    for path in (images.cwd / "out").glob("*.tar"):
        assert tarfile.is_tarfile(path)


def test_shards_of_another_export_are_left_alone(images: Dsv) -> None:
    argv = ("export", "images:many", "out/s-%05d.tar", "--shard-size", "5kB")
    images.ok(*argv)
    before = bytes_of(images.cwd / "out")
    for other in (
        (*argv, "--shuffle", "1"),
        ("export", "images", *argv[2:]),
        (*argv[:3], "--shard-size", "6kB"),
    ):
        refused = images(*other)
        assert refused.code == 4 and "is of another export" in refused.err, refused
    (images.cwd / "out/s-00999.tar").touch()
    assert images(*argv).code == 4 and bytes_of(images.cwd / "out").keys() - before.keys() == {"s-00999.tar"}
    (images.cwd / "out/s-00999.tar").unlink()
    (images.cwd / "out/s.json").unlink()
    assert images(*argv).code == 4
    images.ok("export", "images:many", "out/t-%05d.tar")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("x/a.JPG", "x/a.jpg"), "differ in case alone"),
        (("LICENSE",), "passes over the name 'LICENSE'"),
        ((".hidden",), "passes over the name '.hidden'"),
        (("__a__/b.c",), "passes over the name '__a__/b.c'"),
        (("__a.b__",), "passes over the name '__a.b__'"),
        (("a.__key__",), "passes over the name 'a.__key__'"),
        (("a.k/none", "a.b"), "passes over the name 'a.k/none'"),
    ],
)
def test_what_webdataset_would_not_read_is_refused_before_anything_is_written(
    dsv: Dsv, names: tuple[str, ...], said: str
) -> None:
    write_files(dsv.cwd / "in", {**dict.fromkeys(names, b"x"), "z.txt": b""})
    dsv.at(dsv.cwd / "in").ok("init", "images")
    dsv.at(dsv.cwd / "in").ok("sync")
    done = dsv("export", "images", "out/s-%05d.tar")
    assert done.code == 9 and said in done.err, done
    assert not (dsv.cwd / "out").exists()


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (("s3://b/s-%05d.tar",), 9, "not s-%05d.tar"),
        (("s-%05d.tar.gz",), 9, "shards are .tar files"),
        (("s-%d-%d.tar",), 9, "shards are .tar files"),
        (("s-%d",), 9, "shards are .tar files"),
        (("s-%d.tar", "--skip-damaged"), 2, "--skip-damaged is not for shards"),
        (("s.tar", "--shard-size", "1GB"), 2, "are for shards"),
        (("-", "--shuffle", "1"), 2, "are for shards"),
        (("s-%d.tar", "--shuffle", "x"), 2, "--shuffle"),
    ],
)
def test_what_can_be_no_shards(images: Dsv, argv: tuple[str, ...], code: int, said: str) -> None:
    done = images("export", "images", *argv)
    assert done.code == code and said in done.err, done
    assert sorted(os.listdir(images.cwd)) == ["in"]


def test_a_target_without_files_and_one_file(images: Dsv) -> None:
    assert images("export", "images:none", "out/%d.tar").code == 3
    assert images("export", "images:nowhere", "out/%d.tar").code == 3
    images.ok("export", "images:a.k/x.png", "out/%d.tar")
    assert read(images.cwd / "out") == {"x": {"png": b"3"}}


def test_erased_files_are_left_out_and_counted(images: Dsv) -> None:
    images.ok("erase", "images:many/007.jpg", "--reason", "asked for", "--yes")
    done = images.ok("export", "images:many", "out/%d.tar", "--json").json
    assert done["erased"] == 1 and read(images.cwd / "out")["007"].keys() == {"cls"}
    assert (
        images("export", "images:many", "new/%d.tar", "--strict").code == 4
        and not (images.cwd / "new").exists()
    )


def test_two_exports_at_once_exclude_each_other(images: Dsv) -> None:
    (images.cwd / "out/.s.part").mkdir(parents=True)
    lock = shards_module.Lock.take(images.cwd / "out/.s.part/lock", "dsv export")
    assert isinstance(lock, shards_module.Lock)
    with lock:
        done = images("export", "images", "out/s-%05d.tar")
        assert done.code == 4 and "is at work in" in done.err
    images.ok("export", "images", "out/s-%05d.tar")
    assert not (images.cwd / "out/.s.part").exists()
