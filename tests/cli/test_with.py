"""dsv with, and dsv cache --while: data that is held for exactly as long as a process lives."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from dsv.cache import hold
from dsv.cache.hold import HoldRequest
from tests.kit.dsv import PROGRAM, Dsv
from tests.waiting import PATIENCE

# Says that it has begun, then writes down each signal; ends with code 9 on SIGTERM.
LISTENER = """
import os, signal, sys
out = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def heard(number, frame):
    os.write(out, signal.Signals(number).name.encode() + b"\\n")
    if number == signal.SIGTERM:
        os._exit(9)
for name in ("SIGINT", "SIGHUP", "SIGUSR1", "SIGQUIT", "SIGTERM"):
    signal.signal(getattr(signal, name), heard)
os.write(out, b"pid %d\\n" % os.getpid())
while True:
    signal.pause()
"""


def until(true: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := true()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return found


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def cached_folder(pets: Dsv) -> Path:
    return Path(pets.ok("cache", "pets@v1").lines[0])


def leases(pets: Dsv) -> list[dict[str, Any]]:
    return [lease for item in pets.ok("cached", "--json").json["items"] for lease in item["leases"]]


def keepers(parent: int) -> list[int]:
    """The keepers among a process's children."""
    found = []
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        with suppress(OSError):  # one that has ended just now
            words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            if {hold.PROGRAM.encode(), b"lease"} <= set(words):
                found.append(int(child))
    return found


