"""`dsv verify`: damage is found, listed as what a person lost, and marked."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable
from functools import partial, partialmethod
from itertools import count
from pathlib import Path

import pytest
from msgspec.structs import replace

from dsv.api.cache import cache
from dsv.api.verify import EraseRequest, VerifyRequest, erase, verify
from dsv.errors import Denied, DsvError, Erased, NoRoom
from dsv.format.locator import ObjectKind
from dsv.repo import repository as making
from dsv.repo.format_log import NODE_LOCATORS, features
from dsv.repo.merge_indexes import merge_indexes
from dsv.stores.base import Bytes, PutResult
from dsv.stores.directory import DirectoryStore
from dsv.upkeep import packs as packs_file
from dsv.upkeep.repair import Repair
from dsv.upkeep.verify import Verification
from dsv.values.ids import CommitId
from dsv.values.names import Target
from dsv.values.progress import NoProgress
from tests.api.test_damage_marks import flip, on_another_machine
from tests.kit.people import Files, Person

FILES: Files = {f"d/{n}": b"%d" % n * 40 for n in range(30)} | {"large": random.Random(3).randbytes(5 << 20)}
FULL = VerifyRequest(full=True)


@pytest.fixture
def ann(tmp_path: Path) -> Person:
    return Person.who_synced(tmp_path, dict(FILES))


def paths(found: Verification) -> set[bytes]:
    return {path for one in found.lost for path in one.part.paths}


@pytest.mark.parametrize(
    "request_", [VerifyRequest(), FULL, VerifyRequest((Target.parse("scans"),), full=True)]
)
def test_a_whole_store_is_found_whole(ann: Person, request_: VerifyRequest) -> None:
    ann.write({"new": b"new"})
    ann.sync()
    for who in (ann, on_another_machine(ann, "bob")):
        found = verify(who.context(who.home.parent), request_)
        assert found.is_whole and not found.packs and not found.unasked and len(found.names) == 2
        assert bool(found.packs_read) == request_.full


def test_a_flipped_bit_is_found_listed_marked_and_healed_by_the_next_sync(ann: Person) -> None:
    base = ann.sync().commit
    flip(ann, ObjectKind.CHUNK)
    bob = on_another_machine(ann, "bob")
    assert verify(bob.context(ann.home), VerifyRequest()).is_whole  # it reads no contents
    found = verify(bob.context(ann.home), FULL)
    assert paths(found) == {b"d/0"} and found.lost_objects == 1 and not found.is_whole
    assert found.names[base] and found.lost[0].commits == (base,)  # type: ignore[index]
    assert not verify(bob.context(ann.home), VerifyRequest()).is_whole  # it stays known
    assert ann.sync().reuploaded == 1
    assert verify(bob.context(ann.home), VerifyRequest()).is_whole
    assert verify(bob.context(ann.home), FULL).is_whole


@pytest.mark.parametrize("kind", [ObjectKind.SEGMENT, ObjectKind.NODE, ObjectKind.RECIPE])
@pytest.mark.parametrize("fresh", [False, True])
def test_damaged_metadata_is_found(ann: Person, kind: ObjectKind, fresh: bool) -> None:
    flip(ann, kind)
    who = on_another_machine(ann, "bob") if fresh else ann
    found = verify(who.context(ann.home), FULL)
    assert not found.is_whole and found.lost
    if kind is ObjectKind.RECIPE:
        assert paths(found) == {b"large"}
    else:
        assert found.lost[0].part.last == (b"large" if kind is ObjectKind.SEGMENT else b"")
        assert found.lost[0].part.entries == len(FILES)
    assert ann.sync().reuploaded
    assert verify(who.context(ann.home), FULL).is_whole


def test_lost_packs_and_short_ones_are_found_without_reading(ann: Person) -> None:
    ann.write({"other": b"other" * 99})
    ann.sync()
    contents, metadata, *_ = sorted(
        (Path(ann.store) / "packs").glob("*/*"), key=lambda one: one.stat().st_size, reverse=True
    )  # of the first sync
    contents.unlink()
    metadata.chmod(0o644)
    metadata.write_bytes(metadata.read_bytes()[:-1])
    bob = on_another_machine(ann, "bob")
    found = verify(ann.context(), VerifyRequest())
    assert {one.gone for one in found.packs} == {True, False} and not found.is_whole
    assert ann.sync().reuploaded
    assert not verify(bob.context(ann.home), VerifyRequest()).lost


def test_damage_of_a_hundred_packs_is_listed(tmp_path: Path) -> None:
    ann = Person.who_synced(tmp_path, {"start": b"start"})
    for number in range(100):
        ann.write({f"f/{number}": b"%d" % number * 50})
        ann.sync()
    flipped = flip(ann, ObjectKind.CHUNK)
    assert len(flipped) == 101
    found = verify(on_another_machine(ann, "bob").context(ann.home), FULL)
    assert len(found.packs) == 101
    assert paths(found) == {b"start", *(b"f/%d" % number for number in range(100))}


@pytest.mark.parametrize("why", [Denied, NoRoom])
def test_verify_without_the_right_to_write_reports_what_is_lost(
    ann: Person, why: type[DsvError], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = verify(ann.context(), FULL).packs_read
    flip(ann, ObjectKind.CHUNK)

    def refused(store: DirectoryStore, key: str, data: Bytes) -> PutResult:
        raise why(f"{key} was refused")

    monkeypatch.setattr(DirectoryStore, "put_if_absent", refused)
    found = verify(ann.context(), FULL)
    assert found.lost and not found.is_whole and found.packs_read == whole
    with pytest.raises(why):
        verify(ann.context(), VerifyRequest(budget=60.0))


@pytest.mark.parametrize("full", [True, False])
def test_a_pack_that_another_one_lies_in_the_place_of_is_found(ann: Person, full: bool) -> None:
    """As of a backup that was put back wrongly: every byte of it fits its own table. In passing, it may be shorter."""
    ann.write({"new": random.Random(1).randbytes(3000)})
    ann.sync()
    paths = sorted((Path(ann.store) / "packs").glob("*/*"), key=lambda path: path.stat().st_size)
    wrong, other = (paths[0], paths[-1]) if full else (paths[-1], paths[0])
    before = wrong.read_bytes()
    wrong.chmod(0o644)
    wrong.write_bytes(other.read_bytes())
    assert verify(ann.context(), VerifyRequest()).is_whole is full, "as long as it is long enough"
    found = verify(ann.context(), FULL)
    assert not found.is_whole and [str(one.pack) for one in found.packs] == [wrong.name]
    assert "lacks" in (found.packs[0].fault or "")
    wrong.write_bytes(before)
    assert verify(ann.context(), FULL).is_whole
    assert verify(ann.context(), VerifyRequest()).is_whole


def test_a_damaged_table_loses_nothing_and_is_reported(ann: Person) -> None:
    for path in (Path(ann.store) / "packs").glob("*/*"):
        path.chmod(0o644)
        data = bytearray(path.read_bytes())
        data[-20] ^= 1  # of the hash
        path.write_bytes(data)
    found = verify(ann.context(), FULL)
    assert not found.lost and found.at_risk and not found.is_whole
    assert ann.sync().reuploaded
    assert verify(ann.context(), FULL).is_whole


@pytest.mark.parametrize("what", ["commit", "move", "index"])
def test_damaged_names_commits_and_indexes_are_named(ann: Person, what: str) -> None:
    ann.write({"new": b"new"})
    base = ann.sync().commit
    folder = {"commit": "commits", "move": "refs/scans/branches/main", "index": "index"}[what]
    path = sorted((Path(ann.store) / folder).iterdir())[1]
    if what == "commit":
        path = Path(ann.store) / "commits" / str(base)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-3] + b"???")
    found = verify(on_another_machine(ann, "bob").context(ann.home), VerifyRequest())
    assert not found.is_whole and found.faults, found


def test_every_slice_is_verified_before_any_twice(ann: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        ann.write({"f": b"%d" % number})
        ann.sync()
    monkeypatch.setattr(packs_file, "_SLICE", 2)
    people = [ann, on_another_machine(ann, "bob")]
    read = 0
    packs = len(list((Path(ann.store) / "packs").glob("*/*")))
    dates = []
    for turn in range(300):
        found = verify(people[turn % 2].context(ann.home), VerifyRequest(budget=0.0))
        assert found.is_whole and found.oldest is not None
        read += found.packs_read
        dates.append(found.oldest)
        if found.oldest:
            break
    assert read == packs  # each once, by both together
    assert dates[-1] and not any(dates[:-1])
    assert len(list((Path(ann.store) / "gc").glob("verified-*"))) <= 9


def test_slices_that_another_machine_makes_smaller_are_all_read(
    ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        ann.write({"f": b"%d" % number})
        ann.sync()
    note = packs_file.Schedule.note

    def noting(self: packs_file.Schedule, done: Iterable[str]) -> None:
        note(self, done)
        self.fit(packs_file._SLICE * 16 + 1)

    monkeypatch.setattr(packs_file.Schedule, "note", noting)
    monkeypatch.setattr("dsv.upkeep.verify._NOTE_SECONDS", 0.0)
    found = verify(ann.context(), FULL)
    assert found.packs_read == len(list((Path(ann.store) / "packs").glob("*/*"))) and found.is_whole


def test_what_another_machine_verifies_meanwhile_is_not_read_again(
    ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced_often(ann, 12)
    bob = on_another_machine(ann, "bob")
    note, others = packs_file.Schedule.note, list[Verification]()

    def noting(self: packs_file.Schedule, done: Iterable[str]) -> None:
        if not others:
            others.append(Verification())
            others[0] = verify(bob.context(ann.home), VerifyRequest(budget=1e6))
        note(self, done)

    monkeypatch.setattr(packs_file.Schedule, "note", noting)
    monkeypatch.setattr("dsv.upkeep.verify._NOTE_SECONDS", -1.0)
    first = verify(ann.context(), VerifyRequest(budget=1e6))
    packs = len(list((Path(ann.store) / "packs").glob("*/*")))
    assert others[0].packs_read == packs and first.packs_read < packs
    assert first.oldest and others[0].oldest
    again = verify(ann.context(), VerifyRequest(budget=1e6))
    assert again.packs_read == packs  # the next time all of them are read again


def test_a_budget_run_finds_damage_and_says_what_was_lost(ann: Person) -> None:
    flip(ann, ObjectKind.CHUNK)
    found = verify(on_another_machine(ann, "bob").context(ann.home), VerifyRequest(budget=60.0))
    assert paths(found) == {b"d/0"} and found.oldest
    assert ann.sync().reuploaded == 1


# --- repair


def repaired(person: Person, *sources: object, full: bool = True) -> Verification:
    return verify(
        person.context(person.home.parent),
        VerifyRequest(full=full, repair=True, sources=tuple(map(str, sources))),
    )


def test_contents_come_from_a_folder_and_metadata_from_local_copies(ann: Person, tmp_path: Path) -> None:
    base = ann.sync().commit
    for path in (Path(ann.store) / "packs").glob("*/*"):
        path.unlink()
    files = tmp_path / "elsewhere"
    ann.workspace.rename(files)
    (files / "d/7").unlink()
    found = repaired(ann, files)
    assert paths(found) == {b"d/7"} and found.repaired > len(FILES) - 2
    (files / "d/7").write_bytes(FILES["d/7"] or b"")
    found = repaired(ann, files)
    assert found.is_whole and found.repaired == 1
    assert base is not None and ann.read(base) == FILES


class Phases(NoProgress):
    """The files and the bytes that each phase has counted."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def start(self, total_files: int | None, total_bytes: int | None) -> None:
        self.seen.append((0, 0))

    def advance(self, files: int = 0, bytes: int = 0, transferred: int = 0) -> None:  # noqa: A002
        if self.seen:
            self.seen[-1] = self.seen[-1][0] + files, self.seen[-1][1] + transferred


