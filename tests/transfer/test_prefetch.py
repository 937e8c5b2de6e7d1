"""Reading processes: the same contents in the same order as without, whatever happens to a file or a process."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
from blake3 import blake3

from dsv.files.descent import Descent
from dsv.format.codec import Compressor, unpack
from dsv.format.columns import cut
from dsv.format.pack import CODECS
from dsv.format.tree import Kind
from dsv.transfer import prefetch as readers_module
from dsv.transfer.prefetch import SLOT, UNREAD, ReadBatch, Readers, ReadRequest, read_batch, suitable
from dsv.transfer.stable_read import ROW, row_of
from dsv.workspace.scan.folder import Relation
from dsv.workspace.scan.result import Gone, Pending, WorkspaceScan
from dsv.workspace.scan.scanner import scan_workspace
from dsv.workspace.scan.state import WorkspaceState
from tests.processes import running
from tests.waiting import until

SIZES = [1, 63, 64, 4096, 8192, 100_000, 1 << 20]


def fill(root: Path, count: int, seed: int = 3) -> dict[bytes, bytes]:
    """Files of all sizes, and what is no small file between them; the contents of those that are."""
    source = random.Random(seed)
    small = {}
    for number in range(count):
        path = root / f"d{number % 7}" / f"{number:05}"
        path.parent.mkdir(exist_ok=True)
        size = source.choice(SIZES) if number % 100 == 0 else source.choice(SIZES[:5])
        content = source.randbytes(size) if number % 3 else bytes(size)
        path.write_bytes(content)
        small[os.fsencode(path.relative_to(root))] = content
    (root / "d0/empty").touch()
    (root / "d1/large").write_bytes(bytes((1 << 20) + 1))
    (root / "d2/link").symlink_to("00002")
    (root / "d9").mkdir()
    return small


def scan(root: Path, state: Path) -> WorkspaceScan:
    return scan_workspace(root, WorkspaceState.load(state), None, lambda: ())


def filled(folder: Path, count: int = 2500) -> tuple[Path, dict[bytes, bytes], WorkspaceScan, list[bytes]]:
    """A workspace with so many small files: its root, their contents, what is to do, and its paths in order."""
    root = folder / "work"
    root.mkdir()
    small = fill(root, count)
    found = scan(root, folder / "state")
    return root, small, found, [item.path for item in found.work()]


def each(readers: Readers, found: WorkspaceScan) -> Iterator[tuple[Pending | Gone, bytes | None]]:
    """The items as they come, with their contents as they would be stored and read again."""
    for run in readers.over(found.work()):
        batch, read = run.batch, dict[int, bytes]()
        if batch is not None and run.memory is not None:
            read = unpacked(batch, run.sizes, run.memory)
            rows, devices = cut(batch.rows, ROW.size), array("Q", batch.devices)
        for item, at in zip(run.items, run.at, strict=True):
            if at in read:
                info = os.stat(os.path.join(os.fsencode(found.root), item.path))
                assert rows[at] == row_of(info) and devices[at] == info.st_dev
            yield item, read.get(at)


def unpacked(batch: ReadBatch, sizes: list[int], memory: memoryview) -> dict[int, bytes]:
    packed = batch.packed(sizes, memory)
    found, end = {}, 0
    numbers = [at for at, read in enumerate(batch.read) if read]
    columns = zip(packed.ids, packed.codecs, packed.lengths, packed.stored, strict=True)
    for at, (one, codec, length, stored) in zip(numbers, columns, strict=True):
        found[at] = unpack(CODECS[codec], packed.data[end : end + stored], length)
        assert blake3(found[at]).digest() == one == batch.ids[32 * at : 32 * at + 32]
        end += stored
    assert end == len(packed.data)
    return found


def read_all(readers: Readers, found: WorkspaceScan) -> tuple[list[bytes], dict[bytes, bytes]]:
    order, contents = list[bytes](), dict[bytes, bytes]()
    for item, content in each(readers, found):
        order.append(item.path)
        if content is not None:
            contents[item.path] = content
    return order, contents


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_same_items_in_the_same_order_with_their_contents(tmp_path: Path, count: int) -> None:
    root, small, found, expected = filled(tmp_path)
    with Readers(root, count) as readers:
        order, contents = read_all(readers, found)
    assert order == expected and len(order) == len(small) + 4
    assert contents == (small if count else {})


def test_a_slot_is_never_filled_again_before_its_content_was_taken(tmp_path: Path) -> None:
    root = tmp_path / "work"
    root.mkdir()
    small = {}
    for number in range(40):  # four to a slot: many more turns than slots
        small[b"%02d" % number] = bytes([number]) * 1000 + os.urandom((1 << 20) - 1000)
        (root / f"{number:02}").write_bytes(small[b"%02d" % number])
    with Readers(root, 1) as readers:
        for run in readers.over(scan(root, tmp_path / "state").work()):
            time.sleep(0.01)  # who stores is slow: the process is as far ahead as it can be
            assert run.batch is not None and run.memory is not None
            paths = [item.path for item in run.items]
            assert list(unpacked(run.batch, run.sizes, run.memory).values()) == [
                small[path] for path in paths
            ]


@pytest.mark.parametrize("after", [0, 1, 700, 4999])
def test_what_a_killed_process_should_have_read_is_left_to_who_asked(tmp_path: Path, after: int) -> None:
    root, small, found, expected = filled(tmp_path, 5000)  # twice of what all slots together hold
    order, contents = [], {}
    with Readers(root, 2) as readers:
        pids = [reader._process.pid for reader in readers._readers]
        assert len(pids) >= 2
        for number, (item, content) in enumerate(each(readers, found)):
            if number == after:
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
            order.append(item.path)
            if content is not None:
                contents[item.path] = content
    assert order == expected
    assert contents.items() <= small.items()
    assert len(contents) < len(small) or after == 4999


def test_no_process_outlives_its_sync(tmp_path: Path) -> None:
    root = tmp_path / "work"
    root.mkdir()
    fill(root, 600)
    with pytest.raises(KeyboardInterrupt), Readers(root, 2) as readers:
        pids = [reader._process.pid for reader in readers._readers]
        for _ in readers.over(scan(root, tmp_path / "state").work()):
            raise KeyboardInterrupt
    assert pids and not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_process_ends_when_who_started_it_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from dsv.transfer.prefetch import Readers\n"
        "readers = Readers(Path(sys.argv[1]), 2)\n"
        "print(*[reader._process.pid for reader in readers._readers], flush=True); time.sleep(600)"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    pids = [int(pid) for pid in starter.stdout.readline().split()]
    assert len(pids) == 2 and all(Path(f"/proc/{pid}").exists() for pid in pids)
    starter.kill()
    starter.wait()
    starter.stdout.close()
    until(lambda: not [pid for pid in pids if running(pid)])


def test_modules_that_lie_in_the_workspace_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "work"
    root.mkdir()
    for name in ("blake3", "msgspec", "mmap", "zstandard", "random"):
        (root / f"{name}.py").write_text("raise SystemExit('imported from the data')")
    monkeypatch.chdir(root)
    with Readers(root, 1) as readers:
        _, contents = read_all(readers, scan(root, tmp_path / "state"))
    assert len(contents) == 5


def test_where_no_process_can_be_had_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_bytes(b"content")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no python"))
    with Readers(tmp_path, 2) as readers:
        assert read_all(readers, scan(tmp_path, tmp_path / ".dsv")) == ([b"f"], {})


def test_what_is_not_as_it_was_listed_is_left_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("grown", "shrunk", "whole", "touched", "emptied"):
        (tmp_path / name).write_bytes(b"content")
    (tmp_path / "link").symlink_to("whole")
    (tmp_path / "grown").write_bytes(b"content+")
    (tmp_path / "shrunk").write_bytes(b"conten")
    (tmp_path / "emptied").write_bytes(b"")
    really_read = os.readv

    def readv(descriptor: int, places: tuple[memoryview]) -> int:
        if os.fstat(descriptor).st_ino == (tmp_path / "touched").stat().st_ino:
            os.utime(tmp_path / "touched", (1, 1))
        return really_read(descriptor, places)

    monkeypatch.setattr(os, "readv", readv)
    names = [b"emptied", b"gone", b"grown", b"link", b"no/folder", b"pipe", b"shrunk", b"touched", b"whole"]
    order = ReadRequest(0, b"\0".join(names), [7] * len(names))
    memory = memoryview(bytearray(SLOT))
    with Descent(tmp_path) as descent:
        batch = read_batch(descent, Compressor(), order, memory)
    read = [name for name, codec in zip(names, batch.codecs, strict=True) if codec != UNREAD]
    assert read == [b"whole"]
    assert cut(batch.rows, ROW.size)[-1] == row_of((tmp_path / "whole").stat())
    assert unpacked(batch, order.sizes, memory) == {len(names) - 1: b"content"}


@pytest.mark.parametrize(
    ("files", "processors", "count"), [(4095, 8, 0), (4096, 1, 0), (4096, 2, 1), (10**7, 64, 4)]
)
def test_how_many_processes_suit(files: int, processors: int, count: int) -> None:
    assert suitable(files, processors) == count


def test_long_paths_make_short_orders(tmp_path: Path) -> None:
    items = [pending(b"x" * 4000 + b"%04d" % number, 1) for number in range(600)]
    runs = list(readers_module._cut(iter(items)))
    assert [item for run in runs for item in run.items] == items
    assert max(len(run.order(0).paths) for run in runs) <= 64 << 10


def pending(path: bytes, size: int) -> Pending:
    return Pending(path, Kind.FILE, size, Relation.ABSENT, None, None, b"", 0)
