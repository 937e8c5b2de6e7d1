"""Runs of several nodes on a real Kubernetes."""

from __future__ import annotations

import json
import os
import signal

from tests.run.test_kubernetes_runs import Site, run_of, site  # noqa: F401
from tests.waiting import until


def test_the_last_of_several_nodes_completes_the_record_though_nobody_looks(site: Site) -> None:  # noqa: F811
    """Of both attempts: in the first one node fails, and the other is ended with it. The output is in the store."""
    script = """echo "$NODE_RANK in $DSV_ATTEMPT"; touch "$DSV_OUT/began.$DSV_ATTEMPT.$NODE_RANK"
    [ "$DSV_ATTEMPT" = 1 ] || exit 0
    until [ -e "$DSV_OUT/go" ]; do sleep 0.1; done
    [ "$NODE_RANK" = 0 ] || exit 3
    while :; do sleep 0.1; done"""
    terminal = site.start(*run_of("--nodes", "2", "--retries", "1", "--keep-output", script=script))
    until(lambda: site.has("began.1.0", "began.1.1"), "both nodes")
    os.killpg(terminal.pid, signal.SIGKILL)
    terminal.communicate()
    run = site.folder / "store" / "runs" / "digits" / site.out().name
    (site.out() / "go").touch()
    until((run / "record").exists, "the record")
    record = json.loads((run / "record").read_text())
    assert (record["state"], record["end"], record["exit_code"]) == ("ended", "exited", 0)
    ends = [(part["attempt"], part["node"], part["end"], part["exit_code"]) for part in record["parts"]]
    assert ends == [
        (1, 0, "cancelled", 143),
        (1, 1, "exited", 3),
        (2, 0, "exited", 0),
        (2, 1, "exited", 0),
    ]
    assert record["parts"][0]["error"].endswith("node 1 failed first, with exit code 3")
    assert record["usage"] is not None and all(part["host"] for part in record["parts"])
    told = [(node, attempt) for attempt in (1, 2) for node in (0, 1)]
    log = "".join(f"[dsv: node {node}, attempt {attempt}]\n{node} in {attempt}\n" for node, attempt in told)
    assert (run / "log").read_text() == log
    site.dsv("runs", run.name, "--out", "here")
    assert (site.folder / "here" / "began.2.1").exists()
