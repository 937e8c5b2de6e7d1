"""One workspace of a race, in a process of its own on a host: `python -m tests.nfs.racer JSON`.

In each round it writes its file, waits until all have, and syncs; if it has lost it pulls. It writes
the results as lines of JSON. Hosts wait for each other in a folder of this machine, which is no NFS.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.kit.dsv import Dsv, Result

PATIENCE = 600.0
LOST, UNKNOWN = 4, 6


@dataclass(frozen=True)
class Racer:
    """me: its number, of so many `racers`. folder: the workspace. marks: their common folder. first, end: rounds."""

    me: int
    racers: int
    folder: str
    marks: str
    first: int
    end: int

    @property
    def file(self) -> str:
        return f"w{self.me}.txt"

    @property
    def told(self) -> Path:
        """Its lines of JSON, from each call of this program."""
        return Path(self.marks) / f"told-{self.me}"

    def arguments(self) -> tuple[str, ...]:
        return (sys.executable, "-m", "tests.nfs.racer", json.dumps(asdict(self)))


def content(number: int, file: str) -> bytes:
    """Return the content of the file in this round."""
    return f"{number} of {file}".encode()


def meeting(marks: Path, number: int) -> Path:
    """Has a file of each who is ready for the round."""
    return marks / "rounds" / str(number)


def run(racer: Racer) -> int:
    marks = Path(racer.marks)
    faulthandler.register(signal.SIGUSR1, (marks / f"stacks-{racer.me}").open("w"))
    dsv = Dsv(Path.home(), Path(racer.folder), os.environ)
    with racer.told.open("a") as told:
        for number in range(racer.first, racer.end):
            (dsv.cwd / racer.file).write_bytes(content(number, racer.file))
            meet(racer, meeting(marks, number))
            began = time.monotonic()
            result, unsure = synced(dsv)
            synced_at = time.monotonic()
            line = {"round": number, "status": result.code, "unsure": unsure, "sync": synced_at - began}
            if result.code == 0:
                line["commit"] = result.json["commit"]
            elif result.code == LOST:
                result = dsv("pull")
                line |= {"pull": time.monotonic() - synced_at, "pulled": result.code}
            told.write(json.dumps(line | {"err": result.err}) + "\n")
            told.flush()
            if result.code:
                return 1
    return 0


def synced(dsv: Dsv) -> tuple[Result, int]:
    """A sync whose answer was lost finds out when it is run again. Also how often that was."""
    unsure = 0
    while (result := dsv("sync", "--json")).code == UNKNOWN and unsure < 10:
        unsure += 1
    return result, unsure


def meet(racer: Racer, folder: Path) -> None:
    (folder / str(racer.me)).touch()
    until = time.monotonic() + PATIENCE
    while len(os.listdir(folder)) < racer.racers:
        assert time.monotonic() < until, "somebody does not come"
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(run(Racer(**json.loads(sys.argv[1]))))
