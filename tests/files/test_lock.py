from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsv.errors import Conflict
from dsv.files import lock as lock_module
from dsv.files.attributes import server_time
from dsv.files.lock import Lock, LockHeld, LockOwner
from dsv.files.process import Fate
from dsv.files.small_files import read_file

HOLDER = """
import sys, time
from pathlib import Path
from dsv.files.lock import Lock
taken = Lock.take(Path(sys.argv[1]), "dsv sync")
print(type(taken).__name__, flush=True)
if isinstance(taken, Lock):
    time.sleep(float(sys.argv[2]))
    taken.release()
"""


def holder(folder: Path, seconds: float = 600) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder), str(seconds)], stdout=subprocess.PIPE, text=True
    )


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def test_the_second_taker_learns_who_holds_the_lock(folder: Path) -> None:
    first = Lock.take(folder, "dsv sync")
    assert isinstance(first, Lock)
    second = Lock.take(folder, "dsv sync")
    assert isinstance(second, LockHeld)
    assert f"process {os.getpid()}" in second.refusal(folder).message
    first.release()
    third = Lock.take(folder, "dsv sync")
    assert isinstance(third, Lock)
    third.release()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_holder_delays_nobody_on_its_host_even_as_a_zombie(
    folder: Path, how: signal.Signals
) -> None:
    process = holder(folder)
    assert said(process) == "Lock"
    assert isinstance(Lock.take(folder, "dsv sync"), LockHeld)
    process.send_signal(how)
    while (taken := Lock.take(folder, "dsv sync")) and isinstance(
        taken, LockHeld
    ):  # not reaped: it is a zombie
        time.sleep(0.01)
    assert isinstance(taken, Lock)
    taken.check()
    taken.release()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_of_many_racers_one_wins_each_time(folder: Path) -> None:
    for _ in range(3):
        racers = [holder(folder, 600) for _ in range(6)]  # who wins holds it until the last has asked
        answers = [said(process) for process in racers]
        for process in racers:
            process.kill()
            process.communicate()
        assert sorted(answers) == ["Lock"] + ["LockHeld"] * 5, answers


def elsewhere(folder: Path, age: float, *, alive: float | None = None) -> Path:
    """A holder under another kernel that took the lock `age` seconds ago, and last said that it lives `alive` ago."""
    folder.mkdir(exist_ok=True)
    now = server_time(folder)
    record = folder / "00000007"
    owner = LockOwner("id", "another-boot:1:1", os.getpid(), 1, "gpu7", "dsv sync", now - age)
    record.write_bytes(owner.encode())
    if alive is not None:
        (folder / "00000007.alive").write_bytes(str(now - alive).encode())
    return record


def test_a_holder_on_another_host_is_judged_by_what_it_says(folder: Path) -> None:
    elsewhere(folder, 1)
    taken = Lock.take(folder, "dsv sync")
    assert isinstance(taken, LockHeld) and taken.owner is not None and taken.owner.host == "gpu7"
    elsewhere(folder, 3600, alive=1)
    assert isinstance(Lock.take(folder, "dsv sync"), LockHeld)
    elsewhere(folder, 3600, alive=61)
    taken = Lock.take(folder, "dsv sync")
    assert isinstance(taken, Lock)
    taken.release()
    assert sorted(path.name for path in folder.iterdir()) == ["00000008", "00000008.free"]


def test_the_times_that_a_client_gives_its_files_do_not_count(folder: Path) -> None:
    """An NFS client that was delegated a file dates it by its own clock, which may be an hour slow or fast."""
    for path in (elsewhere(folder, 30), elsewhere(folder, 3600, alive=30)):
        for file in (path, folder / "00000007.alive"):
            if file.exists():
                os.utime(file, (time.time() - 3600,) * 2)
        assert isinstance(Lock.take(folder, "dsv sync"), LockHeld)
    for file in folder.iterdir():
        file.unlink()
    path = elsewhere(folder, 61)
    os.utime(path, (time.time() + 3600,) * 2)
    taken = Lock.take(folder, "dsv sync")
    assert isinstance(taken, Lock)
    taken.release()


def test_a_torn_record_counts_as_somebody_elsewhere(folder: Path) -> None:
    record = elsewhere(folder, 0)
    record.write_bytes(record.read_bytes()[:10])
    assert isinstance(Lock.take(folder, "dsv sync"), LockHeld)
    os.utime(record, (time.time() - 61,) * 2)  # there is nothing else to judge it by
    taken = Lock.take(folder, "dsv sync")
    assert isinstance(taken, Lock)
    taken.release()


def test_who_was_taken_over_finds_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Lock.take(folder, "dsv sync")
    assert isinstance(slow, Lock)
    slow.check()
    monkeypatch.setattr(
        LockOwner, "fate", lambda self: Fate.DEAD
    )  # as another host would see it after a minute
    other = Lock.take(folder, "dsv sync")
    assert isinstance(other, Lock)
    with pytest.raises(Conflict, match="took over"):
        slow.check()
    other.check()
    slow.release()  # gives back its own number only
    other.check()
    monkeypatch.undo()
    assert isinstance(Lock.take(folder, "dsv sync"), LockHeld)
    other.release()


def test_a_holder_keeps_showing_that_it_lives(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "HEARTBEAT_EVERY", 0.02)
    held = Lock.take(folder, "dsv sync")
    assert isinstance(held, Lock)
    alive = folder / "00000001.alive"
    said = set[bytes]()
    while len(said) < 3:
        if alive.exists():
            said.add(read_file(alive))
        time.sleep(0.01)
    assert sorted(map(float, said))[0] >= held_since(folder)
    held.release()


def held_since(folder: Path) -> float:
    owner = LockOwner.decode((folder / "00000001").read_bytes())
    assert owner is not None and owner.taken
    return owner.taken


def test_an_old_listing_does_not_win(folder: Path) -> None:
    """Somebody who saw number 1 free, and comes late, makes number 2 after 3 was taken and 2 was swept away."""
    for _ in range(3):
        taken = Lock.take(folder, "dsv sync")
        assert isinstance(taken, Lock)
        taken.release()
    holding = Lock.take(folder, "dsv sync")
    assert isinstance(holding, Lock)
    (folder / "00000002").write_bytes(LockOwner.here("dsv sync").encode())
    holding.check()
    assert isinstance(Lock.take(folder, "dsv sync"), LockHeld)
    holding.release()


def test_an_owner_is_read_as_it_was_written() -> None:
    me = LockOwner.here("x", 7.5)
    assert me.fate() is Fate.ALIVE
    assert LockOwner(me.id, me.system, me.pid, me.started + 1, "", "").fate() is Fate.DEAD
    assert LockOwner.decode(me.encode()) == me
    assert LockOwner.decode(b'{"id":"","system":"","pid":1,"started":2,"host":"","action":""}') == LockOwner(
        "", "", 1, 2, "", ""
    )
    assert LockOwner.decode(b"{") is None
