"""A user at a cluster: dsv typed in a terminal, and what the newest run of the dataset `digits` is and has written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.labs.machine import environment
from tests.waiting import PATIENCE, until

DSV = str(Path(sys.executable).with_name("dsv"))
WAIT = 'touch "$DSV_OUT/ready.$DSV_ATTEMPT.$NODE_RANK"; until [ -e "$DSV_OUT/go" ]; do sleep 0.1; done'
USES_DSV = f"""set -e
export HOME=$(mktemp -d)
export DSV_STORE=$HOME/store
mkdir "$HOME/labels" "$HOME/made"
cd "$HOME/labels"
echo label >l
env -u DSV_RUN {DSV} init labels
env -u DSV_RUN {DSV} sync -m labels
{DSV} cat labels:l
cd "$HOME/made"
echo made >m
{DSV} init made
{DSV} sync -m 'from the job'
{DSV} log made --json
rm -r "$HOME"
"""
"""A job that reads a commit and makes one, in a store of its own, and prints the log of what it made."""
TWO_NODES = """
import json, os, socket, sys, time
import numpy
out, rank = os.environ["DSV_OUT"], int(os.environ["NODE_RANK"])
shard = numpy.load(f"{os.environ['DSV_DATA']}/part{rank}.npy")
x, y = shard[:, :64] / 16, numpy.eye(10)[shard[:, 64].astype(int)]
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    listener = socket.create_server(place)
    peer = listener.accept()[0]
else:
    while True:
        try:
            peer = socket.create_connection(place)
            break
        except OSError:
            time.sleep(0.05)
def exchange(array):
    peer.sendall(array.tobytes())
    data = b""
    while len(data) < array.nbytes:
        piece = peer.recv(array.nbytes - len(data))
        if not piece:
            sys.exit("the other node is gone")
        data += piece
    return numpy.frombuffer(data).reshape(array.shape)
def improved(weights):
    chances = numpy.exp(x @ weights)
    gradient = x.T @ (chances / chances.sum(1, keepdims=True) - y) / len(x)
    return weights - 0.5 * (gradient + exchange(gradient)) / 2
def report(weights, **more):
    right = float((numpy.argmax(x @ weights, 1) == numpy.argmax(y, 1)).mean())
    print(f"node {rank} has {right:.2f}", flush=True)
    if rank == 0:
        json.dump({"accuracy": right, **more}, open(f"{out}/metrics.json", "w"))
"""
"""The beginning of a program that trains on two nodes, of which each has one part of the data."""

CURVES = """
printf '{"step": 10, "loss": 0.5}\n{"step": 20, "loss": 0.25}\n' > "$DSV_OUT/metrics.jsonl"
touch "$DSV_OUT/begun"
until [ -e "$DSV_OUT/go" ]; do sleep 0.1; done
printf '{"step": 30, "loss": 0.125}\n' >> "$DSV_OUT/metrics.jsonl"
"""


@dataclass
class Site:
    """`folder` is where the user types."""

    folder: Path

    @property
    def env(self) -> dict[str, str]:
        """The variables that reach the cluster."""
        return {}

    @property
    def environ(self) -> dict[str, str]:
        return {**environment(self.env), "PATH": os.environ["PATH"]}

    @property
    def outs(self) -> Path:
        """The folder of all output folders, as this machine sees it."""
        return self.folder / "out"

    def argv(self, words: Sequence[str], node: str | None = None) -> list[str]:
        """dsv as it is typed here, or on a node."""
        assert node is None
        return [DSV, *words]

    def dsv(self, *words: str, node: str | None = None, code: int | None = 0) -> str:
        """stdout of dsv; all that it prints if `code` is not 0. None allows any exit code."""
        terminal = self.start(*words, node=node)
        try:
            out, err = terminal.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            terminal.kill()
            raise
        assert code is None or terminal.returncode == code, f"{terminal.returncode}: {out}{err}"
        return out if code == 0 else out + err

    def start(self, *words: str, node: str | None = None, path: str | None = None) -> subprocess.Popen[str]:
        """dsv in a terminal of its own."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            self.argv(words, node), env={**self.environ, **({"PATH": path} if path else {})},
            cwd=self.folder, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe,
        )  # fmt: skip

    def last(self) -> dict[str, Any]:
        """The record of the newest run."""
        items: list[dict[str, Any]] = json.loads(self.dsv("runs", "--json", "-n", "1"))["items"]
        return items[0] if items else {}

    def check_notes(self, printed: str) -> None:
        """Check that the newest run, which was `USES_DSV` and printed this, has what the job read and made."""
        record = self.last()
        (made,) = json.loads(printed[printed.index("{") :])["items"]
        assert made["message"] == f"from the job\n\nMade-by-run: digits/{record['run']}"
        assert [(each["dataset"], each["commit"]) for each in record["made"]] == [("made", made["commit"])]
        assert [each["dataset"] for each in record["read"]] == ["labels"]
        assert record["notes_error"] is None

    def check_curves(self, *command: str, live: bool) -> None:
        """Check the curves of a run of this command, which runs `CURVES`. live: others see them while it runs."""
        terminal = self.start(*command)
        pieces = self.folder / "store" / "metrics" / "digits"
        if live:
            until(lambda: any(path.is_file() for path in pieces.rglob("*")), "a piece")
            assert self._curve()["of"] == 2
        until(lambda: self.has("begun"), "the lines of the job")
        self.go()
        out, err = terminal.communicate(timeout=PATIENCE)
        assert terminal.returncode == 0, out + err
        curve = self._curve()
        assert (curve["of"], curve["points"][0], curve["points"][-1]) == (3, [10, 0.5], [30, 0.125])
        assert self.last()["metrics"] == {"loss": 0.125}
        assert not [path for path in pieces.rglob("*") if path.is_file()], "its pieces are gone"

    def _curve(self) -> dict[str, Any]:
        shown = self.dsv("runs", self.last()["run"], "--plot", "loss", "--json")
        curve: dict[str, Any] = json.loads(shown)["series"]
        return curve

    def out(self) -> Path:
        """The output folder of the newest run."""
        until(self._outs, "the run")
        return max(self._outs())

    def _outs(self) -> list[Path]:
        return [path for path in self.outs.glob("digits/*") if path.suffix != ".job"]

    def has(self, *names: str) -> bool:
        return all((self.out() / name).exists() for name in names)

    def go(self) -> None:
        """Let a job end that runs `WAIT`."""
        (self.out() / "go").touch()


def save_digits(folder: Path) -> None:
    """Write handwritten digits in two parts into a new folder, for `TWO_NODES`."""
    numpy = pytest.importorskip("numpy")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    rows = numpy.column_stack([bunch.data, bunch.target])
    folder.mkdir()
    for number in range(2):
        numpy.save(folder / f"part{number}.npy", rows[number::2])
