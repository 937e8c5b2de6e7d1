from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsv.diff.paths import OTHERS, ROOT, Difference, Summary, Sums
from dsv.format.tree import Entry, Kind
from dsv.repo.tree.diff import What
from dsv.values.ids import FileId
from tests.format.strategies import path_lists


def file(path: bytes, size: int) -> Entry:
    return Entry(path, Kind.FILE, size, FileId(bytes(32)))


def added(path: bytes, size: int = 1) -> Difference:
    return Difference(What.ADDED, None, file(path, size))


def removed(path: bytes, size: int = 1) -> Difference:
    return Difference(What.REMOVED, file(path, size), None)


def changed(path: bytes, before: int, after: int) -> Difference:
    return Difference(What.CHANGED, file(path, before), file(path, after))


def renamed(before: bytes, after: bytes, size: int = 1) -> Difference:
    return Difference(What.RENAMED, file(before, size), file(after, size), 100)


def test_a_row_for_each_folder_of_the_depth() -> None:
    found = [
        added(b"README", 5),
        added(b"train/a/1", 10),
        removed(b"train/b/2", 20),
        changed(b"train/b/3", 30, 35),
        renamed(b"test/4", b"val/4", 40),
    ]
    rows = {row.folder: row.sums for row in Summary(found).by_folder(1)}
    assert rows == {
        ROOT: Sums(added=1, added_bytes=5, net_bytes=5),
        b"train/": Sums(
            added=1, removed=1, changed=1, added_bytes=10, removed_bytes=20, changed_bytes=35, net_bytes=-5
        ),
        b"test/": Sums(net_bytes=-40),
        b"val/": Sums(renamed=1, renamed_bytes=40, net_bytes=40),
    }
    deeper = [row.folder for row in Summary(found).by_folder(2)]
    assert deeper == [ROOT, b"test/", b"train/a/", b"train/b/", b"val/"]
    assert [row.folder for row in Summary(found).by_folder(0)] == [ROOT]


def test_without_a_depth_folders_are_listed_where_they_branch() -> None:
    found = [added(b"data/train/a/1"), added(b"data/train/b/x/1"), added(b"data/train/0")]
    assert [row.folder for row in Summary(found).by_folder()] == [
        b"data/train/",
        b"data/train/a/",
        b"data/train/b/",
    ]
    assert [row.folder for row in Summary([added(b"a/b/c")]).by_folder()] == [b"a/b/"]


def test_of_many_folders_the_smaller_ones_share_a_row() -> None:
    found = [added(b"f%02d/%d" % (n, m)) for n in range(30) for m in range(n + 1)]
    rows = Summary(found).by_folder(most=5)
    assert [row.folder for row in rows] == [b"f26/", b"f27/", b"f28/", b"f29/", OTHERS]
    assert rows[-1].sums.added == sum(range(1, 27))


@given(path_lists, st.data())
def test_rows_sum_up_to_the_total(found: list[bytes], data: st.DataObject) -> None:
    size = st.integers(0, 9)
    all_of_them = []
    for path in found:
        make = data.draw(st.sampled_from([added, removed]))
        all_of_them.append(make(path, data.draw(size)))
    summary = Summary(all_of_them)
    for rows in (summary.by_folder(), summary.by_folder(2), summary.by_folder(most=2)):
        total = Sums()
        for row in rows:
            total.add(row.sums)
        assert total == summary.total
    assert summary.total.paths == len(found)
    at_once, one_by_one = Summary(), Summary(added(path, 3) for path in found)
    at_once.add_files(found, [3] * len(found))
    assert at_once.by_folder(2) == one_by_one.by_folder(2)
