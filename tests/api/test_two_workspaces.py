"""Two people, random work, and a plain dict for what each workspace and each commit must hold."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dsv.api.checkout import pull, restore
from dsv.api.clone import clone
from dsv.errors import Conflict
from dsv.stores.memory import MemoryStore
from dsv.values.ids import CommitId
from dsv.values.names import Target
from tests.exhaustive import examples
from tests.kit.people import Person, every_store_is, read_folder

NAMES = st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a", "x.sh", "d/x.sh"])
SMALL = st.binary(max_size=4)
LARGE = st.integers(0, 3).map(lambda seed: bytes([seed]) * (1 << 20) + b"end" * seed + b"tail")
CONTENTS = st.one_of(SMALL, SMALL, SMALL, LARGE)
WHO = st.sampled_from([0, 1])
Model = dict[str, bytes]


class TwoWorkspaces(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="dsv-two-"))
        self.store = MemoryStore()
        self.people = [Person(self.folder / name, "memory://shared", name) for name in ("ann", "bob")]
        self.local: list[Model] = [{}, {}]
        self.base: list[Model] = [{}, {}]
        self.head: Model = {}
        self.numbers = [0, 0]
        self.number = 0
        self.commits: dict[str, Model] = {}

    @initialize()
    def begin(self) -> None:
        with every_store_is(self.store):
            self.people[0].init()
            clone(self.people[1].context(self.folder), Target.parse("scans"), self.people[1].workspace)

    @rule(who=WHO, name=NAMES, content=CONTENTS)
    def write(self, who: int, name: str, content: bytes) -> None:
        self.people[who].write({name: content})
        self.local[who][name] = content

    @rule(who=WHO, name=NAMES)
    def remove(self, who: int, name: str) -> None:
        if self.local[who].pop(name, None) is not None:
            self._unlink(who, name)

    @rule(who=WHO, old=NAMES, new=NAMES)
    def rename(self, who: int, old: str, new: str) -> None:
        if old in self.local[who] and old != new and old.endswith(".sh") == new.endswith(".sh"):
            target = self.people[who].workspace / new
            target.parent.mkdir(parents=True, exist_ok=True)
            (self.people[who].workspace / old).rename(target)
            self.local[who][new] = self.local[who].pop(old)
            self._prune(who, old)

    @rule(who=WHO, name=NAMES, when=st.integers(1, 2_000_000_000))
    def touch(self, who: int, name: str, when: int) -> None:
        if name in self.local[who]:
            os.utime(self.people[who].workspace / name, (when, when))

    @rule(who=WHO)
    def sync(self, who: int) -> None:
        changed = self.local[who] != self.base[who]
        try:
            with every_store_is(self.store):
                done = self.people[who].sync(allow_removals=True)
        except Conflict as error:
            assert self.numbers[who] != self.number, error
            return
        assert self.numbers[who] == self.number
        assert done.any_change == changed
        if changed:
            self.number += 1
            self.numbers[who] = self.number
            self.head = self.base[who] = dict(self.local[who])
            assert done.commit is not None
            self.commits[str(done.commit)] = dict(self.head)

    @rule(who=WHO)
    def pull(self, who: int) -> None:
        base, mine, theirs = self.base[who], self.local[who], self.head
        names = {*base, *mine, *theirs}
        clash = {
            name
            for name in names
            if base.get(name) != theirs.get(name)
            and base.get(name) != mine.get(name)
            and mine.get(name) != theirs.get(name)
        }
        try:
            with every_store_is(self.store):
                pull(self.people[who].context())
        except Conflict:
            assert clash and self.numbers[who] != self.number
            return
        assert not clash or self.numbers[who] == self.number
        for name in names:
            if base.get(name) != theirs.get(name):
                if name in theirs:
                    mine[name] = theirs[name]
                else:
                    mine.pop(name, None)
        self.base[who] = dict(theirs)
        self.numbers[who] = self.number

    @rule(who=WHO, name=NAMES)
    def restore(self, who: int, name: str) -> None:
        if name in self.base[who]:
            with every_store_is(self.store):
                restore(self.people[who].context(), (name.encode(),))
            self.local[who][name] = self.base[who][name]

    @invariant()
    def workspaces_hold_what_they_should(self) -> None:
        for person, model in zip(self.people, self.local, strict=True):
            if person.workspace.exists():
                assert {k: v for k, v in read_folder(person.workspace).items() if v is not None} == model

    def teardown(self) -> None:
        try:
            with every_store_is(self.store):
                for text, model in self.commits.items():
                    found = self.people[0].read(CommitId.parse(text))
                    assert {k: v for k, v in found.items() if v is not None} == model
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _unlink(self, who: int, name: str) -> None:
        (self.people[who].workspace / name).unlink()
        self._prune(who, name)

    def _prune(self, who: int, name: str) -> None:
        """Empty folders would be entries of their own, and the model has none."""
        folder = (self.people[who].workspace / name).parent
        while folder != self.people[who].workspace and not any(folder.iterdir()):
            folder.rmdir()
            folder = folder.parent


TwoWorkspaces.TestCase.settings = settings(
    max_examples=examples(25), stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestTwoWorkspaces = TwoWorkspaces.TestCase
