"""Packs that went while the index files that name them are there."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from dsv.api.checkout import pull, restore
from dsv.api.clone import clone, init
from dsv.api.datasets import cat
from dsv.api.sync import SyncRequest, sync
from dsv.errors import Conflict, DsvError, IntegrityError
from dsv.format.locator import ObjectKind
from dsv.repo.repository import Repository
from dsv.repo.tree.reader import TreeReader
from dsv.transfer.download import Fetcher, WantedFile
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName, Target
from dsv.workspace.publish import Synced
from tests.kit.packs import verify
from tests.kit.people import Files, Person

FILES: Files = {f"d/{n}": b"%d" % n * 40 for n in range(30)} | {"large": random.Random(3).randbytes(5 << 20)}


@pytest.fixture
def ann(tmp_path: Path) -> Person:
    person = Person(tmp_path / "ann", str(tmp_path / "store"))
    person.init()
    person.write(dict(FILES))
    person.sync()
    return person


def lose_packs(person: Person) -> None:
    for path in (Path(person.store) / "packs").glob("*/*"):
        path.unlink()


def readable(person: Person, done: Synced) -> None:
    """By somebody who has no local copies, and by all of the store's ways."""
    assert done.commit is not None
    assert person.read(done.commit) == person.files()


def test_reupload_gives_a_commit_its_contents_again(ann: Person) -> None:
    base = ann.sync().commit
    lose_packs(ann)
    assert not ann.sync().reuploaded
    done = ann.sync(reupload=True)
    assert done.commit == base and not done.any_change and not done.lost
    assert done.reuploaded > len(FILES)
    readable(ann, done)
    again = ann.sync(reupload=True)
    assert again.reuploaded == 0


def test_reupload_of_part_of_the_packs_and_a_change_at_once(ann: Person) -> None:
    ann.write({"more/1": b"1", "d/3": b"changed"})
    ann.sync()
    first, *_ = sorted((Path(ann.store) / "packs").glob("*/*"), key=lambda path: path.stat().st_mtime_ns)
    first.unlink()
    ann.write({"more/2": b"2"})
    done = ann.sync(reupload=True)
    assert done.any_change and done.reuploaded
    readable(ann, done)


def test_a_loss_that_a_read_found_is_made_up_for_by_the_next_sync(ann: Person) -> None:
    base = ann.sync().commit
    lose_packs(ann)
    (ann.workspace / "d/1").unlink()
    with pytest.raises(IntegrityError, match="is gone"):
        restore(ann.context(), (b"d/1",))
    ann.write({"d/1": FILES["d/1"]})
    done = ann.sync()
    assert done.commit == base and done.reuploaded
    readable(ann, done)
    assert not ann.sync().reuploaded


def test_a_pack_that_is_back_is_not_uploaded_again(ann: Person, tmp_path: Path) -> None:
    shutil.copytree(ann.store, tmp_path / "copy")
    lose_packs(ann)
    (ann.workspace / "d/1").unlink()
    with pytest.raises(IntegrityError):
        restore(ann.context(), (b"d/1",))
    shutil.rmtree(ann.store)
    shutil.copytree(tmp_path / "copy", ann.store)
    restore(ann.context(), (b"d/1",))
    assert ann.sync().reuploaded == 0
    readable(ann, ann.sync())


def test_a_program_that_found_damage_notices_the_repair(ann: Person) -> None:
    base = ann.sync().commit
    assert base is not None
    (path,) = [one for one in (Path(ann.store) / "packs").glob("*/*") if one.stat().st_size > 1 << 20]
    data = path.read_bytes()
    spoiled = bytearray(data)
    spoiled[::3] = bytes(byte ^ 1 for byte in spoiled[::3])
    for wrong in (bytes(spoiled), data[:9], None):
        with ann.context().repository() as repository:
            times = [0.0]
            repository.objects.clock = lambda times=times: times[0]  # type: ignore[misc]
            path.unlink(missing_ok=True)
            if wrong is not None:
                path.write_bytes(wrong)
            for name in ("d/1", "d/2", "d/3", "d/4", "d/5", "d/6"):
                with pytest.raises(IntegrityError):
                    read_one(repository, base, name.encode())
            path.unlink(missing_ok=True)
            path.write_bytes(data)
            times[0] = 31.0
            if wrong == data[:9]:
                repository.store.data._ends.clear()  # type: ignore[attr-defined]
            assert read_one(repository, base, b"d/6") == FILES["d/6"]


