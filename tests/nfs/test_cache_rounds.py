"""Random rounds of filling, running, holding, evicting, power cuts and cut networks over three hosts.

Three rounds by default. DSV_NFS_ROUNDS=200 python -m pytest -n0 -s tests/nfs/test_cache_rounds.py  runs 200;
DSV_NFS_SEED=7 chooses others. Each round prints what it does.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.nfs.crew import Crew, Member, Task, Times, assert_same, listed
from tests.waiting import until

ROUNDS = int(os.environ.get("DSV_NFS_ROUNDS", "3"))
SEED = int(os.environ.get("DSV_NFS_SEED", "1"))
TIMES = Times(lease=15, expiry=10, part_files=32, part_bytes=4 << 20)
TARGETS = ("tiny", "mixed")
ACTIONS = ("cache", "cache", "cache", "hold", "run", "evict", "evict")
LIMIT = 180.0  # seconds
# A host that was cut off for longer than its lease, or than the server remembers it, may get the error that its data
# went or that the cache could not be reached; what it may never get is a wrong or a torn folder.
ALLOWED_IF_CUT = {0, 125, 6}
JOB = """
cd "$DSV_DATA" || exit 1
sum() { find . -type f | LC_ALL=C sort | tee /run/$$ && xargs cat </run/$$; }
sum | sha256sum; sleep $1; sum | sha256sum
"""


class Watch:
    """A repeated look at the file server's disk."""

    def __init__(self, crew: Crew, lake: Path) -> None:
        self.crew = crew
        self.looks = 0
        self.held: set[str] = set()
        self._sizes = {name: sizes(lake / name) for name in TARGETS}

    def look(self) -> None:
        """No partial commit is visible, and what is held is there."""
        self.looks += 1
        visible = self.crew.visible() if self.crew.seen.exists() else []
        assert self.held <= set(visible), f"{self.held - set(visible)} is held, and gone"
        for name in visible:
            self._whole(name)

    def _whole(self, name: str) -> None:
        folder = self.crew.seen / name
        with contextlib.suppress(FileNotFoundError):
            kept = os.open(folder, os.O_RDONLY)  # while it is open, its inode's number is no other's
            try:
                found = sizes(folder)
                still = os.path.samestat(os.fstat(kept), folder.stat())
            finally:
                os.close(kept)
            # else it was evicted under our eyes, by a rename
            assert not still or found == self._sizes[name.partition("/")[0]], f"{name} is not whole"


