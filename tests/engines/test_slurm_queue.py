"""The questions that dsv asks the controller of Slurm, by programs that only count them."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dsv.run.engines.slurm.program import ProgramResult, SlurmProgram, ask_once, queue_file
from tests.engines.test_slurm_stubs import RUN, programs

ASK = """
import os, sys
from dsv.run.engines.slurm.program import SlurmProgram
program = SlurmProgram(os.environ)
sys.stdin.readline()
for _ in range(3):
    jobs, answer = program.queue(fresh=3600)
print(",".join(jobs), answer.problem)
"""
SQUEUE = f"""
echo call >>"$CALLS"
sleep 0.2
echo "7|RUNNING|n1|None|dsv:{RUN}:/job"
"""


def calls(folder: Path) -> int:
    made = folder / "calls"
    return made.read_text().count("call") if made.exists() else 0


@pytest.mark.parametrize(
    ("squeue", "said"),
    [(SQUEUE, "7 None"), (f"{SQUEUE}echo no >&2\nexit 1", " no")],
    ids=["answer", "refusal"],
)
def test_many_that_wait_ask_once(tmp_path: Path, squeue: str, said: str) -> None:
    """Each is a process of its own, as `dsv run` and its supervisors are."""
    env = programs(tmp_path, squeue=squeue)
    many = [
        subprocess.Popen(
            [sys.executable, "-c", ASK], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    assert [each.communicate("go\n")[0].strip() for each in many] == [said.strip()] * 4
    assert calls(tmp_path) == 1


def test_what_has_changed_since_is_asked_for_anew(tmp_path: Path) -> None:
    env = programs(tmp_path, squeue=SQUEUE)
    one, other = SlurmProgram(env), SlurmProgram(env)
    one.queue(fresh=3600)
    other.queue(fresh=3600)
    assert calls(tmp_path) == 1
    other.forget()
    other.queue(fresh=3600)
    assert calls(tmp_path) == 2
    one.queue(fresh=0)
    assert calls(tmp_path) == 3


def test_the_answer_about_many_runs_is_read_once(tmp_path: Path) -> None:
    program = SlurmProgram(programs(tmp_path, squeue=SQUEUE))
    jobs, _ = program.queue(fresh=3600)
    assert list(jobs) == ["7"] and program.queue(fresh=0)[0] is jobs and calls(tmp_path) == 2


def _half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


def _of_an_earlier_boot(file: Path) -> None:
    file.write_text(file.read_text().replace('"boot": "', '"boot": "x'))


def _a_link(file: Path) -> None:
    file.rename(file.with_name("theirs"))
    file.symlink_to("theirs")


def _a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("damage", [_half, _of_an_earlier_boot, _a_link, _a_folder])
def test_an_answer_that_can_not_be_used_costs_a_question(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    file = queue_file({"XDG_RUNTIME_DIR": str(tmp_path)})
    assert file is not None
    ask_once(file, lambda: ProgramResult("first"), since=0)
    assert ask_once(file, lambda: ProgramResult("second"), since=0).text == "first"
    damage(file)
    found = ask_once(file, lambda: ProgramResult("second"), since=0)
    assert (found.text, found.problem) == ("second", None)


def test_a_dsv_that_was_stopped_while_it_asked_keeps_no_other_from_asking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "squeue.json"
    monkeypatch.setattr("dsv.run.engines.slurm.program._WAITS", (0.01, 0.05))
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert ask_once(file, lambda: ProgramResult("7"), since=0.0).text == "7"
    assert file.read_text() == "", "what another one may be writing is left alone"
