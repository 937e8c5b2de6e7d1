from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv.format.tree import Entry, Kind, check_follows
from dsv.merge.paths import (
    Choices,
    ConflictChoice,
    ConflictKind,
    Decision,
    MergeContent,
    MergedContent,
    Places,
    beside,
    merge_changes,
    since_another,
)
from dsv.repo.tree.diff import PathChange, diff_entries
from dsv.values.ids import FileId
from dsv.values.paths import PathSet, folders_above, sort_key

Tree = dict[bytes, Entry]
ALL = PathSet()
NOTHING_CHOSEN = Choices()
PATHS = [b"a", b"a/x", b"a/x/1", b"a/x/2", b"a/y", b"a.b", b"b", b"b/x", b"c"]


def file(path: bytes, content: int, kind: Kind = Kind.FILE) -> Entry:
    return Entry(path, kind, content + 1, FileId(bytes([content]) * 32))


def link(path: bytes, target: bytes) -> Entry:
    return Entry(path, Kind.SYMLINK, target=target)


def folder(path: bytes) -> Entry:
    return Entry(path, Kind.EMPTY_DIRECTORY)


def tree(*entries: Entry) -> Tree:
    return {entry.path: entry for entry in entries}


def ordered(found: Tree) -> list[Entry]:
    return [found[path] for path in sorted(found, key=sort_key)]


def changes(before: Tree, after: Tree) -> list[PathChange]:
    return list(diff_entries(ordered(before), ((entry, None) for entry in ordered(after))))


def merge(
    base: Tree,
    ours: Tree,
    theirs: Tree,
    choices: Choices = NOTHING_CHOSEN,
    contents: MergeContent = lambda *_: "",
) -> list[Decision]:
    return list(merge_changes(changes(base, ours), changes(base, theirs), contents, choices))


def applied(ours: Tree, decisions: Iterable[Decision]) -> Tree:
    found = dict(ours)
    for one in decisions:
        if one.changes_ours:
            found.pop(one.path, None)
            if one.result is not None:
                found[one.path] = one.result
        if one.beside is not None:
            entry, _ = one.beside
            found[entry.path] = entry
    return found


def check_valid(found: Tree) -> None:
    previous = None
    for entry in ordered(found):
        check_follows(previous, entry.path)
        previous = entry.path


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    return put(draw, {}, st.integers(0, 6))


def put(draw: st.DrawFn, start: Tree, count: st.SearchStrategy[int]) -> Tree:
    found = dict(start)
    for _ in range(draw(count)):
        path = draw(st.sampled_from(PATHS))
        for other in [one for one in found if one.startswith(path + b"/")]:
            del found[other]
        for other in [path, *folders_above(path)]:
            found.pop(other, None)
        what = draw(st.sampled_from(["file", "file", "run", "link", "folder", "none"]))
        content = draw(st.integers(0, 2))
        if what in ("file", "run"):
            found[path] = file(path, content, Kind.FILE if what == "file" else Kind.EXECUTABLE)
        elif what == "link":
            found[path] = link(path, b"t%d" % content)
        elif what == "folder":
            found[path] = folder(path)
    return found


@st.composite
def sides(draw: st.DrawFn) -> tuple[Tree, Tree, Tree]:
    base = draw(trees())
    few = st.integers(0, 3)
    return base, put(draw, base, few), put(draw, base, few)


def overlaps(path: bytes, changed: Iterable[PathChange]) -> bool:
    """Return whether one of the changes is at the path, above it, or below it."""
    return any(
        change.path == path or change.path.startswith(path + b"/") or path.startswith(change.path + b"/")
        for change in changed
    )


