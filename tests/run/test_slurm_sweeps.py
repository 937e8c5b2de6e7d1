"""Sweeps on a real Slurm: a job for each run, seen and ended from a machine that did not start them."""

from __future__ import annotations

import json
from typing import Any

from tests.run.slurm_site import Site
from tests.waiting import PATIENCE, until

WAITS = 'touch "$DSV_OUT/ready"; until [ -e "$DSV_OUT/go" ]; do sleep 0.1; done'


def runs(site: Site, **where: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(site.dsv("runs", "grid", "--json", **where))["items"]
    return found


def start(site: Site, script: str, *options: str) -> Any:
    words = ("run", "digits", "--on", "a", "-p", "n=1,2,3", "--sweep", "--name", "grid", *options)
    return site.start(*words, "--", "sh", "-c", script)


def test_each_run_of_a_sweep_is_a_job_of_its_own(site: Site) -> None:
    terminal = start(site, 'echo "{\\"acc\\": 0.$DSV_ATTEMPT}" > "$DSV_OUT/metrics.json"', "--parallel", "2")
    out, err = terminal.communicate(timeout=PATIENCE)
    assert terminal.returncode == 0, out + err
    items = runs(site)
    assert [(item["params"]["n"], item["exit_code"], item["metrics"]) for item in items] == [
        (number, 0, {"acc": 0.1}) for number in (1, 2, 3)
    ]
    assert len({item["job"]["id"] for item in items}) == 3


def test_a_sweep_is_seen_and_ended_from_another_machine(site: Site) -> None:
    terminal = start(site, WAITS, "--parallel", "2")
    until(lambda: len(list((site.folder / "out").glob("digits/*/ready"))) == 2, "two runs at once")
    assert [item["state"] for item in runs(site, node="n3")] == ["running", "running"]
    site.dsv("stop", "grid", node="n3")
    out, err = terminal.communicate(timeout=PATIENCE)
    assert terminal.returncode == 143 and "is being stopped" in err, out + err
    ended = runs(site)
    assert [(item["state"], item["end"]) for item in ended] == [("ended", "cancelled")] * 2
    assert site.slurm.call("squeue", "--noheader") == ""
