"""What a process reports while it waits for others to fill a commit."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.cache.places import make_root

from dsv.cache.claims import LeaseOwner
from dsv.cache.fill.directory import FillDirectory
from dsv.cache.fill.parts import FillPart, FillPlan
from dsv.cache.fill.workers import Heartbeat, Reporter, Worker
from dsv.cache.root import CachePlace
from dsv.files import system
from dsv.values.progress import NoProgress


@dataclass
class Notes(NoProgress):
    notes: list[str] = field(default_factory=list)

    def note(self, message: str) -> None:
        self.notes.append(message)


def other(last_beat: float) -> Worker:
    return Worker(owner=LeaseOwner(id="0" * 32, host="gpu7", user="ann"), last_beat=last_beat)


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Notes:
    monkeypatch.setattr("dsv.cache.fill.workers._NOTE_EVERY", -1.0)
    return Notes()


@pytest.fixture
def reporter(tmp_path: Path, notes: Notes) -> Reporter:
    root = make_root(tmp_path / "cache")
    plan = FillPlan(
        1, "f" * 32, "00" * 16, "a" * 64, [], 2, 10, 2, 4096, 2, [FillPart(0, 0, 0, 1, 1, 5)] * 2, [], False
    )
    directory = FillDirectory(root, CachePlace("xrays", "a" * 64), "f" * 32, root.temporary.path, plan)
    return Reporter(notes, directory, Heartbeat(root, system.kind_of(root.path)))


def test_a_waiting_process_names_who_is_at_work_and_when_it_takes_over(
    reporter: Reporter, notes: Notes
) -> None:
    reporter.wait({"0": other(last_beat=80.0)}, 1, 100.0)
    (note,) = notes.notes
    assert note.startswith("waiting for ann@gpu7 to cache xrays@")
    assert "1 of 2 parts, last seen 20 s ago; after 40 s of silence this host takes over" in note