@pytest.mark.parametrize(("kind", "recipes"), [(ObjectKind.CHUNK, 0), (ObjectKind.RECIPE, 1)])
def test_a_repair_shows_progress_and_holds_no_recipe_that_is_not_lost(
    ann: Person, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: ObjectKind, recipes: int
) -> None:
    files, phases, made = tmp_path / "elsewhere", Phases(), list[Repair]()
    ann.workspace.rename(files)
    for name in FILES.keys() - {"large"}:
        (files / name).rename(files / "d" / f"z{name[2:]}")
    (files / "large").rename(files / "d" / "a")
    flip(ann, kind)
    monkeypatch.setattr(Repair, "run", lambda self, run=Repair.run: made.append(self) or run(self))
    monkeypatch.setattr(
        Repair, "_files", lambda _: iter(sorted((files / "d").iterdir()))
    )  # the large one first
    context = replace(on_another_machine(ann, "bob").context(ann.home), progress=phases)
    assert verify(context, VerifyRequest(full=True, repair=True, sources=(str(files),))).is_whole
    assert len(made[0]._recipes) == recipes
    assert any(count > 1 and size > 1 for count, size in phases.seen)


@pytest.mark.parametrize("kind", [ObjectKind.CHUNK, ObjectKind.RECIPE, ObjectKind.SEGMENT, ObjectKind.NODE])
def test_everything_comes_from_another_store(ann: Person, kind: ObjectKind, tmp_path: Path) -> None:
    base = ann.sync().commit
    shutil.copytree(ann.store, tmp_path / "copy")
    flip(ann, kind)
    bob = on_another_machine(ann, "bob")
    assert not repaired(bob).is_whole  # nobody has it
    found = repaired(bob, tmp_path / "copy", full=False)
    assert found.is_whole and found.repaired
    assert base is not None and ann.read(base) == FILES
    assert verify(bob.context(ann.home), FULL).is_whole


