"""Damage that is marked in the store: nobody relies on it, and whoever has the content stores it again."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from dsv.api.edits import EditRequest, Put, edit
from dsv.api.verify import VerifyRequest
from dsv.api.verify import verify as verify_store
from dsv.errors import IntegrityError
from dsv.format import codec
from dsv.format.locator import ObjectKind
from dsv.format.records import Damage
from dsv.repo.damage import mark_damage, read_damage
from dsv.repo.objects.checks import is_object
from dsv.values.ids import Id, Nonce, PackId
from dsv.values.names import DatasetName, Target
from dsv.workspace.reupload import _Reupload
from tests.kit.packs import parse_footer, parse_table, verify
from tests.kit.people import Files, Person

FILES: Files = {f"d/{n}": b"%d" % n * 40 for n in range(30)} | {"large": random.Random(3).randbytes(5 << 20)}
OTHERS = DatasetName.parse("others")


@pytest.fixture
def ann(tmp_path: Path) -> Person:
    return Person.who_synced(tmp_path, dict(FILES))


def on_another_machine(person: Person, name: str) -> Person:
    return replace(person, home=person.home.parent / name, name=name)


def flip(person: Person, kind: ObjectKind) -> list[tuple[Path, int]]:
    """Flip a bit in the first object of this kind in each pack that has one; where."""
    flipped = []
    for path in sorted((Path(person.store) / "packs").glob("*/*")):
        data = bytearray(path.read_bytes())
        row = next((row for row in verify(data) if row.kind is kind), None)
        if row is not None:
            data[row.offset + row.stored // 2] ^= 4
            path.chmod(0o644)
            path.write_bytes(data)
            flipped.append((path, row.offset))
    return flipped


def mark(person: Person, *, whole_packs: bool = False) -> Damage:
    """Mark all damage of the store, as a complete check would."""
    places, missing, packs = [], [], []
    for path in (Path(person.store) / "packs").glob("*/*"):
        pack, data = PackId.parse(path.name), path.read_bytes()
        try:
            verify(data)
            continue
        except IntegrityError:
            packs.append(pack)
        footer = parse_footer(data)
        for row in parse_table(data[footer.table_offset : -56], footer, len(data)):
            if row.kind is ObjectKind.LOCATOR:
                continue
            try:
                found = codec.unpack(row.codec, data[row.offset : row.offset + row.stored], row.length)
                whole = is_object(row.kind, row.id, found)
            except IntegrityError:
                whole = False
            if not whole or whole_packs:
                places.append((pack, row.kind, Id(row.id)))
                missing.append((row.kind, Id(row.id)))
    with person.context().repository() as repository:
        marked = mark_damage(
            repository,
            person.context().writer,
            lambda _: Damage(
                tuple(sorted(packs)) if whole_packs else (),
                () if whole_packs else tuple(sorted(places)),
                tuple(sorted(missing)),
                True, Nonce(bytes(16)), 0, "", "",
            ),
        )  # fmt: skip
    assert marked is not None
    return marked


def put(person: Person, content: bytes) -> object:
    person.home.mkdir(exist_ok=True)
    file = person.home / "large"
    file.write_bytes(content)
    target = Target.parse(str(OTHERS))
    return edit(person.context(person.home), target, [Put("large", file)], EditRequest(create=True))


@pytest.mark.parametrize("whole_packs", [False, True])
def test_a_put_elsewhere_stores_marked_content_again(ann: Person, whole_packs: bool) -> None:
    base = ann.sync().commit
    assert base is not None and flip(ann, ObjectKind.CHUNK)
    bob = on_another_machine(ann, "bob")
    first = put(bob, FILES["d/0"] or b"")
    with pytest.raises(IntegrityError):
        ann.read(first.commit)  # type: ignore[attr-defined]
    assert mark(ann, whole_packs=whole_packs).missing
    eve = on_another_machine(ann, "eve")
    eve.home.mkdir()
    (eve.home / "large").write_bytes(FILES["large"] or b"")
    (eve.home / "d").mkdir()
    for name, content in FILES.items():
        (eve.home / name).write_bytes(content or b"")
    puts = [Put("large", eve.home / "large"), Put("d", eve.home / "d")]
    again = edit(eve.context(eve.home), Target.parse("third"), puts, EditRequest(create=True))
    for commit in (again.commit, base, first.commit):  # type: ignore[attr-defined]
        assert commit is not None and FILES["d/0"] in ann.read(commit).values()


def test_reupload_on_a_machine_without_notes_finds_the_damage(ann: Person) -> None:
    flip(ann, ObjectKind.CHUNK)
    bob = on_another_machine(ann, "bob")
    bob.init(OTHERS)
    bob.write(dict(FILES))
    made = bob.sync().commit
    assert made is not None
    with pytest.raises(IntegrityError):
        ann.read(made)
    done = bob.sync(reupload=True)
    assert done.reuploaded == 1 and ann.read(made) == bob.files()


@pytest.mark.parametrize("kind", [ObjectKind.CHUNK, ObjectKind.SEGMENT, ObjectKind.RECIPE, ObjectKind.NODE])
@pytest.mark.parametrize("whole_packs", [False, True])
def test_a_sync_without_changes_stores_marked_content_again(
    ann: Person, kind: ObjectKind, whole_packs: bool
) -> None:
    base = ann.sync().commit
    assert base is not None and flip(ann, kind)
    assert not ann.sync().reuploaded
    with pytest.raises(IntegrityError):
        ann.read(base)
    mark(ann, whole_packs=whole_packs)
    done = ann.sync()
    assert done.commit == base and done.reuploaded
    assert ann.read(base) == ann.files()
    assert not ann.sync().reuploaded


def test_a_base_without_the_marked_content_is_gone_through_once(
    ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every sync of a large dataset would, for as long as another one is damaged."""
    bob = on_another_machine(ann, "bob")
    bob.init(OTHERS)
    bob.write({"a": b"a"})
    bob.sync()
    flip(ann, ObjectKind.RECIPE)
    mark(ann)
    calls = []
    run = _Reupload.run
    monkeypatch.setattr(_Reupload, "run", lambda self: calls.append(1) or run(self))
    assert not bob.sync().reuploaded and calls == [1]
    assert not bob.sync().reuploaded and calls == [1]


