"""`dsv node --left`: a run whose job is over has its record completed from what that left."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsv.engines.slurm.script import comment
from dsv.model.ids import CommitId
from dsv.model.names import DatasetName
from dsv.model.node_order import NodeOrder, OrderedData
from dsv.model.run import LOG, RECORD, JobRef, LogInfo, RunId, RunRecord, RunState
from dsv.model.run_end import EndCause
from dsv.repo.runs import RunStore
from dsv.store.directory import DirectoryStore
from tests.cli.runner import PROGRAM, Dsv, write_files
from tests.killing import run_killed

RUN = RunId.parse("20261120-132145-1f2e3d4c")
PETS = DatasetName.parse("pets")
TYPED = ("train", "--token", "hunter2hunter2")


class Left:
    """A store with the start of a run, and the folder that its job left on Slurm."""

    def __init__(self, dsv: Dsv) -> None:
        write_files(dsv.cwd, {"a.bin": b"a"})
        dsv.ok("init", "pets")
        dsv.ok("sync")
        self.dsv = dsv.at(dsv.cwd, DSV_JOB_KEY="secret-of-the-job")
        self.store = Path(dsv.ok("config", "store").out.strip())
        self.commit = CommitId.parse(dsv.ok("resolve", "pets").out.strip())
        self.folder, self.out = dsv.home / "x.job", dsv.home / "out"
        write_files(self.out, {"model.bin": b"weights", "metrics.json": b'{"acc": 0.9}'})
        write_files(
            self.folder,
            {
                "job.sh": f"# {comment(RUN, self.folder)}\n#SBATCH --nodes=1\n".encode(),
                "node.1.0": b"n1 10 3 12\n",
                "end": b"3 1\n",
                "out.0": b"token hunter2hunter2, key secret-of-the-job\n",
                "argv": "".join(f"{each}\0" for each in TYPED).encode(),
            },
        )
        data = OrderedData(dataset="pets", commit=str(self.commit))
        order = NodeOrder(run=RUN, data=(data,), out=str(self.out), keep_output=True)
        (dsv.home / "order.json").write_bytes(order.encode())

    @property
    def runs(self) -> RunStore:
        return RunStore(DirectoryStore(self.store))

    def begin(self, **more: Any) -> None:
        start = RunRecord(
            run=RUN, dataset=PETS, commit=self.commit, target="pets", data=(), state=RunState.QUEUED, params={},
            engine="slurm", job=JobRef("slurm", RUN, "c", f"7:{self.folder}"), out=str(self.out), host="login",
            user="ada", started_ms=1, log=LogInfo(0, 0), env=("KEY",), command=("train", "--token", "***"),
        )  # fmt: skip
        start = replace(start, **more)
        self.runs.write(PETS, RUN, "start", start.encode())

    def complete(self) -> str:
        return self.dsv.ok("node", str(self.dsv.home / "order.json"), "--left", str(self.folder)).err

    def record(self) -> RunRecord:
        return self.runs.read(self.runs.listing(PETS, RUN)[0])

    def log(self) -> bytes | None:
        return self.runs.log(self.runs.listing(PETS, RUN)[0])


@pytest.fixture
def left(dsv: Dsv) -> Left:
    return Left(dsv)


def check(left: Left) -> None:
    whole = left.record()
    assert (whole.state, whole.exit_code, whole.end) == (RunState.ENDED, 3, EndCause.EXITED)
    assert whole.metrics == {"acc": 0.9} and whole.output is not None and whole.output.tree is not None
    assert left.log() == b"token ***, key ***\n" and len(whole.parts) == 1
    assert left.dsv.ok("cat", f"pets@{whole.output.tree}:model.bin").out == "weights"


def test_the_record_has_all_that_the_job_left(left: Left) -> None:
    """Without the secrets that only the node knows."""
    left.begin()
    left.complete()
    check(left)
    assert "left to others" in left.complete(), "again it does nothing"


def test_killed_at_any_step_it_is_completed_by_the_next(left: Left) -> None:
    left.begin()
    before = left.store.with_name("before")
    shutil.copytree(left.store, before)
    steps = run_killed(left.complete, None, inside=left.store)
    assert steps > 5
    for step in range(1, steps + 1):
        shutil.rmtree(left.store)
        shutil.copytree(before, left.store)
        run_killed(left.complete, step, inside=left.store)
        left.complete()
        check(left)


def test_of_several_who_complete_it_one_wins(left: Left) -> None:
    left.begin()
    argv = ("node", str(left.dsv.home / "order.json"), "--left", str(left.folder))
    racing = [left.dsv.start(*argv) for _ in range(3)]
    for each in racing:
        each.communicate()
    assert [each.returncode for each in racing] == [0, 0, 0]
    check(left)


def test_a_log_is_not_kept_if_a_value_is_not_known_on_the_node(left: Left) -> None:
    left.begin(env=("KEY", "OTHER"))
    left.complete()
    log = left.log()
    assert log is not None and b"it may show values of OTHER, which only login knows" in log


@pytest.mark.parametrize(
    "case", ["no start", "not over", "has its record", "goes on to another pool", "no job"]
)
def test_what_is_not_to_be_told_here_is_left_to_others(left: Left, case: str) -> None:
    if case == "no start":
        pass
    elif case == "goes on to another pool":
        (left.folder / "node.1.0").unlink()
        left.begin(then=("cloud",))
    else:
        left.begin(**({"job": None} if case == "no job" else {}))
    if case == "not over":
        (left.folder / "end").unlink()
    if case == "has its record":
        left.runs.write(PETS, RUN, RECORD, replace(left.record(), state=RunState.ENDED, exit_code=9).encode())
    assert "left to others" in left.complete()
    parts = {part for each in left.runs.listing(PETS, RUN) for part in each.parts}
    assert LOG not in parts and (case == "has its record") is (RECORD in parts)


def test_words_after_left_are_refused(left: Left) -> None:
    order = str(left.dsv.home / "order.json")
    refused = left.dsv("node", order, "--left", str(left.folder), "--", "true")
    assert refused.code == 2 and "--left runs no command" in refused.err


def test_an_order_may_come_from_stdin(left: Left) -> None:
    left.begin()
    argv = ("bash", "-c", f'"$@" <{left.dsv.home / "order.json"}', "bash")
    subprocess.run(
        [*argv, *PROGRAM, "node", "-", "--left", str(left.folder)],
        env=dict(left.dsv.environ), cwd=left.dsv.cwd, check=True,
    )  # fmt: skip
    check(left)
