from __future__ import annotations

import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from dsv.errors import IntegrityError
from dsv.format.locator import ObjectKind
from dsv.format.tree import Entry, Kind
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.repo.tree.reader import TreeReader
from dsv.stores.base import StoreBackend
from dsv.stores.memory import MemoryStore
from dsv.stores.open import OpenStore
from dsv.transfer.download import Fetcher, Layout, ReferenceCopy, WantedFile, reference_chunks
from dsv.transfer.upload import Uploader
from dsv.values.ids import FileId, RecipeId
from tests.kit.repositories import WRITER, commit, create, read, store_content
from tests.stores.faulty import Fault, Faulty, Operation
from tests.stores.faulty import Kind as FaultKind


def random_files(count: int, size: int) -> dict[str, bytes | None]:
    rng = random.Random(count)
    return {f"d{n // 100}/f{n:05}": rng.randbytes(rng.randrange(size)) for n in range(count)}


def wanted_of(repository: Repository, head) -> list[WantedFile]:  # type: ignore[no-untyped-def]
    return [WantedFile(entry, where) for entry, where in TreeReader(repository.objects, head).below(b"")]


def test_many_small_files_take_few_requests() -> None:
    store = OpenStore(MemoryStore())
    repository = create(store)
    files = random_files(3000, 9000)
    head = commit(repository, files)
    before = store.counts
    assert read(Repository.open(store, None), head) == files
    spent = store.counts - before
    assert spent.requests < 16, spent
    assert spent.bytes_down < sum(len(data or b"") for data in files.values()) * 1.05


def test_what_was_edited_here_and_there_takes_few_requests_too() -> None:
    """Old and new files lie in packs by turns; all that a window wants of one pack is one read nevertheless."""
    store = OpenStore(MemoryStore())
    repository = create(store)
    files = random_files(3000, 9000)
    commit(repository, files)
    for edit in range(3):
        changed = {name: bytes([edit]) * 5000 + name.encode() for name in list(files)[edit::100]}
        files |= changed
        head = commit(repository, changed)
    before = store.counts
    assert read(Repository.open(store, None), head) == files
    spent = store.counts - before
    assert spent.requests < 24, spent  # 90 files changed: they alone would be 180 requests


def test_the_recipes_of_neighbours_take_one_request() -> None:
    store = OpenStore(MemoryStore())
    repository = create(store)
    files: dict[str, bytes | None] = {f"{number:02}": bytes([number]) * 1_100_000 for number in range(40)}
    head = commit(repository, files)
    before = store.counts
    assert read(Repository.open(store, None), head) == files
    spent = store.counts - before
    assert spent.requests < 10, spent


@pytest.mark.parametrize("views", [False, True])
def test_a_large_piece_is_a_view_only_if_that_was_asked_for(views: bool) -> None:
    repository = create(MemoryStore())
    content = random.Random(9).randbytes(3 << 20)
    wanted = wanted_of(repository, commit(repository, {"large": content}))
    fetched = Fetcher(repository.objects, views=views).files(wanted)
    found = [*next(fetched)[1]]
    assert b"".join(found) == content
    assert {type(piece) for piece in found} == {memoryview if views else bytes}


@pytest.mark.parametrize("where", [40, 1 << 19, (3 << 20) - 1])
def test_no_piece_of_a_large_file_is_given_unchecked(where: int) -> None:
    """By whichever thread: one wrong byte of what a server sends is found."""
    content = random.Random(9).randbytes(3 << 20)

    class Wrong(MemoryStore):
        def get_range(self, key: str, start: int, length: int) -> memoryview:
            found = bytearray(super().get_range(key, start, length))
            before = content[max(0, where - 32) : where + 1]
            if (at := found.find(before)) >= 0:
                found[at + len(before) - 1] ^= 1
            return memoryview(found)

    store = Wrong()
    repository = create(store)
    wanted = wanted_of(repository, commit(repository, {"large": content}))
    fetched = Fetcher(repository.objects, views=True).files(wanted)
    given = b""
    with pytest.raises(IntegrityError):
        for piece in next(fetched)[1]:
            given += piece
    assert content.startswith(given) and len(given) <= where


def test_files_come_in_the_order_asked_for_and_may_be_left_unread() -> None:
    repository = create(MemoryStore())
    files = {
        **random_files(50, 3000),
        "big-a": random.Random(5).randbytes(7 << 20),
        "big-b": b"ab" * (3 << 20),
    }
    wanted = wanted_of(repository, commit(repository, files))
    random.Random(1).shuffle(wanted)
    got = []
    for number, (file, pieces) in enumerate(Fetcher(repository.objects).files(wanted)):
        got.append(file)
        if number % 3:
            assert b"".join(pieces) == files[file.entry.path.decode()]
    assert got == wanted


