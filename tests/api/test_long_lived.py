"""A program that runs for long, without Python's garbage collector: each call a hundred times leaves nothing behind.

Training loops switch the collector off. Then whatever is in a cycle of references stays, with its files and its memory.
"""

from __future__ import annotations

import gc
import inspect
import os
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import fsspec
import pytest

import dsv
from dsv.api.branches import tag
from dsv.api.clone import init
from dsv.api.sync import SyncRequest, sync
from dsv.errors import NotFound
from dsv.values.names import DatasetName, TagName, Target
from tests.api.pets_in_python import close_all, environ_of, of
from tests.waiting import PATIENCE, until

TIMES = 100
_LEAST = 3
"""Calls before it is counted: they import, open the store, and fill what keeps a fixed number of values."""
_MEMORY = 64 << 10
"""Bytes a call: the allocator's holes and a history that grows come to a few kB, one pack's memory to 12 MB."""

SMALL = "images/1.png"
Call = Callable[[dsv.Store, Path], object]
_numbers = count()


def _pets(store: dsv.Store) -> dsv.Commit:
    return store.open("pets@v1")


def _no_series(store: dsv.Store) -> None:
    with suppress(NotFound):
        store.series("20261130-101500-0a1b2c3d")


def _edit(change: Callable[[dsv.Edits], object]) -> Call:
    def made(store: dsv.Store, _: Path) -> None:
        number = next(_numbers)
        with store.edit("pets", message=f"{number}", allow_removals=True) as edits:
            edits.put(f"new/{number}", b"%d" % number)
            change(edits)
        assert edits.commit.id

    return made


def _read(file: Any) -> bytes:
    with file:
        data: bytes = file.read()
        return data


def _written(fs: Any) -> None:
    with fs.open("pets/written", "wb") as file:
        file.write(b"%d" % next(_numbers))


def _transaction(fs: Any) -> None:
    with fs.transaction:
        _written(fs)


def _fs(call: Callable[[Any], object]) -> Call:
    """A file system of its own for each call: fsspec keeps one for each set of options else."""
    return lambda store, _: call(
        fsspec.filesystem("dsv", store=store.context.settings.store().url, skip_instance_cache=True)
    )


