"""Which process begins the runs of a sweep."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Event, Thread, local

import msgspec
import pytest

from dsv.errors import Conflict
from dsv.fs.process import Process
from dsv.run import sweep as progress
from dsv.run.active_runs import this_machine
from dsv.run.parameters import SweepId
from dsv.run.sweep import Owner, driving, sweep_folder
from tests.waiting import PATIENCE

SWEEP = SweepId.parse("sweep-20261120-132145-1f2e3d4c")


def test_of_two_that_find_the_mark_of_a_killed_process_one_begins_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, here = sweep_folder(tmp_path, SWEEP), Process.here()
    folder.mkdir(parents=True)
    dead = Owner(msgspec.structs.replace(here, start=here.start + 1), this_machine())
    (folder / "driver").write_bytes(msgspec.json.encode(dead))
    both, first, over, look, own = Barrier(2), Event(), Event(), progress.driver, local()
    entered: list[str] = []
    refused: list[str] = []

    def looking(state: Path, sweep: SweepId) -> Owner | None:
        """Both look before either acts, if they can; then the second acts once the first has."""
        found = look(state, sweep)
        if found is None:
            with suppress(BrokenBarrierError):
                both.wait(1)
                if own.name == "second":
                    first.wait(PATIENCE)
        return found

    def come(where: list[str], name: str) -> None:
        where.append(name)
        first.set()
        if len(entered) + len(refused) == 2:
            over.set()

    def drive(name: str) -> None:
        own.name = name
        try:
            with driving(tmp_path, SWEEP):
                come(entered, name)
                over.wait(PATIENCE)
        except Conflict:
            come(refused, name)

    monkeypatch.setattr(progress, "driver", looking)
    threads = [Thread(target=drive, args=(name,)) for name in ("first", "second")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert (len(entered), len(refused)) == (1, 1)
