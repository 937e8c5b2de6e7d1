from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from dsv.api.merge import MergeRequest, MergeResult, cherry_pick, merge
from dsv.errors import NotFound, Unsupported, UsageError
from dsv.format import keys
from dsv.merge.paths import Choices, ConflictChoice, ConflictKind, MergeConflict
from dsv.stores.base import Bytes, PutResult
from dsv.stores.memory import MemoryStore
from dsv.stores.open import OpenStore
from dsv.values.ids import CommitId
from dsv.values.names import MAIN, BranchName
from dsv.values.paths import PathSet
from tests.kit.people import Dataset, dataset
from tests.kit.repositories import condemn

TEXT = b"".join(b"line %d\n" % number for number in range(20))


@pytest.fixture
def scans(tmp_path: Path) -> Iterator[Dataset]:
    with dataset(tmp_path) as made:
        yield made


def forked(
    scans: Dataset,
    base: dict[str, bytes | None],
    ours: dict[str, bytes | None],
    theirs: dict[str, bytes | None],
) -> CommitId:
    """`main` and `side` on top of one commit, which is given back."""
    first = scans.commit(base)
    scans.commit(theirs, "side", first)
    scans.commit(ours)
    return first


def request(scans: Dataset, source: str = "side", **options: object) -> MergeRequest:
    return replace(MergeRequest(scans.target(source)), **options)  # type: ignore[arg-type]


def bring(scans: Dataset, source: str = "side", **options: object) -> MergeResult:
    return merge(scans.context, request(scans, source, **options))


def refused(scans: Dataset, **options: object) -> MergeConflict:
    with pytest.raises(MergeConflict) as caught:
        bring(scans, **options)
    return caught.value


def keys_of(scans: Dataset) -> list[str]:
    return sorted(item.key for item in scans.store.list(""))


def test_both_sides_changes_are_in_a_commit_with_two_parents(scans: Dataset) -> None:
    base = forked(
        scans,
        {"a": b"1", "b": b"2", "d/c": b"3", "d/go": b"4"},
        {"a": b"mine", "new": b"5"},
        {"b": b"theirs", "d/go": None, "d/new": b"6"},
    )
    before, side = scans.head(), scans.head("side")
    done = bring(scans)
    assert scans.files() == {"a": b"mine", "b": b"theirs", "d/c": b"3", "new": b"5", "d/new": b"6"}
    commit = scans.repository().objects.commit(scans.head())
    assert commit.parents == (before, side) and commit.message == "merge side into main"
    assert (commit.dataset, commit.branch) == (scans.name, MAIN)
    assert (done.commit, done.before, done.source, done.bases) == (scans.head(), before, side, (base,))
    assert (done.counts.added, done.counts.changed, done.counts.removed) == (1, 1, 1)
    assert scans.repository().refs.head(scans.name, MAIN).entry.action == "merge"


def test_a_branch_with_nothing_of_its_own_is_moved_forward(scans: Dataset) -> None:
    first = scans.commit({"a": b"1"})
    side = scans.commit({"b": b"2"}, "side", first)
    done = bring(scans)
    assert done.fast_forwarded and done.commit == side == scans.head() and done.counts.added == 1


def test_no_fast_forward_makes_a_merge_commit(scans: Dataset) -> None:
    first = scans.commit({"a": b"1"})
    side = scans.commit({"b": b"2"}, "side", first)
    done = bring(scans, fast_forward=False)
    assert not done.fast_forwarded
    assert scans.repository().objects.commit(scans.head()).parents == (first, side)


def test_what_is_there_already_is_not_merged_again(scans: Dataset) -> None:
    forked(scans, {"a": b"1"}, {"b": b"2"}, {"c": b"3"})
    bring(scans)
    before = keys_of(scans)
    done = bring(scans)
    assert done.up_to_date and done.commit == scans.head() and keys_of(scans) == before


def test_a_branch_without_a_commit_takes_all_of_the_other(scans: Dataset) -> None:
    made = Dataset(scans.store, scans.context, scans.name)
    side = made.commit({"a": b"1"}, "side")
    done = bring(made)
    assert done.fast_forwarded and made.head() == side and done.before is None


