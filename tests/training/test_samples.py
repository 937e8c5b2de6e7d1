"""The samples of a commit: which files they are, how they are read, and the window that processes of a host share."""

from __future__ import annotations

import os
import pickle
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import dsv
from dsv.errors import DsvError, made
from dsv.repo.objects.trim import CopyLimits, trim
from dsv.stores.base import NoAnswer
from dsv.training import window
from dsv.training.samples import Samples
from dsv.training.window import PACKET, Asked, WindowReply, _Blocks
from tests.api.pets_in_python import BIG, SMALL, close_all, environ_of, make_home, of
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.timeout(600)  # they start processes
ALL = {**SMALL, "big.bin": BIG, "labels.csv": b"a,b\n1,2\n", "empty": b"", "run.sh": b"#!/bin/sh\n"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield make_home(tmp_path_factory.mktemp("ann"))
    close_all()


@pytest.fixture
def shared(home: Path, tmp_path: Path) -> Iterator[Samples]:
    """Samples with a window that no other test has."""
    yield of(home).open("pets").samples(window=(8 << 20) + random.Random(str(tmp_path)).randrange(1 << 20))
    for process in window._started:
        process.kill()
        process.wait()
    window._started.clear()


def test_all_files_are_samples_in_the_order_of_their_paths(home: Path) -> None:
    samples = pickle.loads(pickle.dumps(of(home).open("pets").samples()))
    assert len(samples) == len(ALL)
    assert samples.size == sum(map(len, ALL.values()))
    found = samples.__getitems__(range(len(samples)))
    assert dict(found) == ALL
    assert [one.path for one in found] == [samples.path(number) for number in range(len(samples))]
    assert [len(one.data) for one in found] == [*samples.sizes]
    assert samples[-1] == found[-1]
    with pytest.raises(IndexError):
        samples[len(samples)]


@pytest.mark.parametrize(
    ("patterns", "count"),
    [
        (("images",), 1000),
        (("images/0/*.png", "labels.csv"), 144),
        (("**/*.png",), 1000),
        (("big.bin",), 1),
        (("",), 1004),
    ],
)
def test_patterns_choose_samples(home: Path, patterns: tuple[str, ...], count: int) -> None:
    samples = of(home).open("pets").samples(*patterns)
    assert len(samples) == count
    for number in (0, count - 1):
        assert samples[number].data == ALL[samples.path(number)]


def test_no_file_is_an_error_that_names_the_commit(home: Path) -> None:
    commit = of(home).open("pets")
    with pytest.raises(dsv.NotFound, match=f"none'? is not in pets@{commit.id[:12]}"):
        commit.samples("none")
    with pytest.raises(dsv.NotFound, match="none"):
        commit.samples(next(iter(ALL)), "none")
    with pytest.raises(dsv.UsageError, match="too small"):
        commit.samples(window=1000)


def test_a_damaged_index_is_made_anew(home: Path) -> None:
    samples = of(home).open("pets").samples("labels.csv", "big.bin")
    [kept] = home.glob(f".cache/dsv/.dsv/stores/*/objects/samples/*/{samples.name}")
    good = kept.read_bytes()
    for bad in (good[:40] + b"?" + good[41:], good[:50], b""):
        kept.chmod(0o600)
        kept.write_bytes(bad)
        assert of(home).open("pets").samples("labels.csv", "big.bin")[1].data == ALL["labels.csv"]
        assert kept.read_bytes() == good


def test_an_index_stays_for_thirty_days_after_its_last_use(home: Path) -> None:
    def kept(samples: Samples) -> Path:
        return next(home.glob(f".cache/dsv/.dsv/stores/*/objects/samples/*/{samples.name}"))

    commit = of(home).open("pets")
    old, used = commit.samples("images/0"), commit.samples("images/1")
    paths = [kept(old), kept(used)]
    for path in paths:
        os.utime(path, (0, path.stat().st_mtime - 31 * 86_400))
    pickle.loads(pickle.dumps(used))
    trim(home / ".cache/dsv/.dsv/stores", CopyLimits(max_files=0))
    assert [path.exists() for path in paths] == [False, True]
    os.utime(paths[1], (0, 0))
    assert kept(commit.samples("images/1")) == paths[1]
    assert used[0].path == "images/1/0001.png"


def test_erased_files_are_left_out_and_counted(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    before = of(home).open("pets").samples("images/0")
    erase = [sys.executable, "-m", "dsv.cli.main", "erase", "pets@main:images/0/0007.png"]
    done = subprocess.run(
        [*erase, "--reason", "asked", "--yes"], env=environ_of(home), cwd=home, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    close_all()  # a process that has the store open does not see the first erasure
    after = of(home).open("pets@v1").samples("images/0")
    assert (after.erased, len(after)) == (1, len(before) - 1)
    assert "images/0/0007.png" not in {after.path(number) for number in range(len(after))}
    assert after.name != before.name
    close_all()
    with pytest.raises(
        dsv.Erased, match=f"images/0/0007.png' was erased .* \\(in pets@{before.commit[:12]}\\)"
    ):
        before.read([0, 1])


def test_damage_names_the_path_and_the_commit(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    samples = of(home).open("pets").samples("labels.csv", window=1 << 20)
    close_all()
    for pack in (home / "store/packs").rglob("*"):
        if pack.is_file():
            pack.chmod(0o600)
            pack.write_bytes(bytes(pack.stat().st_size))
    for read in (samples.read, samples.read_ahead):
        with pytest.raises(dsv.IntegrityError, match=f"labels.csv .*\\(in pets@{samples.commit[:12]}\\)"):
            read([0])


READ_ALL = """
import pickle, random, sys
samples = pickle.load(sys.stdin.buffer)
numbers = random.Random(sys.argv[1]).sample(range(len(samples)), len(samples))
for at in range(0, len(numbers), 50):
    part = numbers[at : at + 50]
    for number, data in zip(part, samples.read_ahead(part, [0]), strict=True):
        print(samples.path(number), len(data), hash(data), flush=True)
"""


def read_all(samples: Samples, seed: int) -> subprocess.Popen[Any]:
    done = subprocess.Popen(
        [sys.executable, "-c", READ_ALL, str(seed)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )
    assert done.stdin is not None
    with done.stdin as order:
        pickle.dump(samples, order)
    done.stdin = None
    return done


def test_a_block_is_read_once_for_all_processes_of_a_host(home: Path, shared: Samples) -> None:
    for number in range(len(shared)):
        assert shared.read_ahead([number]) == [ALL[shared.path(number)]]
    store, away = home / "store", home / "away"
    store.rename(away)
    try:
        readers = [read_all(shared, seed) for seed in range(2)]
        printed = [sorted(reader.communicate(timeout=PATIENCE)[0].splitlines()) for reader in readers]
    finally:
        away.rename(store)
    assert [reader.returncode for reader in readers] == [0, 0]
    assert len(printed[0]) == len(ALL)
    assert printed[0] == printed[1]


def test_an_error_of_another_process_is_of_the_nearest_class() -> None:
    error = NoAnswer("nobody answers", hint="try again")
    there = msgspec.msgpack.decode(msgspec.msgpack.encode(WindowReply.of(1, error)), type=WindowReply)
    assert there.error is not None
    found = made(*there.error)
    assert type(found) is dsv.Unreachable and (found.message, found.hint) == (error.message, error.hint)
    assert type(made("OfAnotherVersion", "it failed", None, None)) is DsvError


def test_a_window_imports_nothing_from_the_current_folder(
    shared: Samples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pickle", "selectors", "blake3"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the data')")
    monkeypatch.chdir(tmp_path)
    assert shared.read_ahead([0]) == [ALL[shared.path(0)]]


def test_a_window_that_is_too_small_for_all_reads_again(home: Path) -> None:
    samples = of(home).open("pets").samples(window=1 << 20)
    for seed in (1, 2):
        for number in random.Random(seed).sample(range(len(samples)), 60):
            assert samples.read_ahead([number], [0, 1]) == [ALL[samples.path(number)]]


def test_killed_windows_are_started_again_by_who_reads_next(shared: Samples) -> None:
    numbers = [*range(0, len(shared), 10)]
    expected = [ALL[shared.path(number)] for number in numbers]
    for _ in range(2):
        assert shared.read_ahead(numbers) == expected
        window._started[-1].send_signal(signal.SIGKILL)
        window._started[-1].wait()
    assert shared.read_ahead(numbers) == expected


def test_a_forked_process_has_a_connection_of_its_own(shared: Samples) -> None:
    numbers = [*range(0, len(shared), 10)]
    expected = [ALL[shared.path(number)] for number in numbers]
    assert shared.read_ahead(numbers) == expected
    children = []
    for _ in range(4):
        child = os.fork()
        if not child:
            same = all(shared.read_ahead(numbers) == expected for _ in range(20))
            os._exit(0 if same else 1)
        children.append(child)
    same = all(shared.read_ahead(numbers) == expected for _ in range(20))
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0, 0]
    assert same


def test_of_many_processes_that_read_at_once_one_starts_the_window(shared: Samples) -> None:
    numbers = [*range(0, len(shared), 10)]
    expected = [ALL[shared.path(number)] for number in numbers]
    (said, done), (end, keep) = os.pipe(), os.pipe()
    children, before = [], len(window._started)
    for _ in range(16):
        child = os.fork()
        if not child:
            os.close(keep)
            same = shared.read_ahead(numbers) == expected
            os.write(done, b".")
            os.read(end, 1)  # so that the window lasts until all have read
            os._exit(len(window._started) - before if same else 100)
        children.append(child)
    assert sum(len(os.read(said, 1)) for _ in children) == len(children)
    os.close(keep)
    started = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    for one in (said, done, end):
        os.close(one)
    assert sum(started) == 1


def test_samples_whose_blocks_are_here_are_not_read_by_themselves(home: Path) -> None:
    """Nor those of processes that ask when many were already."""
    samples = of(home).open("pets").samples()
    blocks, (here, there) = _Blocks(samples), socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def answer() -> WindowReply:
        found, files, _, _ = socket.recv_fds(there, PACKET, 1)
        os.close(files[0])
        return msgspec.msgpack.decode(found, type=WindowReply)

    with here, there:
        last = len(samples) - 1
        one, other = (int(samples.shape.block_of(number)) for number in (3, last))
        blocks.ask(Asked({}, [one], []), here)
        blocks._read_block(blocks._ahead.popleft())
        blocks.ask(Asked({one: 2, other: 1}, [], [7, 3, last]), here)
        assert answer().block == one
        assert [*blocks._urgent] == [([last], here)]
        blocks._read_singly([last], here)
        assert answer().alone == [last]
        blocks._urgent.clear()
        blocks._hurried = 192
        blocks.ask(Asked({other: 1}, [], [last]), here)
        assert [*blocks._urgent] == [other]
        blocks._read_block(other)
        assert answer().block == other


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
@pytest.mark.parametrize("listens", [True, False])
def test_another_user_who_has_the_address_stops_no_reading(
    shared: Samples, listens: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He may have seen it while it was in use."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))  # other tests keep their address
    ready, told = os.pipe()
    name = window.address(shared)
    pid = os.fork()
    if pid == 0:
        os.setuid(65534)
        taken = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        taken.bind(name)
        if listens:
            taken.listen(9)
        os.write(told, b"x")
        signal.pause()
    try:
        os.read(ready, 1)
        assert [len(data) for data in shared.read_ahead([0, 1])] == shared.sizes[:2].tolist()
        assert window.address(shared) != name
        assert shared._window is not None and shared._window._connection is not None
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_without_a_folder_of_ones_own_each_process_reads_alone(
    shared: Samples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    (tmp_path / "dsv-window-0").mkdir()
    os.chown(tmp_path / "dsv-window-0", 65534, 65534)
    before = len(window._started)
    assert [len(data) for data in shared.read_ahead([0, 1])] == shared.sizes[:2].tolist()
    assert len(window._started) == before


def test_blocks_are_dropped_before_the_limit_of_open_files_is_reached(shared: Samples) -> None:
    blocks = _Blocks(shared)
    blocks._most = 2
    few = range(min(4, len(shared.shape.starts) - 1))
    for block in few:
        blocks._waiting[block] = []
        blocks._read_block(block)
    assert len(blocks._held) == min(2, len(few))
    assert window.resource.getrlimit(window.resource.RLIMIT_NOFILE)[0] // 2 == _Blocks(shared)._most


def test_the_process_of_a_window_ends_when_nobody_is_connected(shared: Samples) -> None:
    before = len(window._started)  # by tests that ran in this process
    shared.read_ahead([0])
    [process] = window._started[before:]
    assert process.poll() is None
    assert shared._window is not None
    shared._window.close()
    assert process.wait(PATIENCE) == 0


def test_a_cached_commit_is_read_as_plain_files_and_else_from_the_store(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    samples = of(home).open("pets").samples()
    folder = of(home).open("pets").cache()
    (home / "store").rename(home / "away")
    numbers = [*range(0, len(samples), 7)]
    expected = [ALL[samples.path(number)] for number in numbers]
    again = pickle.loads(pickle.dumps(samples))
    close_all()
    assert again.read(numbers) == again.read_ahead(numbers) == expected
    (home / "away").rename(home / "store")
    folder.rename(home / "evicted")
    assert again.read(numbers) == expected
    assert of(home).open("pets").samples(cache=False).read(numbers) == expected


def test_a_cache_is_filled_beside_the_stream(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    samples = of(home).open("pets").samples(cache="fill")
    numbers = [*range(0, len(samples), 7)]
    expected = [ALL[samples.path(number)] for number in numbers]
    assert samples.read_ahead(numbers) == expected
    until(lambda: samples._source.cached())
    (home / "store").rename(home / "away")
    again = pickle.loads(pickle.dumps(samples))
    assert again.read(numbers) == again.read_ahead(numbers) == expected
