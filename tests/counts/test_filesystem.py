"""What `dsv://` asks of a store, counted by the server: many files at once, and a part of a Parquet file."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsv.filesystem import DsvFileSystem
from tests.api.pets_in_python import close_all
from tests.counts.observed import ObservedServer, Seen
from tests.counts.people import path_of, person, write

FILES, SIZE = 3000, 8192
MANY = [path_of(number) for number in range(1000, 2000)]


@pytest.fixture(scope="module")
def server() -> Iterator[ObservedServer]:
    pytest.importorskip("moto.server", reason="needs moto[server]")
    made = ObservedServer()
    yield made
    close_all()
    made.close()


@pytest.fixture(scope="module")
def stored(server: ObservedServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The options of the file system of somebody who has nothing of the store yet."""
    home = tmp_path_factory.mktemp("ann")
    ann = person(home / "ann", f"s3://{server.s3.bucket()}/lake", server.s3.env)
    write(ann.cwd, range(FILES), SIZE, 1)
    write_table(ann.cwd / "table.parquet")
    for words in (("init", "scans"), ("sync", "-q"), ("tag", "v1")):
        done = ann.process(*words)
        assert done.code == 0, done
    keys = {"HOME": str(home), "DSV_STORE": ann.environ["DSV_STORE"], **server.s3.env}
    return {"environ": keys, "cwd": home}


ROWS, GROUPS, COLUMNS = 400_000, 4, 8


def write_table(path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    chance = random.Random(5)
    columns = {"n": range(ROWS)} | {
        f"c{one}": memoryview(chance.randbytes(8 * ROWS)).cast("d") for one in range(COLUMNS)
    }
    table = pyarrow.table({name: pyarrow.array(values) for name, values in columns.items()})
    parquet.write_table(table, path, row_group_size=ROWS // GROUPS, compression="none", use_dictionary=False)


def fresh(stored: dict[str, Any], home: Path) -> DsvFileSystem:
    """A file system at a machine of its own."""
    close_all()
    environ = {**stored["environ"], "HOME": str(home)}
    return DsvFileSystem(**{**stored, "environ": environ, "cwd": home}, skip_instance_cache=True)


def test_a_thousand_neighbouring_files_take_few_requests(
    server: ObservedServer, stored: dict[str, Any], tmp_path: Path
) -> None:
    """In any order. With all that comes before: format 2, branch 3, commit 2, node 1, segment 1, and the files 2."""
    shuffled = random.Random(1).sample(MANY, len(MANY))
    fs = fresh(stored, tmp_path / "all")
    with server.watch() as seen:
        assert len(fs.cat([f"scans/{path}" for path in shuffled])) == 1000
    assert_few(seen, 11, 1.1 * 1000 * SIZE)
    for way in ("cat", "cat_ranges", "cat of a glob"):
        fs = fresh(stored, tmp_path / way)
        paths = [f"scans@v1/{path}" for path in shuffled]
        assert fs.info(f"scans@v1/{path_of(0)}")["size"] == SIZE
        with server.watch() as seen:
            if way == "cat":
                found = [*fs.cat(paths).values()]
            elif way == "cat_ranges":
                found = fs.cat_ranges(paths, [1] * len(paths), [SIZE + 1] * len(paths))
            else:
                found = [*fs.cat("scans@v1/01?/*").values()]
        assert len(found) == 1000 and {len(data) for data in found} == {SIZE - (way == "cat_ranges")}
        assert_few(seen, 3, 1.1 * 1000 * SIZE)


def assert_few(seen: Seen, requests: int, down: float) -> None:
    print(seen)
    assert len(seen) <= requests, str(seen)
    assert seen.down <= down, str(seen)


def test_a_column_of_one_row_group_is_a_fraction_of_the_bytes(
    server: ObservedServer, stored: dict[str, Any], tmp_path: Path
) -> None:
    """By pandas and by pyarrow.dataset. Chunks have about 1 MiB, and 4 at most."""
    pandas, dataset = pytest.importorskip("pandas"), pytest.importorskip("pyarrow.dataset")
    whole = 8 * ROWS * (COLUMNS + 1)
    options = {**stored, "environ": {**stored["environ"], "HOME": str(tmp_path)}}
    for rows, limit in ((ROWS // GROUPS, 0.25), (ROWS, 0.6)):
        close_all()
        with server.watch() as seen:
            frame = pandas.read_parquet(
                "dsv://scans@v1/table.parquet",
                columns=["c3"],
                filters=[("n", "<", rows)] if rows < ROWS else None,
                storage_options=options,
            )
        assert frame.shape == (rows, 1)
        assert_few(seen, 40, limit * whole)
    fs = fresh(stored, tmp_path)
    with server.watch() as seen:
        found = dataset.dataset("scans@v1/table.parquet", filesystem=fs, format="parquet")
        assert found.to_table(columns=["c3"], filter=dataset.field("n") >= ROWS - 5).num_rows == 5
    assert_few(seen, 40, 0.25 * whole)
