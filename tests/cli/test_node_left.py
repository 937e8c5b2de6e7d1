"""`dsv node --left`: a run whose job is over has its record completed from what that left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsv.run.engines.slurm.script import comment
from dsv.run.node_order import NodeOrder
from dsv.run.part import REPORT, EndCause
from dsv.run.record import (
    LOG,
    RECORD,
    IntoBranch,
    JobRef,
    JobUsage,
    LogInfo,
    RunId,
    RunOutput,
    RunRecord,
    RunState,
)
from dsv.run.record_store import RunStore
from dsv.stores.directory import DirectoryStore
from dsv.values.ids import CommitId
from dsv.values.names import MAIN, DatasetName
from tests.exhaustive import some
from tests.killing import run_killed
from tests.kit.dsv import PROGRAM, Dsv, write_files

RUN = RunId.parse("20261120-132145-1f2e3d4c")
PETS = DatasetName.parse("pets")
WROTE = b"token hunter2hunter2, key secret-of-the-job\n"
TYPED = ("train", "--token", "hunter2hunter2")


class Left:
    """A store with the start of a run, and the folder that its job left on Slurm, or in a pod on Kubernetes."""

    def __init__(self, dsv: Dsv, engine: str) -> None:
        self.engine = engine
        write_files(dsv.cwd, {"a.bin": b"a"})
        dsv.ok("init", "pets")
        dsv.ok("sync")
        self.dsv = dsv.at(dsv.cwd, DSV_JOB_KEY="secret-of-the-job")
        self.store = Path(dsv.ok("config", "store").out.strip())
        self.commit = CommitId.parse(dsv.ok("resolve", "pets").out.strip())
        self.folder, self.out = dsv.home / "x.job", dsv.home / "out"
        write_files(self.out, {"model.bin": b"weights", "metrics.json": b'{"acc": 0.9}'})
        on_slurm = engine == "slurm"
        write_files(
            self.folder,
            {
                "ended": b"code=3 why= begun=10 over=12 memory=7 cpu=5000000000 whole=yes\n",
                "log.0": WROTE,
                "argv": "".join(f"{each}\0" for each in TYPED).encode(),
            }
            if not on_slurm
            else {
                "job.sh": f"# {comment(RUN, self.folder)}\n#SBATCH --nodes=1\n".encode(),
                "node.1.0": b"n1 10 3 12\n",
                "end": b"3 1\n",
                "out.0": WROTE,
                "argv": "".join(f"{each}\0" for each in TYPED).encode(),
            },
        )
        order = NodeOrder(run=RUN, dataset=PETS, out=str(self.out), keep_output=True)
        (dsv.home / "order.json").write_bytes(order.encode())

    @property
    def runs(self) -> RunStore:
        return RunStore(DirectoryStore(self.store))

    def begin(self, **more: Any) -> None:
        start = RunRecord(
            run=RUN, dataset=PETS, commit=self.commit, target="pets", data=(), state=RunState.QUEUED, params={},
            engine=self.engine, job=JobRef(self.engine, RUN, "c", f"7:{self.folder}"), out=str(self.out), host="login",
            user="ada", started_ms=1, log=LogInfo(0, 0), env=("KEY",), command=("train", "--token", "***"),
        )  # fmt: skip
        start = replace(start, **more)
        self.runs.write(PETS, RUN, "start", start.encode())

    def killed_at_each_step(self) -> Iterator[None]:
        """Yield after each kill of `complete`, which begins with the same store each time."""
        before = self.store.with_name("before")
        shutil.copytree(self.store, before)
        steps = run_killed(self.complete, None, inside=self.store)
        for step in some(range(1, steps + 1)):
            shutil.rmtree(self.store)
            shutil.copytree(before, self.store)
            run_killed(self.complete, step, inside=self.store)
            yield

    def complete(self) -> str:
        return self.dsv.ok("node", str(self.dsv.home / "order.json"), "--left", str(self.folder)).err

    def record(self) -> RunRecord:
        return self.runs.read(self.runs.listing(PETS, RUN)[0])

    def log(self) -> bytes | None:
        return self.runs.log(self.runs.listing(PETS, RUN)[0])


@pytest.fixture
def left(dsv: Dsv) -> Left:
    return Left(dsv, "slurm")


@pytest.fixture(params=["slurm", "kubernetes"])
def either(dsv: Dsv, request: pytest.FixtureRequest) -> Left:
    return Left(dsv, request.param)


def check(left: Left) -> None:
    whole = left.record()
    assert (whole.state, whole.exit_code, whole.end) == (RunState.ENDED, 3, EndCause.EXITED)
    assert whole.metrics == {"acc": 0.9} and whole.output is not None and whole.output.tree is not None
    assert left.log() == b"token ***, key ***\n" and len(whole.parts) == 1
    assert left.dsv.ok("cat", f"pets@{whole.output.tree}:model.bin").out == "weights"


def test_the_record_has_all_that_the_job_left(either: Left) -> None:
    """Without the secrets that only the node knows."""
    either.begin()
    either.complete()
    check(either)
    assert "left to others" in either.complete(), "again it does nothing"


def test_a_secret_parameter_is_not_in_the_committed_output(either: Left) -> None:
    given = '{"token": "swordfish-and-more"}'
    (either.out / "params.json").write_text(f"{given}\n")
    either.dsv = either.dsv.at(either.dsv.cwd, DSV_JOB_DSV_PARAMS=given)
    either.begin(params={"token": "***"})
    either.complete()
    check(either)
    output = either.record().output
    assert output is not None
    assert either.dsv.ok("cat", f"pets@{output.tree}:params.json").json == {"token": "***"}


def test_the_record_says_how_long_the_node_took_to_get_the_data(either: Left) -> None:
    """As `dsv with` reports it there."""
    either.begin()
    staged = either.folder / ("stage.1.0" if either.engine == "slurm" else "staged.json")
    command = ("with", "pets", "--", "sh", "-c", f"echo said ${REPORT}")
    done = either.dsv.at(either.dsv.cwd, **{REPORT: str(staged)}).process(*command)
    assert done.out == "said\n", "the command does not get the variable"
    said = json.loads(staged.read_text())
    assert (said["cache_hit"], said["stage_bytes"]) == (False, 1)
    staged.write_text(json.dumps({**said, "stage_seconds": 3.75, "of a newer dsv": 1}))
    either.complete()
    whole = either.record()
    assert [part.stage_seconds for part in whole.parts] == [3.75] and whole.stage_seconds == 3.75


def test_killed_at_any_step_it_is_completed_by_the_next(either: Left) -> None:
    either.begin()
    before = either.store.with_name("before")
    shutil.copytree(either.store, before)
    steps = run_killed(either.complete, None, inside=either.store)
    assert steps > 5
    for step in some(range(1, steps + 1)):
        shutil.rmtree(either.store)
        shutil.copytree(before, either.store)
        run_killed(either.complete, step, inside=either.store)
        either.complete()
        check(either)


def begin_into(left: Left, exit_code: int = 0) -> None:
    """Begin a run whose output is for the branch main of models."""
    left.begin(output=RunOutput(into=IntoBranch(DatasetName.parse("models"), MAIN)))
    for name in ("ended", "node.1.0", "end"):
        if (path := left.folder / name).exists():
            changed = (
                path.read_text()
                .replace("code=3", f"code={exit_code}")
                .replace("10 3 12", f"10 {exit_code} 12")
            )
            path.write_text(changed.replace("3 1", f"{exit_code} 1") if name == "end" else changed)


def test_a_node_moves_the_branch_for_the_output(either: Left) -> None:
    begin_into(either)
    (either.out / "params.json").write_text("{}\n")
    assert "is complete" in either.complete()
    output = either.record().output
    assert (
        output is not None and output.into is not None and (output.error, output.into.error) == (None, None)
    )
    assert output.into.root == output.root and output.into.new
    assert either.dsv.ok("ls", f"models@{output.into.commit}").lines == ["metrics.json", "model.bin"]
    assert either.dsv.ok("resolve", "models").out.strip() == str(output.into.commit)


def test_a_node_leaves_the_branch_of_a_job_that_failed(either: Left) -> None:
    begin_into(either, 3)
    assert "is complete" in either.complete()
    output = either.record().output
    assert output is not None and output.into is not None and output.into.error == "the exit code was 3"
    assert output.tree is not None and either.dsv("ls", "models").code == 3


def test_a_node_killed_at_any_step_loses_no_output_for_a_branch(either: Left) -> None:
    begin_into(either)
    for _ in either.killed_at_each_step():
        found = either.dsv("ls", "models")
        assert found.lines == ["metrics.json", "model.bin"] or found.code == 3
        told = either.record().output
        assert found.code == 3 or (told is not None and told.tree is not None), (
            "a later dsv finds it in the record"
        )
        either.complete()
        output = either.record().output
        assert output is not None and output.into is not None and output.into.commit is not None
        assert either.dsv.ok("log", "models", "--json").json["items"][0]["commit"] == str(output.into.commit)
        assert len(either.dsv.ok("log", "models", "--json").json["items"]) == 1


def test_of_several_who_complete_it_one_wins(either: Left) -> None:
    either.begin()
    argv = ("node", str(either.dsv.home / "order.json"), "--left", str(either.folder))
    racing = [either.dsv.start(*argv) for _ in range(3)]
    for each in racing:
        each.communicate()
    assert [each.returncode for each in racing] == [0, 0, 0]
    check(either)


def test_a_log_is_not_kept_if_a_value_is_not_known_on_the_node(left: Left) -> None:
    left.begin(env=("KEY", "OTHER"))
    left.complete()
    log = left.log()
    assert log is not None and b"it may show values of OTHER, which only login knows" in log


@pytest.mark.parametrize(
    "case", ["no start", "not over", "has its record", "goes on to another pool", "no job"]
)
def test_a_record_that_is_not_completed_here_is_left_to_others(left: Left, case: str) -> None:
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


@pytest.mark.parametrize("content", [b"", b"{}", b"no json"])
def test_a_file_that_is_no_order(dsv: Dsv, content: bytes) -> None:
    path = dsv.home / "order.json"
    path.write_bytes(content)
    refused = dsv("node", str(path), "--left", str(dsv.home))
    assert refused.code == 5 and "is not an order for the nodes of a run" in refused.err
    missing = dsv("node", str(dsv.home / "none"), "--left", str(dsv.home))
    assert missing.code == 125 and "No such file" in missing.err
    assert dsv("node", str(path)).code == 2


def test_an_order_may_come_from_stdin(left: Left) -> None:
    left.begin()
    argv = ("bash", "-c", f'"$@" <{left.dsv.home / "order.json"}', "bash")
    subprocess.run(
        [*argv, *PROGRAM, "node", "-", "--left", str(left.folder)],
        env=dict(left.dsv.environ), cwd=left.dsv.cwd, check=True,
    )  # fmt: skip
    check(left)


@pytest.mark.parametrize("found", ["stopped", "signalled", "code=137"])
def test_an_end_that_only_the_cluster_knows_is_left_to_it(dsv: Dsv, found: str) -> None:
    """But the output is gone with the pod, so it is in the store by then, and in the record that others complete."""
    left = Left(dsv, "kubernetes")
    left.begin()
    if "=" in found:
        ended = left.folder / "ended"
        ended.write_bytes(ended.read_bytes().replace(b"code=3", found.encode()))
    else:
        (left.folder / found).touch()
    assert "left to others" in left.complete()
    told = left.record()
    assert not told.state.is_terminal and told.output is not None and told.output.tree is not None
    (stored,) = left.runs.listing(PETS, RUN)
    assert stored.parts == {"start", "start-2"}


@pytest.mark.parametrize("counted", [True, False])
def test_an_attempt_that_the_cluster_does_not_count_takes_no_retry_away(dsv: Dsv, counted: bool) -> None:
    """Such as one that was evicted, which leaves no part: if the next one fails, the cluster begins another."""
    left = Left(dsv, "kubernetes")
    left.begin(retries=1)
    if counted:
        assert "left to others" in leave(left, 0, 1, FAILED)
    said = leave(left, 0, 2, FAILED)
    assert ("is complete" in said) is counted and left.record().state.is_terminal is counted


@pytest.fixture
def queued(dsv: Dsv) -> Left:
    left = Left(dsv, "kubernetes")
    left.dsv = left.dsv.at(dsv.cwd, DSV_JOB_KEY="secret-of-the-job", DSV_QUEUED="yes")
    return left


def stop(left: Left, rank: int, found: str = "stopped") -> None:
    """End the pod of a node as the cluster does."""
    write_files(left.dsv.home / f"pod.{rank}.1", {found: b""})


def test_a_queue_that_took_a_place_away_does_not_take_the_attempt_out_of_the_record(queued: Left) -> None:
    """The cluster counts anew, so the pods of the next attempt get the number of the first."""
    queued.begin()
    stop(queued, 0)
    assert "left to others" in leave(queued, 0, 1, "code=143 why= begun=10 over=12", log="a hunter2hunter2\n")
    assert not queued.record().state.is_terminal
    shutil.rmtree(queued.dsv.home / "pod.0.1")
    assert "is complete" in leave(queued, 0, 1, WELL, log="b\n")
    whole = queued.record()
    assert (whole.state, whole.exit_code, whole.end, whole.started_ms) == (
        RunState.ENDED,
        0,
        EndCause.EXITED,
        10_000,
    )
    assert [(part.attempt, part.end, part.exit_code) for part in whole.parts] == [
        (1, EndCause.EVICTED, 143),
        (2, EndCause.EXITED, 0),
    ]
    assert whole.parts[0].error == "the cluster took its place away"
    assert queued.log() == b"a ***\nb\n"


def test_each_of_several_nodes_continues_its_count_after_a_queue_took_their_places_away(queued: Left) -> None:
    queued.begin(nodes=2, retries=1)
    for rank in (0, 1):
        stop(queued, rank)
        leave(queued, rank, 1, "code=0 why= begun=10 over=12", "done")  # which had time to end well
        shutil.rmtree(queued.dsv.home / f"pod.{rank}.1")
    assert "left to others" in leave(queued, 0, 1, WELL, "done")
    assert "is complete" in leave(queued, 1, 1, WELL, "done")
    parts = [(part.attempt, part.node, part.end) for part in queued.record().parts]
    evicted, well = EndCause.EVICTED, EndCause.EXITED
    assert parts == [(1, 0, evicted), (1, 1, evicted), (2, 0, well), (2, 1, well)]


def test_a_failure_after_a_queue_took_the_place_away_is_left_to_the_cluster(queued: Left) -> None:
    """It alone knows which of the attempts it counts."""
    queued.begin(retries=1)
    stop(queued, 0)
    leave(queued, 0, 1, "code=143 why= begun=10 over=12")
    shutil.rmtree(queued.dsv.home / "pod.0.1")
    assert "left to others" in leave(queued, 0, 1, "code=3 why= begun=20 over=22")
    told = queued.record()
    assert not told.state.is_terminal and told.output is not None


def test_a_pod_that_writes_its_part_twice_writes_it_under_one_number(queued: Left) -> None:
    queued.begin(retries=1)
    for _ in range(2):
        assert "left to others" in leave(queued, 0, 1, FAILED)
    (stored,) = queued.runs.listing(PETS, RUN)
    assert [each for each in stored.parts if each.startswith("part")] == ["part-0-1"]


def test_a_command_that_dsv_ended_was_not_evicted_from_its_queue(queued: Left) -> None:
    queued.begin()
    stop(queued, 0)
    stop(queued, 0, "signalled")
    leave(queued, 0, 1, "code=143 why= begun=10 over=12")
    (stored,) = queued.runs.listing(PETS, RUN)
    assert not any(each.startswith("part") for each in stored.parts)


@pytest.mark.parametrize("lacking", ["ended", "log.0"])
def test_a_pod_that_did_not_leave_all_leaves_it_to_others(dsv: Dsv, lacking: str) -> None:
    left = Left(dsv, "kubernetes")
    left.begin()
    (left.folder / lacking).unlink()
    assert "left to others" in left.complete() and not left.record().state.is_terminal


def leave(left: Left, rank: int, attempt: int, ended: str, verdict: str = "", log: str = "") -> str:
    """Leave files of one node's pod in its own folder, and return the messages about the record."""
    own = left.dsv.home / f"pod.{rank}.{attempt}"
    write_files(own, {"ended": f"{ended} memory=7 cpu=5000000000 whole=yes\n".encode(), "log.0": log.encode(),
                      "argv": (left.folder / "argv").read_bytes()})  # fmt: skip
    if verdict:
        (own / "end").touch()
        (own / "verdict").write_text(f"{verdict}\n")
    argv = ("node", str(left.dsv.home / "order.json"), "--rank", str(rank), "--attempt", str(attempt))
    return left.dsv.ok(*argv, "--left", str(own)).err


