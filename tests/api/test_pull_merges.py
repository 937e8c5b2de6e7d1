"""A pull of what both sides changed: merged by lines, settled by a choice, or refused."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsv.api.checkout import Updated, pull
from dsv.api.clone import clone
from dsv.api.status import status
from dsv.errors import Conflict
from dsv.merge.paths import Choices, ConflictChoice, ConflictKind, MergeConflict
from dsv.values.names import Target
from dsv.values.paths import PathSet
from tests.exhaustive import some
from tests.killing import run_killed
from tests.kit.people import SCANS, Files, Person

TEXT = b"".join(b"line %d\n" % number for number in range(20))
MINE, THEIRS = TEXT.replace(b"line 2\n", b"mine\n"), TEXT.replace(b"line 17\n", b"theirs\n")
BOTH = MINE.replace(b"line 17\n", b"theirs\n")
BASE: Files = {"both": b"\0", "went": b"\0", "stays": b"\0", "t.txt": TEXT, "d/x": b"\0", "tool.sh": TEXT}


@pytest.fixture
def ann(tmp_path: Path) -> Iterator[Person]:
    """Her workspace is at the first commit, and the branch at Ben's, who has a workspace too."""
    ann, ben = people(tmp_path)
    ann.write(BASE)
    ann.init()
    ann.sync("first")
    ben.home.mkdir()
    clone(ben.context(ben.home), Target(SCANS), ben.workspace)
    yield ann


def people(folder: Path) -> tuple[Person, Person]:
    store = str(folder / "store")
    return Person(folder / "ann", store), Person(folder / "ben", store, "ben")


def ben_of(ann: Person) -> Person:
    return people(ann.home.parent)[1]


def bring(person: Person, table_key: str | None = None, **choices: object) -> Updated:
    return pull(person.context(), Choices(**choices), table_key)  # type: ignore[arg-type]


def remove(person: Person, name: str) -> None:
    path = person.workspace / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def published(person: Person) -> Files:
    done = person.sync("mine", allow_removals=True)
    assert done.commit is not None
    return person.read(done.commit)


def test_a_text_that_both_changed_is_merged_line_by_line(ann: Person) -> None:
    ben = ben_of(ann)
    ben.write({"t.txt": THEIRS, "new": b"n"})
    head = ben.sync("theirs").commit
    ann.write({"t.txt": MINE, "other": b"o"})
    done = bring(ann)
    assert done.commit == head
    assert ann.files() == {**BASE, "t.txt": BOTH, "new": b"n", "other": b"o"}
    told = status(ann.context()).differences
    assert ([*told.changed], [*told.added], [*told.removed]) == ([b"t.txt"], [b"other"], [])
    assert published(ann) == ann.files()


def test_a_script_stays_one_that_can_be_run(ann: Person) -> None:
    ben = ben_of(ann)
    ben.write({"tool.sh": THEIRS})
    ben.sync("theirs")
    ann.write({"tool.sh": MINE})
    bring(ann)
    assert published(ann)["tool.sh"] == BOTH


def test_lines_that_both_changed_are_a_conflict_and_nothing_is_written(ann: Person) -> None:
    ben = ben_of(ann)
    ben.write({"t.txt": TEXT.replace(b"line 2\n", b"his\n"), "new": b"n"})
    ben.sync("theirs")
    ann.write({"t.txt": MINE})
    before = ann.files()
    with pytest.raises(Conflict, match="both changed the same lines") as told:
        bring(ann)
    assert told.value.hint is not None and "--theirs PATH" in told.value.hint
    assert ann.files() == before


def test_tables_are_merged_by_their_key(ann: Person) -> None:
    ben = ben_of(ann)
    ann.write({"l.csv": b"id,a,b\n1,x,y\n"})
    ann.sync("table")
    pull(ben.context())
    ben.write({"l.csv": b"id,a,b\n1,x,his\n"})
    ben.sync("theirs")
    ann.write({"l.csv": b"id,a,b\n1,mine,y\n"})
    with pytest.raises(Conflict):
        bring(ann)
    bring(ann, table_key="id")
    assert published(ann)["l.csv"] == b"id,a,b\n1,mine,his\n"


