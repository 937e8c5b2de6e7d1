"""What dsv does with Slurm, and its script on the nodes, with stand-ins for the programs of Slurm."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from dsv.errors import LaunchError
from dsv.run.engines.attach import Foreground
from dsv.run.engines.base import Ended, Facts, Job
from dsv.run.engines.machine import Machine
from dsv.run.engines.output import JobOutput
from dsv.run.engines.slurm.engine import Follower, Slurm, SlurmRun
from dsv.run.engines.slurm.job_status import JobFiles
from dsv.run.engines.slurm.program import SlurmProgram
from dsv.run.engines.slurm.script import BatchScript, SlurmOptions, comment, render
from dsv.run.node_order import NodeOrder
from dsv.run.part import EndCause
from dsv.run.record import JobRef, RunId, RunState
from dsv.values.names import DatasetName
from tests.waiting import PATIENCE, until

RUN = "20261122-070000-0a1b2c3d"
SRUN = """
while [ "${1#--}" != "$1" ]; do
  case $1 in --error=*) err=${1#*=} ;; esac
  shift
done
code=0 pids=() pipes=()
for node in $NODES; do
  mkfifo "$CALLS.$node"
  SLURM_NODEID=$node SLURMD_NODENAME=n$node "$@" <"$CALLS.$node" 2>>"${err//%n/$node}" &
  pids+=($!)
  exec {pipe}>"$CALLS.$node"
  pipes+=($pipe)
done
(
  while read -r line; do
    for pipe in "${pipes[@]}"; do echo "$line" >&$pipe; done
  done
) <&0 >/dev/null 2>&1 &
copier=$!
for pipe in "${pipes[@]}"; do exec {pipe}>&-; done
for each in "${pids[@]}"; do
  wait -n "${pids[@]}" || { code=$?; break; }
done
kill "$copier" "${pids[@]}" 2>/dev/null
wait "${pids[@]}"
exit $code
"""
SCANCEL = """
    [ "$1" = 7 ] || exit 0
    number=$(($(cat "$CALLS.n" 2>/dev/null || echo 0) + 1))
    echo $number >"$CALLS.n"
    touch "$CALLS.$number"
    """
"""Notes how often it is told to cancel job 7."""
SCONTROL = """
echo "$*" >>"$CALLS"
case $1 in
  requeue) exit 1 ;;
  show) printf 'ClusterName = c\\nSlurmctldHost[0] = h\\n' ;;
  release) echo 'slurm_update error: Unable to contact slurm controller' >&2; exit 1 ;;