def test_a_lost_or_damaged_index_is_made_from_packs(ann: Person) -> None:
    ann.write({"new": b"new"})
    base = ann.sync().commit
    first, second = sorted((Path(ann.store) / "index").iterdir())
    first.unlink()
    second.chmod(0o644)
    second.write_bytes(second.read_bytes()[:-3] + b"???")
    bob = on_another_machine(ann, "bob")
    found = repaired(bob)
    assert found.is_whole and found.repaired
    assert base is not None and ann.read(base) == ann.files()
    ann.write({"newer": b"newer"})
    assert ann.sync().any_change
    assert verify(bob.context(ann.home), FULL).is_whole


def test_a_damaged_index_beside_a_pack_without_a_table_is_replaced_once_nothing_is_lost(
    ann: Person, tmp_path: Path
) -> None:
    ann.write({"new": b"new"})
    base = ann.sync().commit
    backup = tmp_path / "backup"
    shutil.copytree(ann.store, backup)
    for path in (sorted((Path(ann.store) / "packs").glob("*/*"))[0], *(Path(ann.store) / "index").iterdir()):
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[:700])
    bob = on_another_machine(ann, "bob")
    assert not verify(bob.context(ann.home), FULL).is_whole
    found = repaired(bob, backup)
    assert found.is_whole and found.repaired
    assert base is not None and ann.read(base) == ann.files()
    assert verify(on_another_machine(ann, "eve").context(ann.home), FULL).is_whole


