"""Real signals to a real process that runs a job, as a terminal or a scheduler sends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

MAIN = """
import sys
from pathlib import Path
from dsv.engines.signals import Signals
from tests.run.shop import Shop
shop = Shop(Path(sys.argv[1]))
signals = Signals()
request = shop.request("sh", "-c", sys.argv[2])
result = shop.launch(request, offline=True, signals=signals, grace=float(sys.argv[3]))
print(result.record.signal, result.record.state, flush=True)
sys.exit(result.exit_code)
"""


def start(folder: Path, script: str, grace: float = 20) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", MAIN, str(folder), script, str(grace)]
    child = subprocess.Popen(
        argv, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2], start_new_session=True
    )
    deadline = time.monotonic() + 30
    while not (folder / "ready").exists():
        assert time.monotonic() < deadline and child.poll() is None
        time.sleep(0.02)
    return child


def finish(child: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    output, _ = child.communicate(timeout=120)
    return child.returncode, output.strip()


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGINT, b"SIGINT"), (signal.SIGTERM, b"SIGTERM"), (signal.SIGHUP, b"SIGHUP")]
)
def test_a_signal_to_the_whole_group_reaches_the_job_once(tmp_path: Path, number: int, name: bytes) -> None:
    """Ctrl-C in a terminal goes to every process of the foreground group."""
    trap = "INT TERM HUP"
    script = f"trap 'echo x >> {tmp_path}/times; exit 9' {trap}; touch {tmp_path}/ready; while :; do sleep 0.05; done"
    child = start(tmp_path, script)
    os.killpg(child.pid, number)
    assert finish(child) == (9, name + b" ended")
    assert (tmp_path / "times").read_text() == "x\n"


def test_a_job_that_does_not_end_is_killed_after_its_grace(tmp_path: Path) -> None:
    child = start(tmp_path, f"trap '' TERM; touch {tmp_path}/ready; while :; do sleep 0.05; done", grace=1)
    child.send_signal(signal.SIGTERM)
    assert finish(child) == (137, b"SIGTERM ended")


def test_a_warning_is_passed_on(tmp_path: Path) -> None:
    """Slurm's --signal=USR1@300: the job saves its model and goes on."""
    wait = f"while [ ! -e {tmp_path}/saved ]; do sleep 0.05; done"
    script = f"trap 'touch {tmp_path}/saved' USR1; touch {tmp_path}/ready; {wait}; exit 4"
    child = start(tmp_path, script)
    child.send_signal(signal.SIGUSR1)
    assert finish(child) == (4, b"None ended")


def test_what_the_caller_ignores_stays_ignored(tmp_path: Path) -> None:
    """Under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        wait = f"until [ -e {tmp_path}/go ]; do sleep 0.05; done"
        child = start(tmp_path, f"touch {tmp_path}/ready; {wait}; exit 3")
    finally:
        signal.signal(signal.SIGHUP, before)
    child.send_signal(signal.SIGHUP)
    (tmp_path / "go").touch()
    assert finish(child) == (3, b"None ended")


def test_an_impatient_caller_costs_no_record(tmp_path: Path) -> None:
    child = start(tmp_path, f"trap 'exit 5' INT; touch {tmp_path}/ready; while :; do sleep 0.05; done")
    while child.poll() is None:
        child.send_signal(signal.SIGINT)
        time.sleep(0.002)
    finish(child)
    parts = [file.name for file in (tmp_path / "state" / "unsent-runs").rglob("*.record")]
    assert len(parts) == 1
