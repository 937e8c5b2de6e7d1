"""A sweep whose runs' dsv is killed while it hands a job to Slurm, with programs in place of Slurm's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.test_slurm_stubs import programs
from tests.kit.dsv import Dsv, write_files

SBATCH = r"""
[ "$1" != --version ] || exit 0
{killed}
for script; do :; done
number=$(($(ls "$CALLS" | wc -l) + 1))
echo "$number|PENDING||JobHeldUser|$(sed -n 's/^#SBATCH --comment=//p' "$script" | tr -d \"\')" >"$CALLS/$number"
echo $number
"""
SCONTROL = r"""
[ "$1" != --oneliner ] || echo 'NodeName=n1 CPUTot=2 RealMemory=9000 AllocMem=0 State=IDLE Partitions=p'
[ "$1" != show ] || printf 'ClusterName = c\nSlurmctldHost[0] = h\n'
[ "$1" != release ] || {released}
"""
SCANCEL = 'for job; do :; done; sed -i "s/|PENDING|/|CANCELLED|/" "$CALLS/$job"'
KILL = "kill -9 $PPID"


@pytest.mark.parametrize(
    ("killed", "released", "jobs"),
    [(f"{KILL}; exit 1", "exit 0", []), ("", KILL, ["CANCELLED"] * 2)],
    ids=["no job", "a held job"],
)
def test_a_sweep_ends_although_the_dsv_of_each_run_is_killed(
    tmp_path: Path, killed: str, released: str, jobs: list[str]
) -> None:
    queue = tmp_path / "calls"
    queue.mkdir()
    env = programs(
        tmp_path,
        sbatch=SBATCH.replace("{killed}", killed),
        scontrol=SCONTROL.replace("{released}", released),
        scancel=SCANCEL,
        squeue='cat "$CALLS"/[0-9]* 2>/dev/null; exit 0',
    )
    dsv = Dsv.of(tmp_path / "home", **{name: env[name] for name in ("PATH", "CALLS", "XDG_RUNTIME_DIR")})
    for key, value in (("store", "store"), ("cache", "cache"), ("pools.a.out", "out")):
        dsv.ok("config", key, str(tmp_path / value))
    dsv.ok("config", "pools.a.engine", "slurm")
    write_files(dsv.cwd, {"a": b"1"})
    dsv.ok("init", "pets")
    dsv.ok("sync")
    ended = dsv.process("run", "pets", "--on", "a", "-p", "n=1,2", "--sweep", "--parallel", "2", "--", "true")
    assert ended.code == 125, ended
    assert ended.err.count(" begun") == 2, ended
    items = dsv.ok("runs", "--json").json["items"]
    assert {item["state"] for item in items} <= {"cut-off", "not-launched"} and len(items) == 2
    assert [path.read_text().split("|")[1] for path in sorted(queue.iterdir())] == jobs
