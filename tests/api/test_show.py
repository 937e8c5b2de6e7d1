"""show: what it reads of a commit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dsv.api.diff import show
from dsv.repo.repository import Repository
from dsv.repo.tree.reader import LocatedSegment, TreePart, TreeReader
from dsv.values.names import Target
from tests.kit.people import SCANS, Person


def test_a_large_folder_is_counted_by_the_nodes_of_its_tree(
    ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann.write({f"{folder}/{number:05}": b"12" for folder in "abc" for number in range(4000)})
    ann.write({"b/link@": b"00001"})
    done = ann.sync()
    assert done.commit is not None
    read: list[int] = []
    really_read = TreeReader.segments

    def segments(tree: TreeReader, leaves: list[TreePart] | None = None) -> Iterator[LocatedSegment]:
        read.append(len(tree.leaves() if leaves is None else leaves))
        return really_read(tree, leaves)

    with ann.context().store() as store:
        tree = TreeReader(Repository.open(store, None).objects, done.commit)
        of_b = [leaf for leaf in tree.leaves() if b"b/" < leaf.child.last < b"c"]
    assert len(of_b) > 3
    monkeypatch.setattr(TreeReader, "segments", segments)
    with show(ann.context(), Target(SCANS, None, b"b")) as shown:
        assert shown.path is not None
        assert (shown.path.files, shown.path.bytes) == (4000, 8000)
    assert read[:2] == [1, 2]  # the one that has no file b; those at the folder's ends; then the changes