@pytest.mark.parametrize("gone", [False, True])
def test_a_commit_comes_from_a_local_copy(ann: Person, gone: bool) -> None:
    base = ann.sync().commit
    assert base is not None
    (Path(ann.store) / "locators" / str(base)).unlink()  # it has a copy, too
    path = Path(ann.store) / "commits" / str(base)
    path.chmod(0o644)
    if gone:
        path.unlink()
    else:
        path.write_bytes(b"?" + path.read_bytes()[1:])
    assert not repaired(on_another_machine(ann, "bob")).is_whole
    found = repaired(ann)
    assert found.is_whole and found.repaired == 2  # the commit, and its locator
    assert ann.read(base) == FILES


@pytest.mark.parametrize("step", [None, 0, 1, 2, 3])
def test_an_erasure_comes_from_a_local_copy(
    ann: Person, monkeypatch: pytest.MonkeyPatch, step: int | None
) -> None:
    """step: the write of the repair that fails."""
    base = ann.sync().commit
    assert base is not None
    erase(ann.context(), EraseRequest(targets=(Target.parse("scans:d/1"),), reason="consent"))
    (record,) = (Path(ann.store) / "erased").iterdir()
    flip_a_byte(record)
    bob = on_another_machine(ann, "bob")
    for who in (ann, bob):
        (fault,) = verify(who.context(who.home.parent), VerifyRequest()).faults
        assert (fault.what, fault.name) == ("erasure", record.name)
    assert not repaired(bob).is_whole
    if step is not None:
        writes = count()

        def write(do: Callable[..., object], *arguments: object) -> object:
            if str(arguments[1]).startswith("erased/") and next(writes) == step:
                raise Denied("not now")
            return do(*arguments)

        with monkeypatch.context() as patch:
            for name in ("put_if_absent", "delete"):
                patch.setattr(
                    DirectoryStore, name, partialmethod(partial(write, getattr(DirectoryStore, name)))
                )
            with pytest.raises(Denied):
                repaired(ann)
    found = repaired(ann)
    assert found.is_whole and (found.repaired == 1 or step in (2, 3))
    eve = on_another_machine(ann, "eve")
    assert verify(eve.context(ann.home), FULL).is_whole
    with pytest.raises(Erased):
        eve.read(base)
    assert len(list(record.parent.iterdir())) == (2 if step in (1, 3) else 1)


