"""Random rounds of filling, running, holding, evicting, power cuts and cut networks over three hosts.

Three rounds by default. DSV_NFS_ROUNDS=200 python -m pytest tests/nfs/test_cache_rounds.py -s  runs 200;
DSV_NFS_SEED=7 chooses others, and each round prints what it does.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from pathlib import Path

import pytest

from tests.nfs.crew import Crew, Member, Task, assert_same, hurried, until

ROUNDS = int(os.environ.get("DSV_NFS_ROUNDS", "3"))
SEED = int(os.environ.get("DSV_NFS_SEED", "1"))
LEASE, EXPIRY, PART_FILES = 12.0, 8.0, 64
PROGRAM = hurried(LEASE, EXPIRY, PART_FILES)
TARGETS = ("tiny", "small")
# A host that was cut off for longer than the server remembers may be told that its data went, or that the cache
# could not be reached; what it may never get is a wrong or a torn folder.
JOB = """
touch /mnt/out/$CREW/$1.began
i=0; while [ $i -lt 15 ] && [ ! -e /mnt/out/$CREW/go ]; do sleep 0.3; i=$((i+1)); done
cd "$DSV_DATA" && find . -type f | sort | xargs sha256sum | sha256sum
"""


class Round:
    """One round's doings: every host does something, and up to two are struck meanwhile."""

    def __init__(self, crew: Crew, lake: Path, number: int) -> None:
        self.crew = crew
        self.lake = lake
        self.chance = random.Random(f"{SEED}/{number}")
        self.number = number
        self.members = crew.up(0, 1, 2)
        self.struck: set[int] = set()
        self.log: list[str] = []

    def run(self) -> None:
        tasks = [(member, *self._begin(member)) for member in self.members for _ in range(2)]
        for _ in range(self.chance.randint(1, 2)):
            time.sleep(self.chance.uniform(0.5, 6))
            self._strike(self.chance.choice(self.members))
            self._look()
        time.sleep(self.chance.uniform(0, 20))
        for member in self.members:
            if member.host is not None:
                member.plug_in()
        print(f"round {self.number}: {'; '.join(self.log)}")
        for member, what, task in tasks:
            self._judge(member, what, task)
        self._look(whole=True)
        self._empty()

    def _begin(self, member: Member) -> tuple[str, Task]:
        what = self.chance.choice(("cache", "cache", "run", "hold", "evict"))
        target = self.chance.choice(TARGETS)
        self.log.append(f"{what} {target} on {member.number}")
        arguments = {
            "cache": ("cache", f"{target}@v1", "--json"),
            "hold": ("cache", f"{target}@v1", "--hold", "20m", "--json"),
            "evict": ("evict", "--all", "--json"),
            "run": ("run", "--engine", "process", f"{target}@v1", "--", "bash", "-c", JOB, "job", target),
        }[what]
        return what, member.start(*PROGRAM, *arguments, CREW=self.crew.name)

    def _strike(self, member: Member) -> None:
        if member.host is None:
            return
        if self.chance.random() < 0.5:
            self.log.append(f"power off {member.number}")
            member.power_off()
        else:
            self.log.append(f"unplug {member.number}")
            member.unplug()
        self.struck.add(member.number)

    def _judge(self, member: Member, what: str, task: Task) -> None:
        if member.host is None:
            return
        answer = task.answer(240)
        allowed = {0, 125, 6} if member.number in self.struck else {0}
        assert answer.status in allowed, (
            f"{what} on {member.number}: {answer.status} {answer.out} {answer.err}"
        )
        if what == "hold" and answer.status == 0:
            kept = Path(answer.item["path"]).relative_to(self.crew.cache)
            assert (self.crew.seen / kept).is_dir(), f"{kept} is held, and gone"
        if what == "run" and answer.status == 0:
            sums = {self._sum(name) for name in TARGETS}
            assert answer.out.split()[0] in sums, answer

    def _sum(self, name: str) -> str:
        path = self.lake / f"{name}.sum"
        if not path.exists():
            command = f"cd {self.lake}/{name} && find . -type f | sort | xargs sha256sum | sha256sum > {path}"
            assert os.system(command) == 0
        return path.read_text().split()[0]

    def _look(self, *, whole: bool = False) -> None:
        """No partial commit is visible, at any moment; at rest no byte is wrong, and what is held is there."""
        for name in self.crew.visible() if self.crew.seen.exists() else []:
            wanted = self.lake / name.partition("/")[0]
            if whole:
                assert_same(self.crew.seen / name, wanted)
            else:
                with contextlib.suppress(FileNotFoundError):  # evicted under our eyes, by a rename
                    there = sum(len(names) for _, _, names in os.walk(self.crew.seen / name))
                    gone = not (self.crew.seen / name).exists()
                    assert gone or there == sum(len(names) for _, _, names in os.walk(wanted)), name

    def _empty(self) -> None:
        """After all claims have ended, everything can be evicted, and nothing stays of it."""
        (host,) = self.crew.up(self._alive())
        for target in TARGETS:
            host.dsv("release", f"{target}@v1").answer()

        def evicted() -> bool:
            answer = host.dsv("evict", "--all", "--json", program=PROGRAM).answer()
            assert answer.status == 0, answer
            return self.crew.visible() == [] and not left_over(self.crew)

        try:
            until(evicted, 90, "an empty cache")
        except AssertionError as error:
            raise AssertionError(f"{self.crew.visible()} and {left_over(self.crew)} stay") from error

    def _alive(self) -> int:
        return next(
            (n for n, one in self.crew.members.items() if one.host is not None), min(self.crew.members)
        )


def left_over(crew: Crew) -> list[str]:
    dot = crew.seen / ".dsv"
    found = [one for name in ("fill", "room", "trash") for one in (dot / name).rglob("*") if one.is_file()]
    return [str(one.relative_to(dot)) for one in found]


@pytest.mark.timeout(0 if ROUNDS > 20 else 600)
def test_random_rounds(crew: Crew, lake: Path) -> None:
    for number in range(ROUNDS):
        Round(crew, lake, number).run()