esac
"""
AWAY = """
echo "${0##*/} $*" >>"$CALLS"
[ ! -e "$CALLS.away" ] || { echo 'error: Unable to contact slurm controller' >&2; exit 1; }
"""


def programs(folder: Path, **scripts: str) -> dict[str, str]:
    """An environment with these programs in front of all others."""
    (folder / "bin").mkdir()
    for name, script in scripts.items():
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{script.strip()}\n")
        (folder / "bin" / name).chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "CALLS": str(folder / "calls"),
        "SLURM_CONF": str(folder),
        "XDG_RUNTIME_DIR": str(folder),
    }


@pytest.mark.parametrize("owner", [RUN, "20261122-070000-ffffffff"])
def test_a_number_that_the_job_of_another_run_has_by_now_cancels_nothing(tmp_path: Path, owner: str) -> None:
    (tmp_path / "job").mkdir()
    record = 'echo "${0##*/} $*" >>"$CALLS"\n'
    squeue = f'{record}[ ! -e "$CALLS.over" ] || exit 0; echo "7|RUNNING|n1|None|dsv:{owner}:{tmp_path}/job"'
    scancel = f'{record}touch "$CALLS.over"'
    engine = Slurm(programs(tmp_path, scontrol=SCONTROL, squeue=squeue, scancel=scancel))
    engine.cancel(JobRef("slurm", RUN, "c@h", f"7:{tmp_path / 'job'}"), 0)
    assert ("scancel" in (tmp_path / "calls").read_text()) == (owner == RUN)


def test_a_job_whose_folder_was_removed_with_its_record_complete_does_not_run(tmp_path: Path) -> None:
    """Slurm shows it for minutes longer."""
    squeue = f'echo "7|COMPLETED|n1|None|{comment(RUN, tmp_path / "job")}"'
    engine = Slurm(programs(tmp_path, scontrol=SCONTROL, squeue=squeue))
    status = engine.status(JobRef("slurm", RUN, "c@h", f"7:{tmp_path / 'job'}"))
    assert status is not None and status.state is RunState.CUT_OFF


@pytest.mark.parametrize(("state", "restarts"), [("PENDING", 1), ("RUNNING", 1), ("RUNNING", 0)])
def test_a_job_that_an_administrator_requeued_is_not_over(tmp_path: Path, state: str, restarts: int) -> None:
    """The end of its last attempt is still in its folder."""
    folder = tmp_path / "job"
    folder.mkdir()
    for name, text in {"slurm.log": "attempt 1 on n1\n", "node.1.0": "n1 10 0 12\n", "end": "0 1\n"}.items():
        (folder / name).write_text(text)
    line = f'[ -e "$CALLS.over" ] || echo "7|{state}||None|dsv:{RUN}:{folder}"'
    scontrol = f'[ "$3" != job ] || echo "JobId=7 Requeue=1 Restarts={restarts} BatchFlag=1"\n{SCONTROL}'
    scancel = 'touch "$CALLS.over"'
    engine = Slurm(programs(tmp_path, scontrol=scontrol, squeue=line, scancel=scancel))
    ref = JobRef("slurm", RUN, "c@h", f"7:{folder}")
    now = engine.status(ref)
    assert now is not None and now.lives == (restarts == 1)
    engine.cancel(ref, 0)
    assert (tmp_path / "calls.over").exists() == (restarts == 1)


def test_a_job_whose_nodes_still_get_their_data_is_ended_at_once(tmp_path: Path) -> None:
    """There is no command yet that could use the time to end."""
    (tmp_path / "job").mkdir()
    squeue = f'[ -e "$CALLS.over" ] || echo "7|RUNNING|n1|None|dsv:{RUN}:{tmp_path}/job"'
    engine = Slurm(programs(tmp_path, scontrol=SCONTROL, squeue=squeue, scancel='touch "$CALLS.over"'))
    status = engine.cancel(JobRef("slurm", RUN, "c@h", f"7:{tmp_path / 'job'}"), 86_400)
    assert status is not None and not status.lives and (tmp_path / "job" / "stopped").exists()


@pytest.mark.parametrize(("state", "calls"), [("COMPLETING", 7), ("RUNNING", 4)])
def test_a_job_that_slurm_is_ending_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, calls: int
) -> None:
    """A job that it does not begin to end is given up."""
    monkeypatch.setattr("dsv.run.engines.slurm.engine._DYING", 0)
    (tmp_path / "job").mkdir()
    squeue = f"""
    state=RUNNING
    [ ! -e "$CALLS.1" ] || state={state}
    [ ! -e "$CALLS.7" ] || state=CANCELLED
    echo "7|$state|n1|None|dsv:{RUN}:{tmp_path}/job"
    """
    engine = Slurm(programs(tmp_path, scontrol=SCONTROL, squeue=squeue, scancel=SCANCEL))
    status = engine.cancel(JobRef("slurm", RUN, "c@h", f"7:{tmp_path / 'job'}"), 0)
    assert status is not None and status.lives == (state == "RUNNING")
    assert (tmp_path / "calls.n").read_text() == f"{calls}\n"


@pytest.mark.parametrize(
    ("state", "begun", "called"),
    [
        ("PENDING", False, ["hold", "scancel"]),
        ("RUNNING", False, ["hold", "release"]),
        ("PENDING", True, ["hold", "release"]),
    ],
)
def test_only_a_job_that_never_began_is_taken_back(
    tmp_path: Path, state: str, begun: bool, called: list[str]
) -> None:
    """Slurm holds a running job, too, and would never begin its next attempt."""
    folder = tmp_path / "job"
    folder.mkdir()
    if begun:
        (folder / "node.1.0").write_text("n1 10 143 12\n")
    line = f"echo '7|{state}||JobHeldUser|dsv:{RUN}:{folder}'"
    said = 'echo "${0##*/} $*" >>"$CALLS"'
    engine = Slurm(
        programs(
            tmp_path,
            scontrol=f"{said}\n{SCONTROL.replace('release)', 'none)')}",
            squeue=line,
            scancel=said,
        )
    )
    engine.withdraw(JobRef("slurm", RUN, "c@h", f"7:{folder}"))
    calls = (tmp_path / "calls").read_text()
    words = {"hold": "scontrol hold 7\n", "release": "scontrol release 7\n", "scancel": "scancel 7\n"}
    assert [name for name, line in words.items() if line in calls] == sorted(called, key=list(words).index)


def run_script(
    tmp_path: Path, batch: BatchScript, nodes: str = "0", own: Mapping[str, str] | None = None, **more: str
) -> tuple[int, str]:
    """Its exit code, and the calls of scontrol. nodes: those on which srun begins the task; own: further programs."""
    batch.job.scratch.mkdir()
    env = programs(
        tmp_path,
        **{"srun": SRUN, "scontrol": SCONTROL, **(own or {})},
        hold='echo "{}" >"$DSV_NODE_REPORT"; until [ "$1" = -- ]; do shift; done; shift; exec "$@"',
        lost='until [ "$1" = -- ]; do shift; done; shift; "$@"; exit 125',
    )
    env |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n", "SLURM_JOB_NUM_NODES": str(batch.job.nodes)}
    with (batch.job.scratch / "slurm.log").open("ab") as log:
        done = subprocess.run(
            ["bash", "-c", render(batch)],
            env={**env, "NODES": nodes, **more},
            timeout=PATIENCE,
            stdout=log,
            stderr=log,
        )
    calls = tmp_path / "calls"
    return done.returncode, calls.read_text() if calls.exists() else ""


def batch(tmp_path: Path, *command: str, program: str = "dsv", **more: object) -> BatchScript:
    """program: what holds the data, and completes the record."""
    job = Job(run=RUN, name="x", scratch=tmp_path / "job", command=command)
    return BatchScript(replace(job, **more), SlurmOptions(dsv=program))  # type: ignore[arg-type]


def test_a_node_that_never_began_fails_the_job(tmp_path: Path) -> None:
    code, _ = run_script(tmp_path, batch(tmp_path, "true", nodes=3), nodes="0 2")
    assert code == 137 and JobFiles(tmp_path / "job").end == 137
    assert [part.exit_code for part in JobFiles(tmp_path / "job").parts] == [0, 0]


def test_a_success_is_one_of_every_node(tmp_path: Path) -> None:
    code, _ = run_script(tmp_path, batch(tmp_path, "true", nodes=2), nodes="0 1")
    assert code == 0 and JobFiles(tmp_path / "job").succeeded


def test_no_command_begins_before_all_nodes_hold_their_data(tmp_path: Path) -> None:
    """Node 1 has its data only after node 0 was seen to hold its own."""
    held = 'until [ "$SLURM_NODEID" = 0 ] || [ -e "$CALLS.held" ]; do sleep 0.05; done'
    after = 'until [ "$1" = -- ]; do shift; done; shift; exec "$@"'
    seen = 'ls "$0" | grep node.1 >>"$0/seen"; exit 0'
    it = batch(tmp_path, "sh", "-c", seen, str(tmp_path / "job"), nodes=2, program="slow", hold=("--",))
    slow = f'{held}; [ "$SLURM_NODEID" = 1 ] || {{ ls "$FOLDER" >"$CALLS.before"; touch "$CALLS.held"; }}; {after}'
    code, _ = run_script(tmp_path, it, nodes="0 1", own={"slow": slow}, FOLDER=str(it.job.scratch))
    assert code == 0 and "node.1" not in (tmp_path / "calls.before").read_text()
    assert JobFiles(it.job.scratch).succeeded


def test_a_node_that_waits_for_others_ends_at_once(tmp_path: Path) -> None:
    """Or Slurm would kill it, and what holds its data with it, which could not release that."""
    task = 'until [ "$1" = -- ]; do shift; done; shift'
    # It waits for its standard input, which a shell would take from a command in the background.
    ends = f'{task}; mkfifo "$CALLS.said"; "$@" <&0 >"$CALLS.said" & task=$!; read -r said <"$CALLS.said"; '
    ends += '[ "$said" = held ] && kill -TERM $task; wait $task; echo $? >"$CALLS.ended"; exit 143'
    waits = 'until [ -e "$CALLS.ended" ]; do sleep 0.05; done; exit 125'
    slow = f'if [ "$SLURM_NODEID" = 0 ]; then {ends}; else {waits}; fi'
    it = batch(tmp_path, "touch", str(tmp_path / "began"), nodes=2, program="slow", hold=("--",))
    assert run_script(tmp_path, it, nodes="0 1", own={"slow": slow})[0] == 125
    assert (tmp_path / "calls.ended").read_text() == "143\n" and not (tmp_path / "began").exists()


@pytest.mark.parametrize("retries", [0, 1])
def test_a_node_that_can_not_hold_its_data_lets_no_command_begin(tmp_path: Path, retries: int) -> None:
    fails = '[ "$SLURM_NODEID" != 1 ] || { echo "error: no room" >&2; exit 125; }; '
    fails += 'until [ "$1" = -- ]; do shift; done; shift; exec "$@"'
    it = batch(
        tmp_path, "touch", str(tmp_path / "began"), nodes=2, program="fails", hold=("--",), retries=retries
    )
    code, calls = run_script(tmp_path, it, nodes="0 1", own={"fails": fails})
    found = JobFiles(it.job.scratch)
    assert (code, found.end, found.begun) == (125, 125, False) and "requeue" not in calls
    assert not (tmp_path / "began").exists() and "no room" in found.said


def test_a_node_gives_signs_until_its_command_has_ended(tmp_path: Path) -> None:
    """Also after a signal to its other processes, as some Slurms send it. Nothing of it is left then."""
    sign = '"$0/alive.1.0"'
    script = f"""
    until [ -e {sign} ]; do sleep 0.1; done
    for each in $(cat /proc/$PPID/task/$PPID/children); do
      [ "$each" = "$$" ] || {{ echo "$each" >"$0/pid"; kill -s USR1 "$each" $(cat "/proc/$each/task/$each/children"); }}
    done
    rm {sign}
    until [ -e {sign} ]; do sleep 0.1; done
    """
    it = batch(tmp_path, "sh", "-c", script, str(tmp_path / "job"))
    assert run_script(tmp_path, it)[0] == 0
    pid = (it.job.scratch / "pid").read_text().strip()
    until(lambda: not Path(f"/proc/{pid}").exists(), "the end of what gives signs")


@pytest.mark.parametrize(
    ("said", "again"),
    [("Communication connection failure", True), ("Invalid job credential", False)],
)
def test_a_node_that_srun_could_not_reach_is_tried_again(tmp_path: Path, said: str, again: bool) -> None:
    """What srun says is the reason, and no message of bash."""
    it = batch(tmp_path, "true", nodes=2, hold=("--",), retries=1)
    line = f"srun: error: Task launch for StepId=7.0 failed on node n1: {said}"
    code, calls = run_script(tmp_path, it, own={"srun": f'echo "{line}" >&2; exit 1'})
    assert (code, "requeue 7" in calls) == (125, again)
    goes_on = "attempt 1 ended with 125\n" if again else ""
    assert JobFiles(it.job.scratch).log == f"attempt 1 on n\n{line}\n{goes_on}"


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("touch {ready}; exec sleep 60", 143),
        ("trap 'exit 0' TERM; touch {ready}; while :; do sleep 0.1; done", 124),
        ("trap 'exit 7' TERM; touch {ready}; while :; do sleep 0.1; done", 7),
    ],
)
@pytest.mark.parametrize("nodes", ["0", "0 1"])
def test_a_command_gets_its_own_time_and_no_more(tmp_path: Path, script: str, code: int, nodes: str) -> None:
    """It is signalled on every node, and is not tried again."""
    count = len(nodes.split())
    for seconds in (1, 10, 40):  # until it gets as far as its trap on every node
        scene = tmp_path / str(seconds)
        scene.mkdir()
        command = ("sh", "-c", script.format(ready=f"{scene}/ready.$SLURM_NODEID"))
        it = batch(
            scene, *command, nodes=count, program="hold", hold=("--",), time_seconds=seconds, retries=1
        )
        found, calls = run_script(scene, it, nodes=nodes)
        if len(list(scene.glob("ready.*"))) == count:
            break
    left = JobFiles(it.job.scratch)
    assert (found, left.end, left.late) == (code, code, True) and "requeue" not in calls
    assert [str(part.end) for part in left.parts] == ["time-limit"] * count


def test_a_command_is_warned_before_its_time_is_over(tmp_path: Path) -> None:
    for seconds in (1, 10, 40):  # until it gets as far as its trap
        scene = tmp_path / str(seconds)
        scene.mkdir()
        script = f"trap 'echo warned; exit 4' USR2; touch {scene}/ready; while :; do sleep 0.1; done"
        options = (f"--signal=USR2@{3600 - seconds}",)
        it = batch(scene, "sh", "-c", script, time_seconds=3600, engine_args=options)
        code, _ = run_script(scene, it)
        if (scene / "ready").exists():
            break
    assert code == 4 and not JobFiles(it.job.scratch).late


@pytest.mark.parametrize(
    ("command", "hold", "code", "again"),
    [
        (("sh", "-c", "exit 3"), (), 3, True),
        (("sh", "-c", "exit 125"), ("hold", "--"), 125, True),
        (("sh", "-c", "exit 127"), (), 127, True),
        (("no-such-command",), (), 127, False),
        (("/etc/passwd",), ("hold", "--"), 126, False),
        (("sh", "-c", "exit 143"), ("lost", "--"), 125, False),
    ],
)
def test_only_what_a_command_says_is_tried_again(
    tmp_path: Path, command: tuple[str, ...], hold: tuple[str, ...], code: int, again: bool
) -> None:
    it = batch(tmp_path, *command, program=(*hold, "dsv")[0], hold=hold[1:], retries=1)
    found, calls = run_script(tmp_path, it)
    assert (found, "requeue 7" in calls) == (code, again)
    assert JobFiles(tmp_path / "job").end == code


def test_a_variable_that_did_not_come_along_is_missed(tmp_path: Path) -> None:
    it = batch(tmp_path, "sh", "-c", 'exit "$TOKEN"', env={"TOKEN": "x"})
    assert run_script(tmp_path, it)[0] == 125
    (tmp_path / "other").mkdir()
    it = BatchScript(replace(it.job, scratch=tmp_path / "other" / "job"), it.options)
    assert run_script(tmp_path / "other", it, DSV_JOB_TOKEN="3")[0] == 3


def test_a_store_that_hangs_does_not_hold_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that completes the record is ended, so that others do it; the job ends as its command did."""
    order = NodeOrder(run=RunId(RUN), dataset=DatasetName("digits"), out="/out").encode().decode()
    it = batch(tmp_path, "sh", "-c", "exit 3", program="slow", close=("node",), order=order)
    monkeypatch.setattr("dsv.run.engines.slurm.script.CLOSE_SECONDS", 1)
    own = {"slow": "exec tail -f /dev/null", "sleep": ""}
    code, _ = run_script(tmp_path, it, own=own)
    assert code == 3 and JobFiles(it.job.scratch).end == 3
    assert (it.job.scratch / "complete.log").exists()


