"""Runs that continue without the terminal that started them: how a test makes one, and finds out about it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dsv.files.process import Watched
from dsv.run.active_runs import under_way
from tests.kit.dsv import Dsv
from tests.waiting import until


@pytest.fixture
def here(pets: Dsv) -> Iterator[Dsv]:
    """Outside of the workspace, so that a job may write to its working directory. A test that fails leaves no run."""
    folder = pets.home / "elsewhere"
    folder.mkdir()
    yield pets.at(folder)
    for one in under_way(pets.home / ".local/state/dsv"):
        if one.owner.is_here and not one.owner.is_dead:
            one.ask_to_stop(0)
            one.wait_for_end()


def detach(dsv: Dsv, script: str, *options: str) -> str:
    started = dsv.process("run", "--detach", "pets@v1", *options, "--", "sh", "-c", script)
    assert started.code == 0, started
    return started.out.strip()


def await_file(dsv: Dsv, name: str) -> None:
    until((dsv.cwd / name).exists, f"the file {name} of the job")


def await_log(dsv: Dsv, run: str, lines: set[str]) -> None:
    """Until a job's output has come to the file that is read here."""
    until(lambda: set(dsv.ok("logs", run).lines) == lines, "the job's output")


def mark(dsv: Dsv, run: str) -> Any:
    return json.loads((dsv.home / ".local/state/dsv/running" / run).read_text())


def shown(dsv: Dsv, run: str) -> Any:
    (item,) = dsv.ok("runs", run, "--json").json["items"]
    return item


def kill_with_reaper(dsv: Dsv, run: str) -> None:
    """The run's supervisor, and first what would end the job then."""
    pid = mark(dsv, run)["process"][1]
    for reaper in reapers_of(pid):
        os.kill(reaper, signal.SIGKILL)
    supervisor = Watched(pid)
    os.kill(pid, signal.SIGKILL)
    until(supervisor.has_ended, "the end of the supervisor")
    supervisor.close()


def reapers_of(pid: int) -> list[int]:
    found = []
    for child in children(pid):
        with suppress(OSError):  # a program of the engine's that has ended just now
            if b"reaper.py\0reap" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


def children(pid: int) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append(int(folder.name))
    return found
