"""Real signals to a real process that runs a job, as a terminal or a scheduler sends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.waiting import PATIENCE, until

MAIN = """
import sys
import time
from pathlib import Path
from dsv.run.engines.attach import Signals
from tests.run.shop import Folders, Shop
class Slow(Folders):
    def stage(self, target, run):
        (self.folder.parent / "ready").touch()
        while not (self.folder.parent / "go").exists():
            time.sleep(0.02)
        return super().stage(target, run)
shop = Shop(Path(sys.argv[1]))
if "slowly" in sys.argv:
    shop.data.__class__ = Slow
signals = Signals()
request = shop.request("sh", "-c", sys.argv[2])
result = shop.launch(request, offline=True, signals=signals, grace=float(sys.argv[3]))
print(result.record.signal, result.record.state, flush=True)
sys.exit(result.exit_code)
"""


def start(folder: Path, script: str, grace: float = 20, *more: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", MAIN, str(folder), script, str(grace), *more]
    child = subprocess.Popen(
        argv, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2], start_new_session=True
    )
    until(lambda: (folder / "ready").exists() or child.poll() is not None)
    assert child.poll() is None
    return child


def finish(child: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    output, _ = child.communicate(timeout=PATIENCE)
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
    """Slurm's --signal=USR1@300: the job saves its model and continues."""
    wait = f"while [ ! -e {tmp_path}/saved ]; do sleep 0.05; done"
    script = f"trap 'touch {tmp_path}/saved' USR1; touch {tmp_path}/ready; {wait}; exit 4"
    child = start(tmp_path, script)
    child.send_signal(signal.SIGUSR1)
    assert finish(child) == (4, b"None ended")


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_warning_before_there_is_a_job_is_dropped(tmp_path: Path, number: int) -> None:
    """It ends neither dsv, which fetches the data, nor a command that has just begun and knows of no handler yet."""
    child = start(tmp_path, "sleep 0.5; exit 4", 20, "slowly")
    child.send_signal(number)
    (tmp_path / "go").touch()
    assert finish(child) == (4, b"None ended")


def test_a_warning_to_the_whole_group_ends_no_helper_of_a_fill() -> None:
    """Slurm sends it to every process of a step."""
    worker = subprocess.Popen(
        [sys.executable, "-P", "-m", "dsv.cache.fill.helper_process"],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    until(lambda: worker.poll() is not None or _ignores(worker.pid, signal.SIGINT))
    assert worker.poll() is None
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        worker.send_signal(number)
    worker.communicate(timeout=PATIENCE)
    assert worker.returncode > 0  # by the end of its orders, and by no signal


def _ignores(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:"))
    return bool(int(mask, 16) >> (number - 1) & 1)


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