def test_nothing_is_stored_again_while_an_erasure_is_not_known(ann: Person, tmp_path: Path) -> None:
    ann.sync()
    erase(ann.context(), EraseRequest(targets=(Target.parse("scans:d/1"),), reason="consent"))
    (record,) = (Path(ann.store) / "erased").iterdir()
    flip_a_byte(record)
    for pack in (Path(ann.store) / "packs").glob("*/*"):
        pack.unlink()
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "1").write_bytes(FILES["d/1"])
    bob = on_another_machine(ann, "bob")
    found = repaired(bob, copy)
    assert not found.is_whole and not found.repaired and paths(found) == set()
    assert not list((Path(ann.store) / "packs").glob("*/*")) and not list(Path(ann.store).glob("damage/*"))


def test_packs_with_damaged_tables_are_replaced(ann: Person) -> None:
    for path in (Path(ann.store) / "packs").glob("*/*"):
        path.chmod(0o644)
        data = bytearray(path.read_bytes())
        data[-20] ^= 1
        path.write_bytes(data)
    found = repaired(on_another_machine(ann, "bob"))
    assert found.is_whole and found.repaired >= len(FILES)


def keys_of(person: Person) -> set[str]:
    return {str(path.relative_to(person.store)) for path in Path(person.store).rglob("*") if path.is_file()}


