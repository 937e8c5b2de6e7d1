"""dsv wait of a run that a dsv of this machine follows on Slurm, with programs in place of Slurm's own."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.test_unwatched_runs import AWAY
from tests.engines.test_slurm_stubs import programs
from tests.kit.dsv import Dsv
from tests.waiting import PATIENCE, until

SBATCH = r"""
[ "$1" != --version ] || exit 0
for script; do :; done
echo "7|PENDING||Resources|$(sed -n 's/^#SBATCH --comment=//p' "$script" | tr -d \"\')" >"$CALLS.queue"
echo 7
"""
SCONTROL = f"""{AWAY}
[ "$1" != --oneliner ] || echo 'NodeName=n1 CPUTot=2 RealMemory=9000 AllocMem=0 State=IDLE Partitions=p'
[ "$2" != config ] || printf 'ClusterName = c\\nSlurmctldHost[0] = h\\n'
"""
SCANCEL = 'sed -i "s/PENDING/CANCELLED/" "$CALLS.queue"'
SQUEUE = f'{AWAY}cat "$CALLS.queue" 2>/dev/null; exit 0'


def test_who_waits_for_a_run_of_this_machine_is_told_once_that_slurm_is_away(
    pets: Dsv, tmp_path: Path
) -> None:
    """With the state that it was last known to have."""
    env = programs(tmp_path, sbatch=SBATCH, squeue=SQUEUE, scontrol=SCONTROL, scancel=SCANCEL)
    here = pets.at(pets.cwd, **{name: env[name] for name in ("PATH", "CALLS", "XDG_RUNTIME_DIR")})
    here.ok("config", "pools.a.engine", "slurm")
    here.ok("config", "pools.a.out", str(tmp_path / "out"))
    running = here.start("run", "pets@v1", "--on", "a", "--", "true")
    listed: list[dict[str, str]] = []

    def is_queued() -> bool:
        listed[:] = here.ok("runs", "--json").json["items"]
        return [item["state"] for item in listed] == ["queued"]

    until(is_queued, "the job in the queue")
    waiting = here.start("wait", "--json", listed[0]["run"])
    away = Path(f"{tmp_path}/calls.away")
    away.touch()
    assert waiting.stderr is not None
    said = waiting.stderr.readline().decode()
    assert said.startswith(
        "warning: can't tell now whether a run has ended: queued is the last known state, of "
    )
    assert "Slurm does not answer: error: Unable to contact slurm controller" in said
    away.unlink()
    here("stop", listed[0]["run"])
    out, err = waiting.communicate(timeout=PATIENCE)
    assert (running.wait(PATIENCE), waiting.returncode) == (143, 143)
    assert json.loads(out)["items"][0]["state"] == "not-launched" and b"can't tell" not in err
