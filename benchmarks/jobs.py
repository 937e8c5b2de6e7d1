"""What `dsv run` adds to a job of a cluster whose data is cached: the same command by it and by kubectl, in turns.

    python -m benchmarks.jobs                 five rounds on the Kubernetes of this machine (see CONTRIBUTING.md)
    python -m benchmarks.jobs --rounds 20

Each run is timed from the start of the command to its end, after the job's own end. Prints the seconds of both in each
round, their medians, and what is between them. Needs root and the packages of the Kubernetes lab.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.labs import dsv_image, shelf
from tests.labs.docker_engine import ContainerEngine
from tests.labs.kubernetes import Kubernetes
from tests.labs.kubernetes_config import BUSYBOX
from tests.run.kubernetes_site import Site, made

IMAGE = f"docker.io/{BUSYBOX}"
MOST = 3.0
"""Seconds that dsv may add."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    own = None if "DSV_LABS" in os.environ else Path(tempfile.mkdtemp(prefix="dsv-labs-"))
    place = own or Path(os.environ["DSV_LABS"])
    try:
        cluster, engine = shelf.attach(place, "kubernetes"), shelf.attach(place, "docker-engine")
        assert isinstance(cluster, Kubernetes) and isinstance(engine, ContainerEngine)
        image = dsv_image.give(cluster, engine)
        with (
            tempfile.TemporaryDirectory(prefix="dsv-bench-") as folder,
            made(cluster, Path(folder) / "site", image) as site,
        ):
            _by_dsv(site)  # fetches the data
            print(
                report(
                    [
                        (_timed(lambda: _by_kubectl(site)), _timed(lambda: _by_dsv(site)))
                        for _ in range(rounds)
                    ]
                )
            )
    finally:
        if own is not None:
            shelf.take_down(own)


def report(rounds: list[tuple[float, float]]) -> str:
    """The rounds as a table, kubectl first, and the difference of the medians."""
    lines = ["kubectl  dsv run  between"]
    lines += [f"{plain:7.1f}  {ours:7.1f}  {ours - plain:7.1f}" for plain, ours in rounds]
    plain, ours = (statistics.median(each[which] for each in rounds) for which in (0, 1))
    lines.append(
        f"median: {plain:.1f} s and {ours:.1f} s; dsv adds {ours - plain:.1f} s, at most {MOST:.0f} s are wanted"
    )
    return "\n".join(lines)


def _timed(run: Callable[[], None]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


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