def test_two_who_mark_at_once_lose_nothing(ann: Person) -> None:
    def adding(pack: PackId) -> object:
        def change(last: Damage | None) -> Damage:
            packs = () if last is None else last.packs
            return Damage(tuple(sorted({*packs, pack})), (), (), True, Nonce(bytes(16)), 0, "", "")

        return change

    with ann.context().repository() as one, ann.context().repository() as other:
        inner = adding(PackId(b"a" * 16))
        raced = []

        def change(last: Damage | None) -> Damage:
            if not raced:
                raced.append(1)
                mark_damage(other, ann.context().writer, adding(PackId(b"b" * 16)))  # type: ignore[arg-type]
            return inner(last)  # type: ignore[operator, no-any-return]

        mark_damage(one, ann.context().writer, change)
    with ann.context().repository() as repository:
        damage = read_damage(repository)
        assert damage is not None and damage.packs == (PackId(b"a" * 16), PackId(b"b" * 16))
        for number in range(20):
            mark_damage(repository, ann.context().writer, adding(PackId(bytes([number]) * 16)))  # type: ignore[arg-type]
        assert len(list(repository.store.list("gc/damage-"))) <= 10


@pytest.mark.parametrize("damaged", [True, False])
def test_a_complete_verification_writes_damaged_marks_anew(ann: Person, damaged: bool) -> None:
    flipped = flip(ann, ObjectKind.CHUNK) if damaged else []
    with ann.context().repository() as repository:
        some = Damage((), (), ((ObjectKind.CHUNK, Id(b"x" * 32)),), True, Nonce(bytes(16)), 0, "", "")
        mark_damage(repository, ann.context().writer, lambda _: some)
    path = Path(ann.store) / "gc" / "damage-0000000000000000"
    path.chmod(0o644)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    for short in (VerifyRequest(), VerifyRequest(budget=60.0)):
        with pytest.raises(IntegrityError) as refused:
            verify_store(ann.context(), short)
        assert "dsv verify --full" in (refused.value.hint or "")
    assert verify_store(ann.context(), VerifyRequest(full=True)).is_whole is not damaged
    with ann.context().repository() as repository:
        damage = read_damage(repository)
        assert damage is not None and len(damage.objects) == len(flipped) and not damage.packs
    assert verify_store(ann.context(), VerifyRequest()).is_whole is not damaged


def test_a_damaged_mark_ends_a_sync_and_is_written_anew(ann: Person) -> None:
    def mark_packs(_: Damage | None) -> Damage:
        return Damage((), (), ((ObjectKind.CHUNK, Id(b"x" * 32)),), True, Nonce(bytes(16)), 0, "", "")

    with ann.context().repository() as repository:
        mark_damage(repository, ann.context().writer, mark_packs)
    (path,) = (Path(ann.store) / "gc").glob("damage-*")
    path.chmod(0o644)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    ann.write({"new": b"new"})
    with pytest.raises(IntegrityError, match="damage-") as raised:
        ann.sync()
    assert "verify" in (raised.value.hint or "")
    with ann.context().repository() as repository:
        mark_damage(repository, ann.context().writer, mark_packs)
    assert ann.sync().any_change
