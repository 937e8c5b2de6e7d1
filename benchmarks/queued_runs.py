"""What runs in the queue of a Slurm cost the machine that submitted them: python -m benchmarks.queued_runs 200

The programs of Slurm are stand-ins, by which each job waits for ever. Printed are the processes of dsv, their memory
(PSS), and how often they ask squeue in a minute, once all jobs are in the queue: of one sweep, or with --alone of so
many detached runs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

DSV = [sys.executable, "-m", "dsv.cli.main"]
PROGRAMS = {
    "sbatch": """
case $1 in --version) echo slurm-wlm 22.05; exit ;; esac
for script; do :; done
exec 9>>"$FAKE/queue"; flock 9
number=$(($(wc -l <"$FAKE/queue") + 1))
echo "$number|PENDING||Resources|$(sed -n 's/^#SBATCH --comment=//p' "$script" | tr -d "'\\"")" >&9
echo $number
""",
    "squeue": 'printf . >>"$FAKE/calls"; case "$*" in *PENDING*) exit ;; esac; cat "$FAKE/queue" 2>/dev/null; true',
    "scancel": ":",
    "scontrol": """
case "$*" in
  "show config") printf 'ClusterName = fake\\nSlurmctldHost[0] = h\\n' ;;
  *node*) echo "NodeName=n1 CPUAlloc=0 CPUTot=8 RealMemory=8000 AllocMem=0 Partitions=debug State=IDLE" ;;
esac
""",
}


def ours(home: Path) -> list[Path]:
    """The processes of this measurement's dsv."""
    mark, found = f"HOME={home}\0".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            named = b"python" in (process / "cmdline").read_bytes()
            if named and mark in (process / "environ").read_bytes() and process.name != str(os.getpid()):
                found.append(process)
        except OSError:
            continue
    return found


def pss(process: Path) -> int:
    text = (process / "smaps_rollup").read_text()
    return next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:"))


def prepared(folder: Path) -> dict[str, str]:
    (folder / "bin").mkdir()
    for name, script in PROGRAMS.items():
        path = folder / "bin" / name
        path.write_text(f"#!/bin/bash\n{script}")
        path.chmod(0o755)
    env = {"HOME": str(folder), "PATH": f"{folder}/bin:/usr/bin:/bin", "FAKE": str(folder), "USER": "ada"}
    env |= {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    (folder / "data").mkdir()
    (folder / "data" / "file").write_text("data")
    for words in (
        ("config", "store", f"{folder}/store"), ("config", "cache", f"{folder}/cache"),
        ("config", "pools.a.engine", "slurm"), ("config", "pools.a.out", f"{folder}/out"),
        ("-C", "data", "init", "digits"), ("-C", "data", "sync"),
    ):  # fmt: skip
        subprocess.run([*DSV, *words], env=env, cwd=folder, check=True, capture_output=True)
    return env


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=int)
    parser.add_argument("--alone", action="store_true")
    given = parser.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        env = prepared(folder)
        command = [*DSV, "run", "digits", "--on", "a", "--detach"]
        if given.alone or given.runs == 1:
            for _ in range(given.runs):
                subprocess.run([*command, "--", "true"], env=env, cwd=folder, check=True, capture_output=True)
        else:
            values = ",".join(map(str, range(given.runs)))
            sweep = ["-p", f"n={values}", "--sweep", "--parallel", str(given.runs)]
            subprocess.run(
                [*command, *sweep, "--", "true"], env=env, cwd=folder, check=True, capture_output=True
            )
        state = folder / ".local/state/dsv"
        queue = folder / "queue"
        while (
            not queue.exists()
            or queue.read_bytes().count(b"\n") < given.runs
            or list((state / "running").glob("2*"))
        ):
            time.sleep(1)
        time.sleep(60)  # until it asks no more often than it will from now on
        calls = folder / "calls"
        before = calls.stat().st_size
        time.sleep(60)
        asked = calls.stat().st_size - before
        processes = ours(folder)
        threads = sum(len(list((each / "task").iterdir())) for each in processes)
        total = sum(pss(each) for each in processes)
        found = {"runs": given.runs, "processes": len(processes), "threads": threads, "pss_bytes": total}
        print(json.dumps({**found, "squeue_a_minute": asked}))
        for each in processes:
            os.kill(int(each.name), signal.SIGKILL)


if __name__ == "__main__":
    main()