def read_one(repository: Repository, commit: CommitId, path: bytes) -> bytes:
    """Return the content of a file, read in the same process as others before."""
    (entry,) = [entry for entry, _ in TreeReader(repository.objects, commit).below(path)]
    return b"".join(b"".join(pieces) for _, pieces in Fetcher(repository.objects).files([WantedFile(entry)]))


def test_the_same_files_in_another_dataset_do_not_refer_to_what_is_gone(ann: Person, tmp_path: Path) -> None:
    lose_packs(ann)
    eve = Person(tmp_path / "eve", ann.store, "eve")
    eve.init(DatasetName.parse("others"))
    eve.write(dict(FILES))
    readable(eve, eve.sync())
    readable(ann, ann.sync())  # which hers brings back, too


def test_a_file_that_was_moved_does_not_refer_to_what_is_gone(ann: Person) -> None:
    """Its content is known without reading it."""
    lose_packs(ann)
    (ann.workspace / "large").rename(ann.workspace / "moved")
    (ann.workspace / "d").rename(ann.workspace / "e")
    readable(ann, ann.sync(allow_removals=True))


def test_what_is_here_no_more_is_named(ann: Person) -> None:
    lose_packs(ann)
    ann.write({"d/7": b"changed"})
    done = ann.sync(reupload=True)
    assert done.lost == ("'d/7'",)
    readable(ann, done)


def test_a_clone_by_somebody_else_works_again(ann: Person, tmp_path: Path) -> None:
    lose_packs(ann)
    bob = Person(tmp_path / "bob", ann.store, "bob")
    with pytest.raises(DsvError):
        clone(bob.context(tmp_path), Target.parse("scans"), bob.workspace)
    ann.sync(reupload=True)
    clone(bob.context(tmp_path), Target.parse("scans"), bob.workspace)
    assert bob.files() == FILES


def test_a_pull_removes_no_file_that_only_this_workspace_has(ann: Person, tmp_path: Path) -> None:
    bob = Person(tmp_path / "bob", ann.store, "bob")
    clone(bob.context(tmp_path), Target.parse("scans"), bob.workspace)
    (bob.workspace / "d/1").unlink()
    bob.write({"large": b"small now"})
    kept = {path.name for path in (Path(ann.store) / "packs").glob("*/*")}
    bob.sync()
    for path in (Path(ann.store) / "packs").glob("*/*"):
        if path.name in kept:
            path.unlink()
    with pytest.raises(Conflict, match="d/1") as caught:
        pull(ann.context())
    assert "dsv sync --reupload" in (caught.value.hint or "")
    assert ann.files() == FILES
    with pytest.raises(Conflict):
        ann.sync(reupload=True)  # bob has moved the branch; what was lost is stored again all the same
    pull(ann.context())
    assert ann.files() == {
        **{path: data for path, data in FILES.items() if path != "d/1"},
        "large": b"small now",
    }


def test_a_pull_removes_no_large_file_whose_recipe_is_gone_from_the_store(
    ann: Person, tmp_path: Path
) -> None:
    bob = Person(tmp_path / "bob", ann.store, "bob")
    clone(bob.context(tmp_path), Target.parse("scans"), bob.workspace)
    before = list((Path(ann.store) / "packs").glob("*/*"))
    (bob.workspace / "large").unlink()
    bob.sync()
    for path in before:
        if ObjectKind.RECIPE in verify(path.read_bytes()).kinds:
            path.unlink()
    with pytest.raises(Conflict, match="large"):
        pull(ann.context())
    assert ann.files() == FILES
    with pytest.raises(Conflict):
        ann.sync(reupload=True)  # bob has moved the branch; what was lost is stored again all the same
    pull(ann.context())
    assert "large" not in ann.files()


