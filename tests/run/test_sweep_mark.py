"""The mark by which other commands of this machine find the process that begins the runs of a sweep."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dsv.errors import Conflict
from dsv.files.process import Process
from dsv.run.active_runs import this_machine
from dsv.run.parameters import SweepId
from dsv.run.sweep import RunOwner, being_started, driver, driving, sweep_folder

SWEEP = SweepId.parse("sweep-20261120-132145-1f2e3d4c")


def test_the_mark_of_a_killed_process_is_replaced_and_that_of_a_living_one_refuses_others(
    tmp_path: Path,
) -> None:
    folder, here = sweep_folder(tmp_path, SWEEP), Process.here()
    folder.mkdir(parents=True)
    dead = RunOwner(msgspec.structs.replace(here, start=here.start + 1), this_machine())
    (folder / "driver").write_bytes(msgspec.json.encode(dead))
    assert driver(tmp_path, SWEEP) is None
    with driving(tmp_path, SWEEP):
        assert being_started(tmp_path, SWEEP.short) == (SWEEP, RunOwner.here())
        with pytest.raises(Conflict, match="another dsv here"), driving(tmp_path, SWEEP):
            pass
        assert driver(tmp_path, SWEEP) == RunOwner.here()
    assert driver(tmp_path, SWEEP) is None and not (folder / "driver").exists()
