from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsv.values.paths import PathSet, folders_above, sort_key

NAMES = st.text("ab.-", min_size=1, max_size=3).map(str.encode)
PATHS = st.lists(NAMES, min_size=1, max_size=4).map(b"/".join)
CHOSEN = st.lists(PATHS, max_size=5)


def at_or_below(path: bytes, folder: bytes) -> bool:
    return path == folder or path.startswith(folder + b"/")


@given(CHOSEN, PATHS)
def test_it_contains_what_lies_at_or_below_its_paths(chosen: list[bytes], path: bytes) -> None:
    assert (path in PathSet.of(chosen)) == (not chosen or any(at_or_below(path, one) for one in chosen))


@given(CHOSEN, PATHS)
def test_it_touches_what_it_contains_and_the_folders_that_lead_there(
    chosen: list[bytes], path: bytes
) -> None:
    found = PathSet.of(chosen)
    leads = any(at_or_below(one, path) for one in chosen)
    assert found.touches(path) == (path in found or leads)


@given(CHOSEN)
def test_its_paths_are_those_chosen_less_the_ones_below_another(chosen: list[bytes]) -> None:
    found = PathSet.of(chosen)
    kept = {one for one in chosen if not any(one != other and at_or_below(one, other) for other in chosen)}
    assert found.paths == tuple(sorted(kept, key=sort_key))
    assert found.whole == (not chosen)
    assert found.ways == {folder for path in kept for folder in folders_above(path)}


@given(CHOSEN, PATHS)
def test_the_root_belongs_only_to_the_whole_tree(chosen: list[bytes], path: bytes) -> None:
    assert PathSet.of([b"", *chosen]) == PathSet()
    assert b"" in PathSet()
    some = PathSet.of([path, *chosen])
    assert b"" not in some
    assert not some.touches(b"")


def test_the_folders_above_a_path_come_nearest_first() -> None:
    assert list(folders_above(b"a/b/c")) == [b"a/b", b"a"]
    assert list(folders_above(b"a")) == []


@given(
    st.lists(PATHS, min_size=1, max_size=4), st.lists(PATHS, min_size=2, max_size=12, unique=True), st.data()
)
def test_it_overlaps_every_run_that_has_one_of_its_paths(
    chosen: list[bytes], paths: list[bytes], data: st.DataObject
) -> None:
    found = PathSet.of(chosen)
    ordered = sorted(paths, key=sort_key)
    cut = data.draw(st.integers(1, len(ordered) - 1))
    for run, after in ((ordered[:cut], None), (ordered[cut:], ordered[cut - 1])):
        if any(path in found for path in run):
            assert found.overlaps(after, run[-1])


def test_it_does_not_overlap_a_run_beside_its_paths() -> None:
    found = PathSet.of([b"b"])
    assert not found.overlaps(None, b"a/z")
    assert not found.overlaps(b"b0", b"c")
    assert PathSet().overlaps(b"a", b"b")


@given(CHOSEN)
def test_its_id_depends_on_the_paths_alone(chosen: list[bytes]) -> None:
    found = PathSet.of(chosen)
    assert PathSet.of(reversed(chosen)).id == found.id
    assert PathSet.of([b"/" + one + b"/" for one in chosen]).id == found.id


def test_ids_are_those_of_the_parts_that_caches_have_already() -> None:
    assert PathSet.of([b"train"]).id == "121fe5e4305e43b8"
    assert PathSet.of([b"b/c", b"a", b"a/x", b"b-c"]).id == "9a069f5737da8c14"
    assert PathSet.of([]).id is None
    assert PathSet.of([b"", b"a"]).id is None