@given(sides())
@settings(max_examples=500)
def test_a_change_of_one_side_is_in_the_result_and_nothing_else_changes(
    three: tuple[Tree, Tree, Tree],
) -> None:
    base, ours, theirs = three
    decisions = merge(base, ours, theirs)
    merged = applied(ours, decisions)
    undecided = {one.path for one in decisions if one.undecided}
    mine, others = changes(base, ours), changes(base, theirs)
    for path in PATHS:
        was, one, other = base.get(path), ours.get(path), theirs.get(path)
        if path in undecided or not overlaps(path, others):
            assert merged.get(path) == one
        elif not overlaps(path, mine):
            assert merged.get(path) == other
        elif one == other:
            assert merged.get(path) == one or one == folder(path)
        elif one != was and other != was:
            assert one is not None and other is not None and was is not None  # a mode, apart from the content
            apart = (one.file_id == was.file_id) != (other.file_id == was.file_id)
            assert apart or one.file_id == other.file_id or one.kind == other.kind
    if not undecided:
        check_valid(merged)


@given(sides())
@settings(max_examples=400)
def test_a_merge_is_the_same_from_either_side(three: tuple[Tree, Tree, Tree]) -> None:
    base, ours, theirs = three
    one, other = merge(base, ours, theirs), merge(base, theirs, ours)
    assert [d.path for d in one if d.undecided] == [d.path for d in other if d.undecided]
    if not any(decision.undecided for decision in one):
        assert applied(ours, one) == applied(theirs, other)


@given(sides(), st.sampled_from([ConflictChoice.OURS, ConflictChoice.THEIRS, ConflictChoice.BOTH]))
@settings(max_examples=400)
def test_a_choice_for_everything_leaves_a_tree_and_no_conflict(
    three: tuple[Tree, Tree, Tree], choice: ConflictChoice
) -> None:
    base, ours, theirs = three
    choices = {
        ConflictChoice.OURS: Choices(ours=ALL),
        ConflictChoice.THEIRS: Choices(theirs=ALL),
        ConflictChoice.BOTH: Choices(both=ALL),
    }[choice]
    decisions = merge(base, ours, theirs, choices)
    left = [one.conflict for one in decisions if one.conflict is not None]
    if choice is ConflictChoice.BOTH:
        assert all(one.kind is ConflictKind.FILE_AND_FOLDER or "empty folder" in one.reason for one in left)
    else:
        assert not left
    if not left:
        check_valid(applied(ours, decisions))
    undecided = {one.path for one in merge(base, ours, theirs) if one.undecided}
    for one in decisions if choice is ConflictChoice.THEIRS else ():
        if one.path in undecided and one.result != theirs.get(one.path):
            assert one.result is None and theirs[one.path].kind is Kind.EMPTY_DIRECTORY


@given(trees(), trees(), trees())
@settings(max_examples=500)
def test_changes_since_another_tree_are_those_that_a_diff_finds(one: Tree, other: Tree, last: Tree) -> None:
    found = list(since_another(changes(one, last), changes(one, other)))
    assert found == changes(other, last)


A, B, C = (file(b"f", number) for number in range(3))
RUN = file(b"f", 0, Kind.EXECUTABLE)


def kinds(decisions: list[Decision]) -> list[ConflictKind]:
    return [one.conflict.kind for one in decisions if one.conflict is not None]


def test_edits_of_one_file_are_a_conflict_that_shows_both() -> None:
    [decision] = merge(tree(A), tree(B), tree(C))
    assert decision.conflict is not None and decision.undecided and not decision.changes_ours
    assert (decision.conflict.kind, decision.conflict.ours, decision.conflict.theirs) == (
        ConflictKind.BOTH_CHANGED, B, C,
    )  # fmt: skip


def test_removed_against_edited_says_which_side_removed() -> None:
    assert kinds(merge(tree(A), tree(), tree(B))) == [ConflictKind.OURS_REMOVED]
    assert kinds(merge(tree(A), tree(B), tree())) == [ConflictKind.THEIRS_REMOVED]


def test_two_new_files_of_one_name_are_a_conflict_unless_they_are_equal() -> None:
    assert kinds(merge(tree(), tree(A), tree(B))) == [ConflictKind.BOTH_ADDED]
    assert not any(one.changes_ours or one.undecided for one in merge(tree(), tree(A), tree(A)))