FAILED = "code=3 why= begun=10 over=12"
TAKEN_ALONG = "code=143 why=together begun=10 over=12"
WELL = "code=0 why= begun=20 over=22"
REASON = "node 1 failed first, with exit code 3"


def test_the_last_of_several_pods_completes_the_record(dsv: Dsv) -> None:
    """Once no attempt is due any more, with all of each: what was ended with the others is no failure of its own."""
    left = Left(dsv, "kubernetes")
    left.begin(nodes=2, retries=1)
    steps = [
        (1, 1, FAILED, f"first {REASON}", "hunter2hunter2\n"),
        (0, 1, TAKEN_ALONG, f"again {REASON}", "a\n"),
        (1, 2, WELL, "done", "b\n"),
    ]
    for step in steps:
        assert "left to others" in leave(left, *step)
        assert not left.record().state.is_terminal
    assert "is complete" in leave(left, 0, 2, WELL, "done", "c\n")
    whole = left.record()
    assert (whole.state, whole.exit_code, whole.end) == (RunState.ENDED, 0, EndCause.EXITED)
    assert [(part.attempt, part.node, part.end, part.exit_code) for part in whole.parts] == [
        (1, 0, EndCause.CANCELLED, 143),
        (1, 1, EndCause.EXITED, 3),
        (2, 0, EndCause.EXITED, 0),
        (2, 1, EndCause.EXITED, 0),
    ]
    assert whole.parts[0].error == f"it was ended with the other nodes: {REASON}"
    assert whole.usage == JobUsage(peak_memory_bytes=7, cpu_seconds=10.0)
    assert whole.output is not None and whole.output.tree is not None and whole.metrics == {"acc": 0.9}
    log = [f"[dsv: node {node}, attempt {attempt}]" for attempt in (1, 2) for node in (0, 1)]
    assert left.log() == "\n".join((log[0], "a", log[1], "***", log[2], "c", log[3], "b", "")).encode()


