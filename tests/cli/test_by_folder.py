from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dsv.cli.commands.status import ROWS, by_folder

NAMES = st.lists(st.sampled_from([b"a", b"b", b"ab", b"c"]), min_size=1, max_size=4).map(b"/".join)
CHANGES = st.dictionaries(NAMES, st.sampled_from(["added", "changed", "removed"])).map(
    lambda d: list(d.items())
)


def folders(*paths: bytes) -> list[tuple[bytes, int]]:
    return [(folder, row["added"]) for folder, row in by_folder([(path, "added") for path in paths], len)]


def test_a_row_for_each_folder_of_the_workspace() -> None:
    assert folders(b"val/1", b"train/a/1", b"train/b/2", b"top") == [(b"./", 1), (b"train/", 2), (b"val/", 1)]


def test_below_one_folder_it_is_told_where_the_paths_part() -> None:
    assert folders(b"data/train/1", b"data/val/2", b"data/val/3") == [(b"data/train/", 1), (b"data/val/", 2)]
    assert folders(b"data/1", b"data/2") == [(b"data/", 2)]
    assert folders(b"ab/1", b"a/2") == [(b"a/", 1), (b"ab/", 1)]


def test_many_folders_share_the_last_row() -> None:
    paths = [
        b"%03d/%d" % (folder, number) for folder in range(50) for number in range(2 if folder == 49 else 1)
    ]
    found = folders(*paths)
    assert len(found) == ROWS and (b"049/", 2) in found
    assert found[-1] == (b"", 51 - 2 - (ROWS - 2))


@given(CHANGES)
def test_nothing_is_lost_or_counted_twice(changes: list[tuple[bytes, str]]) -> None:
    rows = by_folder(changes, len)
    counted: Counter[str] = Counter()
    for _, row in rows:
        counted.update(row)
    assert counted.pop("bytes", 0) == sum(len(path) for path, change in changes if change != "removed")
    assert counted == Counter(change for _, change in changes)
    for path, _ in changes:
        assert any(path.startswith(folder) or (folder == b"./" and b"/" not in path) for folder, _ in rows)
