"""Sparse workspaces: what is absent is not removed, and what is not theirs never changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from dsv.api.checkout import pull, restore, rollback, switch
from dsv.api.clone import Differing, clone
from dsv.api.context import Context
from dsv.api.sparse import sparse_add, sparse_remove
from dsv.api.status import status
from dsv.api.sync import SyncRequest, sync
from dsv.errors import Conflict, NotFound, Unsupported
from dsv.values.names import BranchName, Target
from dsv.values.paths import show
from dsv.workspace.workspace import Workspace
from tests.kit.people import Files, Person, read_folder

FILES: Files = {
    ".dsvignore": b"*.tmp\n", "notes.txt": b"n", "train/a.png": b"a", "train/b.png": b"b", "train/deep/c.png": b"c",
    "train/labels.csv": b"l", "val/a.png": b"va", "val/hollow": None, "val/link@": b"a.png", "raw/big": b"r" * 5000,
}  # fmt: skip
TRAIN = {".dsvignore", "train/a.png", "train/b.png", "train/deep/c.png", "train/labels.csv"}


def only(names: set[str], files: Files = FILES) -> Files:
    return {name: files[name] for name in names}


@pytest.fixture
def ann(tmp_path: Path) -> Person:
    """Who has everything."""
    person = Person(tmp_path / "ann", str(tmp_path / "store"))
    person.init()
    person.write(FILES)
    person.sync()
    return person


def sparse(ann: Person, *patterns: str, name: str = "bob", rev: str = "") -> Person:
    """Somebody who has cloned a part."""
    bob = Person(ann.home.parent / name, ann.store, name)
    clone(bob.context(bob.home.parent), Target.parse(f"scans{rev}"), bob.workspace, only=patterns)
    return bob


@pytest.fixture
def bob(ann: Person) -> Person:
    return sparse(ann, "train")


def committed(person: Person, files: Files, **options: object) -> None:
    """A sync makes a commit of just these files, and then has nothing left to do."""
    done = person.sync(**options)
    assert done.commit is not None
    assert person.read(done.commit) == files
    assert not person.sync().any_change
    assert status(person.context()).is_clean


def test_a_clone_has_what_matches_and_the_rules_of_what_is_ignored(ann: Person, bob: Person) -> None:
    assert bob.files() == only(TRAIN)
    assert status(bob.context()).is_clean and not bob.sync().any_change
    assert sparse(ann, "**/*.png", name="cy").files() == only(
        {".dsvignore", *(n for n in FILES if n.endswith(".png"))}
    )
    assert sparse(ann, "!raw", "!train", name="di").files() == {
        name: data for name, data in FILES.items() if not name.startswith(("raw", "train"))
    }
    with pytest.raises(NotFound, match="matches trian"):
        sparse(ann, "trian/*.png", name="ed")
    assert not (ann.home.parent / "ed/work").exists()


def test_what_is_absent_is_not_removed_and_what_was_here_is(ann: Person, bob: Person) -> None:
    bob.write({"train/a.png": b"A", "train/new": b"new"})
    (bob.workspace / "train/b.png").unlink()
    now = {**FILES, "train/a.png": b"A", "train/new": b"new"}
    del now["train/b.png"]
    committed(bob, now)
    pull(ann.context())
    assert ann.files() == now


def test_a_new_file_at_a_path_of_its_own_is_added_and_stays_known(ann: Person, bob: Person) -> None:
    bob.write({"extra/x": b"1"})
    committed(bob, {**FILES, "extra/x": b"1"})
    pull(ann.context())
    ann.write({"extra/x": b"2", "val/a.png": b"VA"})
    ann.sync()
    pull(bob.context())
    assert bob.files() == {**only(TRAIN), "extra/x": b"2"}  # not turned back by the next sync
    assert not bob.sync().any_change
    (bob.workspace / "extra/x").unlink()
    assert status(bob.context()).is_clean and not bob.sync().any_change


def test_a_file_in_the_place_of_an_absent_one_is_a_change_of_it(bob: Person) -> None:
    bob.write({"notes.txt": b"mine", "val/a.png": b"va"})
    found = status(bob.context())
    assert found.differences.changed == [b"notes.txt"] and not found.differences.added
    committed(bob, {**FILES, "notes.txt": b"mine"})


def test_a_change_there_to_a_file_that_was_made_here_is_a_conflict(ann: Person, bob: Person) -> None:
    ann.write({"notes.txt": b"theirs", "beside": b"theirs"})
    ann.sync()
    bob.write({"beside": b"mine"})
    with pytest.raises(Conflict, match="'beside' was added here, and added there"):
        pull(bob.context())
    (bob.workspace / "beside").unlink()
    pull(bob.context())
    assert bob.files() == only(TRAIN)


@pytest.mark.parametrize(
    ("mine", "path", "other"),
    [
        ("raw", "raw", "raw/big"),
        ("notes.txt/in", "notes.txt/in", "notes.txt"),
        ("val/a.png/x", "val/a.png/x", "val/a.png"),
    ],
)
def test_what_can_be_in_no_tree_with_what_is_absent_is_refused(
    bob: Person, mine: str, path: str, other: str
) -> None:
    bob.write({mine: b"m"})
    assert status(bob.context()).sync.outcome == "refused"
    with pytest.raises(
        Conflict, match=f"{show(path.encode())} is in the way of {show(other.encode())}"
    ) as refused:
        bob.sync()
    assert refused.value.exit_code == 4 and "sparse add" in (refused.value.hint or "")


def test_what_the_branch_puts_in_the_way_of_something_new_is_a_conflict(ann: Person, bob: Person) -> None:
    ann.write({"one/file": b"1", "two": b"2"})
    ann.sync()
    bob.write({"one": b"mine", "two/in": b"mine"})
    with pytest.raises(Conflict) as refused:
        pull(bob.context())
    assert "'one' is in the way of one/file" in refused.value.message
    assert "'two/in' is in the way of two" in refused.value.message
    assert bob.files() == {**only(TRAIN), "one": b"mine", "two/in": b"mine"}


def test_empty_folders_that_are_not_empty_there_are_nothing_new(bob: Person) -> None:
    for name in ("raw", "val", "val/hollow"):
        (bob.workspace / name).mkdir()
    assert status(bob.context()).is_clean and not bob.sync().any_change
    bob.write({"val/hollow/in": b"i", "really/empty": None})
    now = {**FILES, "val/hollow/in": b"i", "really/empty": None}
    del now["val/hollow"]
    committed(bob, now)


def test_an_empty_folder_never_removes_a_file_that_is_not_here(ann: Person, bob: Person) -> None:
    (bob.workspace / "notes.txt").mkdir()
    assert status(bob.context()).sync.outcome == "refused"
    with pytest.raises(Conflict, match=r"the empty folder 'notes\.txt' is in the way") as refused:
        bob.sync()
    assert "sparse add" in (refused.value.hint or "")
    (bob.workspace / "notes.txt").rmdir()
    bob.write({"beside": b"mine"})
    bob.sync()
    (bob.workspace / "beside").unlink()
    (bob.workspace / "beside").mkdir()
    with pytest.raises(Conflict, match=r"the empty folder 'beside' is in the way"):
        bob.sync()


@pytest.mark.parametrize("path", ["new", "new/in"])
def test_an_empty_folder_in_the_place_of_a_file_that_comes_is_a_conflict(
    ann: Person, bob: Person, path: str
) -> None:
    ann.sync(branch=BranchName.parse("side"), new_branch=True)
    ann.write({"new": b"theirs"})
    ann.sync()
    (bob.workspace / path).mkdir(parents=True)
    switch(ann.context(), BranchName.parse("main"))
    ann.write({"new": b"theirs"})
    ann.sync()
    with pytest.raises(Conflict, match="new"):
        pull(bob.context())
    with pytest.raises(Conflict, match="new"):
        switch(bob.context(), BranchName.parse("side"))
    assert (bob.workspace / path).is_dir()


def test_an_empty_folder_that_goes_and_comes_back(ann: Person) -> None:
    bob = sparse(ann, "val")
    (bob.workspace / "val/hollow").rmdir()
    assert status(bob.context()).differences.removed == [b"val/hollow"]
    (bob.workspace / "val/hollow").mkdir()
    assert status(bob.context()).is_clean
    committed(bob, FILES)


def test_what_a_workspace_has_is_read_under_its_lock(ann: Person, bob: Person) -> None:
    """A sync that was about to begin while another command took a folder away must not take it for removed."""
    sparse_add(bob.context(), ["val"])

    class Late(Context):
        def workspace(self) -> Workspace:
            found = super().workspace()
            if found.chosen.lines == ("train", "val"):
                sparse_remove(bob.context(), ["val"])
            return found

    done = sync(Late(**structs.asdict(bob.context())), SyncRequest())
    assert bob.files() == only(TRAIN)
    assert not done.any_change and bob.read(done.commit) == FILES  # type: ignore[arg-type]


def test_the_last_file_of_a_folder_that_has_more_there(ann: Person) -> None:
    bob = sparse(ann, "val/a.png")
    (bob.workspace / "val/a.png").unlink()
    committed(bob, {name: data for name, data in FILES.items() if name != "val/a.png"}, allow_removals=True)


def test_too_many_removals_are_counted_among_what_is_here(ann: Person) -> None:
    ann.write({f"train/{n}": b"x" for n in range(30)} | {f"other/{n}": b"x" for n in range(200)})
    ann.sync()
    bob = sparse(ann, "train")
    for n in range(25):
        (bob.workspace / f"train/{n}").unlink()
    with pytest.raises(Conflict, match=r"25 of 35 paths that this workspace has"):
        bob.sync()
    assert bob.sync(allow_removals=True).removed == 25


def test_more_is_added_and_taken_away_again(ann: Person, bob: Person) -> None:
    done = sparse_add(bob.context(), ["val", "notes.txt"])
    assert done.created == 4
    assert bob.files() == {name: data for name, data in FILES.items() if name != "raw/big"}
    assert status(bob.context()).is_clean and not bob.sync().any_change
    assert sparse_remove(bob.context(), ["val"]).removed == 2
    assert bob.files() == only(TRAIN | {"notes.txt"})
    assert not (bob.workspace / "val").exists()
    assert status(bob.context()).is_clean and not bob.sync().any_change
    sparse_add(bob.context(), ["."])
    assert bob.files() == FILES
    assert Workspace.find(bob.workspace).chosen.whole  # type: ignore[union-attr]
    assert sparse_remove(bob.context(), ["raw"]).removed == 1
    assert bob.files() == {name: data for name, data in FILES.items() if name != "raw/big"}
    committed(bob, FILES)
    with pytest.raises(NotFound, match=r"nothing in commit .* matches nope"):
        sparse_remove(bob.context(), ["nope"])
    with pytest.raises(NotFound, match="matches nope"):
        sparse_add(bob.context(), ["nope/*"])


def test_files_that_are_new_here_are_refused_and_not_called_missing(bob: Person) -> None:
    bob.write({"new/a": b"new"})
    with pytest.raises(Conflict, match=r"nothing was removed(.|\n)*'new/a'"):
        sparse_remove(bob.context(), ["new"])
    assert bob.files()["new/a"] == b"new"


def test_nothing_of_the_user_goes(bob: Person) -> None:
    bob.write({"train/a.png": b"changed", "train/new": b"new"})
    (bob.workspace / "train/b.png").unlink()
    before = bob.files()
    with pytest.raises(Conflict) as refused:
        sparse_remove(bob.context(), ["train"])
    assert all(f"\n  'train/{name}'" in refused.value.message for name in ("a.png", "b.png", "new"))
    assert bob.files() == before
    sparse_remove(bob.context(), ["train/deep"])  # where nothing was changed
    del before["train/deep/c.png"]
    assert bob.files() == before
    assert status(bob.context()).differences.removed == [b"train/b.png"]


def test_a_change_at_a_path_that_is_added_stays(bob: Person) -> None:
    bob.write({"notes.txt": b"mine"})
    sparse_add(bob.context(), ["notes.txt"])
    assert status(bob.context()).differences.changed == [b"notes.txt"]
    bob.write({"raw": b"in the way"})
    with pytest.raises(Conflict, match="'raw' is in the way of raw/big"):
        sparse_add(bob.context(), ["raw"])
    (bob.workspace / "raw").unlink()
    committed(bob, {**FILES, "notes.txt": b"mine"})


def test_a_path_with_wildcards_in_its_name_is_taken_by_its_name_first(ann: Person) -> None:
    ann.write({"odd/[1]*.png": b"1", "odd/1x.png": b"2", "odd/back\\slash": b"3", "!bang": b"4"})
    ann.sync()
    assert set(sparse(ann, "odd/[1]*.png").files()) == {".dsvignore", "odd/[1]*.png"}
    assert set(sparse(ann, "odd/back\\slash", "./!bang", name="cy").files()) == {
        ".dsvignore", "odd/back\\slash", "!bang"
    }  # fmt: skip


def test_merges_bring_what_is_not_here_into_the_history_only(ann: Person, bob: Person) -> None:
    ann.write({"val/a.png": b"VA", "raw/more": b"m", "train/b.png": b"B"})
    (ann.workspace / "notes.txt").unlink()
    theirs = ann.files()
    ann.sync()
    bob.write({"train/a.png": b"A"})
    pull(bob.context())
    assert bob.files() == {**only(TRAIN), "train/b.png": b"B", "train/a.png": b"A"}
    committed(bob, {**theirs, "train/a.png": b"A"})


def test_switch_rollback_and_restore_keep_to_the_part(ann: Person, bob: Person) -> None:
    first = ann.sync().commit
    switch(ann.context(), BranchName.parse("side"), create=True)
    ann.write({"val/a.png": b"side", "train/a.png": b"side", "raw/more": b"m"})
    side = ann.files()
    ann.sync()
    switch(bob.context(), BranchName.parse("side"))
    assert bob.files() == {**only(TRAIN), "train/a.png": b"side"}
    bob.write({"train/b.png": b"B"})
    committed(bob, {**side, "train/b.png": b"B"})
    done = rollback(bob.context(), Target.parse(f"@{first}"))
    assert bob.files() == only(TRAIN) and bob.read(done.commit) == FILES
    bob.write({"train/a.png": b"x", "notes.txt": b"mine"})
    restore(bob.context(), (b"train", b"notes.txt"))
    assert bob.files() == {**only(TRAIN), "notes.txt": b"n"}  # it is here as the base has it
    with pytest.raises(Conflict, match="'raw' is not in this workspace") as refused:
        restore(bob.context(), (b"raw",))
    assert refused.value.hint == "dsv sparse add raw brings it"
    with pytest.raises(NotFound):
        restore(bob.context(), (b"nope",))
    restore(bob.context(), (), Target.parse("@side~1"))
    assert bob.files() == {**only(TRAIN), "train/a.png": b"side", "train/b.png": b"B", "notes.txt": b"n"}


def test_a_lost_state_is_made_anew(bob: Person) -> None:
    bob.write({"notes.txt": b"mine", "val/a.png": b"va", "own": b"o"})
    (bob.workspace / "train/a.png").unlink()
    before = status(bob.context()).differences
    for part in (bob.workspace / ".dsv/state").iterdir():
        part.unlink()
    assert status(bob.context()).differences == before
    now = {**FILES, "notes.txt": b"mine", "own": b"o"}
    del now["train/a.png"]
    committed(bob, now)


def test_a_symlink_that_leaves_by_way_of_an_absent_one_is_refused(ann: Person) -> None:
    ann.write({"way@": b"train/deep", "train/deep/up@": b"../.."})
    ann.sync()
    bob = sparse(ann, "val")
    bob.write({"val/out@": b"../way/up/../x"})
    with pytest.raises(Unsupported, match="'val/out' would lead out"):
        bob.sync()


def test_an_empty_dataset(tmp_path: Path) -> None:
    ann = Person(tmp_path / "ann", str(tmp_path / "store"))
    ann.init()
    bob = sparse(ann, "train")
    bob.write({"train/a": b"a", "other": b"o"})
    committed(bob, {"train/a": b"a", "other": b"o"})
    ann.write({})
    pull(ann.context())
    assert ann.files() == {"train/a": b"a", "other": b"o"}
    sparse_remove(bob.context(), ["train"])
    assert bob.files() == {"other": b"o"} and status(bob.context()).is_clean


def test_an_older_dsv_refuses_the_workspace(bob: Person) -> None:
    """It looked for these keys at the top, and took a file without them for no binding."""
    import tomllib

    text = (bob.workspace / ".dsv/config.toml").read_text()
    document = tomllib.loads(text)
    assert document["needs"] == ["sparse"] and not {"store", "store_id", "dataset", "branch"} & set(document)
    sparse_add(bob.context(), ["**"])
    assert "needs" not in tomllib.loads((bob.workspace / ".dsv/config.toml").read_text())


def test_a_clone_keeps_what_the_folder_has_already(ann: Person, tmp_path: Path) -> None:
    cy = Person(tmp_path / "cy", ann.store, "cy")
    cy.write({"train/a.png": b"a", "raw/big": FILES["raw/big"], "notes.txt": b"n"})
    inode = (cy.workspace / "raw/big").stat().st_ino
    made = clone(cy.context(tmp_path), Target.parse("scans"), cy.workspace)
    assert cy.files() == FILES and made.created == len(FILES) - 3
    assert (cy.workspace / "raw/big").stat().st_ino == inode
    assert not cy.sync().any_change


def test_a_clone_refuses_what_differs_with_a_list(ann: Person, tmp_path: Path) -> None:
    cy = Person(tmp_path / "cy", ann.store, "cy")
    cy.write({"train/a.png": b"other", "extra/x": b"x", "val/hollow": None, "alone": None, "notes.txt": b"n"})
    before = cy.files()
    with pytest.raises(Conflict) as refused:
        clone(cy.context(tmp_path), Target.parse("scans"), cy.workspace)
    lines = refused.value.message.splitlines()[1:]
    assert lines == [
        "  'alone' is not in the commit",
        "  'extra/x' is not in the commit",
        "  'train/a.png' differs from the commit's",
    ]
    assert cy.files() == before and not (cy.workspace / ".dsv").exists()
    clone(cy.context(tmp_path), Target.parse("scans"), cy.workspace, differing=Differing.KEEP)
    assert cy.files() == {**FILES, "train/a.png": b"other", "extra/x": b"x", "alone": None}
    found = status(cy.context()).differences
    assert found.changed == [b"train/a.png"] and found.added == [b"alone", b"extra/x"]


def test_a_clone_overwrites_only_on_demand(ann: Person, tmp_path: Path) -> None:
    cy = Person(tmp_path / "cy", ann.store, "cy")
    cy.write({"train/a.png": b"other", "extra/x": b"x"})
    clone(
        cy.context(tmp_path),
        Target.parse("scans"),
        cy.workspace,
        only=("train",),
        differing=Differing.OVERWRITE,
    )
    assert read_folder(cy.workspace) == {**only(TRAIN), "extra/x": b"x"}
    assert status(cy.context()).differences.added == [b"extra/x"]
