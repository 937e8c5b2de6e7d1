"""What runs in the queue of a Slurm cost the machine that submitted them.

    python -m benchmarks.queued_runs 200              of one sweep
    python -m benchmarks.queued_runs 20 --alone       of detached runs
    python -m benchmarks.queued_runs 10 --followed    of runs that are each followed by their dsv run
    python -m benchmarks.queued_runs 10 --waited      of detached runs, each waited for by a dsv wait
    python -m benchmarks.queued_runs 10 --lab DIR     on the Slurm of `python -m tests.labs up slurm DIR`

Printed are the processes of dsv, their memory (PSS), and how often they call squeue in a minute, once all jobs are in
the queue. Without --lab the programs of Slurm are stand-ins, by which each job waits for ever. In the lab a job that
has all nodes lets the others wait, and the calls of the real squeue are counted.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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
COUNTED = 'printf . >>"$FAKE/calls"; exec {squeue} "$@"'
AT_ONCE = 4
BLOCKER = ("sbatch", "--parsable", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 86400")


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
    try:
        text = (process / "smaps_rollup").read_text()
    except OSError:  # it has ended just now
        return 0
    return next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:"))


def prepared(folder: Path, lab: Path | None) -> dict[str, str]:
    (folder / "bin").mkdir()
    programs = PROGRAMS if lab is None else {"squeue": COUNTED.format(squeue=shutil.which("squeue"))}
    for name, script in programs.items():
        path = folder / "bin" / name
        path.write_text(f"#!/bin/bash\n{script}")
        path.chmod(0o755)
    env = {"HOME": str(folder), "PATH": f"{folder}/bin:/usr/bin:/bin", "FAKE": str(folder), "USER": "ada"}
    env |= {} if lab is None else {"SLURM_CONF": str(lab / "slurm" / "slurm.conf")}
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


def submit(given: argparse.Namespace, folder: Path, env: dict[str, str]) -> list[subprocess.Popen[bytes]]:
    """Submit the runs, and return the processes that go on with them."""
    command = [*DSV, "run", "digits", "--on", "a"]

    def start(*words: str) -> subprocess.Popen[bytes]:
        nothing = subprocess.DEVNULL
        return subprocess.Popen(words, env=env, cwd=folder, stdin=nothing, stdout=nothing, stderr=nothing)

    def detach(*options: str) -> str:
        words = [*command, "--detach", *options, "--", "true"]
        done = subprocess.run(words, env=env, cwd=folder, check=True, capture_output=True, text=True)
        return done.stdout.split()[0]

    if given.followed:
        started = []
        for number in range(given.runs):
            started.append(start(*command, "--", "true"))
            while queued(folder, env, given.lab) <= number - AT_ONCE:
                time.sleep(0.5)
        return started
    if given.alone or given.waited or given.runs == 1:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            runs = list(pool.map(lambda _: detach(), range(given.runs)))
        return [start(*DSV, "wait", run) for run in runs] if given.waited else []
    values = ",".join(map(str, range(given.runs)))
    detach("-p", f"n={values}", "--sweep", "--parallel", str(given.runs))
    return []


def queued(folder: Path, env: dict[str, str], lab: Path | None) -> int:
    """Count the jobs of this measurement in the queue."""
    if lab is None:
        queue = folder / "queue"
        return queue.read_bytes().count(b"\n") if queue.exists() else 0
    argv = [str(shutil.which("squeue")), "--noheader", "--states=PENDING", "--format=%k"]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False).stdout.count(
        f":{folder}/"
    )


def measure(given: argparse.Namespace, folder: Path, env: dict[str, str]) -> None:
    started = submit(given, folder, env)
    marks, left = folder / ".local/state/dsv/running", given.runs if given.followed else 0
    last = time.monotonic() + given.seconds
    while queued(folder, env, given.lab) < given.runs or len(list(marks.glob("2*[0-9a-f]"))) > left:
        if time.monotonic() > last:
            break
        time.sleep(2)
    time.sleep(90)  # until it asks no more often than it will from now on
    calls = folder / "calls"
    before = calls.stat().st_size
    time.sleep(120)
    asked = (calls.stat().st_size - before) / 2
    processes = ours(folder)
    threads = sum(len(list(each.glob("task/*"))) for each in processes)
    found = {"runs": queued(folder, env, given.lab), "processes": len(processes), "threads": threads}
    print(json.dumps({**found, "pss_bytes": sum(map(pss, processes)), "squeue_a_minute": asked}))
    for each in processes:
        with suppress(ProcessLookupError):
            os.kill(int(each.name), signal.SIGKILL)
    for process in started:
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=int)
    how = parser.add_mutually_exclusive_group()
    for flag in ("--alone", "--followed", "--waited"):
        how.add_argument(flag, action="store_true")
    parser.add_argument("--lab", type=Path)
    parser.add_argument("--seconds", type=float, default=7200, help="then measure with as many as there are")
    given = parser.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        env = prepared(folder, given.lab)
        blocker = "" if given.lab is None else subprocess.check_output(BLOCKER, env=env, text=True).strip()
        try:
            measure(given, folder, env)
        finally:
            if blocker:
                mine = subprocess.check_output(["squeue", "--noheader", "--format=%A %k"], env=env, text=True)
                jobs = [line.split()[0] for line in mine.splitlines() if f":{folder}/" in line]
                subprocess.run(["scancel", *jobs, blocker], env=env, check=False)


if __name__ == "__main__":
    main()