def test_all_conflicts_are_reported_and_nothing_is_written(scans: Dataset) -> None:
    forked(
        scans,
        {"a": b"\0", "b": b"\0", "c": b"\0", "d/x": b"\0"},
        {"a": b"\0mine", "b": None, "c": b"\0mine", "d/x": None, "d": b"file", "e": b"mine"},
        {"a": b"\0theirs", "b": b"\0theirs", "c": None, "d/y": b"new", "e": b"theirs"},
    )
    before = keys_of(scans)
    error = refused(scans)
    assert [(one.path, one.kind) for one in error.conflicts] == [
        (b"a", ConflictKind.BOTH_CHANGED),
        (b"b", ConflictKind.OURS_REMOVED),
        (b"c", ConflictKind.THEIRS_REMOVED),
        (b"d", ConflictKind.FILE_AND_FOLDER),
        (b"e", ConflictKind.BOTH_ADDED),
    ]
    assert error.exit_code == 4 and keys_of(scans) == before
    for said in ("'b': removed by ours, changed by theirs", "'c': changed by ours, removed by theirs"):
        assert said in error.message


def test_choices_settle_conflicts(scans: Dataset) -> None:
    base = dict.fromkeys(("a.png", "b", "c", "d/x"), b"\x00")
    forked(
        scans,
        base,
        {"a.png": b"\0mine", "b": b"\0mine", "c": b"\0mine", "d/x": None},
        {"a.png": b"\0theirs", "b": b"\0theirs", "c": b"\0theirs", "d/x": b"\0theirs"},
    )
    bring(
        scans,
        choices=Choices(
            ours=PathSet.of([b"b"]), theirs=PathSet.of([b"c", b"d"]), both=PathSet.of([b"a.png"])
        ),
    )
    assert scans.files() == {
        "a.png": b"\0mine", "a.theirs.png": b"\0theirs", "b": b"\0mine", "c": b"\0theirs", "d/x": b"\0theirs",
    }  # fmt: skip


def test_what_is_kept_beside_never_takes_the_place_of_something(scans: Dataset) -> None:
    forked(scans, {"a": b"\0", "a.theirs": b"x"}, {"a": b"\0mine"}, {"a": b"\0theirs"})
    error = refused(scans, choices=Choices(both=PathSet()))
    assert [one.kind for one in error.conflicts] == [ConflictKind.IN_THE_WAY]
    assert "there is 'a.theirs' already" in error.message


def test_a_choice_for_a_path_without_a_conflict_is_reported(scans: Dataset) -> None:
    forked(
        scans, {"a/x": b"\0", "b": b"\0"}, {"a/x": b"\0mine", "b": b"\0m"}, {"a/x": b"\0theirs", "b": b"\0t"}
    )
    some = Choices(theirs=PathSet.of([b"a"]), ours=PathSet.of([b"c/d"]))
    assert refused(scans, choices=some).without_effect == (b"c/d",)
    every = Choices(theirs=PathSet(), ours=PathSet.of([b"b"]), both=PathSet.of([b"lables"]))
    assert bring(scans, choices=every, dry_run=True).without_effect == (b"lables",)
    assert bring(scans, choices=every).without_effect == (b"lables",)
    assert bring(scans, choices=every).without_effect == (b"b", b"lables")


def test_a_folder_goes_if_both_sides_together_removed_all_that_was_in_it(scans: Dataset) -> None:
    forked(scans, {"d/x": b"1", "d/y": b"2", "z": b"3"}, {"d/x": None}, {"d/y": None})
    bring(scans)
    assert scans.files() == {"z": b"3"}


def test_texts_are_merged_line_by_line(scans: Dataset) -> None:
    forked(
        scans,
        {"t.txt": TEXT},
        {"t.txt": TEXT.replace(b"line 3\n", b"mine\n")},
        {"t.txt": TEXT.replace(b"line 15\n", b"")},
    )
    done = bring(scans)
    assert scans.files() == {"t.txt": TEXT.replace(b"line 3\n", b"mine\n").replace(b"line 15\n", b"")}
    assert done.counts.merged == 1


def test_the_same_line_changed_by_both_is_a_conflict(scans: Dataset) -> None:
    forked(scans, {"t": TEXT}, {"t": TEXT.replace(b"3", b"x")}, {"t": TEXT.replace(b"3", b"y")})
    [conflict] = refused(scans).conflicts
    assert (
        conflict.reason == "both changed the same lines: line 4 is 'line x' in ours, and 'line y' in theirs"
    )


