"""Processes that want one result at the same time: `python -m tests.run.once_racers STORE FOLDER FIRST ROUNDS KILLS`.

Each round has a key of its own. FOLDER/log gets a line for what a process did: `job`, `made`, `hit`, `killed`.
KILLS: `-`, or the number with which the choice begins of who is killed, before which of its changes.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import traceback
from dataclasses import replace
from pathlib import Path

from dsv.run import once_claims
from dsv.run.once_claims import (
    Beats,
    Claimant,
    Hit,
    Judge,
    KeyClaim,
    KeyClaims,
    Miss,
    NotEnded,
    Verdict,
    Wait,
    settle,
)
from dsv.run.record import OnceKey, RunId, RunRecord, RunState
from dsv.run.record_store import RunStore
from dsv.stores.base import Bytes, PutResult
from dsv.stores.open import OpenStore, open_store
from dsv.stores.options import StoreOptions
from dsv.values.names import DatasetName
from tests.run.test_record import RECORD
from tests.stores.wrapper import Wrapper

HOSTS, EACH = ("gpu1", "gpu2"), 8
STEPS = 6
"""Changes of a run that computes: first beat, claim, start, job, record, removal of its beats."""
DATASET = DatasetName.parse("team/scans")


def opened(url: str) -> OpenStore:
    given = os.environ.get
    return open_store(
        url,
        StoreOptions(
            endpoint=given("AWS_ENDPOINT_URL"), region=given("AWS_REGION"),
            access_key=given("AWS_ACCESS_KEY_ID"), secret_key=given("AWS_SECRET_ACCESS_KEY"),
        ),
    )  # fmt: skip


def key_of(number: int) -> str:
    return f"{number:064x}"


class Racer:
    def __init__(self, url: str, folder: Path, number: int, process: int, step: int | None) -> None:
        self.inner = opened(url)
        self.store = Mortal(self)
        self.log = folder / "log"
        self.number, self.step, self.changes = number, step, 0
        run = RunId.make(1_795_000_000_000 + 1000 * number, process.to_bytes(4))
        self.mine = Claimant(dataset=DATASET, run=run, host=HOSTS[process // EACH], user="ben")

    def say(self, what: str, run: str) -> None:
        file = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{what} {self.number} {run}\n".encode())
        os.close(file)

    def change(self) -> None:
        self.changes += 1
        if self.changes == self.step:
            self.say("killed", str(self.step))
            os.kill(os.getpid(), signal.SIGKILL)

    def race(self) -> None:
        runs, key = RunStore(self.store), key_of(self.number)
        beats = Beats(self.store, DATASET, self.mine.run)
        wait = Wait(lambda text: None)
        found = settle(KeyClaims(self.store, key), self.mine, judge_of(runs), beats, wait)
        if isinstance(found, Hit):
            self.say("hit", found.record.run)
            return
        assert isinstance(found, KeyClaim)
        record = replace(RECORD, run=self.mine.run, once=OnceKey(key=key))
        begun = replace(record, state=RunState.RUNNING, ended_ms=None, exit_code=None)
        runs.write(DATASET, self.mine.run, "start", begun.encode())
        self.change()
        self.say("job", self.mine.run)
        runs.add_end(record, None)
        beats.stop()
        self.say("made", self.mine.run)


class Mortal(Wrapper):
    """Counts the changes of a racer, not the further beats, and kills it before one."""

    def __init__(self, racer: Racer) -> None:
        super().__init__(racer.inner)
        self._racer = racer

    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        if not key.startswith("beats/") or key.endswith(f"{0:016x}"):
            self._racer.change()
        return self.inner.put_if_absent(key, data)

    def delete(self, key: str) -> None:
        if self._racer.changes == STEPS - 1:
            self._racer.change()
        self.inner.delete(key)


def judge_of(runs: RunStore) -> Judge:
    def judge(by: Claimant) -> Verdict:
        record: RunRecord | None = runs.newest(by.dataset, by.run)
        if record is None or not record.state.is_terminal:
            return NotEnded(record)
        return Hit(record) if record.exit_code == 0 else Miss("it failed")

    return judge


def main(url: str, folder: str, first: str, rounds: str, kills: str) -> None:
    if kills != "-":
        once_claims.SILENCE, once_claims.BEAT, once_claims.POLL = 1.0, 0.1, (0.02, 0.1)
    else:
        once_claims.POLL = (0.02, 0.1)
    chance = random.Random(kills)
    for number in range(int(first), int(first) + int(rounds)):
        waiting, begins = os.pipe()
        children = []
        for process in range(len(HOSTS) * EACH):
            mortal = kills != "-" and process > 0 and chance.random() < 0.6
            step = chance.randint(1, STEPS) if mortal else None
            if (child := os.fork()) == 0:
                os.close(begins)
                try:
                    racer = Racer(url, Path(folder), number, process, step)
                    os.read(waiting, 1)  # all at once
                    racer.race()
                    os._exit(0)
                except BaseException:  # noqa: BLE001 (this process ends here)
                    traceback.print_exc()
                finally:
                    os._exit(1)
            children.append(child)
        os.close(waiting)
        os.close(begins)
        for child in children:
            _, status = os.waitpid(child, 0)
            dead = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            assert status == 0 or (dead and kills != "-"), f"a racer failed: {status}"


if __name__ == "__main__":
    main(*sys.argv[1:])
