"""Who is in a transaction of `dsv://`, what its end publishes, and what an error in a `with` block does not."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest

import dsv
from dsv.filesystem import DsvFileSystem
from tests.api.pets_in_python import close_all, environ_of, make_store, of
from tests.exhaustive import examples

_COUNT = iter(range(1_000_000))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("ann")
    make_store(home)
    yield home
    close_all()


@pytest.fixture
def options(home: Path) -> dict[str, Any]:
    return {"environ": environ_of(home), "cwd": home, "create": True, "allow_removals": True}


@pytest.fixture
def fs(options: dict[str, Any]) -> DsvFileSystem:
    return fsspec.filesystem("dsv", **options)  # type: ignore[no-any-return]


@pytest.fixture
def top(fs: DsvFileSystem) -> str:
    """A dataset with one commit."""
    name = f"t{next(_COUNT)}"
    fs.pipe(f"{name}/first", b"")
    return name


def files(home: Path, top: str) -> dict[str, bytes]:
    commit = of(home).open(top)
    return commit.read_many(
        path for path in commit.glob("**") if commit.info(path).kind == "file" and path != "first"
    )


def commits(home: Path, top: str) -> int:
    return len(of(home).open(top).log()) - 1


def test_what_fails_around_a_transaction_takes_it_along(fs: DsvFileSystem, top: str, home: Path) -> None:
    def helper(name: str) -> None:
        with fs.transaction as inner:
            inner.message = "of the helper"
            fs.pipe(f"{top}/{name}", name.encode())

    with pytest.raises(KeyError), fs.transaction:
        fs.pipe(f"{top}/a", b"a")
        helper("b")
        raise KeyError
    assert commits(home, top) == 0
    with fs.transaction as outer:
        assert fs.transaction is outer
        helper("b")
        with pytest.raises(ZeroDivisionError), fs.transaction:
            fs.pipe(f"{top}/c", b"c")
            with fs.open(f"{top}/d", "wb") as file:
                file.write(b"d")
            _ = 1 / 0
        fs.pipe(f"{top}/e", b"e")
        with fs.transaction:
            left_open = fs.open(f"{top}/f", "wb")
            left_open.write(b"f")
    assert files(home, top) == {"b": b"b", "e": b"e", "f": b"f"} and commits(home, top) == 1
    assert of(home).open(top).message == "of the helper"
    fs.start_transaction()
    fs.start_transaction()
    fs.pipe(f"{top}/g", b"g")
    fs.end_transaction()
    assert commits(home, top) == 1
    fs.end_transaction()
    assert commits(home, top) == 2
    with pytest.raises(dsv.Conflict, match="no transaction runs here"):
        fs.end_transaction()


def test_a_call_that_fails_adds_nothing_to_its_transaction(fs: DsvFileSystem, top: str, home: Path) -> None:
    fs.pipe(f"{top}/d/x", b"x")
    with fs.transaction:
        with pytest.raises(IsADirectoryError):
            fs.pipe({f"{top}/a": b"a", f"{top}/d": b"d"})
        fs.pipe(f"{top}/b", b"b")
    assert files(home, top) == {"b": b"b", "d/x": b"x"}


def test_another_thread_writes_outside_of_the_transaction(fs: DsvFileSystem, top: str, home: Path) -> None:
    begun, written = threading.Event(), threading.Event()

    def other() -> None:
        assert begun.wait(60)
        fs.pipe(f"{top}/other", b"other")
        with fs.open(f"{top}/text", "w") as text:
            text.write("text")
        with fs.transaction:
            fs.pipe(f"{top}/its own", b"its own")
        written.set()

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(other)
        with pytest.raises(KeyError), fs.transaction:
            fs.pipe(f"{top}/mine", b"mine")
            begun.set()
            assert written.wait(60)
            raise KeyError
        done.result()
    assert files(home, top) == {"other": b"other", "text": b"text", "its own": b"its own"}


def test_a_task_has_a_transaction_of_its_own(options: dict[str, Any], top: str, home: Path) -> None:
    fs = DsvFileSystem(asynchronous=True, **options)
    late: list[asyncio.Task[None]] = []

    async def write(name: str, fails: bool, gate: asyncio.Barrier) -> None:
        try:
            with fs.transaction:
                await fs._pipe_file(f"{top}/{name}", name.encode())
                await gate.wait()
                late.append(asyncio.create_task(after(name)))
                if fails:
                    raise KeyError
        except KeyError:
            pass

    async def after(name: str) -> None:
        await ended.wait()
        await fs._pipe_file(f"{top}/{name} late", b"late")

    async def outside(gate: asyncio.Barrier) -> None:
        await fs._pipe_file(f"{top}/outside", b"outside")
        await gate.wait()

    async def run() -> None:
        global ended
        ended = asyncio.Event()
        gate = asyncio.Barrier(3)
        await asyncio.gather(write("good", False, gate), write("bad", True, gate), outside(gate))
        ended.set()
        found = await asyncio.gather(*late, return_exceptions=True)
        assert sorted(map(repr, map(type, found))) == sorted(map(repr, [type(None), dsv.Conflict]))

    asyncio.run(run())
    assert files(home, top) == {"outside": b"outside", "good": b"good", "good late": b"late"}


def test_what_arrow_writes_in_its_threads_is_in_the_transaction(
    fs: DsvFileSystem, top: str, home: Path
) -> None:
    pa, dataset = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.dataset")
    table = pa.table({"k": [n % 5 for n in range(100)], "v": [*range(100)]})

    def write(name: str) -> None:
        dataset.write_dataset(table, f"{top}/{name}", filesystem=fs, format="parquet", partitioning=["k"])

    with fs.transaction:
        write("a")
    assert commits(home, top) == 1 and len(fs.find(f"{top}/a")) == 5
    with pytest.raises(KeyError), fs.transaction:
        write("b")
        raise KeyError
    assert commits(home, top) == 1 and not fs.exists(f"{top}/b")


class Left(Exception):
    """The error of a block."""


def closing(fs: Any, path: str, _: Any) -> Any:
    return contextlib.closing(fs.open(path, "wb"))


@contextlib.contextmanager
def own(fs: Any, path: str, _: Any) -> Iterator[Any]:
    file = fs.open(path, "wb")
    try:
        yield file
    finally:
        file.close()


BLOCKS = {
    "binary": lambda fs, path, _: fs.open(path, "wb"),
    "exclusive": lambda fs, path, _: fs.open(path, "xb"),
    "text": lambda fs, path, _: fs.open(path, "w", encoding="utf-8"),
    "compressed": lambda fs, path, _: fs.open(path, "wb", compression="gzip"),
    "compressed text": lambda fs, path, _: fs.open(path, "wt", compression="xz"),
    "fsspec.open": lambda _, path, options: fsspec.open(f"dsv://{path}", "wb", **options),
    "fsspec.open text": lambda _, path, options: fsspec.open(f"dsv://{path}", "wt", **options),
    "fsspec.open compressed": lambda _, path, options: fsspec.open(
        f"dsv://{path}", "w", compression="bz2", **options
    ),
    "fsspec.open_files": lambda _, path, options: fsspec.open_files([f"dsv://{path}"], "w", **options),
    "closing": closing,
    "a generator": own,
}


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_block_that_an_error_ends_publishes_nothing(
    kind: str, fs: DsvFileSystem, options: dict[str, Any], top: str, home: Path
) -> None:
    def write(block: Any, data: str) -> None:
        file = block[0] if isinstance(block, list) else block
        file.write(data if isinstance(file, io.TextIOBase) else data.encode())

    with pytest.raises(Left), BLOCKS[kind](fs, f"{top}/half", options) as file:
        write(file, "half" * 100_000)
        raise Left
    assert commits(home, top) == 0
    try:
        raise Left
    except Left:
        with BLOCKS[kind](fs, f"{top}/whole", options) as file:  # in a handler, but not left by its error
            write(file, "whole")
    packing = "gzip" if kind == "compressed" else "xz" if "text" in kind and "comp" in kind else None
    packing = "bz2" if kind == "fsspec.open compressed" else packing
    assert commits(home, top) == 1
    with DsvFileSystem(**options, skip_instance_cache=True).open(f"{top}/whole", compression=packing) as file:
        assert file.read() == b"whole"


def test_a_file_that_is_closed_is_published_also_where_an_error_is_handled(
    fs: DsvFileSystem, top: str, home: Path
) -> None:
    file = fs.open(f"{top}/log", "wb")
    try:
        raise Left
    except Left:
        file.write(b"failed")
        file.close()
    binary, text, stack = fs.open(f"{top}/binary", "wb"), fs.open(f"{top}/text", "w"), contextlib.ExitStack()
    stack.enter_context(fs.transaction)
    within = fs.open(f"{top}/within", "wb")
    try:
        raise Left
    except Left:
        stack.close()
        with binary, text:
            binary.write(b"b")
            text.write("t")
    assert within.closed and text.closed
    assert files(home, top) == {"log": b"failed", "binary": b"b", "text": b"t", "within": b""}


@pytest.mark.parametrize("mode", ["wb", "w", "xb"])
def test_a_forgotten_file_is_not_published(
    mode: str, fs: DsvFileSystem, top: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    file: Any = fs.open(f"{top}/half", mode)
    file.write(b"half" if "b" in mode else "half")
    del file
    gc.collect()
    assert commits(home, top) == 0 and not [*tmp_path.iterdir()]


def test_pandas_publishes_no_half_table(
    fs: DsvFileSystem, options: dict[str, Any], top: str, home: Path
) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": ["x" * 100] * 10_000 + ["é"]})
    with pytest.raises(UnicodeEncodeError):
        frame.to_csv(f"dsv://{top}/half.csv", encoding="ascii", storage_options=options)
    assert commits(home, top) == 0


@pytest.mark.parametrize("packing", ["gzip", "bz2", "xz", "zip"])
def test_compressed_files_are_whole(packing: str, fs: DsvFileSystem, top: str, home: Path) -> None:
    with fs.open(f"{top}/a", "wb", compression=packing) as file:
        file.write(b"hello " * 1000)
    with fs.transaction:
        left_open = fs.open(f"{top}/b", "wb", compression=packing)
        left_open.write(b"left open")
    assert fs.open(f"{top}/a", compression=packing).read() == b"hello " * 1000
    assert fs.open(f"{top}/b", compression=packing).read() == b"left open"
    assert commits(home, top) == 2


@pytest.mark.parametrize("seed", range(examples(50)))
def test_random_transactions_of_several_threads(seed: int, fs: DsvFileSystem, top: str, home: Path) -> None:
    """Each thread has a folder, and a model of what was published there."""
    chance = random.Random(seed)
    count, rounds = chance.randint(1, 4), 6
    seeds = [chance.random() for _ in range(count)]

    def block(chance: random.Random, number: int, depth: int, model: dict[str, bytes]) -> dict[str, bytes]:
        """Write in a transaction, perhaps with others in it, which perhaps fail. Returns the model after it."""
        after = dict(model)
        with fs.transaction:
            for _ in range(chance.randint(0, 4)):
                path, data = f"{number}/{chance.randint(0, 5)}", chance.randbytes(4)
                what = chance.choice(["pipe", "open", "open", "nested", "left", "fail"])
                if what == "pipe":
                    fs.pipe({f"{top}/{path}": data})
                elif what == "open":
                    with fs.open(f"{top}/{path}", "wb") as file:
                        file.write(data)
                elif what == "left":
                    with contextlib.suppress(Left), fs.open(f"{top}/{path}", "wb") as file:
                        file.write(data)
                        raise Left
                    continue
                elif what == "nested" and depth < 3:
                    with contextlib.suppress(Left):
                        after = block(chance, number, depth + 1, after)
                    continue
                else:
                    if chance.random() < 0.3:
                        raise Left
                    continue
                after[path] = data
        return after

    def work(number: int) -> dict[str, bytes]:
        chance, model = random.Random(seeds[number]), dict[str, bytes]()
        for _ in range(rounds):
            if chance.random() < 0.5:
                with contextlib.suppress(Left):
                    model = block(chance, number, 0, model)
            else:
                path, data = f"{number}/{chance.randint(0, 5)}", chance.randbytes(4)
                fs.pipe(f"{top}/{path}", data)
                model[path] = data
        return model

    with ThreadPoolExecutor(count) as pool:
        models = [*pool.map(work, range(count))]
    assert files(home, top) == {path: data for model in models for path, data in model.items()}, seed
