from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsv.format.codec import Codec
from dsv.format.locator import Location
from dsv.format.tree import Entry, Kind
from dsv.repo.tree.diff import PathChange, diff_entries, pair_entries
from dsv.values.ids import FileId, PackId
from dsv.values.paths import sort_key
from tests.format.strategies import path_lists

VERSIONS = st.integers(0, 2)
PACK = PackId(bytes(16))


def entry(path: bytes, version: int) -> Entry:
    return Entry(path, Kind.FILE, 1, FileId(bytes([version]) * 32))


@given(path_lists, st.data())
def test_it_is_the_difference_of_two_dicts(found: list[bytes], data: st.DataObject) -> None:
    before = {path: entry(path, data.draw(VERSIONS)) for path in found if data.draw(st.booleans())}
    after = {path: entry(path, data.draw(VERSIONS)) for path in found if data.draw(st.booleans())}
    places = {path: Location(PACK, 8 * number, 8, 8, Codec.RAW) for number, path in enumerate(after)}
    pairs = [
        PathChange(path, before.get(path), after.get(path), places.get(path))
        for path in sorted(before.keys() | after.keys(), key=sort_key)
    ]
    located = [(after[path], places[path]) for path in after]
    assert list(pair_entries(before.values(), located)) == pairs
    assert list(diff_entries(before.values(), located)) == [one for one in pairs if one.before != one.after]


def test_a_file_that_becomes_a_folder() -> None:
    old, new = entry(b"a", 0), entry(b"a/b", 0)
    assert list(diff_entries([old], [(new, None)])) == [
        PathChange(b"a", old, None),
        PathChange(b"a/b", None, new),
    ]
