"""Random work in a workspace, and syncs that are whole, partial, killed or forgotten, against a plain model."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dsv.format.tree import Entry, Kind
from dsv.repo.tree.diff import difference
from dsv.values.ids import FileId
from dsv.workspace.scan.result import detect_changes
from tests.exhaustive import examples
from tests.workspace.worlds import World, tree_of

NAMES = st.sampled_from(["a", "b", "a-b", "a.b", "ä", "zz"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
CONTENTS = st.sampled_from([b"", b"one", b"two", b"four!"])


class Workspaces(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dsv-machine-"))
        self.world = World(self.folder)
        self.whole = True

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _clear(self, path: Path) -> None:
        """Makes room for something at the path: no file is above it, nothing at it."""
        for above in reversed(path.relative_to(self.folder).parents):
            place = self.folder / above
            if place.is_symlink() or place.is_file():
                place.unlink()
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.is_dir():
            shutil.rmtree(path)
        path.parent.mkdir(parents=True, exist_ok=True)

    @rule(path=PATHS, content=CONTENTS, executable=st.booleans(), anew=st.booleans())
    def write(self, path: str, content: bytes, executable: bool, anew: bool) -> None:
        place = self.folder / path
        if anew or not place.is_file() or place.is_symlink():
            self._clear(place)
        place.write_bytes(content)
        place.chmod(0o755 if executable else 0o644)

    @rule(path=PATHS, content=CONTENTS)
    def write_and_hide_it(self, path: str, content: bytes) -> None:
        """With the old mtime put back: only the ctime shows the change."""
        place = self.folder / path
        if place.is_file() and not place.is_symlink():
            before = place.stat()
            place.write_bytes(content)
            os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))

    @rule(path=PATHS, to=st.sampled_from(["a", "b", "./zz", "nowhere"]))
    def link(self, path: str, to: str) -> None:
        self._clear(self.folder / path)
        (self.folder / path).symlink_to(to)

    @rule(path=PATHS)
    def make_folder(self, path: str) -> None:
        if not (self.folder / path).is_dir() or (self.folder / path).is_symlink():
            self._clear(self.folder / path)
            (self.folder / path).mkdir()

    @rule(path=PATHS)
    def remove(self, path: str) -> None:
        self._clear(self.folder / path)

    @rule(source=PATHS, goal=PATHS)
    def move(self, source: str, goal: str) -> None:
        one, other = self.folder / source, self.folder / goal
        plain = os.path.realpath(one.parent) == str(one.parent)
        if plain and os.path.lexists(one) and not one.is_relative_to(other) and not other.is_relative_to(one):
            self._clear(other)
            if os.path.lexists(one):
                one.rename(other)

    @rule()
    def sync(self) -> None:
        before, expected = self.world.base, tree_of(self.folder)
        changed = self.world.sync()
        assert self.world.base == expected
        assert changed == (before != expected)

    @rule(paths=st.lists(PATHS, min_size=1, max_size=2))
    def sync_some(self, paths: list[str]) -> None:
        only = [path.encode() for path in paths]
        before, disk = self.world.base, tree_of(self.folder)
        self.world.sync(only)
        for path in {*before, *disk}:
            inside = any(path == part or path.startswith(part + b"/") for part in only)
            leads = any(part.startswith(path + b"/") for part in only)
            if inside:
                assert self.world.base.get(path) == disk.get(path)
            elif not leads:
                assert self.world.base.get(path) == before.get(path)

    @rule(after=st.integers(0, 4))
    def sync_killed(self, after: int) -> None:
        self.world.sync(killed_after=after)

    @rule()
    def sync_forgotten(self) -> None:
        """Killed between the branch's move and the save: the base is new, the state is old."""
        self.world.sync(forget=True)

    @rule(data=st.data())
    def damage_state(self, data: st.DataObject) -> None:
        files = sorted(self.world.state_folder.glob("*")) if self.world.state_folder.exists() else []
        if files:
            file = data.draw(st.sampled_from(files))
            content = bytearray(file.read_bytes())
            if data.draw(st.booleans()) and content:
                content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
                file.write_bytes(content)
            else:
                file.write_bytes(content[: data.draw(st.integers(0, len(content)))])

    @rule()
    def status(self) -> None:
        disk = tree_of(self.folder)
        scan = self.world.scan()
        found, problems = detect_changes(scan, self.world.base.get)
        assert not problems
        said = {
            path: what for what in ("added", "changed", "removed", "retyped") for path in getattr(found, what)
        }
        assert len(said) == len(found)
        wanted = {}
        for path in {*disk, *self.world.base}:
            what = difference(self.world.base.get(path), disk.get(path))
            if what is not None:
                wanted[path] = what.value
        assert said == wanted
        scan.state.save()

    @invariant()
    def certainty_is_never_wrong(self) -> None:
        if hasattr(self, "world"):
            scan = self.world.scan()
            if scan.unchanged:
                assert self.world.base == tree_of(self.folder)


TestWorkspaces = Workspaces.TestCase
TestWorkspaces.settings = settings(
    max_examples=examples(40), stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_a_tree_is_seen_as_it_is(tmp_path: Path) -> None:
    world = World(tmp_path / "w")
    (tmp_path / "w/sub/empty").mkdir(parents=True)
    (tmp_path / "w/sub/run.sh").write_bytes(b"#!")
    (tmp_path / "w/sub/run.sh").chmod(0o755)
    (tmp_path / "w/sub/link").symlink_to("run.sh")
    assert world.sync()
    assert world.base == {
        b"sub/empty": Entry(b"sub/empty", Kind.EMPTY_DIRECTORY),
        b"sub/link": Entry(b"sub/link", Kind.SYMLINK, target=b"run.sh"),
        b"sub/run.sh": Entry(b"sub/run.sh", Kind.EXECUTABLE, 2, FileId.hash(b"#!")),
    }
    assert not world.sync()