class Round:
    """One round: every host does two things, and up to two hosts lose their power or network meanwhile."""

    def __init__(self, crew: Crew, watch: Watch, sums: dict[str, str], number: int) -> None:
        self.crew = crew
        self.watch = watch
        self.sums = sums
        self.chance = random.Random(f"{SEED}/{number}")
        self.members = crew.up(0, 1, 2)
        self.cut: set[int] = set()
        self.asked_to_hold: set[str] = set()
        self.log: list[str] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self._began = time.monotonic()
        self._events: list[tuple[float, Callable[[], None]]] = []
        self._open: list[tuple[Member, str, Task]] = []

    def run(self) -> None:
        """Returns when all that was begun has ended, one way or another."""
        begins = [(self.chance.uniform(0, 3), member) for member in self.members for _ in range(2)]
        for when, member in begins:
            self._later(when, self._beginning(member))
        for when, member in self.chance.sample(begins, self.chance.choice((0, 1, 1, 2))):
            self._later(when + self.chance.uniform(0.2, 1.5), self._striking(member))
        while self._events or self._open:
            now = time.monotonic()
            assert now - self._began < LIMIT, f"{[(what, task) for _, what, task in self._open]} never end"
            due = [act for when, act in self._events if when <= now]
            self._events = [(when, act) for when, act in self._events if when > now]
            for act in due:
                act()
            for one in [one for one in self._open if one[2].done]:
                self._open.remove(one)
                self._judge(*one)
            self.watch.look()
            time.sleep(0.05)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self._events.append((time.monotonic() + seconds, act))

    def _say(self, what: str) -> None:
        self.log.append(f"{time.monotonic() - self._began:.1f} {what}")

    def _beginning(self, member: Member) -> Callable[[], None]:
        what, target = self.chance.choice(ACTIONS), self.chance.choice(TARGETS)
        lasts = self.chance.uniform(0, 2)
        arguments = {
            "cache": ("cache", f"{target}@v1", "--json"),
            "hold": ("cache", f"{target}@v1", "--hold", "20m", "--json"),
            "evict": ("evict", "--all", "--json"),
            "run": (
                "run",
                "--engine",
                "process",
                f"{target}@v1",
                "--",
                "bash",
                "-c",
                JOB,
                "job",
                f"{lasts:.1f}",
            ),
        }[what]

        def begin() -> None:
            if not member.is_ready:
                self._later(0.2, begin)
                return
            self._say(f"{what} {target} on {member.number}")
            self.asked_to_hold |= {target} if what == "hold" else set()
            self._open.append((member, f"{what} {target}", member.dsv(*arguments, times=TIMES)))

        return begin

    def _striking(self, member: Member) -> Callable[[], None]:
        power = self.chance.random() < 0.5
        away = self.chance.choice((0.3, 0.5, 1, 1, 2, 2, 20))

        def strike() -> None:
            if not member.is_ready or member.number in self.cut:
                return
            if power:
                self._power_cycle(member)
                return
            self._say(f"unplug {member.number} for {away} s")
            self.counts["unplugged" if away < 10 else "unplugged for longer than the server remembers"] += 1
            self.cut.add(member.number)
            member.unplug()
            self._later(away, member.plug_in)

        return strike

    def _power_cycle(self, member: Member) -> None:
        doing = [what for one, what, _ in self._open if one is member]
        self._say(f"power off {member.number} while {', '.join(doing) or 'idle'}")
        self.counts["powered off at work" if doing else "powered off idle"] += 1
        member.power_off()
        self._open = [one for one in self._open if one[0] is not member]
        self._later(self.chance.uniform(0, 1), member.boot)

    def _judge(self, member: Member, what: str, task: Task) -> None:
        answer = task.answer()
        self._say(f"{what} on {member.number}: {answer.status}")
        allowed = ALLOWED_IF_CUT if member.number in self.cut else {0}
        assert answer.status in allowed, f"{what} on {member.number}: {answer}"
        action, target = what.split()
        self.counts[f"{action}: {answer.status}"] += 1
        if answer.status != 0:
            return
        if action == "run":
            assert set(answer.out.split()) - {"-"} == {self.sums[target]}, answer
        elif action == "evict":
            self.counts["evicted commits"] += len(answer.json["evicted"])
        else:
            item = answer.item
            self.counts["filled" if item["fetched_bytes"] else "found filled"] += 1
            if action == "hold":
                self.watch.held.add(str(Path(item["path"]).relative_to(self.crew.cache)))

    def check(self, lake: Path) -> None:
        """At rest no byte is wrong; after all claims have ended everything can be evicted, and nothing stays of it."""
        self.watch.look()
        for name in self.crew.visible():
            assert_same(self.crew.seen / name, lake / name.partition("/")[0])
        until(lambda: all(member.is_ready for member in self.members), "hosts that were struck")
        host = self.chance.choice(self.members)
        held = {name.partition("/")[0] for name in self.watch.held}
        self.watch.held.clear()
        for target in self.asked_to_hold:
            released = host.dsv("release", f"{target}@v1", "--all").answer()
            # Who lost its power before it could say so may hold it, too.
            assert released.status == 0 or (released.status == 3 and target not in held), released

        def evicted() -> bool:
            answer = host.dsv("evict", "--all", "--json", times=TIMES).answer()
            assert answer.status == 0, answer
            return self.crew.visible() == [] and not left_over(self.crew)

        try:
            until(evicted, "an empty cache")
        except AssertionError as error:
            raise AssertionError(f"{self.crew.visible()} and {left_over(self.crew)} stay") from error


def sizes(folder: Path) -> dict[str, int]:
    return {path: size for path, (_, size, _) in listed(folder).items()}


def sum_of(folder: Path) -> str:
    """Return what the job prints."""
    paths = sorted(listed(folder))
    digest = hashlib.sha256("".join(f"./{path}\n" for path in paths).encode())
    for path in paths:
        digest.update((folder / path).read_bytes())
    return digest.hexdigest()


def left_over(crew: Crew) -> list[str]:
    """Files of fills, reservations and trash."""
    dot = crew.seen / ".dsv"
    found = [one for name in ("fill", "room", "trash") for one in (dot / name).rglob("*") if one.is_file()]
    return [str(one.relative_to(dot)) for one in found]


@pytest.mark.timeout(0 if ROUNDS > 20 else 600)
def test_random_rounds(crew: Crew, lake: Path) -> None:
    watch = Watch(crew, lake)
    sums = {name: sum_of(lake / name) for name in TARGETS}
    counts: collections.Counter[str] = collections.Counter()
    started = time.monotonic()
    for number in range(ROUNDS):
        one = Round(crew, watch, sums, number)
        began = time.monotonic()
        try:
            one.run()
            one.check(lake)
        finally:
            print(f"round {number}, {time.monotonic() - began:.1f} s: {'; '.join(one.log)}", flush=True)
        counts += one.counts
    took = time.monotonic() - started
    print(
        f"seed {SEED}: {ROUNDS} rounds in {took:.0f} s, {watch.looks} looks; {dict(sorted(counts.items()))}"
    )
