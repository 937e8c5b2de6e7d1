"""Where a file's content comes from: the commits that changed it, under each name that it had."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dsv.errors import NotFound
from dsv.model.commit import Commit
from dsv.model.diff import What
from dsv.model.entry import Entry
from dsv.model.ids import CommitId
from dsv.model.path_set import PathSet
from dsv.model.paths import show
from dsv.model.renames import Difference, differences, find_renames
from dsv.repo.objects import Objects
from dsv.repo.path_history import PathHistory
from dsv.repo.recipes import read_chunks
from dsv.repo.tree_diff import diff_trees
from dsv.repo.trees import TreeReader


@dataclass(frozen=True, slots=True)
class Step:
    """A commit that changed the file. present: its content has been the same since, under whatever name."""

    id: CommitId
    commit: Commit
    difference: Difference
    present: bool = False


def follow(objects: Objects, start: CommitId, path: bytes) -> Iterator[Step]:
    """The commits that changed the file at this path of a commit, newest first, back to the one that added it.

    At a merge that took the file from one parent, that parent is followed, else the first one that has it. Raises
    `NotFound` if the commit has no such file.
    """
    entry = TreeReader(objects, start).entry(path)
    if entry is None:
        raise NotFound(
            f"{show(path)} is no file of {str(start)[:12]}",
            subject=path.decode("utf-8", "backslashreplace"),
            hint=f"dsv ls @{str(start)[:12]} lists its files",
        )
    now: Entry | None = entry[0]
    commit_id, commit = start, objects.commit(start)
    looked = PathHistory(objects, PathSet.of([path]))
    found_content = False
    while now is not None:
        parents = [(parent, objects.commit(parent)) for parent in commit.parents]
        same = next((one for one in parents if not looked.differs(one, (commit_id, commit))), None)
        if same is not None:
            commit_id, commit = same
            continue
        step = _step(objects, commit_id, commit, now)
        made_content = step.before is None or step.content_changed
        yield Step(commit_id, commit, step, made_content and not found_content)
        found_content = found_content or made_content
        if step.before is None:
            return
        if step.before.path != now.path:
            looked = PathHistory(objects, PathSet.of([step.before.path]))
        now = step.before
        commit_id, commit = next(
            one for one in parents if len(parents) == 1 or TreeReader(objects, one[0]).entry(now.path)
        )


def _step(objects: Objects, commit_id: CommitId, commit: Commit, now: Entry) -> Difference:
    """What a commit did to the file, compared with the first parent that has it."""
    after = TreeReader(objects, commit_id)
    parents = [TreeReader(objects, parent) for parent in commit.parents]
    for parent in parents:
        old = parent.entry(now.path)
        if old is not None:
            scope = PathSet.of([now.path])
            return next(iter(differences(diff_trees(parent, after, scope))))
    for parent in parents:
        found = find_renames(
            differences(diff_trees(parent, after)), lambda entries: read_chunks(objects, entries)
        )
        renamed = next((one for one in found.differences if one.path == now.path), None)
        if renamed is not None and renamed.what is What.RENAMED:
            return renamed
    return Difference(What.ADDED, None, now)