def write(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    write(path, data)


def synced_often(ann: Person, times: int) -> CommitId:
    for number in range(times):
        ann.write({f"e/{number}": b"%d" % number * 50})
        base = ann.sync().commit
    assert base is not None
    return base


def test_a_flipped_bit_in_an_index_file_is_found_where_there_is_a_copy_of_it(ann: Person) -> None:
    base = synced_often(ann, 3)
    [path, *_] = (Path(ann.store) / "index").iterdir()
    flip_a_byte(path)
    for request in (VerifyRequest(), FULL):
        found = verify(ann.context(), request)
        assert [one.what for one in found.faults] == ["index"] and not found.is_whole
    assert repaired(ann).is_whole
    assert ann.read(base) == ann.files()


@pytest.mark.parametrize("how", ["lost", "damaged"])
def test_an_index_file_of_a_merge_is_made_from_packs_that_others_name(
    ann: Person, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    base = synced_often(ann, 6)
    monkeypatch.setattr("dsv.repo.merge_indexes._FILE_ROWS", 16)
    before = set((Path(ann.store) / "index").iterdir())
    with ann.context().repository() as repository:
        assert merge_indexes(repository, ann.context().writer).files > 2
    for path in before:
        path.unlink()
    merged = sorted(path for path in (Path(ann.store) / "index").iterdir() if "-" not in path.name)
    merged[1].unlink() if how == "lost" else flip_a_byte(merged[1])
    bob = on_another_machine(ann, "bob")
    assert not verify(bob.context(ann.home), VerifyRequest()).is_whole
    found = repaired(bob, full=False)
    assert found.is_whole and found.repaired
    assert ann.read(base) == ann.files()
    assert verify(on_another_machine(ann, "eve").context(ann.home), FULL).is_whole


@pytest.mark.parametrize("how", ["lost", "damaged"])
def test_a_filter_is_made_from_its_index_file(ann: Person, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr("dsv.repo.objects.indexes.FILTERED_BYTES", 5000)
    monkeypatch.setattr("dsv.repo.session.FILTERED_BYTES", 5000)
    ann.write({f"e/{number}": b"%d" % number * 50 for number in range(100)})
    ann.sync()
    [path] = (Path(ann.store) / "index").glob("*-filter")
    right = path.read_bytes()
    flip_a_byte(path) if how == "damaged" else path.unlink()
    bob = on_another_machine(ann, "bob")
    assert verify(bob.context(ann.home), VerifyRequest()).is_whole  # it does not look at them
    found = verify(bob.context(ann.home), FULL)
    assert [one.what for one in found.faults] == (["filter"] if how == "damaged" else [])
    found = repaired(bob)
    assert found.is_whole and found.repaired == 1
    assert path.read_bytes() == right


@pytest.mark.parametrize("how", ["lost", "damaged", "wrong"])
@pytest.mark.parametrize("old", [False, True])
def test_a_locator_of_a_commit_is_made_from_packs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, old: bool
) -> None:
    if old:
        monkeypatch.setattr(
            making, "features", lambda *names: features(*(one for one in names if one != NODE_LOCATORS))
        )
    ann = Person.who_synced(tmp_path, dict(FILES))
    first = ann.sync().commit
    base = synced_often(ann, 1)
    folder = Path(ann.store) / "locators"
    path, right = folder / str(base), (folder / str(base)).read_bytes()
    if how == "lost":
        path.unlink()
    else:
        write(path, b"?" * 50 if how == "damaged" else (folder / str(first)).read_bytes())
    bob = on_another_machine(ann, "bob")
    found = verify(bob.context(ann.home), FULL)
    assert [one.what for one in found.faults] == ([] if how == "lost" else ["locator"])
    found = repaired(bob)
    assert found.is_whole and found.repaired == 1
    assert path.read_bytes() == right


def test_another_pack_has_the_object_and_no_index_says_so(ann: Person) -> None:
    base = ann.sync().commit
    flip(ann, ObjectKind.CHUNK)
    before = keys_of(ann)
    assert not verify(ann.context(), FULL).is_whole
    assert ann.sync().reuploaded
    for key in keys_of(ann) - before:
        if key.startswith("index/"):
            (Path(ann.store) / key).unlink()
    bob = on_another_machine(ann, "bob")
    assert paths(verify(bob.context(ann.home), VerifyRequest())) == {b"d/0"}
    assert repaired(bob, full=False).is_whole
    assert base is not None and ann.read(base) == FILES


@pytest.mark.parametrize("source", ["workspace", "cache", "store"])
def test_each_source_gives_what_it_has_and_what_it_lacks_stays_listed(
    ann: Person, tmp_path: Path, source: str
) -> None:
    base = ann.sync().commit
    assert base is not None
    shutil.copytree(ann.store, tmp_path / "backup")
    ann.write({"later": b"later" * 99})
    later = ann.sync().commit
    assert later is not None
    [cached] = cache(ann.context(), tmp_path / "cache", [Target.parse(f"scans@{base}")])
    assert (cached.path / "large").exists()
    shutil.copytree(ann.workspace, tmp_path / "copy")
    (tmp_path / "copy" / "later").unlink()
    bob = on_another_machine(ann, "bob")
    assert verify(bob.context(ann.home), VerifyRequest()).is_whole
    if source == "store":  # which has metadata, too
        bob = on_another_machine(ann, "carol")
        for path in (Path(tmp_path) / "backup/packs").glob("*/*"):
            (Path(ann.store) / path.relative_to(tmp_path / "backup")).unlink()
    flip(ann, ObjectKind.CHUNK)
    before = keys_of(ann)
    assert not verify(bob.context(ann.home), FULL).is_whole
    place = tmp_path / {"workspace": "copy", "cache": "cache", "store": "backup"}[source]
    found = repaired(bob, place, full=False)
    assert paths(found) == {b"later"} and found.repaired and not found.is_whole
    assert before <= keys_of(ann) | {key for key in before if key.startswith("gc/")}
    assert ann.read(base) == FILES
    (tmp_path / "files").mkdir()
    (tmp_path / "files/whatever").write_bytes(b"later" * 99)
    assert repaired(bob, tmp_path / "files", full=False).is_whole
    assert ann.read(later) == FILES | {"later": b"later" * 99}


def test_a_tree_of_which_nothing_is_left_comes_from_another_store(tmp_path: Path) -> None:
    files: Files = {f"{n % 60:02}/{'x' * 200}{n}": b"%d" % n for n in range(9000)} | {"large": FILES["large"]}
    ann = Person.who_synced(tmp_path, files)
    base = ann.sync().commit
    assert base is not None
    shutil.copytree(ann.store, tmp_path / "backup")
    for folder in ("packs", "commits", "index", "locators"):
        shutil.rmtree(Path(ann.store) / folder)
    bob = on_another_machine(ann, "bob")
    assert not verify(bob.context(ann.home), VerifyRequest()).is_whole
    assert repaired(bob, tmp_path / "backup", full=False).is_whole
    assert ann.read(base) == files