def diverged(ann: Person) -> None:
    """Every way in which both sides can change one path."""
    ben = ben_of(ann)
    ben.write({"both": b"\0his", "stays": b"\0his", "added": b"\0his"})
    remove(ben, "went")
    remove(ben, "d")
    ben.write({"d": b"a file"})
    ben.sync("theirs", allow_removals=True)
    ann.write({"both": b"\0mine", "went": b"\0mine", "added": b"\0mine", "d/y": b"\0mine"})
    remove(ann, "stays")


def test_ours_keeps_what_is_here_and_the_next_sync_publishes_it(ann: Person) -> None:
    diverged(ann)
    before = ann.files()
    bring(ann, ours=PathSet())
    after = {**before}
    del after["d/x"]  # nobody changed it here, and the branch removed it
    assert ann.files() == after
    assert bring(ann).any_change is False
    assert published(ann) == after
    assert status(ann.context()).is_clean


def test_theirs_takes_what_the_branch_has(ann: Person) -> None:
    diverged(ann)
    bring(ann, theirs=PathSet())
    assert ann.files() == {
        "both": b"\0his", "stays": b"\0his", "added": b"\0his", "d": b"a file", "t.txt": TEXT, "tool.sh": TEXT,
    }  # fmt: skip
    assert status(ann.context()).is_clean


def test_a_choice_is_for_its_paths_alone(ann: Person) -> None:
    diverged(ann)
    before = ann.files()
    with pytest.raises(Conflict, match="went") as told:
        bring(ann, ours=PathSet.of([b"both"]), theirs=PathSet.of([b"stays", b"added", b"d"]))
    assert "'both'" not in told.value.message and ann.files() == before
    bring(ann, ours=PathSet.of([b"both", b"went"]), theirs=PathSet.of([b"stays", b"added", b"d"]))
    assert published(ann) == {
        "both": b"\0mine", "went": b"\0mine", "stays": b"\0his", "added": b"\0his", "d": b"a file",
        "t.txt": TEXT, "tool.sh": TEXT,
    }  # fmt: skip


def test_ours_comes_before_theirs_for_paths_in_both(ann: Person) -> None:
    diverged(ann)
    bring(ann, ours=PathSet.of([b"both", b"stays"]), theirs=PathSet())
    assert ann.files() == {
        "both": b"\0mine", "added": b"\0his", "d": b"a file", "t.txt": TEXT, "tool.sh": TEXT,
    }  # fmt: skip
    assert [*status(ann.context()).differences.changed] == [b"both"]
    assert [*status(ann.context()).differences.removed] == [b"stays"]


def test_both_keeps_what_is_here_and_what_the_branch_has_beside_it(ann: Person) -> None:
    diverged(ann)
    before = ann.files()
    with pytest.raises(MergeConflict, match="can't both be kept") as told:
        bring(ann, both=PathSet())
    assert [(one.path, one.kind) for one in told.value.conflicts] == [
        (b"d/y", ConflictKind.FILE_AND_FOLDER),
    ] and ann.files() == before  # fmt: skip
    done = bring(ann, both=PathSet(), ours=PathSet.of([b"d"]))
    after = {**before, "both.theirs": b"\0his", "stays.theirs": b"\0his", "added.theirs": b"\0his"}
    del after["d/x"]
    assert ann.files() == after and done.created == 3
    told_now = status(ann.context()).differences
    assert {*told_now.added} == {b"both.theirs", b"stays.theirs", b"added.theirs", b"went", b"d/y"}
    assert published(ann) == after


def test_theirs_is_kept_beside_ours_with_its_mode_or_its_target(ann: Person) -> None:
    ben = ben_of(ann)
    ben.write({"run.sh": b"\0his"})
    (ben.workspace / "link").symlink_to("t.txt")
    ben.sync("theirs")
    ann.write({"run.sh": b"\0mine", "link": b"\0mine"})
    bring(ann, both=PathSet())
    assert ann.files() == {
        **BASE, "run.sh": b"\0mine", "link": b"\0mine", "run.theirs.sh": b"\0his", "link.theirs@": b"t.txt",
    }  # fmt: skip