def test_unchanged_chunks_come_from_the_older_file(tmp_path: Path) -> None:
    store = OpenStore(MemoryStore())
    repository = create(store)
    content = random.Random(3).randbytes(24 << 20)
    one = commit(repository, {"f": content})
    changed = content[: 11 << 20] + b"inserted" + content[11 << 20 :]
    two = commit(repository, {"f": changed})
    (tmp_path / "old").write_bytes(content)
    entry, where = TreeReader(repository.objects, one).entry(b"f") or pytest.fail("no entry")
    assert entry.recipe_id is not None
    reference = ReferenceCopy(tmp_path / "old", reference_chunks(repository.objects, entry.recipe_id, where))
    entry, where = TreeReader(repository.objects, two).entry(b"f") or pytest.fail("no entry")
    fetcher = Fetcher(repository.objects)
    [(_, pieces)] = [
        (file, b"".join(parts)) for file, parts in fetcher.files([WantedFile(entry, where, reference)])
    ]
    assert pieces == changed
    assert 0 < fetcher.fetched_bytes < 9 << 20
    # A donor that is not what it was costs a fetch, nothing else.
    (tmp_path / "old").write_bytes(content[: 9 << 20] + bytes(15 << 20))
    [pieces] = [
        b"".join(parts)
        for _, parts in Fetcher(repository.objects).files([WantedFile(entry, where, reference)])
    ]
    assert pieces == changed
    (tmp_path / "old").unlink()
    [pieces] = [
        b"".join(parts)
        for _, parts in Fetcher(repository.objects).files([WantedFile(entry, where, reference)])
    ]
    assert pieces == changed


@pytest.mark.parametrize(
    "content", [random.Random(9).randbytes(6 << 20), bytes(3 << 20)], ids=["", "one chunk"]
)
def test_a_recipe_that_is_not_its_file_is_refused(content: bytes) -> None:
    repository = create(MemoryStore())
    with Session.open(repository, WRITER) as session, Uploader(session) as uploader:
        stored = store_content(uploader, content)
        uploader.finish()
    liar = Entry(b"f", Kind.FILE, stored.size, FileId(b"\1" * 32), stored.recipe_id)
    with pytest.raises(IntegrityError, match="not its file"):
        for _, pieces in Fetcher(repository.objects).files([WantedFile(liar, stored.location)]):
            list(pieces)
    short = Entry(b"f", Kind.FILE, stored.size + 1, stored.file_id, stored.recipe_id)
    with pytest.raises(IntegrityError, match="not its file"):
        for _, pieces in Fetcher(repository.objects).files([WantedFile(short, stored.location)]):
            list(pieces)


@pytest.mark.parametrize("reference", [True, False])
def test_a_chunk_that_is_longer_than_its_file_says_is_refused(tmp_path: Path, reference: bool) -> None:
    repository = create(MemoryStore())
    content = random.Random(4).randbytes(6 << 20)
    [file] = wanted_of(repository, commit(repository, {"f": content}))
    first = next(Layout(repository.objects, file.entry, file.location).parts(0, 1))
    (tmp_path / "old").write_bytes(content)
    older = ReferenceCopy(tmp_path / "old", {first.chunk: (0, first.length)}) if reference else None
    liar = replace(file, reference=older, parts=[replace(first, length=1)])
    with pytest.raises(IntegrityError, match="not its file"):
        for _, pieces in Fetcher(repository.objects).files([liar]):
            list(pieces)


def test_the_rest_of_a_file_that_is_not_used_is_not_read() -> None:
    """Nor is the next file lost."""
    store = OpenStore(MemoryStore())
    repository = create(store)
    files: dict[str, bytes | None] = {"a": random.Random(5).randbytes(64 << 20), "b": b"b"}
    wanted = wanted_of(repository, commit(repository, files))
    before = store.counts
    fetched = Fetcher(repository.objects, budget=4 << 20, connections=1).files(wanted)
    next(next(fetched)[1])
    assert b"".join(next(fetched)[1]) == b"b"
    assert (store.counts - before).bytes_down < 32 << 20


def test_a_missing_recipe_is_an_integrity_error() -> None:
    repository = create(MemoryStore())
    entry = Entry(b"f", Kind.FILE, 5 << 20, FileId(b"\1" * 32), RecipeId(b"\2" * 32))
    with pytest.raises(IntegrityError, match="recipe 0202"):
        for _, pieces in Fetcher(repository.objects).files([WantedFile(entry)]):
            list(pieces)


@pytest.mark.parametrize("kind", [FaultKind.FLIPPED, FaultKind.TRUNCATED, FaultKind.SHORT])
def test_one_bad_read_is_read_again_and_two_are_an_error(kind: FaultKind) -> None:
    inner = MemoryStore()
    files = random_files(20, 3000)
    head = commit(create(inner), files)

    def attempt(store: StoreBackend) -> dict[str, bytes | None]:
        return read(Repository.open(store, None), head)

    # The third ranged read is that of the data; node and segment come before it.
    assert attempt(Faulty(inner, {3: Fault(kind)}, only=[Operation.RANGE])) == files
    with pytest.raises(IntegrityError):
        attempt(Faulty(inner, always=Fault(kind), only=[Operation.RANGE]))


def test_equal_contents_are_stored_once() -> None:
    repository = create(MemoryStore())
    big = random.Random(4).randbytes(3 << 20)
    with Session.open(repository, WRITER) as session, Uploader(session) as uploader:
        first = store_content(uploader, big)
        again = store_content(uploader, big)
        assert first == again
        assert store_content(uploader, b"small") == store_content(uploader, b"small")
        uploader.finish()
    with Session.open(repository, WRITER) as session, Uploader(session) as uploader:
        assert store_content(uploader, big) == first
        found = uploader.find(first.size, first.file_id, first.recipe_id)
        assert found == first
        uploader.finish()
        assert uploader.uploaded_bytes == 0
    assert session.find(ObjectKind.CHUNK, FileId.hash(b"small")) is not None
