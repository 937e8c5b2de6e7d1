"""Sixteen commands on two machines that want one result at the same moment, and some that are killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from dsv.format import keys
from dsv.stores.open import open_store
from tests.cli.detached import here
from tests.exhaustive import is_full
from tests.kit.dsv import Dsv
from tests.waiting import until

__all__ = ["here"]

EACH = 8
ROUNDS = int(os.environ.get("ONCE_ROUNDS", "25" if is_full() else "1"))
HASTY = """
import sys
from dsv.run import once_claims
once_claims.SILENCE, once_claims.BEAT, once_claims.POLL = 8.0, 0.5, (0.1, 0.5)
from dsv.cli.main import main
sys.exit(main())
"""
STEPS = ("beats/", "once/", "ran", "made", "runs/")
"""What is there when half of them are killed: in the store, or written by the job."""


def store_of(here: Dsv) -> str:
    return here.ok("config", "store").out.split()[0]


class Round:
    """Commands that want the same, those of the other machine with another home and another cache."""

    def __init__(self, here: Dsv, number: int, *, hasty: bool) -> None:
        self.folder = here.cwd / str(number)
        self.folder.mkdir()
        script = f'echo ran >> {self.folder}/ran; echo {number} > "$DSV_OUT/made"; touch {self.folder}/made'
        self.words = ["run", "pets@v1", "--once", "--", "sh", "-c", script]
        home = here.home.parent / "other"
        other = here.at(here.cwd, HOME=str(home), DSV_STORE=store_of(here), DSV_CACHE=str(home / "cache"))
        home.mkdir(exist_ok=True)
        self.machines = (here, other)
        program = [sys.executable, "-c", HASTY] if hasty else [sys.executable, "-m", "dsv.cli.main"]
        self.started = [
            subprocess.Popen(
                [*program, *self.words], cwd=self.folder, env=dict(machine.environ), text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )
            for machine in self.machines
            for _ in range(EACH)
        ]  # fmt: skip

    def ends(self) -> dict[int, list[str]]:
        """Return what they said, by exit code."""
        said: dict[int, list[str]] = {}
        for one in self.started:
            _, err = one.communicate()
            said.setdefault(one.returncode, []).append(err)
        return said

    @property
    def times(self) -> int:
        ran = self.folder / "ran"
        return len(ran.read_text().split()) if ran.exists() else 0


@pytest.fixture
def opened(here: Dsv) -> Callable[[str], set[str]]:
    store = open_store(store_of(here))
    return lambda prefix: {item.key for item in store.list(prefix)}


@pytest.mark.timeout(1800)
def test_the_job_of_sixteen_equal_commands_runs_once(here: Dsv, opened: Callable[[str], set[str]]) -> None:
    for number in range(ROUNDS):
        one = Round(here, number, hasty=False)
        said = one.ends()
        assert set(said) == {0}, said
        assert one.times == 1
        assert sum("same as run" in err for err in said[0]) == 2 * EACH - 1
        assert len(opened(keys.ONCE_PREFIX)) == number + 1 and not opened(keys.BEATS_PREFIX)


@pytest.mark.timeout(1800)
def test_others_take_over_from_those_that_are_killed(here: Dsv, opened: Callable[[str], set[str]]) -> None:
    chance = random.Random(1)
    for number in range(ROUNDS):
        step = STEPS[(number + 1) % len(STEPS)]
        before = opened(step) if step.endswith("/") else set()
        one = Round(here, number, hasty=True)
        until(lambda: opened(step) - before if step.endswith("/") else (one.folder / step).exists())  # noqa: B023
        for victim in chance.sample(one.started, EACH):
            victim.send_signal(signal.SIGKILL)
        said = one.ends()
        assert set(said) <= {0, -signal.SIGKILL}, said
        times = one.times
        again = here.at(one.folder).process(*one.words)
        assert again.code == 0 and "same as run" in again.err and one.times == times >= 1, again
