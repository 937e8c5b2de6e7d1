"""Runs whose dsv is killed while it hands a job to Slurm, with programs in place of Slurm's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsv.run.engines.reaper import processes_of
from dsv.run.engines.slurm.script import comment
from tests.engines.test_slurm_stubs import programs
from tests.kit.dsv import Dsv, write_files
from tests.waiting import until

SBATCH = r"""
[ "$1" != --version ] || exit 0
{killed}
for script; do :; done
number=$$
echo "$number|PENDING||JobHeldUser|$(sed -n 's/^#SBATCH --comment=//p' "$script" | tr -d \"\')" >"$CALLS/$number"
echo $number
"""
SCONTROL = r"""
[ "$1" != --oneliner ] || echo 'NodeName=n1 CPUTot=2 RealMemory=9000 AllocMem=0 State=IDLE Partitions=p'
[ "$1" != show ] || printf 'ClusterName = c\nSlurmctldHost[0] = h\n'
[ "$1" != release ] || {released}
"""
SCANCEL = 'for job; do :; done; sed -i "s/|PENDING|/|CANCELLED|/" "$CALLS/$job"'
GONE = "kill -9 $PPID; exit 1"
SQUEUE = """
case "$*" in *PENDING*) ;; *) [ ! -e "$CALLS.killed" ] || touch "$CALLS.asked" ;; esac
cat "$CALLS"/[0-9]* 2>/dev/null; exit 0
"""
KILL = "kill -9 $PPID"
LATE = f'touch "$CALLS.killed"; {KILL}; until [ -e "$CALLS.asked" ]; do sleep 0.1; done'
"""A dsv that looks asks before the job is in the queue."""


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    queue = tmp_path / "calls"
    queue.mkdir()
    return queue


def user(folder: Path, *, killed: str = "", released: str = "exit 0") -> Dsv:
    """killed, released: what sbatch does before it submits, and scontrol before it releases a job"""
    env = programs(
        folder,
        sbatch=SBATCH.replace("{killed}", killed),
        scontrol=SCONTROL.replace("{released}", released),
        scancel=SCANCEL,
        squeue=SQUEUE,
    )
    dsv = Dsv.of(folder / "home", **{name: env[name] for name in ("PATH", "CALLS", "XDG_RUNTIME_DIR")})
    for key, value in (("store", "store"), ("cache", "cache"), ("pools.a.out", "out")):
        dsv.ok("config", key, str(folder / value))
    dsv.ok("config", "pools.a.engine", "slurm")
    write_files(dsv.cwd, {"a": b"1"})
    dsv.ok("init", "pets")
    dsv.ok("sync")
    return dsv


def states(queue: Path) -> list[str]:
    return [path.read_text().split("|")[1] for path in sorted(queue.iterdir())]


@pytest.mark.parametrize(
    ("killed", "released", "jobs"),
    [
        (GONE, "exit 0", []),
        (LATE, "exit 0", ["CANCELLED"] * 2),
        ("", KILL, ["CANCELLED"] * 2),
    ],
    ids=["no job", "a job that comes late", "a held job"],
)
def test_a_sweep_ends_although_the_dsv_of_each_run_is_killed(
    tmp_path: Path, queue: Path, killed: str, released: str, jobs: list[str]
) -> None:
    dsv = user(tmp_path, killed=killed, released=released)
    ended = dsv.process("run", "pets", "--on", "a", "-p", "n=1,2", "--sweep", "--parallel", "2", "--", "true")
    assert ended.code == 125, ended
    assert ended.err.count(" begun") == 2, ended
    items = dsv.ok("runs", "--json").json["items"]
    assert {item["state"] for item in items} <= {"cut-off", "not-launched"} and len(items) == 2
    assert states(queue) == jobs


@pytest.mark.parametrize(("command", "code"), [("runs", 0), ("wait", 125), ("stop", 0)])
def test_a_job_that_comes_after_its_dsv_was_killed_is_ended_by_whoever_looks(
    tmp_path: Path, queue: Path, command: str, code: int
) -> None:
    """Not before sbatch has ended: until then the run is under way."""
    dsv = user(tmp_path, killed=LATE)
    dsv.process("run", "pets", "--on", "a", "--", "true")
    (item,) = (first := dsv.ok("runs", "--json")).json["items"]
    assert "is still handing the job of run" in first.err and item["state"] == "submitted", first
    until(lambda: states(queue) == ["PENDING"], "the job")
    until(lambda: not processes_of(item["run"]), "the end of sbatch")
    assert dsv(command, item["run"]).code == code
    assert states(queue) == ["CANCELLED"]
    (item,) = dsv.ok("runs", "--json").json["items"]
    assert (item["state"], item["exit_code"]) == ("not-launched", 125)


@pytest.mark.parametrize("command", ["runs", "wait", "stop"])
def test_a_job_that_slurm_takes_although_sbatch_is_gone_too_is_ended(
    tmp_path: Path, queue: Path, command: str
) -> None:
    """The record is complete by then. Jobs of other runs stay."""
    dsv = user(tmp_path, killed=GONE)
    dsv.process("run", "pets", "--on", "a", "--", "true")
    (item,) = dsv.ok("runs", "--json").json["items"]
    until(lambda: not processes_of(item["run"]), "the end of sbatch")
    (item,) = dsv.ok("runs", "--json").json["items"]
    assert item["state"] == "cut-off"
    for number, run in ((7, item["run"]), (8, "20261122-070000-0a1b2c3d")):
        (queue / f"{number}").write_text(f"{number}|PENDING||JobHeldUser|{comment(run, tmp_path / 'x')}\n")
    dsv(command, item["run"])
    assert states(queue) == ["CANCELLED", "PENDING"]