@contextmanager
def listening(pets: Dsv, heard: Path, **options: Any) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A listener under `dsv with`: dsv's process, and the listener's pid."""
    words = ("with", "pets@v1", "--", sys.executable, "-c", LISTENER, str(heard))
    with pets.start(*words, **options) as process:
        try:
            pid = int(until(lambda: lines(heard), "the command to begin")[0].split()[1])
            try:
                yield process, pid
            finally:
                if process.poll() is None:
                    process.kill()
                with_it = Path(f"/proc/{pid}/cmdline")
                if with_it.exists() and str(heard).encode() in with_it.read_bytes():
                    os.kill(pid, signal.SIGKILL)
        finally:
            process.kill()


def test_the_command_gets_its_data_and_dsv_its_exit_code(pets: Dsv) -> None:
    script = 'cat "$DSV_DATA/a.txt"; echo "$DSV_DATASET $DSV_COMMIT"; ls "$DSV_DATA_ONLY_TRAIN"; cat; exit 7'
    done = subprocess.run(
        [*PROGRAM, "with", "pets@v1", "--data", "only-train=pets@v1:train", "--", "sh", "-c", script],
        cwd=pets.cwd,
        env=dict(pets.environ),
        input="from stdin\n",
        capture_output=True,
        text=True,
    )
    commit = pets.ok("resolve", "@v1").out.strip()
    assert (done.returncode, done.stdout) == (7, f"alpha\npets {commit}\ntrain\nfrom stdin\n")
    assert leases(pets) == []


def test_two_jobs_of_one_user_hold_the_same_data_while_everything_is_evicted(
    pets: Dsv, tmp_path: Path
) -> None:
    """The held data is evicted only after the last of them has ended, whatever their order."""
    script = (
        'echo begun > "$1"; while [ ! -e "$1.end" ]; do cat "$DSV_DATA/a.txt" || exit 3; sleep 0.05; done'
    )
    marks = [tmp_path / "one", tmp_path / "two"]
    jobs = [
        pets.start("with", "pets@v1", "--", "sh", "-c", script, "sh", str(mark), stdout=subprocess.DEVNULL)
        for mark in marks
    ]
    for mark in marks:
        until(mark.exists, "the job to begin")
    folder = cached_folder(pets)
    assert len(leases(pets)) == 2
    assert pets.ok("evict", "--all").out == ""
    Path(f"{marks[0]}.end").touch()
    assert jobs[0].wait(PATIENCE) == 0
    for _ in range(5):
        kept = pets.ok("evict", "--all")
        assert kept.out == "" and "in use by sh (process " in kept.err
        assert (folder / "a.txt").exists()
    assert pets("evict", "pets@v1").code == 4
    Path(f"{marks[1]}.end").touch()
    assert jobs[1].wait(PATIENCE) == 0, jobs[1].stderr
    assert pets.ok("evict", "--all").out.startswith("evicted pets@")
    for job in jobs:
        job.communicate()


def test_each_signal_is_passed_on_once(pets: Dsv, tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    sent = [signal.SIGUSR1, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM]
    with listening(pets, heard, start_new_session=True) as (process, _):
        for at, number in enumerate(sent):
            process.send_signal(number)
            until(lambda at=at: len(lines(heard)) > at + 1, f"{number} to arrive")
        assert process.wait(PATIENCE) == 9
    assert lines(heard)[1:] == [number.name for number in sent]


def test_what_ends_the_command_by_a_signal_ends_dsv_by_it(pets: Dsv) -> None:
    ended = pets.process("with", "pets@v1", "--", "sh", "-c", "kill -INT $$")
    assert ended.code == -signal.SIGINT
    assert leases(pets) == []


def test_the_terminals_interrupt_reaches_the_command_once(pets: Dsv, tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    ours, theirs = pty.openpty()
    # A session with this terminal: its whole foreground group gets Ctrl-C.
    words = ["with", "pets@v1", "--", sys.executable, "-c", LISTENER, str(heard)]
    process = subprocess.Popen(
        [sys.executable, "-c", LOGIN, *PROGRAM, *words],
        stdin=theirs,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=pets.cwd,
        env=dict(pets.environ),
    )
    try:
        until(lambda: lines(heard), "the command to begin")
        os.write(ours, b"\x03")
        until(lambda: len(lines(heard)) > 1, "Ctrl-C to arrive")
        process.send_signal(signal.SIGUSR1)
        until(lambda: len(lines(heard)) > 2, "SIGUSR1 to arrive")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 9
        assert lines(heard)[1:] == ["SIGINT", "SIGUSR1", "SIGTERM"]
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


LOGIN = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


def test_the_data_is_held_while_the_command_lives_also_when_dsv_was_killed(pets: Dsv, tmp_path: Path) -> None:
    with listening(pets, tmp_path / "heard") as (process, pid):
        process.kill()
        process.wait()
        for _ in range(3):
            assert pets.ok("evict", "--all").out == ""
        assert len(leases(pets)) == 1
        os.kill(pid, signal.SIGTERM)
        until(lambda: not leases(pets), "the hold to end with the command")
        assert pets.ok("evict", "--all").out.startswith("evicted pets@")


def test_a_lease_names_the_run_that_it_is_part_of(pets: Dsv, tmp_path: Path) -> None:
    """As on a node of a cluster."""
    inside = pets.at(pets.cwd, DSV_RUN="20261120-132145-1f2e3d4c", SLURM_JOB_ID="7")
    with listening(inside, tmp_path / "heard"):
        (lease,) = leases(pets)
        assert (lease["run"], lease["job"]) == ("20261120-132145-1f2e3d4c", "7")
        assert "run 20261120-132145-1f2e3d4c by " in pets.ok("cached").out
        assert "in use by run 20261120-132145-1f2e3d4c" in pets.ok("evict", "--all", "--json").out


def test_a_keeper_that_is_killed_is_started_again(pets: Dsv, tmp_path: Path) -> None:
    with listening(pets, tmp_path / "heard") as (process, pid):
        (keeper,) = keepers(process.pid)
        first = {lease["id"] for lease in leases(pets)}
        os.kill(keeper, signal.SIGKILL)
        until(lambda: {lease["id"] for lease in leases(pets)} - first, "another keeper's lease")
        assert pets.ok("evict", "--all").out == ""
        assert len(keepers(process.pid)) == 1
        until(lambda: len(leases(pets)) == 1, "the lease of the first to be ended")
        os.kill(pid, signal.SIGTERM)
        assert process.wait(PATIENCE) == 9
    assert leases(pets) == []


def test_a_command_whose_data_is_lost_is_ended(tmp_path: Path) -> None:
    """The test speaks for the keeper."""
    heard = tmp_path / "heard"
    commands, answers = os.pipe(), os.pipe()
    order = HoldRequest(str(tmp_path), (), os.getpid(), 0, "python")
    line = [str(os.getpid()), str(commands[1]), str(answers[0]), order.encode()]
    process = subprocess.Popen(
        [sys.executable, "-m", hold.PROGRAM, "exec", *line, sys.executable, "-c", LISTENER, str(heard)],
        pass_fds=(commands[1], answers[0]),
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: lines(heard), "the command to begin")
    said = b""
    while b"\n" not in said:
        said += os.read(commands[0], 100)
    assert said.decode().split() == ["watch", lines(heard)[0].split()[1]]
    os.write(answers[1], b"lost pets was evicted\n")
    os.close(answers[1])
    _, told = process.communicate(timeout=PATIENCE)
    assert process.returncode == 125
    assert told == "error: the data is no longer held, so the command was stopped: pets was evicted\n"
    assert lines(heard)[1:] == ["SIGTERM"]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("pets@nosuch", "--", "true"), 125, "no branch or tag nosuch"),
        (("nosuch@v1", "--", "true"), 125, "nosuch"),
        (("pets@v1", "--", "nosuch-command"), 127, "command not found: nosuch-command"),
        (("pets@v1", "--", "/nosuch/command"), 127, "command not found"),
        (("pets@v1", "--", "./a.txt"), 126, "./a.txt can't be run: Permission denied"),
        (("pets@v1", "--"), 2, "no command given"),
        (("pets@v1",), 2, "no command given"),
        ((" ", "--", "true"), 2, "is a variable unset?"),
        (("pets@v1", "--json", "--", "true"), 2, "the command writes to stdout"),
        (("pets@v1", "--data", "x", "--", "true"), 2, "NAME=TARGET"),
        (("pets@v1", "--data", "a.b=pets", "--data", "a-b=pets", "--", "true"), 2, "variable DSV_DATA_A_B"),
    ],
)
def test_what_keeps_the_command_from_being_started(
    pets: Dsv, words: tuple[str, ...], code: int, told: str
) -> None:
    result = pets.process("with", *words)
    assert result.code == code
    assert told in result.err + result.out and "Traceback" not in result.err
    assert leases(pets) == []


def test_data_is_held_while_a_process_lives(pets: Dsv) -> None:
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        # communicate() also shows that the process that keeps holding it keeps no pipe of its caller open
        held = pets.process("cache", "pets@v1", "--while", str(sleeper.pid), "--json")
        assert held.json["items"][0]["hold"] is None
        (lease,) = leases(pets)
        assert (lease["process"], lease["program"]) == (sleeper.pid, "sleep")
        refused = pets("release", "--id", lease["id"])
        assert refused.code == 4 and f"in use by sleep (process {sleeper.pid})" in refused.err
        assert pets("release", "pets@v1").code == 3
        for _ in range(3):
            assert pets.ok("evict", "--all").out == ""
        sleeper.kill()  # not reaped before the end of this block: it has ended all the same
        until(lambda: not leases(pets), "the hold to end")
    assert pets.ok("evict", "--all").out.startswith("evicted pets@")


def test_while_wants_a_process_that_is_there(pets: Dsv) -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    result = pets("cache", "pets@v1", "--while", str(ended.pid))
    assert result.code == 3 and f"there is no process {ended.pid} here" in result.err
    assert pets("cache", "pets@v1", "--while", "0").code == 2
    assert pets("cache", "pets@v1", "--while", str(os.getpid()), "--hold", "1d").code == 2


def test_what_it_took_is_written_to_a_file(pets: Dsv, tmp_path: Path) -> None:
    said = tmp_path / "said"
    pets.process("with", "pets@v1", "--json-file", str(said), "--", "true")
    (item,) = json.loads(said.read_text())["items"]
    assert (item["dataset"], item["hit"]) == ("pets", False) and item["fetched_bytes"] > 0
    done = pets.process("with", "pets@v1", "--json-file", "/proc/none", "--", "sh", "-c", "exit 3")
    assert done.code == 3 and "/proc/none can't be written" in done.err
