"""A node of a real Kubernetes that is switched off at several moments of a launch, by what the cluster shows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.run.test_kubernetes_runs import Site, run_of, site  # noqa: F401
from tests.waiting import PATIENCE, until

ONCE = '[ "$DSV_ATTEMPT" = 2 ] || [ -e "$DSV_OUT/again" ] || { touch "$DSV_OUT/again"; sleep 1000; }'
SCHEDULED, HOLDS, RUNS = "it has a node", "the data is being held", "the command runs"


def _shows(pod: dict[str, Any], moment: str) -> bool:
    states = pod["status"].get("initContainerStatuses", []) + pod["status"].get("containerStatuses", [])
    running = {each["name"] for each in states if "running" in each["state"]}
    if moment == SCHEDULED:
        return "nodeName" in pod["spec"]
    return ("hold" if moment == HOLDS else "main") in running


@pytest.mark.exhaustive
@pytest.mark.parametrize("moment", [SCHEDULED, HOLDS, RUNS])
def test_a_run_continues_elsewhere_if_its_node_is_switched_off(site: Site, moment: str) -> None:  # noqa: F811
    """It is a retry only if the command had begun; the part ends when the cluster lost sight of the node."""
    terminal = site.start(*run_of("--retries", "1", script=ONCE if moment == RUNS else "true"))
    lost: list[str] = []

    def shown() -> bool:
        pods = site.cluster.get("pods")["items"]
        alive = [pod for pod in pods if pod["status"]["phase"] in ("Pending", "Running")]
        lost[:] = [pod["spec"]["nodeName"] for pod in alive if _shows(pod, moment)]
        return bool(lost)

    until(shown, moment)
    site.cluster.lose(lost[0])
    try:
        out, err = terminal.communicate(timeout=2 * PATIENCE)
    finally:
        site.cluster.make_ready()
    record = site.last()
    assert (terminal.returncode, record["end"]) == (0, "exited"), out + err
    assert record["parts"][-1]["host"] != lost[0]
    if moment == RUNS:
        first = record["parts"][0]
        assert (first["end"], first["host"], first["exit_code"]) == ("node-lost", lost[0], 137)
        assert first["ended"] is not None
