"""Sweeps whose runs are containers of a real Docker Engine."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsv.run.active_runs import under_way
from tests.kit.dsv import Dsv, plain_environment, write_files
from tests.labs.docker_engine import ContainerEngine
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.real
SCRIPT = (
    "trap 'exit 7' TERM; touch /out/ready; until [ -e /out/go ]; do sleep 0.1; done; "
    "case $DSV_PARAMS in *0.01}) exit 3;; *0.001}) acc=0.9;; *) acc=0.5;; esac; "
    'echo "{\\"acc\\": $acc}" > /out/metrics.json'
)


class Yard:
    """A person with a dataset and a Docker Engine."""

    def __init__(self, folder: Path, lab: ContainerEngine) -> None:
        self.lab, self.home = lab, folder / "home"
        self.sweep = (
            f"grid-{os.urandom(4).hex()}"  # containers have it, and others use this engine at the same time
        )
        (folder / "work").mkdir()
        self.home.mkdir()
        environ = {**plain_environment(self.home), **lab.env, "DSV_CACHE": str(folder / "cache")}
        self.dsv = Dsv(self.home, folder / "work", environ)
        write_files(self.dsv.cwd, {"a": b"a"})
        for words in (("init", "pets"), ("sync",), ("tag", "v1")):
            self.dsv.ok(*words)

    def start(self, out: Path) -> subprocess.Popen[bytes]:
        options = ("--engine", "docker", "--image", self.lab.busybox, "--out", str(out), "--name", self.sweep)
        sweep = ("-p", "lr=0.1,0.01,0.001", "--sweep", "--parallel", "2")
        terminal = self.dsv.start("run", "pets@v1", *options, *sweep, "--", "sh", "-c", SCRIPT)
        until(lambda: ready(out) == ["1", "2"] or terminal.poll() is not None, "two runs")
        return terminal

    def containers(self) -> int:
        own = [each.run for each in under_way(self.home / ".local/state/dsv")]
        shown = subprocess.run(
            [self.lab.program, "ps", "--format", "{{.Label \"dsv.run\"}}"],
            env=dict(self.dsv.environ), capture_output=True, text=True, check=True,
        )  # fmt: skip
        return sum(run in own for run in shown.stdout.split())

    def items(self, *options: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.dsv.ok("runs", self.sweep, "--json", *options).json["items"]
        return found


def ready(out: Path) -> list[str]:
    return sorted(path.parent.name for path in out.glob("*/ready"))


@pytest.fixture
def yard(tmp_path: Path, docker_engine: ContainerEngine) -> Iterator[Yard]:
    made = Yard(tmp_path, docker_engine)
    yield made
    for one in under_way(made.home / ".local/state/dsv"):
        if not one.owner.is_dead:
            one.ask_to_stop(0)
            one.wait_for_end()


def test_a_sweep_whose_terminal_is_killed_is_continued(yard: Yard, tmp_path: Path) -> None:
    out = tmp_path / "out"
    terminal = yard.start(out)
    # Their programs may begin before Docker lists them.
    until(lambda: yard.containers() == 2, "two containers")
    assert not (out / "3").exists()
    terminal.send_signal(signal.SIGKILL)
    terminal.communicate()
    assert "2 running, 1 not begun" in yard.dsv.ok("runs", yard.sweep).out
    name = yard.items()[0]["sweep"]["id"]
    again = yard.dsv.start("run", "--again", name, "--parallel", "2")
    until((yard.home / ".local/state/dsv/sweeps" / name / "driver").exists, "the second dsv")
    assert ready(out) == ["1", "2"]  # it counts the runs that the first one has begun
    (out / "1" / "go").touch()
    until(lambda: ready(out) == ["1", "2", "3"], "the third run")
    for number in "23":
        (out / number / "go").touch()
    _, err = again.communicate(timeout=PATIENCE)
    assert again.returncode == 3, err
    best_first = [(each["params"]["lr"], each["exit_code"]) for each in yard.items("--sort", "metrics.acc")]
    assert best_first == [(0.001, 0), (0.1, 0), (0.01, 3)]
    assert "2 ok, 1 failed" in yard.dsv.ok("runs").out and yard.dsv.process("wait", yard.sweep).code == 3


@pytest.mark.parametrize("how", ["Ctrl-C", "dsv stop"])
def test_a_sweep_that_is_ended_leaves_no_container(yard: Yard, tmp_path: Path, how: str) -> None:
    terminal = yard.start(tmp_path / "out")
    if how == "Ctrl-C":
        terminal.send_signal(signal.SIGINT)
    else:
        yard.dsv.ok("stop", yard.sweep)
    _, err = terminal.communicate(timeout=PATIENCE)
    assert terminal.returncode == 7, err
    assert yard.containers() == 0 and [each["exit_code"] for each in yard.items()] == [7, 7]
    assert not (tmp_path / "out" / "3").exists()
