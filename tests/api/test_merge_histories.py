"""Random histories with random merges, in a store and as dicts: both come to the same, and nothing else changes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsv.api.merge import MergeRequest, merge
from dsv.merge.paths import MergeConflict
from dsv.values.ids import CommitId
from dsv.values.names import BranchName, DatasetName
from tests.kit.people import Dataset, dataset

NAMES = ["a", "b", "d/a", "d/b", "e/f/a"]
BRANCHES = ["main", "one", "two"]
Tree = dict[str, bytes]
UNDECIDED = b"undecided"
NUMBERS = itertools.count()


@dataclass
class Model:
    """Commits as dicts, each with its parents; merged path by path, the naive way."""

    trees: dict[CommitId, Tree] = field(default_factory=dict)
    parents: dict[CommitId, tuple[CommitId, ...]] = field(default_factory=dict)

    def reach(self, commit: CommitId) -> set[CommitId]:
        return {commit}.union(*(self.reach(parent) for parent in self.parents[commit]))

    def bases(self, one: CommitId, other: CommitId) -> list[CommitId]:
        common = self.reach(one) & self.reach(other)
        return sorted(c for c in common if not any(c in self.reach(d) for d in common - {c}))

    def base_tree(self, one: CommitId, other: CommitId) -> Tree:
        """Return the tree that both were made from, with `UNDECIDED` at paths where it is not clear."""
        bases = self.bases(one, other)
        if not bases:
            return {}
        if len(bases) > 2:
            trees = [self.trees[base] for base in bases]
            names = {name for tree in trees for name in tree}
            agreed = {name: {tree.get(name) for tree in trees} for name in names}
            return {
                name: UNDECIDED if len(found) > 1 else value
                for name, found in agreed.items()
                for value in found
                if value is not None or len(found) > 1
            }
        if len(bases) == 1:
            return self.trees[bases[0]]
        merged, conflicts = self.merged(*bases)
        return {**merged, **dict.fromkeys(conflicts, UNDECIDED)}

    def merged(self, ours: CommitId, theirs: CommitId) -> tuple[Tree, set[str]]:
        base, mine, other = self.base_tree(ours, theirs), self.trees[ours], self.trees[theirs]
        merged, conflicts = dict(mine), set[str]()
        for name in {*base, *mine, *other}:
            was, one, two = base.get(name), mine.get(name), other.get(name)
            if one == two or two == was:
                continue
            if one != was:
                conflicts.add(name)
            elif two is None:
                merged.pop(name, None)
            else:
                merged[name] = two
        return merged, conflicts


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Dataset]:
    with dataset(tmp_path) as made:
        yield made


def edit(data: st.DataObject, tree: Tree) -> dict[str, bytes | None]:
    """Binary contents, which are never merged; a name that is there may go."""
    found: dict[str, bytes | None] = {}
    for name in data.draw(st.sets(st.sampled_from(NAMES), min_size=1, max_size=2)):
        gone = name in tree and data.draw(st.booleans())
        found[name] = None if gone else b"\0" + data.draw(st.sampled_from([b"x", b"y"]))
    return found


@given(st.data())
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_random_histories_with_random_merges(store: Dataset, data: st.DataObject) -> None:
    scans = replace(store, name=DatasetName.parse(f"set-{next(NUMBERS)}"))
    model = Model()
    heads: dict[str, CommitId] = {}

    def commit(branch: str, change: dict[str, bytes | None], *parents: CommitId) -> None:
        tree = dict(model.trees[parents[0]]) if parents else {}
        tree = {**tree, **{name: value for name, value in change.items() if value is not None}}
        for name in [name for name, value in change.items() if value is None]:
            tree.pop(name, None)
        if parents and len(parents) == 1 and tree == model.trees[parents[0]]:
            return
        made = scans.commit(change, branch, *parents)
        model.trees[made], model.parents[made], heads[branch] = tree, parents, made

    commit("main", dict.fromkeys(NAMES, b"\0start"))
    for branch in BRANCHES[1:]:
        commit(branch, {"a": b"\0" + branch.encode()}, heads["main"])

    def settle(branch: str, theirs: CommitId) -> None:
        """A merge commit in which every conflict was settled by a content of its own, or of the branch's."""
        ours = heads[branch]
        tree, conflicts = model.merged(ours, theirs)
        own = data.draw(st.sampled_from([b"\0settled", b"\0" + branch.encode()]))
        tree |= dict.fromkeys(conflicts, own)
        names = {*tree, *model.trees[ours]}
        commit(
            branch, {n: tree.get(n) for n in names if tree.get(n) != model.trees[ours].get(n)}, ours, theirs
        )

    for _ in range(data.draw(st.integers(3, 9))):
        branch, other = data.draw(st.permutations(BRANCHES))[:2]
        ours, theirs = heads[branch], heads[other]
        act = data.draw(st.sampled_from(["edit", "edit", "merge", "cross"]))
        if act == "edit":
            commit(branch, edit(data, model.trees[ours]), ours)
        elif act == "merge":
            check_merge(scans, model, heads, branch, other)
        elif theirs not in model.reach(ours) and ours not in model.reach(theirs):
            settle(branch, theirs)
            settle(other, ours)
            for name in (branch, other):
                commit(name, edit(data, model.trees[heads[name]]), heads[name])
    check_merge(scans, model, heads, "main", "one")
    check_merge(scans, model, heads, "two", "main")


def check_merge(scans: Dataset, model: Model, heads: dict[str, CommitId], branch: str, other: str) -> None:
    ours, theirs = heads[branch], heads[other]
    request = MergeRequest(scans.target(other), BranchName.parse(branch))
    if theirs in model.reach(ours):
        assert merge(scans.context, request).up_to_date
        return
    tree, conflicts = model.merged(ours, theirs)
    mirrored, also = model.merged(theirs, ours)
    assert conflicts == also and (conflicts or tree == mirrored)
    if conflicts:
        with pytest.raises(MergeConflict) as told:
            merge(scans.context, request)
        assert {one.path.decode() for one in told.value.conflicts} == conflicts
        assert scans.head(branch) == ours
        return
    done = merge(scans.context, request)
    assert done.commit is not None and set(done.bases) == set(model.bases(ours, theirs))
    assert done.fast_forwarded == (ours in model.reach(theirs))
    assert scans.files(branch) == tree
    heads[branch] = done.commit
    if not done.fast_forwarded:
        model.trees[done.commit], model.parents[done.commit] = tree, (ours, theirs)