def test_the_script_is_for_its_owner_alone(tmp_path: Path) -> None:
    engine = Slurm(programs(tmp_path, sbatch="echo 7", scontrol=SCONTROL))
    (tmp_path / "job").mkdir(mode=0o755)
    plan = engine.plan(
        Job(run=RUN, name="x", command=("true",), scratch=tmp_path / "job"), Facts(Machine.read({}))
    )
    engine.submit(plan, JobOutput(None, None, None), Event())
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "job", tmp_path / "job" / "job.sh")]
    assert modes == [0o700, 0o600]


def test_an_end_that_is_seen_late_is_the_jobs_own(tmp_path: Path) -> None:
    """The folder, on a file server, shows what the job left there only after Slurm has said that it is over."""
    folder = tmp_path / "job"
    folder.mkdir()
    env = programs(
        tmp_path,
        scontrol=SCONTROL,
        squeue=f"{AWAY}\necho '7|COMPLETED|n1|None|dsv:{RUN}:{folder}'",
    )
    over = Event()
    handle = SlurmRun(SlurmProgram(env), JobRef("slurm", RUN, "c@h", f"7:{folder}"))
    handle.begin(JobOutput(None, None, None), over.set)
    until(lambda: (tmp_path / "calls").read_text().count("squeue") > 2, "a further look")
    assert handle.ended is None
    (folder / "node.1.0").write_text("n1 10 0 12\n")
    (folder / "end").write_text("0 1\n")
    assert over.wait(PATIENCE)
    assert handle.ended is not None and (handle.ended.exit_code, handle.ended.seen) == (0, True)
    assert sorted(path.name for path in folder.iterdir()) == ["attended", "end", "node.1.0"]


