"""What a workspace has at the paths that differ from its base."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from dsv.fs.descent import Descent
from dsv.fs.errors import about
from dsv.model.entry import Entry
from dsv.worktree.scan.problem import Problem
from dsv.worktree.scan.workspace_scan import Gone, Pending, WorkspaceScan
from dsv.worktree.status import hash_file


class ChangedPath(msgspec.Struct, frozen=True):
    """A path and what is there now; without an item, nothing."""

    path: bytes
    item: Pending | None

    @property
    def entry(self) -> Entry | None:
        """Without a file id if the file was not read: its size tells already that it differs."""
        if self.item is None:
            return None
        return self.item.known or Entry(self.path, self.item.kind, self.item.size)


def changed_paths(scan: WorkspaceScan, paths: Iterable[bytes]) -> Iterator[ChangedPath]:
    """These of the paths that may differ, in tree order. Before, `detect_changes` has told which do."""
    wanted = set(paths)
    for item in scan.work():
        if item.path in wanted:
            yield ChangedPath(item.path, None if isinstance(item, Gone) else item)


def read_contents(scan: WorkspaceScan, changed: Iterable[ChangedPath]) -> list[Problem]:
    """Hashes these files, so that their entries have ids; says which could not be read."""
    problems = []
    with about(scan.root), Descent(scan.root) as descent:
        for each in changed:
            if each.item is not None and each.item.known is None:
                problem = hash_file(scan, each.item, descent)
                if problem is not None:
                    problems.append(problem)
    return problems
