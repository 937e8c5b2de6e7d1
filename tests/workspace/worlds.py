"""A workspace with a plain model of its base beside it, and what a sync makes of them, without a store."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from dsv.files.descent import Descent
from dsv.format.tree import Entry, Kind
from dsv.transfer.stable_read import Problem, hash_content, read_stable, row_of
from dsv.values.ids import CommitId, FileId, RecipeId
from dsv.values.paths import sort_key
from dsv.workspace.scan.result import Gone, Pending, WorkspaceScan
from dsv.workspace.scan.scanner import scan_workspace
from dsv.workspace.scan.state import WorkspaceState

Tree = dict[bytes, Entry]
UNPRIVILEGED = """
import json, os, sys
from pathlib import Path
from dsv.workspace.scan.state import WorkspaceState
from dsv.workspace.scan.scanner import scan_workspace
os.setgroups([]); os.setgid(54321); os.setuid(54321)  # after the imports: they may lie where that user may not read
root = Path(sys.argv[1])
scan = scan_workspace(root, WorkspaceState.load(root / ".dsv/state"), None, lambda: ())
print(json.dumps({
    "problems": {p.path.decode(): p.reason for p in scan.problems},
    "pending": [item.path.decode() for item in scan.pending()],
    "missing": [path.decode() for path in scan.missing],
}))
"""


class World:
    """`base` is the tree of commit `commit`. The state is on disk between calls, as between commands."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / ".dsv").mkdir(parents=True, exist_ok=True)
        self.base: Tree = {}
        self.commit: CommitId | None = None
        self.reads = 0
        """Files whose content was read so far."""
        self.tree_reads = 0

    @property
    def state_folder(self) -> Path:
        return self.root / ".dsv" / "state"

    def scan(self, only: Iterable[bytes] = ()) -> WorkspaceScan:
        return scan_workspace(
            self.root, WorkspaceState.load(self.state_folder), self.commit, self.base_entries, only
        )

    def base_entries(self) -> list[Entry]:
        self.tree_reads += 1
        return [self.base[path] for path in sorted(self.base, key=sort_key)]

    def sync(
        self, only: Iterable[bytes] = (), *, killed_after: int | None = None, forget: bool = False
    ) -> bool:
        """Commits as a sync does; whether anything changed.

        `killed_after` so many paths it saves and stops; with `forget` the state is not saved after publishing.
        """
        scan = self.scan(only)
        assert not scan.problems
        tree = dict(self.base)
        order: list[bytes] = []
        for number, item in enumerate(scan.work()):
            if number == killed_after:
                scan.state.save()
                return False
            order.append(item.path)
            entry = None if isinstance(item, Gone) else item.known or self._read(scan, item)
            if entry is None:
                tree.pop(item.path, None)
            else:
                tree[item.path] = entry
        assert order == sorted(set(order), key=sort_key)
        changed = tree != self.base
        self.base = tree
        self.commit = CommitId.hash(repr(sorted(tree.items())).encode())
        scan.published(self.commit)
        if not forget:
            scan.state.save()
        return changed

    def _read(self, scan: WorkspaceScan, item: Pending) -> Entry:
        with Descent(self.root) as descent:
            stable = read_stable(descent, item.path, hash_content)
        assert not isinstance(stable, Problem)
        self.reads += 1
        recipe = recipe_for(stable.stat.st_size, stable.value)
        row, device = row_of(stable.stat), stable.stat.st_dev
        entry = scan.record(item, row, device, stable.value, recipe, no_writer=stable.no_writer)
        assert entry is not None
        return entry


def recipe_for(size: int, file_id: FileId) -> RecipeId | None:
    """Stands for the recipe that an upload would work out."""
    return RecipeId.hash(file_id) if size > 1 << 20 else None


def tree_of(root: Path, ignored: Iterable[bytes] = ()) -> Tree:
    """Return the expected tree of this folder, read the plain way."""
    tree: Tree = {}
    left_out = set(ignored)

    def visit(folder: bytes) -> bool:
        found = False
        with os.scandir(os.fsencode(root) + b"/" + folder) as entries:
            names = [entry.name for entry in entries]
        for name in names:
            path = folder + b"/" + name if folder else name
            if name in (b".dsv", b".git") or path in left_out:
                continue
            whole = os.fsencode(root) + b"/" + path
            mode = os.lstat(whole).st_mode
            found = True
            if stat.S_ISDIR(mode):
                if not visit(path):
                    tree[path] = Entry(path, Kind.EMPTY_DIRECTORY)
            elif stat.S_ISLNK(mode):
                target = os.readlink(whole)
                tree[path] = Entry(path, Kind.SYMLINK, target=target)
            else:
                data = Path(os.fsdecode(whole)).read_bytes()
                kind = Kind.EXECUTABLE if mode & 0o100 else Kind.FILE
                file_id = FileId.hash(data)
                tree[path] = Entry(path, kind, len(data), file_id, recipe_for(len(data), file_id))
        return found

    visit(b"")
    return tree


def write(world: World, **files: bytes) -> None:
    for name, content in files.items():
        path = world.root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def settle(world: World) -> None:
    """Syncs until nothing is so young that it would be read again."""
    world.sync()
    age = world.root / ".dsv/age"
    while True:
        age.write_bytes(b"")
        world.sync()
        if world.scan().unchanged:
            return


def readable_by_all(folder: Path) -> World:
    folder.chmod(0o755)
    for above in folder.parents:
        if above != Path("/tmp") and above.is_relative_to("/tmp"):
            above.chmod(0o755)
    return World(folder / "w")


def scan_as_another(world: World) -> subprocess.CompletedProcess[str]:
    """Return the result of an unprivileged user's scan."""
    return subprocess.run(
        [sys.executable, "-c", UNPRIVILEGED, str(world.root)], capture_output=True, text=True, check=False
    )