def flip(person: Person, content: bytes) -> None:
    """Flips a bit of a content, which is stored as it is."""
    for path in (Path(person.store) / "packs").glob("*/*"):
        data = bytearray(path.read_bytes())
        at = data.find(content[:32])
        if at >= 0:
            data[at + 5] ^= 1
            path.chmod(0o644)
            path.write_bytes(data)
            return
    pytest.fail("no pack has it")


@pytest.fixture
def damaged(tmp_path: Path) -> Person:
    """Ann, whose files are whole here, and two of them damaged in the store: `small`, and the middle of `large`."""
    person = Person(tmp_path / "ann", str(tmp_path / "store"))
    person.init()
    noise = random.Random(5).randbytes(3 << 20)
    small = random.Random(6).randbytes(4000)
    person.write({"small": small, "large": noise, "sound": noise[5000:9000]})
    person.sync()
    flip(person, small)
    flip(person, noise[2 << 20 :])
    return person


def read_everything(person: Person, where: Path) -> None:
    """As somebody else does on the machine of this person."""
    other = replace(person, home=person.home / where.name)
    context = structs.replace(person.context(where), metadata=person.home / "metadata")
    clone(context, Target.parse("scans"), other.workspace)


def test_the_error_names_the_file_and_the_dataset(damaged: Person, tmp_path: Path) -> None:
    for path in ("small", "large"):
        with (
            pytest.raises(IntegrityError, match=f"scans:{path} can't be read: chunk .* in pack .*") as caught,
            cat(damaged.context(), Target.parse(f"scans:{path}")) as pieces,
        ):
            b"".join(pieces)
        assert caught.value.subject == f"scans:{path}"
        assert "dsv sync --reupload" in (caught.value.hint or "")
    with pytest.raises(IntegrityError, match="scans:"):
        read_everything(damaged, tmp_path)


def test_what_a_read_has_found_damaged_is_not_referred_to(damaged: Person) -> None:
    """By a sync that makes another dataset of the same file; which also makes the first one whole."""
    with pytest.raises(IntegrityError), cat(damaged.context(), Target.parse("scans:small")) as pieces:
        b"".join(pieces)
    other = replace(damaged, home=damaged.home / "other")
    context = structs.replace(other.context(), metadata=damaged.home / "metadata")
    other.workspace.mkdir(parents=True)
    (other.workspace / "copy").write_bytes((damaged.workspace / "small").read_bytes())
    init(context, other.workspace, DatasetName.parse("copies"))
    done = sync(context, SyncRequest())
    readable(other, done)
    done = damaged.sync()
    assert not done.any_change
    with cat(damaged.context(), Target.parse("scans:small")) as pieces:
        assert b"".join(pieces) == (damaged.workspace / "small").read_bytes()
    assert not damaged.sync().reuploaded


def test_the_next_sync_stores_again_what_was_found_damaged(damaged: Person) -> None:
    with pytest.raises(IntegrityError), cat(damaged.context(), Target.parse("scans:small")) as pieces:
        b"".join(pieces)
    assert damaged.sync().reuploaded == 1
    with cat(damaged.context(), Target.parse("scans:small")) as pieces:
        assert b"".join(pieces) == (damaged.workspace / "small").read_bytes()


def test_reupload_finds_damage_that_no_command_has_found(damaged: Person) -> None:
    done = damaged.sync(reupload=True)
    assert done.reuploaded == 2 and not done.any_change and not done.lost
    readable(damaged, done)
    assert damaged.sync(reupload=True).reuploaded == 0
    assert damaged.sync().reuploaded == 0
