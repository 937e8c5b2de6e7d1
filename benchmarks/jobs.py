"""What `dsv run` adds to a job of a cluster whose data is cached: the same command by it and by kubectl, in turns.

    python -m benchmarks.jobs                 five rounds on the Kubernetes of this machine (see CONTRIBUTING.md)
    python -m benchmarks.jobs --rounds 20

Each run is timed from the start of the command to its end, after the job's own end. Prints the seconds of both in each
round, and the processor time of dsv; then when each step of the job was seen, from the start of the command (a watch of
the cluster tells); then the medians and what is between them. Needs root and the packages of the Kubernetes lab.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.labs import dsv_image, shelf
from tests.labs.docker_engine import ContainerEngine
from tests.labs.kubernetes import Kubernetes
from tests.labs.kubernetes_config import BUSYBOX
from tests.run.kubernetes_site import Site, made

from benchmarks.job_steps import STEPS, Watch, watching

IMAGE = f"docker.io/{BUSYBOX}"
MOST = 3.0
"""Seconds that dsv may add."""
AFTER = 3.0
"""Seconds between two runs, in which the cluster does what is left to do for the one before."""
PACKAGE = Path(__file__).parents[1] / "src" / "dsv"


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds of one run: until the command returned, of the processors, and until each step of the job was seen."""

    seconds: float
    cpu: float
    steps: Mapping[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    compileall.compile_dir(PACKAGE, quiet=2)  # as an installed dsv is
    own = None if "DSV_LABS" in os.environ else Path(tempfile.mkdtemp(prefix="dsv-labs-"))
    place = own or Path(os.environ["DSV_LABS"])
    try:
        cluster, engine = shelf.attach(place, "kubernetes"), shelf.attach(place, "docker-engine")
        assert isinstance(cluster, Kubernetes) and isinstance(engine, ContainerEngine)
        image = dsv_image.give(cluster, engine)
        with (
            tempfile.TemporaryDirectory(prefix="dsv-bench-") as folder,
            made(cluster, Path(folder) / "site", image) as site,
            watching(cluster, "training") as watch,
        ):
            _by_dsv(site)  # fetches the data
            watch.hears.wait(60)
            print(report([_round(site, watch) for _ in range(rounds)]))
    finally:
        if own is not None:
            shelf.take_down(own)


def report(rounds: Sequence[tuple[Took, Took]]) -> str:
    """The rounds as a table, kubectl first, the medians of their steps, and the difference of the medians."""
    lines = ["kubectl  dsv run  between  processor of dsv"]
    for plain, ours in rounds:
        lines.append(
            f"{plain.seconds:7.1f}  {ours.seconds:7.1f}  {ours.seconds - plain.seconds:7.1f}  {ours.cpu:7.2f}"
        )
    lines += ["", f"{'step, median':<16}  kubectl  dsv run"]
    for step in (*STEPS, "returns"):
        lines.append(
            f"{step:<16}" + "".join(f"  {_step(step, [each[which] for each in rounds])}" for which in (0, 1))
        )
    medians = [statistics.median(each[which].seconds for each in rounds) for which in (0, 1)]
    lines.append(
        f"median: {medians[0]:.1f} s and {medians[1]:.1f} s; dsv adds {medians[1] - medians[0]:.1f} s, "
        f"at most {MOST:.0f} s are wanted"
    )
    return "\n".join(lines)


def _step(name: str, all_: Sequence[Took]) -> str:
    """The median, if each of them had this step."""
    found = [each.seconds if name == "returns" else each.steps.get(name) for each in all_]
    seen = [each for each in found if each is not None]
    return f"{statistics.median(seen):7.2f}" if len(seen) == len(all_) else " " * 7


def _round(site: Site, watch: Watch) -> tuple[Took, Took]:
    return _timed(lambda: _by_kubectl(site), watch, "plain-"), _timed(lambda: _by_dsv(site), watch, "dsv-")


def _timed(run: Callable[[], None], watch: Watch, prefix: str) -> Took:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    run()
    seconds = time.time() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    time.sleep(AFTER)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Took(seconds, cpu, watch.steps(prefix, began))


def _by_dsv(site: Site) -> None:
    site.dsv("run", "digits", "--image", IMAGE, "--", "true")


def _by_kubectl(site: Site) -> None:
    name = f"plain-{time.time_ns()}"
    limits = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    main = {"name": "main", "image": IMAGE, "command": ["true"], "securityContext": limits}
    allowed = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    pod = {"restartPolicy": "Never", "securityContext": allowed, "containers": [main]}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "training"},
        "spec": {"template": {"spec": pod}},
    }
    site.cluster.kubectl("create", "-f", "-", given=json.dumps(job))
    site.cluster.kubectl(
        "-n", "training", "wait", "--for=condition=complete", f"job/{name}", "--timeout=300s", timeout=320
    )


if __name__ == "__main__":
    main()
