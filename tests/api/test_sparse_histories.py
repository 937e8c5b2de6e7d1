"""Random histories of a whole and of a sparse workspace, beside dicts that say what must come of each step."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv.api.checkout import pull, switch
from dsv.api.clone import clone
from dsv.api.sparse import sparse_add, sparse_remove
from dsv.api.status import status
from dsv.errors import Conflict, NotFound
from dsv.stores.memory import MemoryStore
from dsv.values.names import MAIN, BranchName, Target
from dsv.values.patterns import SparsePatterns
from tests.exhaustive import examples
from tests.kit.people import Files, Person, every_store_is

SIDE = BranchName.parse("side")
PATHS = ["a/1", "a/2", "a/x/1", "b/1", "b/x/1", "b/x/2", "c", "d"]
TEXTS = st.sampled_from(["a", "a/*", "b/x", "**/1", "*", "b/x/2", "nope"])
EDITS = st.dictionaries(st.sampled_from(PATHS), st.sampled_from([b"1\n", b"2\n", b"3\n", None]), max_size=3)
STEPS = st.one_of(
    st.tuples(st.just("theirs"), st.sampled_from([MAIN, SIDE]), EDITS),
    st.tuples(st.just("edit"), EDITS),
    st.tuples(st.sampled_from(["sync", "pull", "forget"])),
    st.tuples(st.just("switch"), st.sampled_from([MAIN, SIDE])),
    st.tuples(st.sampled_from(["add", "remove"]), TEXTS),
)


def edit(person: Person, edits: Files) -> None:
    for name, data in edits.items():
        path = person.workspace / name
        if data is not None:
            person.write({name: data})
            continue
        path.unlink(missing_ok=True)
        for folder in path.parents:
            if folder != person.workspace and folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def edited(files: Files, edits: Files) -> Files:
    return {name: data for name, data in {**files, **edits}.items() if data is not None}


@dataclass
class World:
    """Ann has everything, Bob a part. heads: the files of each branch. base, disk, chosen: Bob's, as they must be."""

    ann: Person
    bob: Person
    heads: dict[BranchName, Files]
    chosen: SparsePatterns
    branch: BranchName = MAIN
    base: Files = field(default_factory=dict)
    disk: Files = field(default_factory=dict)

    def has(self, name: str) -> bool:
        return self.chosen.matches(name.encode())

    def local(self) -> set[str]:
        """Return the names of the files that Bob has changed."""
        names = {*self.disk, *filter(self.has, self.base)}
        return {name for name in names if self.disk.get(name) != self.base.get(name)}

    def next_commit(self) -> Files:
        absent = {name: data for name, data in self.base.items() if not self.has(name)}
        return {**absent, **self.disk}

    def theirs(self, branch: BranchName, edits: Files) -> None:
        if branch not in self.heads:
            return
        switch(self.ann.context(), branch)
        pull(self.ann.context())
        edit(self.ann, edits)
        assert self.ann.files() == edited(self.heads[branch], edits)
        self.ann.sync(allow_removals=True)
        self.heads[branch] = edited(self.heads[branch], edits)

    def edit(self, edits: Files) -> None:
        edit(self.bob, edits)
        self.disk = edited(self.disk, edits)

    def sync(self) -> None:
        if self.heads[self.branch] != self.base or self.ahead():
            with pytest.raises(Conflict):
                self.bob.sync(allow_removals=True)
            return
        done = self.bob.sync(allow_removals=True)
        assert done.commit is not None
        assert self.bob.read(done.commit) == self.next_commit()
        assert done.any_change == (self.next_commit() != self.base)
        self.base = self.heads[self.branch] = self.next_commit()

    def ahead(self) -> bool:
        """Return whether the branch points to another commit than Bob's base, perhaps with the same files."""
        with self.bob.context().repository() as repository:
            workspace = self.bob.context().workspace()
            return repository.refs.head(workspace.dataset, self.branch).commit != workspace.base()

    def pull(self) -> None:
        self.go_to(self.branch, lambda: pull(self.bob.context()))

    def switch(self, branch: BranchName) -> None:
        if branch in self.heads and self.go_to(branch, lambda: switch(self.bob.context(), branch)):
            self.branch = branch

    def go_to(self, branch: BranchName, work: object) -> bool:
        theirs, local = self.heads[branch], self.local()
        held = {name for name in {*self.base, *theirs, *self.disk} if self.has(name) or name in self.disk}
        changed = {name for name in held if self.base.get(name) != theirs.get(name)}
        if any(self.disk.get(name) != theirs.get(name) for name in changed & local):
            with pytest.raises(Conflict):
                work()  # type: ignore[operator]
            return False
        work()  # type: ignore[operator]
        self.disk = edited(self.disk, {name: theirs.get(name) for name in changed})
        self.base = theirs
        return True

    def add(self, text: str) -> None:
        pattern = SparsePatterns((text,))
        if not any(pattern.matches(name.encode()) for name in self.base):
            with pytest.raises(NotFound):
                sparse_add(self.bob.context(), [text])
            return
        sparse_add(self.bob.context(), [text])
        before, self.chosen = self.chosen, self.chosen.added([text])
        come = {
            name: data
            for name, data in self.base.items()
            if self.has(name) and not before.matches(name.encode()) and name not in self.disk
        }
        self.disk = {**self.disk, **come}

    def remove(self, text: str) -> None:
        after, pattern = self.chosen.removed([text]), SparsePatterns((text,))

        def goes(name: str) -> bool:
            return not after.matches(name.encode()) and (self.has(name) or pattern.matches(name.encode()))

        going = {name for name in self.disk if goes(name) and name in self.base}
        known = {text, f"!{text}"} & set(self.chosen.lines or ()) or any(
            pattern.matches(name.encode()) for name in self.base
        )
        if any(map(goes, self.local())):
            with pytest.raises(Conflict):
                sparse_remove(self.bob.context(), [text])
        elif not known:
            with pytest.raises(NotFound):
                sparse_remove(self.bob.context(), [text])
        else:
            sparse_remove(self.bob.context(), [text])
            self.chosen = after
            self.disk = {name: data for name, data in self.disk.items() if name not in going}

    def forget(self) -> None:
        """Bob's state is lost."""
        for part in (self.bob.workspace / ".dsv/state").glob("*"):
            part.unlink()

    def check(self) -> None:
        assert self.bob.files() == self.disk
        assert self.bob.context().workspace().chosen == self.chosen
        found = status(self.bob.context()).differences
        assert {*found.added, *found.changed, *found.removed} == {name.encode() for name in self.local()}
        assert {name.decode() for name in found.added} == {n for n in self.local() if n not in self.base}
        assert {name.decode() for name in found.removed} == {n for n in self.local() if n not in self.disk}