@pytest.mark.parametrize("call", ["open", "scandir", "listdir"])
def test_a_file_server_that_fails_for_a_while_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    for name, text in {"out.0": "all of it\n", "node.1.0": "n1 10 0 12\n", "end": "0 1\n"}.items():
        (folder / name).write_text(text)
    env = programs(tmp_path, scontrol=SCONTROL, squeue=f"echo '7|COMPLETED|n1|None|dsv:{RUN}:{folder}'")
    failures = iter(range(3))
    fail_for_a_while(monkeypatch, call, folder, failures)
    over = Event()
    handle = SlurmRun(SlurmProgram(env), JobRef("slurm", RUN, "c@h", f"7:{folder}"))
    with (tmp_path / "log").open("wb") as log:
        output = JobOutput(log.fileno(), None)
        handle.begin(output, over.set)
        assert over.wait(PATIENCE)
        output.job_ended()
        assert output.drained(PATIENCE)
    assert handle.ended is not None and (handle.ended.exit_code, handle.ended.seen) == (0, True)
    assert (tmp_path / "log").read_text() == "all of it\n"
    assert next(failures, None) is None, "it failed that often"


def fail_for_a_while(
    monkeypatch: pytest.MonkeyPatch, call: str, folder: Path, failures: Iterator[int]
) -> None:
    """Let this call of `os` about the folder fail for each item."""
    original = getattr(os, call)

    def failing(path: Any, *given: Any, **more: Any) -> Any:
        if str(path).startswith(str(folder)) and next(failures, None) is not None:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return original(path, *given, **more)

    monkeypatch.setattr(os, call, failing)