@pytest.mark.parametrize("holder", ["here", "there"])
def test_both_overwrites_nothing(ann: Person, holder: str) -> None:
    ben = ben_of(ann)
    ben.write({"both": b"\0his"})
    if holder == "there":
        ben.write({"both.theirs/x": b"\0"})
    ben.sync("theirs")
    ann.write({"both": b"\0mine"})
    if holder == "here":
        ann.write({"both.theirs": b"\0other"})
    before = ann.files()
    with pytest.raises(MergeConflict, match="theirs' already") as told:
        bring(ann, both=PathSet())
    assert [one.kind for one in told.value.conflicts] == [ConflictKind.IN_THE_WAY]
    assert ann.files() == before


def test_contents_that_can_be_merged_are_not_kept_twice(ann: Person) -> None:
    ben = ben_of(ann)
    ben.write({"t.txt": THEIRS})
    ben.sync("theirs")
    ann.write({"t.txt": MINE})
    assert bring(ann, both=PathSet()).without_effect == ()
    assert ann.files() == {**BASE, "t.txt": BOTH}


def plain_scripts(person: Person, files: Files) -> None:
    """Writes these, which nobody may execute yet."""
    person.write(files)
    for name in files:
        (person.workspace / name).chmod(0o644)


def test_a_change_of_mode_goes_together_with_a_change_of_content(ann: Person) -> None:
    """Whichever side made which."""
    ben = ben_of(ann)
    plain_scripts(ann, {"one.sh": b"\0", "other.sh": b"\0"})
    ann.sync("two files")
    pull(ben.context())
    (ben.workspace / "one.sh").chmod(0o755)
    plain_scripts(ben, {"other.sh": b"\0his"})
    ben.sync("theirs")
    plain_scripts(ann, {"one.sh": b"\0mine"})
    (ann.workspace / "other.sh").chmod(0o755)
    done = bring(ann)
    assert (done.created, done.replaced) == (0, 2)
    after = {**BASE, "one.sh": b"\0mine", "other.sh": b"\0his"}
    assert ann.files() == after
    told = status(ann.context()).differences
    assert ({*told.changed}, [*told.added], [*told.removed]) == ({b"one.sh", b"other.sh"}, [], [])
    assert published(ann) == after


def test_a_choice_for_a_path_without_a_conflict_is_reported(ann: Person) -> None:
    diverged(ann)
    chosen = {"theirs": PathSet.of([b"both", b"lables"]), "ours": PathSet.of([b"t.txt"])}
    with pytest.raises(MergeConflict) as told:
        bring(ann, **chosen)
    assert told.value.without_effect == (b"t.txt", b"lables")
    done = bring(
        ann, ours=PathSet.of([b"went", b"d", b"no/such"]), theirs=PathSet.of([b"both", b"stays", b"added"])
    )
    assert done.without_effect == (b"no/such",)
    assert bring(ann, theirs=PathSet.of([b"both"])).without_effect == (b"both",)


@pytest.mark.parametrize(
    ("mine", "there"),
    [({"both": b"mine"}, "both/x"), ({"d/x": b"mine"}, "d")],
    ids=["a file of mine where a folder is to be", "a file of mine in a folder that became a file"],
)
def test_a_change_that_is_kept_is_in_the_way_of_what_the_branch_has_there(
    ann: Person, mine: Files, there: str
) -> None:
    ben = ben_of(ann)
    [name] = mine
    remove(ben, name.partition("/")[0])
    ben.write({there: b"theirs", "new": b"n"})
    ben.sync("theirs", allow_removals=True)
    ann.write(mine)
    before = ann.files()
    for refused in ({}, {"both": PathSet()}, {"both": PathSet.of([name.encode()])}):
        with pytest.raises(MergeConflict):
            bring(ann, **refused)
        assert ann.files() == before
    bring(ann, ours=PathSet.of([name.encode()]))
    assert ann.files() == {**before, "new": b"n"}
    told = status(ann.context()).differences
    assert ([*told.added], [*told.removed]) == ([name.encode()], [there.encode()])
    assert published(ann) == ann.files()


