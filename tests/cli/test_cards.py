"""dsv export --card: what mlcroissant and `datasets` read back."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from dsv.exchange import cards
from dsv.files import small_files
from tests.kit.dsv import Dsv, write_files

mlcroissant = pytest.importorskip("mlcroissant")
datasets = pytest.importorskip("datasets")
pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
images = pytest.importorskip("PIL.Image")

LONG = "ä" * 60 + "n" * 130
HOSTILE = (
    "a b", "ä#ö", "100%25", "q\"u'o`te", "{x,y}", "star*[1]?", "a::b", "http:", "new\nline", "\u202egpj", "~", "@type",
    "-  - x: &y", "<script>", LONG,
)  # fmt: skip


def png(color: tuple[int, int, int]) -> bytes:
    out = io.BytesIO()
    images.new("RGB", (2, 3), color).save(out, "png")
    return out.getvalue()


def table(**columns: Any) -> bytes:
    out = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), out)
    return out.getvalue()


@pytest.fixture
def exported(dsv: Dsv, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Exports files with both cards; returns the folder."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", dsv.home / "hf")

    def export(files: dict[str, bytes], *more: str) -> Path:
        write_files(dsv.cwd / "in", files)
        dsv.at(dsv.cwd / "in").ok("init", "pets")
        dsv.at(dsv.cwd / "in").ok("sync")
        dsv.ok("export", "pets", "out", "--card", "croissant,hf", *more)
        return dsv.cwd / "out"

    return export


def croissant(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """All records that mlcroissant reads, by record set and column."""
    dataset = mlcroissant.Dataset(folder / "croissant.json")
    assert not dataset.metadata.ctx.issues.errors
    names = {field.uuid: field.name for sets in dataset.metadata.record_sets for field in sets.fields}
    return {
        sets.name: [{names[key]: value for key, value in row.items()} for row in dataset.records(sets.uuid)]
        for sets in dataset.metadata.record_sets
    }


def hub(folder: Path, name: str | None = None) -> dict[str, list[dict[str, Any]]]:
    loaded = datasets.load_dataset(str(folder), name)
    return {split: list(rows) for split, rows in loaded.items()}


def test_tables_read_back_equal(exported: Any) -> None:
    columns = {
        "id": [1, 2, None], "score": [0.5, None, 2.0], "name": ["a", 'b\n"c"', "ä"], "ok": [True, False, True],
        "many": [[1, 2], [], [3]], "raw": [b"x", b"\0", b""], "__index_level_0__": [7, 8, 9],
    }  # fmt: skip
    text = b'a,b,,007,hex\n1,x,2.5,1,0x1f\n2,"y\nz",3,4,0x2f\n'
    files = {
        "t.parquet": table(**columns),
        "x.csv": text.replace(b"0x", b""),
        "hex.csv": text,
        "bad.csv": b"a\n1,2\n",
    }
    out = exported(
        {**files, "worse.parquet": b"no", "latin.csv": b"a\n\xff\n", "empty.tsv": b"", "LICENSE": b"Mine\nx"}
    )
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    assert hub(out) == {"train": rows}
    records = croissant(out)
    assert records.keys() == {"t.parquet", "x.csv"}  # hex is a text for pandas and a number for pyarrow
    assert records["x.csv"] == [
        {"a": 1, "b": b"x", "007": 1, "hex": b"1f"}, {"a": 2, "b": b"y\nz", "007": 4, "hex": b"2f"}
    ]  # fmt: skip
    encoded = [{**row, "name": row["name"].encode()} for row in rows]
    assert records["t.parquet"] == [{key: row[key] for key in row if key[0] != "_"} for row in encoded]
    card = json.loads((out / "croissant.json").read_text())
    assert card["license"] == "Mine" and card["version"] == "0.0.0+" + card["url"].partition("@")[2]
    assert (
        'license: "other"\nlicense_name: "Mine"\nlicense_link: "LICENSE"\n' in (out / "README.md").read_text()
    )


def test_hostile_names_are_names(exported: Any) -> None:
    rows = {name: {name: f"value of {name}", "n": str(at)} for at, name in enumerate(HOSTILE)}
    files: dict[str, bytes] = {}
    for name, row in rows.items():
        text = io.StringIO()
        csv.writer(text).writerows([row.keys(), row.values()])
        files[f"d {name}/{name}.csv"] = text.getvalue().encode()
    out = exported(files)
    assert croissant(out) == {
        f"d {name}/{name}.csv": [{name: row[name].encode(), "n": int(row["n"])}] for name, row in rows.items()
    }
    ids = re.findall(r'"@id": "([^"]*)"', (out / "croissant.json").read_text())
    assert not any(re.search(r"[^\w.~:/-]", each, re.ASCII) for each in ids)
    text = (out / "README.md").read_text()
    assert text.splitlines() == text.split("\n")[:-1] and "\u202e" not in text
    found = [hub(out, name)["train"] for name in datasets.get_dataset_config_names(str(out))]
    assert sorted(map(str, found)) == sorted(
        str([{**row, "n": int(row["n"])}]) for name, row in rows.items() if "::" not in name
    )


def test_shards_and_splits_are_one_table(exported: Any) -> None:
    shards = {
        f"data/{split}-{at:05}-of-00012.parquet": table(x=[at])
        for split in ("train", "val")
        for at in range(12)
    }
    odd = {"1.csv": b"a,b\n1,2\n", "2.csv": b"c\n3\n", "3.csv": b"c\n4,5\n", "4.csv": b"c\n6\n"}
    out = exported({**shards, **odd, "data/train-other.csv": b"x\n1\n"})
    listed = [{"x": at} for at in range(12)]
    assert hub(out) == {"train": listed, "validation": listed}
    records = croissant(out)
    assert records.pop("data/train-*-of-*.parquet") == records.pop("data/val-*-of-*.parquet") == listed
    assert records == {
        "1.csv": [{"a": 1, "b": 2}],
        "*.csv": [{"c": 3}, {"c": 6}],
        "data/train-other.csv": [{"x": 1}],
    }
    text = (out / "README.md").read_text()
    assert "license" not in text


def test_images_in_folders_of_classes(exported: Any) -> None:
    colors = {"train/cat/1 #.png": (255, 0, 0), "train/dog/2.PNG": (0, 255, 0), "test/dog/3.png": (0, 0, 255)}
    out = exported({name: png(color) for name, color in colors.items()} | {"labels.json": b"{}"})
    loaded = datasets.load_dataset(str(out))
    names = loaded["train"].features["label"].names
    read = {
        split: [(row["image"].getpixel((0, 0)), names[row["label"]]) for row in rows]
        for split, rows in loaded.items()
    }
    assert {split: sorted(rows) for split, rows in read.items()} == {
        "train": [((0, 255, 0), "dog"), ((255, 0, 0), "cat")], "test": [((0, 0, 255), "dog")],
    }  # fmt: skip
    records = croissant(out)
    assert {
        name: sorted((row["image"].getpixel((0, 0)), row["label"]) for row in rows)
        for name, rows in records.items()
    } == {"train": [((0, 255, 0), b"dog"), ((255, 0, 0), b"cat")], "test": [((0, 0, 255), b"dog")]}


def test_it_adds_cards_to_the_same_files_alone(exported: Any, dsv: Dsv) -> None:
    out = exported({"a.csv": b"x\n1\n", "b/c.bin": b"1", "d": b""})
    (dsv.cwd / "in/link").symlink_to("d")
    first = {name: (out / name).read_bytes() for name in ("croissant.json", "README.md")}
    ino = (out / "a.csv").stat().st_ino
    (out / "README.md").unlink()
    (out / ".README.md.part").write_bytes(b"killed")
    for kinds in ("hf", "hf,croissant", "croissant"):
        dsv.ok("export", "pets@main:", "out", "--card", kinds)
    assert {name: (out / name).read_bytes() for name in first} == first and (
        out / "a.csv"
    ).stat().st_ino == ino
    assert sorted(os.listdir(out)) == ["README.md", "a.csv", "b", "croissant.json", "d"]
    (out / "README.md").write_bytes(first["README.md"] + b"mine")
    edited = dsv("export", "pets", "out", "--card", "hf")
    assert edited.code == 4 and "README.md' is not what dsv writes now" in edited.err
    for name, content in {"b/c.bin": b"2", "b/d": b"", "a.csv": None}.items():
        before = (out / name).read_bytes() if (out / name).exists() else None
        (out / name).unlink() if content is None else (out / name).write_bytes(content)
        other = dsv("export", "pets", "out", "--card", "croissant")
        assert other.code == 4 and f"is not an export of this commit: '{name}' differs" in other.err
        (out / name).unlink(missing_ok=True)
        if before is not None:
            (out / name).write_bytes(before)
    dsv.ok("export", "pets", "out", "--card", "croissant")


def test_what_gets_no_card(exported: Any, dsv: Dsv) -> None:
    exported({"a.csv": b"x\n1\n", "b/1": b""})
    for to in ("-", "x.tar", "file:///tmp/none", "s-%05d.tar"):
        refused = dsv("export", "pets", to, "--card", "hf")
        assert refused.code == 2 and "cards are for whole folders of this machine" in refused.err, to
    assert dsv("export", "pets:a.csv", "x/", "--card", "hf").code == 2
    assert dsv("export", "pets", "x", "--card", "hf", "--skip-damaged").code == 2
    assert "--card has no kind 'mlx'" in dsv("export", "pets", "x", "--card", "mlx").err
    dsv.ok("put", "out/README.md", "pets:readme.md")
    own = dsv("export", "pets", "x", "--card", "hf,croissant")
    assert (
        own.code == 4 and "pets has its own README.md" in own.err and "name the other kind alone" in own.err
    )
    assert not (dsv.cwd / "x").exists()
    dsv.ok("export", "pets", "x", "--card", "croissant")
    assert (dsv.cwd / "x/readme.md").read_bytes() == (dsv.cwd / "out/README.md").read_bytes()


def test_without_pyarrow_there_are_no_columns(exported: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    out = exported({"t.parquet": table(x=[1, 2]), "x.csv": b"a\n1\n"})
    monkeypatch.undo()
    assert croissant(out) == {} and hub(out) == {"train": [{"x": 1}, {"x": 2}]}
    card = json.loads((out / "croissant.json").read_text())
    digests = {
        one["contentUrl"]: one["sha256"] for one in card["distribution"] if one["@type"] == "cr:FileObject"
    }
    assert digests == {
        name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in ("t.parquet", "x.csv")
    }


def test_a_large_commit_has_small_cards(exported: Any) -> None:
    names = {f"{chr(97 + at % 26)}{chr(97 + at // 26)}" for at in range(150)}
    files = {f"{name}/{name}.csv": b"x\n1\n" for name in names} | {
        f"shards/{at}.csv": b"x\n1\n" for at in range(1500)
    }
    files["wide.csv"] = b",".join(b"a%d" % at for at in range(5000)) + b"\n"
    out = exported(files | {f"many/{at}/{name}.PNG": b"" for at, name in enumerate(names)})
    listed = json.loads((out / "croissant.json").read_text())["distribution"]
    assert len(listed) == cards._MOST + 1 + 1 and listed[-1]["includes"] == ["**"]
    assert all(len((out / name).read_bytes()) < 100_000 for name in cards.CARDS.values())


def test_links_folders_pipes_and_what_was_erased(exported: Any, dsv: Dsv) -> None:
    (dsv.cwd / "in/none").mkdir(parents=True)
    (dsv.cwd / "in/link.csv").symlink_to("a.csv")
    out = exported({"a.csv": b"x\n1\n", "face.csv": b"y\n2\n"})
    assert [*croissant(out)] == ["a.csv", "face.csv"]
    dsv.ok("erase", "pets:face.csv", "--reason", "a face", "--yes")
    assert dsv("export", "pets", "out", "--card", "hf").code == 4  # it has what was erased
    dsv.ok("export", "pets", "new", "--card", "croissant")
    assert [*croissant(dsv.cwd / "new")] == ["a.csv"]
    (dsv.cwd / "new/a.csv").unlink()
    os.mkfifo(dsv.cwd / "new/a.csv")
    refused = dsv("export", "pets", "new", "--card", "croissant")
    assert refused.code == 4 and "'a.csv' differs" in refused.err


def test_killed_anywhere_it_is_the_same_after_a_repeat(
    exported: Any, dsv: Dsv, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = exported({"a.csv": b"x\n1\n"})
    whole = {name: (out / name).read_bytes() for name in os.listdir(out)}
    for step in (small_files.write_new, Path.replace, small_files.sync_folder):
        shutil.rmtree(out)
        dsv.ok("export", "pets", "out")

        def killed(*_: object, step: Any = step) -> None:
            if step is small_files.write_new:
                (out / ".README.md.part").write_bytes(b"half")
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            patch.setattr(Path if step is Path.replace else small_files, step.__name__, killed)
            dsv("export", "pets", "out", "--card", "hf,croissant")
        dsv.ok("export", "pets", "out", "--card", "croissant,hf")
        assert {name: (out / name).read_bytes() for name in sorted(os.listdir(out))} == whole