def test_a_job_that_slurm_may_have_taken_before_it_went_away_is_not_launched(tmp_path: Path) -> None:
    """Another pool may get it: Slurm begins no job that is held."""
    env = programs(tmp_path, sbatch=AWAY, scontrol=SCONTROL, squeue=AWAY)
    (tmp_path / "calls.away").touch()
    engine = Slurm(env)
    plan = engine.plan(
        Job(run=RUN, name="x", command=("true",), scratch=tmp_path / "job"), Facts(Machine.read({}), "c@h")
    )
    with pytest.raises(LaunchError, match=r"Slurm does not take the job: .*Unable to contact") as caught:
        engine.submit(plan, JobOutput(None, None, None), Event())
    assert "scontrol ping" in (caught.value.hint or "")
    calls = (tmp_path / "calls").read_text()
    assert "sbatch --parsable --hold" in calls and "squeue" in calls


def test_a_job_whose_release_got_no_answer_is_cancelled_or_may_live(tmp_path: Path) -> None:
    """The controller is gone from the release on: nobody knows whether the job begins."""
    line = f"echo '7|PENDING||JobHeldUser|dsv:{RUN}:{tmp_path / 'job'}'"
    env = programs(
        tmp_path,
        sbatch="echo 7",
        scontrol=SCONTROL.replace("release)", 'release) touch "$CALLS.away";'),
        squeue=f"{AWAY}\n{line}",
        scancel=AWAY,
    )
    engine = Slurm(env)
    plan = engine.plan(
        Job(run=RUN, name="x", command=("true",), scratch=tmp_path / "job"), Facts(Machine.read({}), "c@h")
    )
    refs: list[JobRef] = []
    handle = Foreground(engine, plan, JobOutput(None, None, None), lambda: None, refs.append)
    until(lambda: handle.ended, "the end")
    assert handle.ended == Ended(
        exit_code=125, launched=False, seen=False, may_live=True,
        reason="Slurm does not let the job begin: slurm_update error: Unable to contact slurm controller",
    )  # fmt: skip
    assert "scancel 7" in (tmp_path / "calls").read_text() and (tmp_path / "job" / "stopped").exists()