def test_theirs_takes_an_empty_folder_away_that_took_the_place_of_a_file(ann: Person) -> None:
    ben = ben_of(ann)
    remove(ben, "both")
    ben.sync("theirs")
    remove(ann, "both")
    ann.write({"both": None})
    bring(ann, theirs=PathSet())
    assert ann.files() == ben.files()
    assert status(ann.context()).is_clean


def test_what_dsvignore_leaves_out_is_in_the_way_whatever_was_chosen(ann: Person) -> None:
    ben = ben_of(ann)
    ben.write({"out/new": b"n"})
    ben.sync("theirs")
    ann.write({".dsvignore": b"out\n", "out/mine": b"m"})
    with pytest.raises(Conflict, match="dsvignore"):
        bring(ann, ours=PathSet())


def test_a_merging_pull_that_is_killed_anywhere_is_finished_by_the_next(ann: Person, tmp_path: Path) -> None:
    ben = ben_of(ann)
    plain_scripts(ann, {"mode.sh": b"\0"})
    ann.sync("a file")
    pull(ben.context())
    ben.write({"t.txt": THEIRS, "both": b"\0his", "new": b"n", "added": b"\0his", "stays": b"\0his"})
    (ben.workspace / "mode.sh").chmod(0o755)
    ben.sync("theirs")
    ann.write({"t.txt": MINE, "both": b"\0mine", "added": b"\0mine", "stays": b"\0mine"})
    plain_scripts(ann, {"mode.sh": b"\0mine"})
    expected = {
        **BASE, "t.txt": BOTH, "both": b"\0mine", "new": b"n", "added": b"\0his", "mode.sh": b"\0mine",
        "stays": b"\0mine", "stays.theirs": b"\0his",
    }  # fmt: skip
    saved = tmp_path / "saved"
    shutil.copytree(ann.home, saved, symlinks=True)
    choices = {
        "ours": PathSet.of([b"both"]),
        "theirs": PathSet.of([b"added"]),
        "both": PathSet.of([b"stays"]),
    }
    steps = run_killed(lambda: bring(ann, **choices), None, inside=ann.workspace)
    assert steps > 5
    for step in some(range(1, steps + 1)):
        shutil.rmtree(ann.home)
        shutil.copytree(saved, ann.home, symlinks=True)
        run_killed(lambda: bring(ann, **choices), step, inside=ann.workspace)
        bring(ann, **choices)
        assert ann.files() == expected, f"killed before step {step}"
        told = status(ann.context()).differences
        changed = {b"t.txt", b"both", b"mode.sh", b"stays"}
        assert ({*told.changed}, [*told.added], [*told.removed]) == (changed, [b"stays.theirs"], [])
    assert published(ann) == expected


@pytest.mark.parametrize("chosen", ["ours", "theirs", "both"])
def test_a_choice_settles_the_lines_in_conflict_and_the_others_are_merged(ann: Person, chosen: str) -> None:
    ben = ben_of(ann)
    his = THEIRS.replace(b"line 2\n", b"his\n")
    ben.write({"t.txt": his})
    ben.sync("theirs")
    ann.write({"t.txt": MINE})
    done = bring(ann, **{chosen: PathSet.of([b"t.txt"])})
    merged = BOTH.replace(b"mine\n", b"his\n") if chosen == "theirs" else BOTH
    beside = {"t.theirs.txt": his} if chosen == "both" else {}
    assert ann.files() == {**BASE, "t.txt": merged, **beside}
    [one] = done.merged
    assert one.content is not None and one.choice is ConflictChoice[chosen.upper()]
    assert (one.path, str(one.content.taken), str(one.content.resolved)) == (b"t.txt", "line 18", "line 3")
    assert done.without_effect == ()
    assert published(ann) == ann.files()


def test_a_pull_names_the_lines_that_it_merged(ann: Person) -> None:
    ben = ben_of(ann)
    ben.write({"t.txt": THEIRS})
    ben.sync("theirs")
    ann.write({"t.txt": MINE})
    assert [str(one) for one in bring(ann).merged] == ["'t.txt': line 18 from theirs"]


