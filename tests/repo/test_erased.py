"""What is reserved: the tombstone of a dataset, written by hand, and the marks of an encrypted store."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from blake3 import blake3
from msgspec.structs import replace

from dsv import reader
from dsv.errors import Conflict, IntegrityError, NotFound, Unsupported
from dsv.format import keys
from dsv.format.records import DatasetErased, FormatEntry, RefEntry, erased_id
from dsv.repo.format_log import features
from dsv.repo.repository import Repository
from dsv.stores.base import StoreBackend
from dsv.stores.directory import DirectoryStore
from dsv.stores.memory import MemoryStore
from dsv.values.ids import Nonce, StoreId
from dsv.values.names import MAIN, DatasetName
from tests.kit.dsv import Dsv
from tests.kit.packs import verify
from tests.kit.repositories import DATASET, commit, create, packs

OTHER = DatasetName.parse("scans-2")


def bury(store: StoreBackend, dataset: DatasetName = DATASET, successor: DatasetName | None = OTHER) -> None:
    """Puts the tombstone."""
    store_id = Repository.open(store, None).id
    made = DatasetErased(Nonce.random(), 1_790_000_000_000, successor, "a patient asked for it")
    store.put_if_absent(keys.erased_key(erased_id(store_id, dataset)), made.encode())


def moves(store: StoreBackend) -> list[str]:
    """Of the dataset, the oldest first."""
    return sorted((item.key for item in store.list(f"refs/{DATASET.component}/")), reverse=True)


def world(store: StoreBackend) -> StoreBackend:
    repository = create(store)
    for number in range(3):
        commit(repository, {f"f{number}": b"x"})
    return store


def test_a_read_of_an_erased_dataset_says_that_it_was_erased() -> None:
    store = world(MemoryStore())
    bury(store)
    for key in moves(store):
        store.delete(key)
    refs = Repository.open(store, None).refs
    assert refs.datasets() == []
    for ask in (lambda: refs.require(DATASET), lambda: refs.head(DATASET, MAIN)):
        with pytest.raises(NotFound, match=r"scans was erased from .*a patient asked for it") as caught:
            ask()
        assert "dsv log scans-2" in (caught.value.hint or "")


def test_no_successor_is_named_if_there_is_none() -> None:
    store = world(MemoryStore())
    bury(store, successor=None)
    for key in moves(store):
        store.delete(key)
    with pytest.raises(NotFound) as caught:
        Repository.open(store, None).refs.require(DATASET)
    assert caught.value.hint == "it does not come back; dsv datasets lists what is there"


@pytest.mark.parametrize("deleted", [1, 2, 3, 4])
def test_while_it_is_erased_a_reader_finds_the_head_or_the_tombstone(deleted: int) -> None:
    """The oldest moves go first. Without the tombstone this would be damage."""
    store = world(MemoryStore())
    bury(store)
    for key in moves(store)[:deleted]:
        store.delete(key)
    refs = Repository.open(store, None).refs
    try:
        head = refs.head(DATASET, MAIN)
    except NotFound as error:
        assert "was erased" in error.message and deleted >= 3
        return
    assert head.number == 3 and deleted < 3
    with pytest.raises(NotFound, match="was erased"):
        list(refs.history(head))


def test_a_head_that_was_listed_and_went_with_its_dataset_is_no_damage() -> None:
    store = world(MemoryStore())
    refs = Repository.open(store, None).refs
    refs.expect(DATASET, MAIN)
    bury(store)
    for key in moves(store):
        store.delete(key)
    with pytest.raises(NotFound, match="was erased"):
        refs.head(DATASET, MAIN)


def test_without_a_tombstone_a_gap_is_still_damage() -> None:
    store = world(MemoryStore())
    for key in moves(store)[:3]:
        store.delete(key)
    with pytest.raises(IntegrityError):
        Repository.open(store, None).refs.head(DATASET, MAIN)


def test_the_name_is_not_used_again() -> None:
    store = world(MemoryStore())
    bury(store)
    for key in moves(store):
        store.delete(key)
    refs = Repository.open(store, None).refs
    first = RefEntry(None, False, Nonce.random(), 0, "a", "init")
    with pytest.raises(Conflict, match="its name is not used again"):
        refs.move(DATASET, MAIN, None, first)
    assert moves(store) == []
    refs.move(OTHER, MAIN, None, first)


def test_the_tombstone_does_not_say_the_name() -> None:
    one, other = (StoreId(bytes([number]) * 16) for number in (1, 2))
    key = keys.erased_key(erased_id(one, DATASET))
    assert "scans" not in key
    assert key != keys.erased_key(erased_id(other, DATASET)), (
        "nobody can look names up for all stores at once"
    )


def test_each_command_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    store = world(DirectoryStore(folder))
    dsv = Dsv.of(tmp_path / "person", DSV_STORE=str(folder))
    bury(store)
    for key in moves(store):
        store.delete(key)
    (dsv.cwd / "file").write_bytes(b"x")
    for arguments in (
        ["log", "scans"],
        ["clone", "scans"],
        ["ls", "scans"],
        ["put", "file", "scans", "-m", "x"],
    ):
        result = dsv(*arguments)
        assert result.code == 3 and "was erased" in result.err and "hint:" in result.err, (arguments, result)
    (dsv.cwd / "new").mkdir()
    result = dsv.at(dsv.cwd / "new")("init", "scans")
    assert result.code == 4 and "its name is not used again" in result.err, result
    assert dsv("datasets").code == 0
    with pytest.raises(reader.StoreError, match=r"was erased from the store: a patient .* is in scans-2"):
        reader.restore(folder, "scans", tmp_path / "out")


# --- an encrypted store


def encrypted(tmp_path: Path, **changes: object) -> Path:
    folder = tmp_path / "store"
    folder.mkdir()
    first = FormatEntry(
        StoreId.random(), Nonce.random(), 0, "a", "a newer dsv", features=features("encrypted")
    )
    entry = replace(first, **changes)  # type: ignore[arg-type]
    DirectoryStore(folder).put_if_absent(keys.format_key(0), entry.encode())
    return folder


@pytest.mark.parametrize("changes", [{}, {"hash": "blake3-keyed"}], ids=["feature", "keyed"])
def test_an_encrypted_store_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    folder = encrypted(tmp_path, **changes)
    with pytest.raises(Unsupported, match="uses 'encrypted', which this dsv cannot read"):
        Repository.open(DirectoryStore(folder), None)
    with pytest.raises(reader.StoreError, match=r"encrypted|blake3-keyed"):
        reader.restore(folder, "scans", tmp_path / "out")
    dsv = Dsv.of(tmp_path, tmp_path, DSV_STORE=str(folder))
    for command in ("datasets", "log"):
        result = dsv(command, *(["scans"] if command == "log" else []))
        assert result.code == 9 and "'encrypted'" in result.err and "hint:" in result.err


def test_keyed_ids_are_refused_without_the_feature_too(tmp_path: Path) -> None:
    folder = encrypted(tmp_path, hash="blake3-keyed", features=())
    with pytest.raises(Unsupported, match="hashes or cuts files in a way"):
        Repository.open(DirectoryStore(folder), None)


def test_a_pack_with_a_cipher_is_refused_and_a_damaged_one_is_damage() -> None:
    store = world(MemoryStore())
    data = bytearray(store.get(packs(Repository.open(store, None))[0]))
    assert struct.unpack_from("<I", data, len(data) - 44) == (0,)
    struct.pack_into("<I", data, len(data) - 44, 1)
    with pytest.raises(IntegrityError):
        verify(bytes(data))
    data[-40:-8] = blake3(bytes(data[:-40])).digest()
    with pytest.raises(Unsupported, match="a pack is encrypted"):
        verify(bytes(data))