CALLS: dict[str, Call] = {
    "store open datasets runs": lambda *_: (dsv.store().datasets(), dsv.open("pets").id, dsv.datasets(), dsv.runs()),
    "Store.open Commit.id Commit.dataset": lambda store, _: (_pets(store).id, _pets(store).dataset),
    "Commit.branch Commit.parents": lambda store, _: [one.id for one in store.open("pets@main").parents],
    "Commit.author Commit.time Commit.message Commit.files Commit.size": lambda store, _: _pets(store).time,
    "Store.datasets": lambda store, _: store.datasets(),
    "Store.runs": lambda store, _: store.runs(),
    "Store.series": lambda store, _: _no_series(store),
    "Store.context": lambda store, _: store.context,
    "edit Store.edit Edits.put Edits.commit": _edit(lambda edits: None),  # `dsv.edit` calls it, as `dsv.open` does
    "Edits.remove": _edit(lambda edits: edits.remove("new/*")),
    "Edits.move": _edit(lambda edits: edits.move("new/*", f"moved/{next(_numbers)}/")),
    "Commit.log": lambda store, _: (store.open("pets").log(limit=5), _pets(store).log(SMALL)),
    "lineage Store.lineage": lambda store, _: (store.lineage("pets"), store.lineage("pets", down=True)),
    "Commit.diff": lambda store, _: _pets(store).diff("@main"),
    "Commit.cache": lambda store, _: _pets(store).cache(),
    "Commit.export": lambda store, folder: _pets(store).export(folder / f"{next(_numbers)}.tar", SMALL),
    "Commit.info Commit.ls": lambda store, _: (_pets(store).info(SMALL), _pets(store).ls()),
    "Commit.walk Commit.glob": lambda store, _: (list(_pets(store).walk()), _pets(store).glob("**")),
    "Commit.open": lambda store, _: _read(_pets(store).open(SMALL)),
    "a copy of Commit.open": lambda store, _: _read(pickle.loads(pickle.dumps(_pets(store).open(SMALL)))),
    "Commit.read_bytes Commit.read_many Commit.read_ranges": lambda store, _: (
        _pets(store).read_bytes(SMALL), _pets(store).read_many([SMALL]), _pets(store).read_ranges([(SMALL, 0, 2)]),
    ),
    "Commit.samples": lambda store, _: _pets(store).samples(cache=False)[0],
    "samples that are read ahead": lambda store, _: _pets(store).samples(cache=False).read_ahead([0, 1]),
    "dsv:// read": _fs(lambda fs: (fs.ls("pets"), fs.cat_file(f"pets/{SMALL}"), fs.find("pets@v1"))),
    "dsv:// open": _fs(lambda fs: _read(fs.open(f"pets/{SMALL}"))),
    "dsv:// written": _fs(_written),
    "dsv:// in a transaction": _fs(_transaction),
}  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Somebody's, with the dataset `pets` of 30 files: `main` and `v1` are one commit."""
    home = tmp_path_factory.mktemp("ann")
    work = home / "pets"
    (work / "images").mkdir(parents=True)
    for number in range(30):
        (work / f"images/{number}.png").write_bytes(os.urandom(3000))
    context = of(home, cwd=work).context
    init(context, work, DatasetName.parse("pets"))
    sync(context, SyncRequest(message="first"))
    tag(context, TagName.parse("v1"), Target())
    yield home
    close_all()


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _held() -> tuple[int, int, int]:
    """Open files, threads and mapped files of this process."""
    maps = Path("/proc/self/maps").read_text()
    return (
        len(os.listdir("/proc/self/fd")),
        len(os.listdir("/proc/self/task")),
        len(re.findall(r"/objects/", maps)),
    )


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def leaves(call: Callable[[], object], patience: float = PATIENCE) -> tuple[int, int]:
    """Return bytes of memory, and objects in cycles, that stay after each of a hundred calls. Fails for a file, a
    mapped file and a thread that stays."""
    for _ in range(_LEAST):
        call()
    gc.collect()
    held, resident = _held(), _resident()
    for _ in range(TIMES):
        call()
    until(
        lambda: all(now <= before for now, before in zip(_held(), held, strict=True)),
        f"{held} again",
        patience,
    )
    return (_resident() - resident) // TIMES, gc.collect() // TIMES


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.usefixtures("without_collector")
def test_a_hundred_calls_leave_no_file_thread_or_memory(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for key, value in environ_of(home).items():
        monkeypatch.setenv(key, value)
    store = of(home)
    memory, cyclic = leaves(lambda: CALLS[name](store, tmp_path))
    assert cyclic == 0 and memory < _MEMORY


def test_every_public_call_is_among_them() -> None:
    public = {name for name in dsv.__all__ if inspect.isfunction(getattr(dsv, name))}
    for kind in (dsv.Store, dsv.Commit, dsv.Edits):
        public |= {f"{kind.__name__}.{name}" for name in vars(kind) if not name.startswith("_")}
    assert public <= {word for name in CALLS for word in name.split()}


@pytest.mark.usefixtures("without_collector")
def test_what_is_left_is_found(tmp_path: Path) -> None:
    """An object in a cycle with memory of its own, and a file in it: what `dsv.edit` left before."""

    class Owner:
        def __init__(self) -> None:
            self.memory = bytearray(os.urandom(1 << 20))
            self.itself = self

    memory, cyclic = leaves(Owner)
    assert cyclic >= 1 and memory > _MEMORY

    class WithFile(Owner):
        def __init__(self) -> None:
            super().__init__()
            self.memory = bytearray()
            self.file = (tmp_path / "file").open("w")

    with pytest.raises(AssertionError, match="again never came true"):
        leaves(WithFile, patience=0)
