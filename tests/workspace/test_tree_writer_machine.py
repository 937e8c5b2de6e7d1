"""Random local work under random pulls and restores, against a plain model of what must come out."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from dsv.format.locator import Location
from dsv.format.tree import Entry, Kind
from dsv.repo.tree.diff import PathChange, difference
from dsv.values.ids import CommitId, FileId
from dsv.values.paths import PathSet, sort_key
from dsv.values.progress import NoProgress
from dsv.workspace.plan import Goal
from dsv.workspace.write import FileWriter, Fill, fill_from
from tests.exhaustive import examples
from tests.workspace.worlds import Tree, World, tree_of

NAMES = st.sampled_from(["a", "b", "a-b", "c"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
CONTENTS = {FileId.hash(text): text for text in (b"", b"one", b"two", b"four!")}
FILES = st.sampled_from(sorted(CONTENTS))
LOCAL = st.one_of(
    st.tuples(st.sampled_from([Kind.FILE, Kind.EXECUTABLE]), FILES),
    st.tuples(st.just(Kind.SYMLINK), st.sampled_from([b"a", b"nowhere"])),
    st.tuples(st.just(Kind.EMPTY_DIRECTORY), st.none()),
)


def entry_of(path: bytes, what: tuple[Kind, bytes | None]) -> Entry:
    kind, content = what
    if kind is Kind.SYMLINK:
        return Entry(path, kind, target=content)
    if kind is Kind.EMPTY_DIRECTORY:
        return Entry(path, kind)
    assert content is not None
    return Entry(path, kind, len(CONTENTS[FileId(content)]), FileId(content))


def add(tree: Tree, entry: Entry) -> None:
    """Puts an entry into a tree and takes out what can't be there beside it."""
    for path in list(tree):
        above = entry.path.startswith(path + b"/")
        if path == entry.path or above or path.startswith(entry.path + b"/"):
            del tree[path]
    tree[entry.path] = entry


def contents(wanted: Iterator[tuple[Entry, Location | None]]) -> Iterator[Fill]:
    for entry, _ in wanted:
        assert entry.file_id is not None
        yield fill_from([CONTENTS[entry.file_id]])


def clash(tree: Tree) -> bool:
    """Return whether no disk can hold this tree. A folder that is not empty makes an empty one superfluous."""
    for path in list(tree):
        for other in list(tree):
            if other.startswith(path + b"/"):
                if tree[path].kind is not Kind.EMPTY_DIRECTORY:
                    return True
                tree.pop(path)
                break
    return False


