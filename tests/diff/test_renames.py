from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from dsv.diff.paths import MOST_RECIPES, PathDifferences, differences, find_renames
from dsv.format.tree import Entry, Kind
from dsv.repo.tree.diff import PathChange, What, diff_entries
from dsv.values.ids import EMPTY_FILE, ChunkId, FileId, Id, RecipeId
from tests.format.strategies import path_lists

MB = 1 << 20


def entry(path: bytes, version: int, size: int = 1) -> Entry:
    """Version 0 is an empty file."""
    if not version:
        return Entry(path, Kind.FILE, 0, EMPTY_FILE)
    return Entry(path, Kind.FILE, size, FileId(bytes([version]) * 32))


def large(path: bytes, chunks: str) -> Entry:
    """A file of one MiB for each letter."""
    content = FileId.hash(chunks.encode())
    return Entry(path, Kind.FILE, len(chunks) * MB, content, RecipeId(content))


def read(entries: Sequence[Entry], texts: dict[RecipeId | None, str]) -> list[Counter[Id]]:
    return [
        Counter({ChunkId.hash(letter.encode()): MB * count for letter, count in Counter(text).items()})
        for text in (texts[one.recipe_id] for one in entries)
    ]


def compare(before: dict[bytes, str], after: dict[bytes, str]) -> PathDifferences:
    """Return the renames between two sets of large files; each path has the letters of its chunks."""
    old = {path: large(path, text) for path, text in before.items()}
    new = {path: large(path, text) for path, text in after.items()}
    texts = {large(b"", text).recipe_id: text for text in (*before.values(), *after.values())}
    changes = diff_entries((old[path] for path in sorted(old)), ((new[path], None) for path in sorted(new)))
    return find_renames(differences(changes), lambda entries: read(entries, texts))


def told(found: PathDifferences) -> list[tuple[str, bytes | None, bytes, int | None]]:
    return [(one.what.value, one.old_path, one.path, one.similarity) for one in found.differences]


@given(path_lists, st.data())
def test_renames_pair_what_went_with_what_came(found: list[bytes], data: st.DataObject) -> None:
    versions = st.integers(0, 3)
    before = {path: entry(path, data.draw(versions)) for path in found if data.draw(st.booleans())}
    after = {path: entry(path, data.draw(versions)) for path in found if data.draw(st.booleans())}
    plain = list(differences(diff_entries(before.values(), [(one, None) for one in after.values()])))
    result = find_renames(plain).differences
    renamed = [one for one in result if one.what is What.RENAMED]
    for one in renamed:
        assert one.before is not None and one.after is not None and one.similarity == 100
        assert one.before.file_id == one.after.file_id and one.before.path not in after
        assert one.after.path not in before
    # Every path is listed once: the old path of a rename stands for the removal that it replaces.
    paths = [one.path for one in result] + [one.old_path for one in renamed]
    assert sorted(paths) == sorted(one.path for one in plain)  # type: ignore[type-var]
    # Nothing is left to pair, but for empty files.
    left = {one.before.file_id for one in result if one.what is What.REMOVED and one.before is not None}
    came = {one.after.file_id for one in result if one.what is What.ADDED and one.after is not None}
    assert left & came <= {EMPTY_FILE}
    order = [one.path for one in plain]
    assert [one.path for one in result] == [path for path in order if path in {one.path for one in result}]


def test_of_equal_files_the_one_with_the_same_last_name_is_the_source() -> None:
    old = [entry(b"a/x", 1), entry(b"a/y", 1), entry(b"a/z", 1)]
    new = [entry(b"b/w", 1), entry(b"b/y", 1)]
    found = find_renames(differences(diff_entries(old, [(one, None) for one in new])))
    assert told(found) == [
        ("removed", b"a/z", b"a/z", None),
        ("renamed", b"a/x", b"b/w", 100),
        ("renamed", b"a/y", b"b/y", 100),
    ]


def test_empty_files_are_renamed_only_with_their_last_name() -> None:
    old, new = [entry(b"a/__init__.py", 0), entry(b"a/q", 0)], [entry(b"b/__init__.py", 0), entry(b"b/r", 0)]
    found = find_renames(differences(diff_entries(old, [(one, None) for one in new])))
    assert told(found) == [
        ("removed", b"a/q", b"a/q", None),
        ("renamed", b"a/__init__.py", b"b/__init__.py", 100),
        ("added", None, b"b/r", None),
    ]


def test_a_large_file_that_keeps_half_of_its_chunks_is_renamed() -> None:
    assert told(compare({b"a": "abcdefgh"}, {b"b": "abcdefgX"})) == [("renamed", b"a", b"b", 87)]
    assert told(compare({b"a": "abcd"}, {b"b": "abXY"})) == [("renamed", b"a", b"b", 50)]
    assert [what for what, *_ in told(compare({b"a": "abcd"}, {b"b": "aXYZ"}))] == ["removed", "added"]


def test_the_most_similar_files_are_paired() -> None:
    found = compare({b"one": "abcdef", b"two": "abcdXX"}, {b"p": "abcdXY", b"q": "abcdeY"})
    assert told(found) == [("renamed", b"two", b"p", 83), ("renamed", b"one", b"q", 83)]


def test_chunks_are_read_only_if_sizes_allow_that_enough_is_shared() -> None:
    old, new = [large(b"a", "abc"), entry(b"b", 1, MB)], [large(b"c", "abcdefg"), entry(b"d", 2, MB)]
    changes = diff_entries(old, [(one, None) for one in new])

    def refuse(entries: Sequence[Entry]) -> list[Counter[Id]]:
        raise AssertionError(entries)

    assert find_renames(differences(changes), refuse).unsearched == 0


def test_too_many_large_files_are_said_to_be_unsearched() -> None:
    count = MOST_RECIPES // 2 + 1
    found = compare(
        {b"a%d" % n: f"abc{n}" for n in range(count)}, {b"b%d" % n: f"abc{-n - 1}" for n in range(count)}
    )
    assert found.unsearched == 2 * count
    assert {one.what for one in found.differences} == {What.ADDED, What.REMOVED}


def test_another_recipe_is_no_difference_and_the_executable_bit_is_one() -> None:
    old = Entry(b"a", Kind.FILE, 2 * MB, FileId(b"1" * 32), RecipeId(b"1" * 32))
    same, run = old._replace(recipe_id=RecipeId(b"2" * 32)), old._replace(kind=Kind.EXECUTABLE)
    assert list(differences([PathChange(b"a", old, same)])) == []
    (changed,) = differences([PathChange(b"a", old, run)])
    assert changed.what is What.CHANGED and changed.mode_changed and not changed.content_changed