@pytest.mark.parametrize("content", [b"a\n" * (1 << 19), b"\0\n" + TEXT, b"\xff\n" + TEXT])
def test_large_files_and_binary_ones_are_not_merged_by_lines(scans: Dataset, content: bytes) -> None:
    forked(scans, {"f": content}, {"f": b"first\n" + content}, {"f": content + b"last\n"})
    assert [one.kind for one in refused(scans).conflicts] == [ConflictKind.BOTH_CHANGED]


def test_tables_are_merged_by_their_key_only_if_asked_to(scans: Dataset) -> None:
    forked(
        scans,
        {"l.csv": b"id,a,b\n1,x,y\n2,x,y\n"},
        {"l.csv": b"id,a,b\n1,new,y\n2,x,y\n"},
        {"l.csv": b"id,a,b\n1,x,new\n2,x,y\n3,z,z\n"},
    )
    [conflict] = refused(scans).conflicts
    lines = "line 2 is '1,new,y' in ours, and '1,x,new' in theirs"
    assert conflict.reason == f"both changed the same lines: {lines}; --table-key COLUMN merges it by rows"
    bring(scans, table_key="id")
    assert scans.files() == {"l.csv": b"id,a,b\n1,new,new\n2,x,y\n3,z,z\n"}


@pytest.mark.parametrize("chosen", ["ours", "theirs"])
def test_a_table_that_has_no_rows_to_choose_from_is_a_conflict_and_not_all_of_a_side(
    scans: Dataset, chosen: str
) -> None:
    table = b"id,a,b\n1,x,y\n2,x,y\n3,x,y\n"
    theirs = table.replace(b"2,x,y", b"2,x")  # a short row
    forked(scans, {"l.csv": table}, {"l.csv": table + b"4,mine,y\n"}, {"l.csv": theirs})
    choices = Choices(**{chosen: PathSet()})
    [conflict] = refused(scans, choices=choices, table_key="id").conflicts
    assert conflict.reason == (
        f"row 3 has 2 cells, but the header has 3; without --table-key, --{chosen} takes all of it"
    )
    bring(scans, choices=Choices(both=PathSet()), table_key="id", dry_run=True)
    bring(scans, choices=choices)
    assert scans.files()["l.csv"].endswith(b"4,mine,y\n")  # by lines


def test_a_try_says_what_would_change_and_writes_nothing(scans: Dataset) -> None:
    forked(scans, {"a": b"1"}, {"b": b"2"}, {"c": b"3"})
    before = keys_of(scans)
    done = bring(scans, dry_run=True)
    assert done.commit is None and done.counts.added == 1 and keys_of(scans) == before


def test_a_criss_cross_takes_what_either_side_changed_since(scans: Dataset) -> None:
    first = scans.commit({"a": b"\0", "b": b"\0", "c": b"\0"})
    left = scans.commit({"a": b"\0left"})
    right = scans.commit({"b": b"\0right"}, "side", first)
    scans.commit({"b": b"\0right"}, "main", left, right)
    scans.commit({"a": b"\0left"}, "side", right, left)
    scans.commit({"a": b"\0after"})  # main changes what came from itself
    scans.commit({"c": b"\0c"}, "side")
    done = bring(scans)
    assert set(done.bases) == {left, right}
    assert scans.files() == {"a": b"\0after", "b": b"\0right", "c": b"\0c"}


def test_a_criss_cross_that_was_settled_differently_is_a_conflict(scans: Dataset) -> None:
    first = scans.commit({"a": b"\0"})
    left = scans.commit({"a": b"\0left"})
    right = scans.commit({"a": b"\0right"}, "side", first)
    scans.commit({"a": b"\0left", "x": b"1"}, "main", left, right)
    scans.commit({"a": b"\0right", "y": b"1"}, "side", right, left)
    assert [one.path for one in refused(scans).conflicts] == [b"a"]


def test_histories_that_have_nothing_in_common_keep_all_files(scans: Dataset) -> None:
    scans.commit({"a": b"1"})
    scans.commit({"b": b"2"}, "side")
    done = bring(scans)
    assert done.bases == () and scans.files() == {"a": b"1", "b": b"2"}


