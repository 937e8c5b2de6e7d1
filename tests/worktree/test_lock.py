from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsv.errors import Conflict
from dsv.fs import lock as lock_module
from dsv.fs.lock import Held, Lock
from dsv.fs.process import Fate, Owner

HOLDER = """
import sys, time
from pathlib import Path
from dsv.fs.lock import Lock
taken = Lock.take(Path(sys.argv[1]), "dsv sync")
print(type(taken).__name__, flush=True)
if isinstance(taken, Lock):
    time.sleep(float(sys.argv[2]))
    taken.release()
"""


def holder(folder: Path, seconds: float = 60) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder), str(seconds)], stdout=subprocess.PIPE, text=True
    )


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def test_the_second_is_told_who_holds_it(folder: Path) -> None:
    first = Lock.take(folder, "dsv sync")
    assert isinstance(first, Lock)
    second = Lock.take(folder, "dsv sync")
    assert isinstance(second, Held)
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
    assert isinstance(Lock.take(folder, "dsv sync"), Held)
    process.send_signal(how)
    deadline = time.monotonic() + 10
    while (taken := Lock.take(folder, "dsv sync")) and isinstance(taken, Held):  # not reaped: it is a zombie
        assert time.monotonic() < deadline
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
        assert sorted(answers) == ["Held"] * 5 + ["Lock"], answers


def elsewhere(folder: Path, age: float) -> Path:
    """A holder under another kernel, who was last heard of `age` seconds ago."""
    folder.mkdir(exist_ok=True)
    record = folder / "00000007"
    record.write_bytes(Owner("id", "another-boot:1:1", os.getpid(), 1, "gpu7", "dsv sync").encode())
    then = time.time() - age
    os.utime(record, (then, then))
    return record


def test_a_holder_on_another_host_is_judged_by_its_beats(folder: Path) -> None:
    elsewhere(folder, 30)
    taken = Lock.take(folder, "dsv sync")
    assert isinstance(taken, Held) and taken.owner is not None and taken.owner.host == "gpu7"
    elsewhere(folder, 61)
    taken = Lock.take(folder, "dsv sync")
    assert isinstance(taken, Lock)
    taken.release()


def test_a_torn_record_counts_as_somebody_elsewhere(folder: Path) -> None:
    record = elsewhere(folder, 30)
    then = record.stat().st_mtime
    record.write_bytes(record.read_bytes()[:10])
    os.utime(record, (then, then))
    assert isinstance(Lock.take(folder, "dsv sync"), Held)


def test_who_was_taken_over_finds_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Lock.take(folder, "dsv sync")
    assert isinstance(slow, Lock)
    slow.check()
    monkeypatch.setattr(Owner, "fate", lambda self: Fate.DEAD)  # as another host would see it after a minute
    other = Lock.take(folder, "dsv sync")
    assert isinstance(other, Lock)
    with pytest.raises(Conflict, match="took over"):
        slow.check()
    other.check()
    slow.release()  # gives back its own number only
    other.check()
    monkeypatch.undo()
    assert isinstance(Lock.take(folder, "dsv sync"), Held)
    other.release()


def test_beats_reach_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "BEAT_EVERY", 0.02)
    held = Lock.take(folder, "dsv sync")
    assert isinstance(held, Lock)
    (record,) = [path for path in folder.iterdir() if path.name.isdecimal()]
    os.utime(record, (1, 1))
    deadline = time.monotonic() + 10
    while record.stat().st_mtime < 1000:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    held.release()


def test_an_old_listing_does_not_win(folder: Path) -> None:
    """Somebody who saw number 1 free, and comes late, makes number 2 after 3 was taken and 2 was swept away."""
    for _ in range(3):
        taken = Lock.take(folder, "dsv sync")
        assert isinstance(taken, Lock)
        taken.release()
    holding = Lock.take(folder, "dsv sync")
    assert isinstance(holding, Lock)
    (folder / "00000002").write_bytes(Owner.here("dsv sync").encode())
    holding.check()
    assert isinstance(Lock.take(folder, "dsv sync"), Held)
    holding.release()


def test_the_fate_of_this_process_and_of_a_reused_pid() -> None:
    me = Owner.here("x")
    assert me.fate() is Fate.ALIVE
    assert Owner(me.id, me.system, me.pid, me.started + 1, "", "").fate() is Fate.DEAD
    assert Owner(me.id, "other", me.pid, me.started, "", "").fate() is Fate.UNKNOWN
    assert Owner.decode(me.encode()) == me
    assert Owner.decode(b"{") is None