def test_the_failure_that_counts_is_that_of_the_node_that_failed_first(dsv: Dsv) -> None:
    """Also if the cluster has stopped the others by the time that they see it, as it does if no attempt is left."""
    left = Left(dsv, "kubernetes")
    left.begin(nodes=2)
    leave(left, 1, 1, FAILED, f"first {REASON}")
    stopped = left.dsv.home / "pod.0.1" / "stopped"
    write_files(stopped.parent, {"stopped": b""})
    os.utime(stopped, (2**33, 2**33))
    assert "is complete" in leave(left, 0, 1, TAKEN_ALONG, f"again {REASON}")
    whole = left.record()
    assert (whole.exit_code, whole.end, whole.error) == (3, EndCause.EXITED, f"node 1 (None) {REASON[7:]}")


def test_a_node_that_was_stopped_before_the_attempt_was_over_is_left_to_the_cluster(dsv: Dsv) -> None:
    left = Left(dsv, "kubernetes")
    left.begin(nodes=2)
    leave(left, 1, 1, FAILED, f"first {REASON}")
    stopped = left.dsv.home / "pod.0.1" / "stopped"
    write_files(stopped.parent, {"stopped": b""})
    os.utime(stopped, (1, 1))
    assert "left to others" in leave(left, 0, 1, TAKEN_ALONG, f"again {REASON}")
    assert not left.record().state.is_terminal


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_run_of_which_an_attempt_is_unknown_is_left_to_the_cluster(dsv: Dsv, nodes: int) -> None:
    """Such as one whose pod was evicted. But the output is sent, by the last node."""
    left = Left(dsv, "kubernetes")
    left.begin(nodes=nodes, retries=1)
    for rank in range(nodes):
        assert left.record().output is None
        assert "left to others" in leave(left, rank, 2, WELL, "done")
    told = left.record()
    assert not told.state.is_terminal and told.output is not None and told.output.tree is not None


def test_the_record_of_a_terminal_gives_way_to_one_that_a_node_has_completed(left: Left) -> None:
    """The dsv that waited for the run records its end too, but later."""
    runs = left.store / "runs" / "pets"
    complete = f"""d={runs}/$DSV_RUN; until [ -e "$d/start" ]; do sleep 0.1; done
    sed 's/"state": "running"/"state": "ended"/' "$d/start" >"$d/record"; exit 3"""
    done = left.dsv.process("run", "pets", "--", "sh", "-c", complete)
    assert done.code == 3 and "unexpected" not in done.err and "differs" not in done.err
    (stored,) = left.runs.listing(PETS)
    assert left.runs.read(stored).exit_code is None, "the first one stays"