def test_symlinks_that_only_together_lead_out_of_the_dataset_are_refused(scans: Dataset) -> None:
    forked(scans, {"p/x": b""}, {"p/l@": b"q/../x"}, {"p/q@": b".."})
    before = scans.head()
    with pytest.raises(Unsupported, match="lead out"):
        bring(scans)
    assert scans.head() == before


class Overtaken(MemoryStore):
    """Before the first move that somebody else has prepared for, that one is published."""

    def __init__(self) -> None:
        super().__init__()
        self.first: list[object] = []

    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        if self.first and keys.parse_branch_key(key) is not None:
            act = self.first.pop()
            act()  # type: ignore[operator]
        return super().put_if_absent(key, data)


def test_a_branch_that_moves_meanwhile_is_merged_on_top_of_the_move(tmp_path: Path) -> None:
    store = Overtaken()
    with dataset(tmp_path, store) as scans:
        forked(scans, {"a": b"1"}, {"b": b"2"}, {"c": b"3"})
        store.first = [lambda: scans.commit({"d": b"4"})]
        done = bring(scans)
        assert scans.files() == {"a": b"1", "b": b"2", "c": b"3", "d": b"4"}
        assert done.before is not None
        assert scans.repository().objects.commit(done.before).message == "edit"


def test_a_move_meanwhile_that_conflicts_is_a_conflict(tmp_path: Path) -> None:
    store = Overtaken()
    with dataset(tmp_path, store) as scans:
        forked(scans, {"a": b"1"}, {"b": b"2"}, {"c": b"3"})
        store.first = [lambda: scans.commit({"c": b"\0"})]
        error = refused(scans)
        assert [one.path for one in error.conflicts] == [b"c"]
        assert "c" in scans.files() and scans.files()["c"] == b"\0"


def test_content_that_gc_is_removing_is_not_named_by_a_merge(scans: Dataset) -> None:
    forked(scans, {"a": b"1"}, {"b": b"2"}, {"c": b"3"})
    repository = scans.repository()
    tree_packs = [item.key for item in scans.store.list(keys.PACK_PREFIX)]
    condemn(repository, 0, tree_packs)
    before = scans.head()
    with pytest.raises(Exception, match="gc"):
        bring(scans)
    assert scans.head() == before


def test_what_is_not_there_is_said(scans: Dataset) -> None:
    scans.commit({"a": b"1"})
    with pytest.raises(NotFound, match="no branch or tag nothing"):
        bring(scans, "nothing")
    with pytest.raises(NotFound, match="no branch other"):
        bring(scans, "main", into=BranchName.parse("other"))
    with pytest.raises(UsageError, match="names no dataset"):
        merge(scans.context, MergeRequest(structs.replace(scans.target("main"), dataset=None)))


def test_a_merge_reads_and_writes_only_segments_that_changed(tmp_path: Path) -> None:
    counting = OpenStore(MemoryStore())
    with dataset(tmp_path, counting) as scans:
        files = {f"d{n // 500:03}/f{n:06}": b"%d" % n for n in range(20_000)}
        forked(scans, files, {"d001/f000777": b"mine"}, {"d030/f015001": b"theirs", "d002/f001001": None})
        stored = counting.counts.bytes_up
        done = bring(scans)
        assert done.counts.changed == 1 and done.counts.removed == 1
        assert counting.counts.bytes_up - stored < 60_000
        assert len(scans.files()) == 19_999


TABLE = b"id,a,b\n1,x,y\n2,x,y\n3,x,y\n"


def rows_in_conflict(scans: Dataset) -> None:
    """Both changed row 1; ours row 2 and theirs row 3 and a new one besides."""
    forked(
        scans,
        {"l.csv": TABLE, "t.txt": TEXT},
        {
            "l.csv": TABLE.replace(b"1,x", b"1,mine").replace(b"2,x", b"2,mine"),
            "t.txt": TEXT.replace(b"line 2\n", b"mine\n"),
        },
        {
            "l.csv": TABLE.replace(b"1,x", b"1,his").replace(b"3,x", b"3,his") + b"4,new,new\n",
            "t.txt": TEXT.replace(b"line 2\n", b"his\n").replace(b"line 17\n", b"his\n"),
        },
    )