@pytest.mark.parametrize("free", [0, 1 << 30])
def test_a_log_that_a_full_disk_cut_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    (tmp_path / "out.0").write_text("a whole line\nhalf a l")
    (tmp_path / "err.0").write_text("")
    monkeypatch.setattr("dsv.run.engines.slurm.engine.disk_usage", lambda folder: SimpleNamespace(free=free))
    with (tmp_path / "log").open("wb") as log:
        for stream in ("out", "err"):
            Follower(tmp_path, stream, log.fileno()).step(last=True)
    said = (tmp_path / "log").read_text()
    assert said.startswith("a whole line\nhalf a l") and ("is full" in said) == (free == 0)


@pytest.mark.parametrize("call", ["open", "scandir"])
def test_a_log_whose_end_could_not_be_read_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    (tmp_path / "out.0").write_text("a whole line\nhalf a l")
    with (tmp_path.parent / f"{tmp_path.name}.log").open("w+b") as log:
        follower = Follower(tmp_path, "out", log.fileno())
        follower.step()
        fail_for_a_while(monkeypatch, call, tmp_path, count())
        follower.step(last=True)
        log.seek(0)
        said = log.read().decode()
    assert said.startswith("a whole line\nhalf a l") and "its stdout may be missing" in said


def test_a_job_that_slurm_never_has_ended_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node does not answer, so that Slurm says COMPLETING for ever."""
    monkeypatch.setattr("dsv.run.engines.slurm.engine._DYING", 0)
    monkeypatch.setattr("dsv.run.engines.slurm.engine._ENDING_SECONDS", 0)
    (tmp_path / "job").mkdir()
    squeue = f"""
    [ ! -e "$CALLS.12" ] || exit 1
    echo "7|COMPLETING|n1|None|dsv:{RUN}:{tmp_path}/job"
    """
    engine = Slurm(programs(tmp_path, scontrol=SCONTROL, squeue=squeue, scancel=SCANCEL))
    status = engine.cancel(JobRef("slurm", RUN, "c@h", f"7:{tmp_path / 'job'}"), 0)
    assert (tmp_path / "calls.n").read_text() == "4\n"
    assert status is not None and status.lives


@pytest.mark.parametrize(
    ("state", "cause", "code"),
    [("TIMEOUT", EndCause.TIME_LIMIT, 124), ("NODE_FAIL", EndCause.NODE_LOST, 137)],
)
def test_a_file_server_that_fails_at_a_jobs_end_makes_no_job_of_it_that_never_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, cause: EndCause, code: int
) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "node.1.0").write_text("n1 10\n")
    env = programs(tmp_path, scontrol=SCONTROL, squeue=f"echo '7|{state}|n1|None|dsv:{RUN}:{folder}'")
    failures = iter(range(12))
    fail_for_a_while(monkeypatch, "listdir", folder, failures)
    over = Event()
    handle = SlurmRun(SlurmProgram(env), JobRef("slurm", RUN, "c@h", f"7:{folder}"))
    handle.begin(JobOutput(None, None), over.set)
    assert over.wait(PATIENCE)
    done = handle.ended
    assert done is not None and (done.launched, done.seen, done.cause, done.exit_code) == (
        True,
        True,
        cause,
        code,
    )