class Pulls(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dsv-machine-"))
        self.world = World(self.folder)

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    @rule(path=PATHS, what=LOCAL)
    def work(self, path: str, what: tuple[Kind, bytes | None]) -> None:
        """Writes something into the workspace."""
        self._clear(path)
        place = self.folder / path
        entry = entry_of(path.encode(), what)
        if entry.kind is Kind.EMPTY_DIRECTORY:
            place.mkdir()
        elif entry.target is not None:
            place.symlink_to(os.fsdecode(entry.target))
        else:
            assert entry.file_id is not None
            place.write_bytes(CONTENTS[entry.file_id])
            place.chmod(0o755 if entry.kind is Kind.EXECUTABLE else 0o644)

    @rule(path=PATHS)
    def remove(self, path: str) -> None:
        self._clear(path)

    @rule()
    def sync(self) -> None:
        self.world.sync()

    @rule(changes=st.lists(st.tuples(PATHS, st.none() | LOCAL), max_size=5))
    def pull(self, changes: list[tuple[str, tuple[Kind, bytes | None] | None]]) -> None:
        goal = dict(self.world.base)
        for path, what in changes:
            if what is None:
                goal.pop(path.encode(), None)
            else:
                add(goal, entry_of(path.encode(), what))
        self._bring(goal, goal_id(goal))

    @rule()
    def restore_all(self) -> None:
        self._bring(dict(self.world.base), None, scope=PathSet(), consent=True)

    @rule(path=PATHS)
    def restore_some(self, path: str) -> None:
        self._bring(dict(self.world.base), None, scope=PathSet.of([path.encode()]), consent=True)

    @rule(path=PATHS, changes=st.lists(st.tuples(PATHS, LOCAL), max_size=3))
    def restore_from(self, path: str, changes: list[tuple[str, tuple[Kind, bytes | None]]]) -> None:
        goal: Tree = dict(self.world.base)
        for other, what in changes:
            add(goal, entry_of(other.encode(), what))
        self._bring(goal, None, scope=PathSet.of([path.encode()]), consent=True)

    @rule()
    def restore_all_without_force(self) -> None:
        self._bring(dict(self.world.base), None, scope=PathSet(), consent=False)

    def _clear(self, path: str) -> None:
        for above in reversed(Path(path).parents):
            place = self.folder / above
            if place.is_symlink() or place.is_file():
                place.unlink()
        place = self.folder / path
        if place.is_symlink() or place.is_file():
            place.unlink()
        elif place.is_dir():
            shutil.rmtree(place)
        place.parent.mkdir(parents=True, exist_ok=True)

    def _bring(
        self, goal: Tree, commit: CommitId | None, *, scope: PathSet | None = None, consent: bool = False
    ) -> None:
        """With no scope as a pull does, which leaves alone what is the same in base and goal; else as a restore."""
        base, disk = dict(self.world.base), tree_of(self.folder)
        paths = sorted({*base, *goal}, key=sort_key)
        if scope is None:
            chosen = [path for path in paths if base.get(path) != goal.get(path)]
        else:
            chosen = [path for path in paths if scope.touches(path)]
            if not scope.whole:  # what leads there goes only where the goal has a folder instead
                chosen = [path for path in chosen if path in scope or path not in goal]
        changes = [PathChange(path, base.get(path), goal.get(path)) for path in chosen]
        scan = self.world.scan()
        asked = scope if scope is not None and consent else None
        may_overwrite = lambda path: asked is not None and path in asked  # noqa: E731
        paths_of_goal = (b"some",) if commit is None else ()  # the base stays
        goal_commit = commit or CommitId.hash(b"")
        wanted = Goal("", goal_commit, lambda: changes, "", paths_of_goal, may_overwrite)
        work = FileWriter(scan, wanted, NoProgress())
        plan = work.plan()
        expected, in_conflict = self._expect(disk, changes, may_overwrite)
        assert bool(plan.conflicts) == in_conflict, (plan.conflicts, disk, base, goal)
        if plan.conflicts:
            assert tree_of(self.folder) == disk
            scan.state.save()
            return
        made = work.apply(contents)
        assert not made.left
        assert tree_of(self.folder) == expected
        if commit is not None:
            self.world.base, self.world.commit = goal, commit
        assert scan.state.is_exact_for(self.world.commit)
        scan.state.save()
        self._check_knowledge()

    def _expect(self, disk: Tree, changes: list[PathChange], may_overwrite: object) -> tuple[Tree, bool]:
        expected = dict(disk)
        conflict = False
        assert callable(may_overwrite)
        for change in changes:
            now = disk.get(change.path)
            full = any(path.startswith(change.path + b"/") for path in disk)
            if change.after is None and full:
                continue
            if change.after is not None and change.after.kind is Kind.EMPTY_DIRECTORY and full:
                expected[change.path] = change.after
                continue
            allowed = difference(now, change.before) is None or difference(now, change.after) is None
            if (
                not allowed
                and not may_overwrite(change.path)
                and not (full and now is None and change.before is None)
            ):
                conflict = True
            if change.after is None:
                expected.pop(change.path, None)
            else:
                expected[change.path] = change.after
        for change in changes:  # consent makes room
            if change.after is not None:
                is_folder = change.after.kind is Kind.EMPTY_DIRECTORY
                for path in list(expected):
                    below = (
                        path.startswith(change.path + b"/") and may_overwrite(change.path) and not is_folder
                    )
                    above = change.path.startswith(path + b"/") and may_overwrite(path)
                    if below or above:
                        del expected[path]
        return expected, clash(expected) or conflict

    def _check_knowledge(self) -> None:
        """Nothing of what was written has to be read again, and what is said of the rest is true."""
        scan = self.world.scan()
        disk = tree_of(self.folder)
        for item in scan.pending():
            if item.known is not None:
                assert difference(item.known, disk[item.path]) is None
        folders = {path for path, entry in disk.items() if entry.kind is Kind.EMPTY_DIRECTORY}
        expected_missing = {
            path
            for path, entry in self.world.base.items()
            if path not in disk or (path in folders and entry.kind is not Kind.EMPTY_DIRECTORY)
        }
        assert set(scan.missing) == expected_missing
        if scan.unchanged:
            assert self.world.base == disk


def goal_id(tree: Tree) -> CommitId:
    return CommitId.hash(repr(sorted(tree.items())).encode())


TestPulls = Pulls.TestCase
TestPulls.settings = settings(
    max_examples=examples(40), stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