@pytest.mark.parametrize("chosen", ["ours", "theirs", "both"])
def test_a_choice_settles_the_rows_and_lines_in_conflict_and_the_others_are_merged(
    scans: Dataset, chosen: str
) -> None:
    rows_in_conflict(scans)
    theirs = scans.files("side") if chosen == "both" else {}
    done = bring(scans, choices=Choices(**{chosen: PathSet()}), table_key="id")
    taken = b"his" if chosen == "theirs" else b"mine"
    table = b"id,a,b\n1,%s,y\n2,mine,y\n3,his,y\n4,new,new\n" % taken
    text = TEXT.replace(b"line 2\n", taken + b"\n").replace(b"line 17\n", b"his\n")
    beside = {"l.theirs.csv": theirs["l.csv"], "t.theirs.txt": theirs["t.txt"]} if theirs else {}
    assert scans.files() == {"l.csv": table, "t.txt": text, **beside}
    assert (done.counts.added, done.counts.changed, done.counts.merged) == (len(beside), 2, 2)
    assert [(one.path, one.choice) for one in done.counts.resolved] == [
        (b"l.csv", ConflictChoice[chosen.upper()]), (b"t.txt", ConflictChoice[chosen.upper()]),
    ]  # fmt: skip
    rows, lines = (one.content for one in done.counts.resolved)
    assert rows is not None and (str(rows.taken), str(rows.resolved)) == ("row id=3, row id=4", "row id=1")
    assert lines is not None and (str(lines.taken), str(lines.resolved)) == ("line 18", "line 3")
    message = scans.repository().objects.commit(scans.head()).message
    whose = {"ours": "ours", "theirs": "theirs", "both": "ours, with theirs beside it"}
    assert message == (
        "merge side into main\n\nConflicts were settled:\n"
        f"  'l.csv': row id=3, row id=4 from theirs; row id=1 taken from {whose[chosen]}\n"
        f"  't.txt': line 18 from theirs; line 3 taken from {whose[chosen]}"
    )
    assert done.without_effect == ()


def test_a_choice_that_leaves_nothing_of_the_other_side_changes_nothing(scans: Dataset) -> None:
    forked(
        scans,
        {"t.txt": TEXT},
        {"t.txt": TEXT.replace(b"2\n", b"x\n")},
        {"t.txt": TEXT.replace(b"2\n", b"y\n")},
    )
    before = scans.files()
    done = bring(scans, choices=Choices(ours=PathSet()))
    assert scans.files() == before and done.counts.changed == 0
    assert "taken from ours" in scans.repository().objects.commit(scans.head()).message


@pytest.mark.parametrize("size", [100, 3 << 20])
def test_a_file_of_the_users_settles_a_path(scans: Dataset, size: int, tmp_path: Path) -> None:
    rows_in_conflict(scans)
    file = tmp_path / "resolved"
    file.write_bytes(b"id,a,b\n" + b"z" * size)
    done = bring(
        scans,
        choices=Choices(theirs=PathSet.of([b"t.txt"]), resolved={b"l.csv": str(file), b"no": str(file)}),
    )
    assert scans.files()["l.csv"] == file.read_bytes()
    assert done.without_effect == (b"no",)
    assert "'l.csv': from a resolved file" in scans.repository().objects.commit(scans.head()).message


def picked(scans: Dataset, commit: CommitId, path: bytes) -> MergeResult:
    return cherry_pick(scans.context, MergeRequest(scans.target(str(commit)), MAIN, paths=PathSet.of([path])))


def test_a_picked_path_brings_no_file_that_took_the_place_of_its_folder(scans: Dataset) -> None:
    first = scans.commit({"a/b/c": b"1", "a/x": b"2", "y": b"3"})
    side = scans.commit({"a/b/c": None, "a/x": None, "a": b"a file"}, "side", first)
    done = picked(scans, side, b"a/b/c")
    assert scans.files() == {"a/x": b"2", "y": b"3"} and (done.counts.added, done.counts.removed) == (0, 1)


def test_a_picked_path_takes_the_file_away_that_its_folder_has_replaced(scans: Dataset) -> None:
    first = scans.commit({"a": b"a file", "y": b"3"})
    side = scans.commit({"a": None, "a/b/c": b"1", "a/x": b"2"}, "side", first)
    picked(scans, side, b"a/b/c")
    assert scans.files() == {"a/b/c": b"1", "y": b"3"}
