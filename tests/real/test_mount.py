"""docs/guide/mount.md: a commit as a read-only folder, by the real ratarmount and the kernel's FUSE."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from random import Random

import pytest

from tests.kit.dsv import Dsv, write_files
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.real
BIG = Random(5).randbytes(9_000_000)
FILES = {
    **{f"images/{number:03}.png": Random(number).randbytes(900 + number) for number in range(300)},
    "big.bin": BIG, "empty": b"", "odd/a b": b"1", "odd/c#d?x%2F": b"2", "odd/[x]\u202e": b"3", "odd/new\nline": b"4",
    "odd/" + "n" * 250: b"5", "odd/back\\slash": b"6", ".hidden/~": b"7", "odd/a::b": b"8",
}  # fmt: skip


@pytest.fixture
def dsv(tmp_path: Path) -> Dsv:
    if "\tfuse\n" not in Path("/proc/filesystems").read_text() and not Path("/dev/fuse").exists():
        pytest.skip("the kernel has no FUSE")
    if not Path("/dev/fuse").exists() and os.geteuid() == 0:
        os.mknod("/dev/fuse", 0o666 | stat.S_IFCHR, os.makedev(10, 229))  # as in a container
    missing = [] if find_spec("ratarmount") else ["pip install 'dsv-data[mount]'"]
    missing += (
        [] if shutil.which("fusermount3") and os.access("/dev/fuse", os.W_OK) else ["fuse3 and /dev/fuse"]
    )
    if missing:
        assert "DSV_REQUIRE_LABS" not in os.environ, f"it needs {missing}"
        pytest.skip(f"it needs {missing}")
    dsv = Dsv.of(tmp_path, DSV_STORE=str(tmp_path / "store"), DSV_CACHE=str(tmp_path / "cache"))
    (dsv.cwd / "first").mkdir()
    dsv.at(dsv.cwd / "first").ok("init", "first")
    write_files(dsv.cwd / "pets", FILES)
    (dsv.cwd / "pets/link").symlink_to("images/007.png")
    dsv.ok("put", "pets/.", "team/pets:", "--create")
    dsv.ok("tag", "v1", "team/pets")
    return dsv


@contextmanager
def mounted(dsv: Dsv, url: str) -> Iterator[Path]:
    """A mount, which is gone at the end in any case."""
    folder = dsv.cwd / "mount"
    folder.mkdir()
    argv = [sys.executable, "-m", "ratarmount", "-f", url, str(folder)]
    with (dsv.cwd / "mount.log").open("wb") as log:
        process = subprocess.Popen(argv, cwd=dsv.cwd, env=dict(dsv.environ), stdout=log, stderr=log)
    try:
        until(lambda: os.path.ismount(folder) or process.poll() is not None, "the mount")
        assert process.poll() is None, (dsv.cwd / "mount.log").read_text()
        yield folder
    finally:
        subprocess.run(["fusermount3", "-u", str(folder)], stderr=subprocess.DEVNULL, check=False)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        with suppress(OSError):  # a process that is killed leaves a mount that no longer answers
            os.rmdir(folder)
        if folder.exists() or os.path.ismount(folder):
            subprocess.run(["fusermount3", "-uz", str(folder)], check=False)
    assert str(folder) not in Path("/proc/mounts").read_text()


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    names = [str(path.relative_to(folder)) for path in files]
    with ThreadPoolExecutor(4) as threads:
        return dict(zip(names, threads.map(Path.read_bytes, files), strict=True))


def test_a_whole_commit_is_read_as_from_the_cache(dsv: Dsv) -> None:
    with mounted(dsv, "dsv://team%2Fpets@v1") as folder:
        found = contents(folder)
        assert found == {**FILES, "link": FILES["images/007.png"]}
        cached = Path(dsv.ok("cache", "team/pets@v1").lines[0])
        assert contents(cached) == found
        with (folder / "big.bin").open("rb", buffering=0) as file:
            for at in Random(3).sample(range(len(BIG)), 200):
                assert os.pread(file.fileno(), 4096, at) == BIG[at : at + 4096]
        with pytest.raises(OSError):
            (folder / "new").write_bytes(b"")
        with pytest.raises(FileNotFoundError):
            (folder / "images/none").read_bytes()


def test_a_mount_of_a_part_and_of_what_is_not_there(dsv: Dsv) -> None:
    with mounted(dsv, "dsv://team%2Fpets@v1/odd") as folder:
        assert contents(folder) == {
            path.removeprefix("odd/"): data for path, data in FILES.items() if path.startswith("odd/")
        }
    with pytest.raises(AssertionError, match="does not exist"), mounted(dsv, "dsv://team%2Fpets@v2"):
        pass


def test_reads_without_the_store_are_errors_and_end(dsv: Dsv) -> None:
    """Neither wrong bytes nor none. What was listed and read before may still come from memory."""
    with mounted(dsv, "dsv://team%2Fpets@v1") as folder:
        assert (folder / "images/001.png").read_bytes() == FILES["images/001.png"]
        away = dsv.home / "away"
        away.mkdir()
        for part in (dsv.home / "store").iterdir():
            part.rename(away / part.name)
        for name in ("big.bin", "odd/a b", "images/200.png", "big.bin"):
            argv = ["cat", str(folder / name)]
            done = subprocess.run(argv, capture_output=True, timeout=PATIENCE, check=False)
            failed = (done.returncode, done.stdout, b"Input/output error" in done.stderr) == (1, b"", True)
            assert failed or (name != "big.bin" and (done.returncode, done.stdout) == (0, FILES[name])), done
        for part in away.iterdir():
            part.rename(dsv.home / "store" / part.name)
        assert (folder / "big.bin").read_bytes() == BIG