def test_a_file_of_the_users_settles_a_path(ann: Person, tmp_path: Path) -> None:
    ben = ben_of(ann)
    ben.write({"t.txt": THEIRS, "both": b"\0his"})
    remove(ben, "stays")
    ben.sync("theirs", allow_removals=True)
    ann.write({"t.txt": MINE, "both": b"\0mine", "stays": b"\0mine"})
    file = tmp_path / "resolved"
    file.write_bytes(b"by hand\n")
    everything = {b"t.txt": str(file), b"both": str(file), b"no": str(file)}
    with pytest.raises(MergeConflict, match="write it here, and use --ours"):
        bring(ann, resolved={**everything, b"stays": str(file)})
    done = bring(ann, resolved=everything, ours=PathSet.of([b"stays"]))
    assert done.without_effect == (b"no",)
    expected = {**BASE, "t.txt": b"by hand\n", "both": b"by hand\n", "stays": b"\0mine"}
    assert ann.files() == expected and published(ann) == expected


def test_a_pull_with_choices_for_lines_that_is_killed_anywhere_is_finished_by_the_next(
    ann: Person, tmp_path: Path
) -> None:
    ben = ben_of(ann)
    names = ("one.txt", "two.txt", "three.txt", "four.txt")
    ann.write(dict.fromkeys(names, TEXT))
    ann.sync("texts")
    pull(ben.context())
    his = THEIRS.replace(b"line 2\n", b"his\n")
    ben.write(dict.fromkeys(names, his))
    ben.sync("theirs")
    ann.write(dict.fromkeys(names, MINE))
    file = tmp_path / "resolved"
    file.write_bytes(b"by hand\n")
    expected = {
        **BASE, "one.txt": BOTH, "two.txt": BOTH.replace(b"mine\n", b"his\n"), "three.txt": BOTH,
        "three.theirs.txt": his, "four.txt": b"by hand\n",
    }  # fmt: skip
    choices = {
        "ours": PathSet.of([b"one.txt"]), "theirs": PathSet.of([b"two.txt"]), "both": PathSet.of([b"three.txt"]),
        "resolved": {b"four.txt": str(file)},
    }  # fmt: skip
    saved = tmp_path / "saved"
    shutil.copytree(ann.home, saved, symlinks=True)
    steps = run_killed(lambda: bring(ann, **choices), None, inside=ann.workspace)
    assert steps > 5 and ann.files() == expected
    for step in some(range(1, steps + 1), 3):
        shutil.rmtree(ann.home)
        shutil.copytree(saved, ann.home, symlinks=True)
        run_killed(lambda: bring(ann, **choices), step, inside=ann.workspace)
        bring(ann, **choices)
        assert ann.files() == expected, f"killed before step {step}"


def test_a_choice_for_a_large_table_settles_its_rows_too(ann: Person, tmp_path: Path) -> None:
    ben = ben_of(ann)
    table = b"id,a\n" + b"".join(b"%d,%s\n" % (number, b"x" * 50) for number in range(30_000))
    mine = table.replace(b"\n1,x", b"\n1,mine").replace(b"\n2,x", b"\n2,mine")
    his = table.replace(b"\n1,x", b"\n1,his").replace(b"\n3,x", b"\n3,his")
    ann.write({"l.csv": table, "other.csv": table})
    ann.sync("tables")
    pull(ben.context())
    ben.write({"l.csv": his, "other.csv": his})
    ben.sync("theirs")
    ann.write({"l.csv": mine, "other.csv": mine})
    file = tmp_path / "resolved"
    file.write_bytes(table + b"by,hand\n")
    bring(ann, ours=PathSet.of([b"l.csv"]), resolved={b"other.csv": str(file)}, table_key="id")
    expected = {**BASE, "l.csv": mine.replace(b"\n3,x", b"\n3,his"), "other.csv": file.read_bytes()}
    assert ann.files() == expected
    assert {*status(ann.context()).differences.changed} == {b"l.csv", b"other.csv"}
    assert published(ann) == expected
    assert status(ann.context()).is_clean