@settings(max_examples=examples(40), deadline=None)
@given(first=EDITS, texts=st.lists(TEXTS, max_size=2, unique=True), steps=st.lists(STEPS, max_size=14))
def test_what_is_not_theirs_never_changes(
    first: Files, texts: list[str], steps: list[tuple[str, ...]]
) -> None:
    with tempfile.TemporaryDirectory() as home, every_store_is(MemoryStore()):
        ann = Person(Path(home) / "ann", "memory://unused")
        bob = Person(Path(home) / "bob", "memory://unused", "bob")
        files = edited(dict.fromkeys(PATHS[::2], b"0\n"), first)
        ann.init()
        ann.write({**files, "e/1": b"0\n"})
        ann.sync()
        switch(ann.context(), SIDE, create=True)
        files["e/1"] = b"0\n"
        only = tuple(
            text for text in texts if any(SparsePatterns((text,)).matches(n.encode()) for n in files)
        )
        clone(bob.context(Path(home)), Target.parse("scans"), bob.workspace, only=only or ("e",))
        chosen = SparsePatterns(()).added(only or ("e",))
        world = World(ann, bob, {MAIN: files, SIDE: files}, chosen, base=files)
        world.disk = {name: data for name, data in files.items() if world.has(name)}
        world.check()
        for name, *words in steps:
            getattr(world, name)(*words)
            world.check()