def test_a_mode_is_merged_apart_from_the_content() -> None:
    merged = applied(tree(RUN), merge(tree(A), tree(RUN), tree(B)))
    assert merged == tree(file(b"f", 1, Kind.EXECUTABLE))
    assert applied(tree(B), merge(tree(A), tree(B), tree(RUN))) == merged


def test_contents_are_merged_by_what_can() -> None:
    [decision] = merge(
        tree(A),
        tree(B),
        tree(C),
        contents=lambda ours, theirs, choice: MergedContent(b"merged", Places(), Places()),
    )
    assert decision.content == b"merged" and decision.changes_ours and not decision.undecided
    [decision] = merge(tree(A), tree(B), tree(C), contents=lambda ours, theirs, choice: "they are images")
    assert decision.conflict is not None and decision.conflict.reason == "they are images"


def test_a_file_in_place_of_a_folder_that_the_other_side_fills_is_one_conflict() -> None:
    base = tree(file(b"d/1", 0), file(b"d/2", 0))
    ours = tree(file(b"d", 1))
    theirs = tree(file(b"d/1", 2), file(b"d/2", 0), file(b"d/3", 0))
    decisions = merge(base, ours, theirs)
    assert kinds(decisions) == [ConflictKind.FILE_AND_FOLDER] and all(one.undecided for one in decisions)
    assert applied(ours, merge(base, ours, theirs, Choices(theirs=ALL))) == theirs
    assert applied(ours, merge(base, ours, theirs, Choices(ours=ALL))) == ours
    assert kinds(merge(base, ours, theirs, Choices(both=ALL))) == [ConflictKind.FILE_AND_FOLDER]


def test_a_file_in_place_of_a_folder_that_the_other_side_left_alone_is_no_conflict() -> None:
    base = tree(file(b"d/1", 0), file(b"e", 0))
    ours, theirs = tree(file(b"d", 1), file(b"e", 0)), tree(file(b"d/1", 0), file(b"e", 1))
    assert applied(ours, merge(base, ours, theirs)) == tree(file(b"d", 1), file(b"e", 1))
    assert applied(theirs, merge(base, theirs, ours)) == tree(file(b"d", 1), file(b"e", 1))


def test_a_folder_that_one_side_emptied_and_the_other_filled_has_no_placeholder() -> None:
    base = tree(file(b"d/1", 0))
    ours, theirs = tree(folder(b"d")), tree(file(b"d/1", 0), file(b"d/2", 0))
    assert applied(ours, merge(base, ours, theirs)) == tree(file(b"d/2", 0))
    assert applied(theirs, merge(base, theirs, ours)) == tree(file(b"d/2", 0))


def test_both_keeps_theirs_beside_ours() -> None:
    base, ours, theirs = (tree(file(b"d/a.png", number)) for number in range(3))
    merged = applied(ours, merge(base, ours, theirs, Choices(both=PathSet.of([b"d"]))))
    assert merged == tree(file(b"d/a.png", 1), file(b"d/a.theirs.png", 2))


def test_choices_are_for_their_paths_alone() -> None:
    base = tree(file(b"a", 0), file(b"b", 0))
    ours, theirs = tree(file(b"a", 1), file(b"b", 1)), tree(file(b"a", 2), file(b"b", 2))
    decisions = merge(base, ours, theirs, Choices(theirs=PathSet.of([b"a"])))
    assert applied(ours, decisions) == tree(file(b"a", 2), file(b"b", 1))
    assert [one.path for one in decisions if one.undecided] == [b"b"]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (b"a.png", b"a.theirs.png"),
        (b"d.e/a", b"d.e/a.theirs"),
        (b"a.tar.gz", b"a.tar.theirs.gz"),
        (b".hidden", b".hidden.theirs"),
        (b"d/" + b"x" * 255, None),
    ],
)
def test_the_name_beside(path: bytes, name: bytes | None) -> None:
    assert beside(path) == name
