"""Runs on a real Slurm, from the command line: what becomes of them, and of their leases, when something goes wrong."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.kit.clusters import CURVES, TWO_NODES, USES_DSV
from tests.labs.docker_engine import ContainerEngine
from tests.run.slurm_site import Site, run_of
from tests.waiting import PATIENCE, until

TRAIN = f"""{TWO_NODES}
weights = numpy.zeros((64, 10))
state = out + "/weights.npy"
first, attempt = 0, int(os.environ["DSV_ATTEMPT"])
if os.path.exists(state):
    weights, first = numpy.load(state), int(open(out + "/steps").read())
for step in range(first, 120):
    weights = improved(weights)
    if rank == 0:
        numpy.save(state, weights)
        open(out + "/steps", "w").write(str(step + 1))
    if step == 40 and attempt == 1:
        open(out + f"/half.{{rank}}", "w").close()
        time.sleep(3600)
report(weights, attempt=attempt)
"""


def test_a_training_on_two_nodes_loses_one_and_is_finished_by_its_retry(site: Site) -> None:
    """The data is fetched once for both, nobody can evict it meanwhile, and the record has it all."""
    (site.folder / "train.py").write_text(TRAIN)
    terminal = site.start("run", "digits", "--on", "a", "--nodes", "2", "--gpus", "1", "--retries", "1", "--",
                          sys.executable, str(site.folder / "train.py"))  # fmt: skip
    until(lambda: site.has("half.0", "half.1"), "the middle of the training")
    assert site.held()
    site.slurm.power_off("n2")
    out, err = terminal.communicate(timeout=PATIENCE)
    assert terminal.returncode == 0, out + err
    assert sorted(line[:12] for line in out.splitlines() if "has 0.9" in line) == [
        "[0] node 0 h",
        "[1] node 1 h",
    ]
    record = site.last()
    assert (record["state"], record["end"], record["exit_code"], record["nodes"]) == ("ended", "exited", 0, 2)
    assert record["metrics"]["accuracy"] > 0.9 and record["metrics"]["attempt"] == 2
    parts = record["parts"]
    assert [(part["attempt"], part["node"]) for part in parts] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert [part["exit_code"] for part in parts[2:]] == [0, 0]
    assert {part["host"] for part in parts[2:]} == {"n1", "n3"}
    size = sum(path.stat().st_size for path in (site.folder / "data").glob("*.npy"))
    fetched = [part["stage_bytes"] for part in parts if part["attempt"] == 1]
    assert 0 < sum(fetched) <= size + 10_000
    assert [part["cache_hit"] for part in parts[2:]] == [True, True]
    assert record["stage_seconds"] == max(part["stage_seconds"] for part in parts if part["attempt"] == 1) > 0


def test_a_cancelled_job_ends_its_run_and_its_leases(site: Site) -> None:
    terminal = site.start(*run_of())
    site.ready()
    assert site.held()
    site.slurm.call("scancel", site.job())
    _, err = terminal.communicate(timeout=PATIENCE)
    assert terminal.returncode == 143, err
    record = site.last()
    assert (record["end"], record["exit_code"]) == ("cancelled", 143)
    assert [part["end"] for part in record["parts"]] == ["cancelled"]
    until(lambda: not site.held(), "the end of the lease")


def test_a_requeued_job_continues_as_the_same_run(site: Site) -> None:
    terminal = site.start(*run_of("--retries", "1"))
    site.ready()
    site.slurm.call("scontrol", "requeue", site.job())
    site.ready(attempt=2)
    site.go()
    assert terminal.wait(PATIENCE) == 0
    parts = [(part["attempt"], part["end"]) for part in site.last()["parts"]]
    assert parts == [(1, "evicted"), (2, "exited")]


def test_a_preempted_job_without_retries_says_so(site: Site) -> None:
    site.dsv("config", "pools.a.engine_args", "--", "--exclusive")
    terminal = site.start(*run_of("--nodes", "3"))
    site.ready(nodes=3)
    site.slurm.call(
        "sbatch", "--partition=urgent", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=true"
    )
    assert terminal.wait(PATIENCE) == 143
    record = site.last()
    assert [record["end"], *(part["end"] for part in record["parts"])] == ["preempted"] * 4


def test_a_drained_node_finishes_its_job(site: Site) -> None:
    terminal = site.start(*run_of())
    site.ready()
    node = site.slurm.call("squeue", "--noheader", "--format=%N").strip()
    site.slurm.drain(node)
    assert site.held()
    site.go()
    assert terminal.wait(PATIENCE) == 0


def test_a_node_that_is_lost_ends_a_run_without_retries(site: Site) -> None:
    terminal = site.start(*run_of("--nodes", "2"))
    site.ready(nodes=2)
    site.slurm.power_off("n2")
    assert terminal.wait(PATIENCE) == 143
    record = site.last()
    assert record["end"] == "node-lost" and [part["end"] for part in record["parts"]] == [
        "exited",
        "node-lost",
    ]


def test_a_job_beyond_its_memory_says_so(site: Site) -> None:
    terminal = site.start(*run_of("--memory", "60M", script="head -c 300000000 /dev/zero | tail"))
    _, err = terminal.communicate(timeout=PATIENCE)
    assert terminal.returncode == 137, err
    record = site.last()
    assert [record["end"], *(part["end"] for part in record["parts"])] == ["out-of-memory"] * 2


def test_a_program_that_is_missing_was_not_started(site: Site) -> None:
    for nodes in ("1", "2"):
        site.dsv("run", "digits", "--on", "a", "--nodes", nodes, "--", "no-such-program", code=127)
        record = site.last()
        assert (record["state"], record["end"], record["exit_code"]) == ("not-launched", "not-started", 127)


def test_an_image_is_run_by_podman_on_each_node(
    site: Site, podman: ContainerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", podman.env["PATH"])
    site.dsv("config", "pools.a.slurm.container", "podman")
    script = "cmp /data/part0.npy /data/part0.npy && ! touch /data/x && echo $TOKEN > /out/node.$NODE_RANK"
    site.dsv(
        "run",
        "digits",
        "--on",
        "a",
        "--nodes",
        "2",
        "--image",
        f"localhost/{podman.busybox}",
        "-e",
        "TOKEN=hunter2",
        "--",
        "sh",
        "-c",
        script,
    )
    assert [(site.out() / f"node.{number}").read_text() for number in range(2)] == ["hunter2\n"] * 2


def test_an_image_that_can_not_be_fetched_says_so(
    site: Site, podman: ContainerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", podman.env["PATH"])
    site.dsv("config", "pools.a.slurm.container", "podman")
    for nodes in ("1", "2"):
        words = ("--nodes", nodes, "--retries", "1", "--image", "localhost/none:1", "--", "true")
        said = site.dsv("run", "digits", "--on", "a", *words, code=125)
        record = site.last()
        assert (record["state"], record["end"], record["exit_code"]) == ("not-launched", "not-started", 125)
        assert "localhost/none:1" in record["error"], said


def test_what_dry_run_prints_is_submitted_without_dsv(site: Site) -> None:
    script = site.dsv(
        "run", "digits", "--on", "a", "--dry-run", "--", "sh", "-c", 'cp "$DSV_DATA/part0.npy" copied'
    )
    (site.folder / "script").write_text(script)
    subprocess.run(["bash", "-c", script.partition("To submit it: ")[2].partition(" && ")[0]], check=True)
    site.slurm.call("sbatch", "--wait", str(site.folder / "script"))
    assert (site.folder / "copied").read_bytes() == (site.folder / "data" / "part0.npy").read_bytes()


def test_the_nodes_make_sure_of_the_code_and_hold_it(site: Site) -> None:
    (site.folder / "code").mkdir()
    (site.folder / "code" / "train.sh").write_text(
        '[ "$DSV_DATA_CODE" = "$DSV_CODE" ] && echo "the code is held"\n'
    )
    words = ("run", "digits", "--on", "a", "--code", "code", "--", "sh", "train.sh")
    assert "the code is held" in site.dsv(*words)


def test_a_job_that_can_never_run_says_why(site: Site) -> None:
    assert "no machine of it has 9 GPUs" in site.dsv(*run_of("--gpus", "9"), code=125)
    site.dsv("config", "pools.a.engine_args", "--", "--partition=none")
    assert "invalid partition specified" in site.dsv(*run_of(), code=125).lower()


def test_what_a_job_reads_and_makes_is_in_its_record(site: Site) -> None:
    terminal = site.start(*run_of(script=USES_DSV))
    out, err = terminal.communicate(timeout=PATIENCE)
    assert terminal.returncode == 0, out + err
    site.check_notes(out)


def test_curves_are_seen_while_the_job_runs_and_kept(site: Site) -> None:
    site.check_curves(*run_of(script=CURVES), live=True)
