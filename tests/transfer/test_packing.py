"""The memory of packs, which is filled again and again, and how packs are sent."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from dsv.errors import Denied
from dsv.format.codec import Codec
from dsv.format.keys import PACK_PREFIX
from dsv.format.locator import ObjectKind
from dsv.format.pack import PACK_TARGET, PackBuilder
from dsv.repo.session import Session
from dsv.stores.base import Bytes, PutResult
from dsv.stores.memory import MemoryStore
from dsv.transfer import packing
from dsv.transfer.packing import Memory, SealedPack, Sender
from dsv.values.ids import ChunkId, PackId
from tests.kit.repositories import WRITER, create


class Refusing(MemoryStore):
    """Takes everything but the pack of this content."""

    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        if key.startswith(PACK_PREFIX) and bytes(data) == b"refused":
            raise Denied("the store refused this pack", subject=key)
        return super().put_if_absent(key, data)


class SeenTooSoon(ThreadPoolExecutor):
    """Its work is not done yet at the first look, and is at the second."""

    def submit(self, work, /, *args, **options):  # type: ignore[no-untyped-def]
        future = super().submit(work, *args, **options)
        future.done = self._looks(future, future.done)  # type: ignore[method-assign]
        return future

    @staticmethod
    def _looks(future: Future[None], done: Callable[[], bool]) -> Callable[[], bool]:
        answers = iter([False])

        def look() -> bool:
            answer = next(answers, True)
            return answer and bool(futures.wait([future]).done) and done()

        return look


@pytest.fixture
def session() -> Iterator[Session]:
    with Session.open(create(Refusing()), WRITER) as session:
        yield session


class Finished(PackBuilder):
    """A pack of this content, without a table."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    @property
    def size(self) -> int:
        return len(self._content)

    def finish(self) -> memoryview:
        return memoryview(self._content)


def sealed(content: bytes) -> SealedPack:
    return SealedPack(PackId.random(), Finished(content), [])


def test_a_pack_that_fails_at_any_moment_is_not_taken_for_stored(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "ThreadPoolExecutor", SeenTooSoon)
    sender = Sender(session, lambda *_: None, Memory())
    with pytest.raises(Denied):
        sender.send(sealed(b"refused"))
        sender.send(sealed(b"another"))
        sender.wait()
    sender.close()


def test_after_a_failure_every_call_fails(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often somebody has let it pass; and none waits for room that nothing will give back."""
    monkeypatch.setattr(packing, "IN_FLIGHT", 100)
    stored: list[PackId] = []
    sender = Sender(session, lambda pack, *_: stored.append(pack), Memory())
    sender.send(sealed(b"refused"))
    with pytest.raises(Denied):
        sender.wait()
    for _ in range(3):
        with pytest.raises(Denied):
            sender.send(sealed(bytes(90)))
        with pytest.raises(Denied):
            sender.wait()
    sender.close()
    assert not stored


def packed(contents: list[bytes], memory: bytearray | None = None) -> memoryview:
    builder = PackBuilder(memory)
    for content in contents:
        builder.add(ObjectKind.CHUNK, ChunkId.hash(content), Codec.RAW, content, len(content))
    return builder.finish()


def test_a_pack_is_the_same_whatever_its_memory_held_before() -> None:
    contents = [bytes([number]) * 70_000 for number in range(40)]
    assert packed(contents, bytearray(b"\xff" * 500)) == packed(contents)
    assert packed(contents, bytearray(b"\xff" * 10_000_000)) == packed(contents)
    assert packed(contents[:1], bytearray(b"\xff" * 10_000_000)) == packed(contents[:1])


def test_memory_is_taken_again_once_its_pack_is_stored() -> None:
    memory = Memory()
    assert memory.take() is None
    whole = packed([b"x" * PACK_TARGET])
    was = whole.obj
    memory.give(whole)
    assert memory.take() is was
    assert memory.take() is None


def test_memory_that_somebody_still_reads_is_left_to_him() -> None:
    memory = Memory()
    whole = packed([b"x" * PACK_TARGET])
    part = whole[100:200]
    memory.give(whole)
    assert memory.take() is None
    assert part == b"x" * 100


def test_memory_is_not_taken_from_a_request_that_is_not_over() -> None:
    memory = Memory()
    whole = packed([b"x" * PACK_TARGET])
    request = pickle.PickleBuffer(whole)  # holds it as a client's request does
    memory.give(whole)
    assert memory.take() is None
    assert len(request.raw()) == len(whole)


def test_the_memory_of_small_packs_is_not_kept() -> None:
    memory = Memory()
    memory.give(packed([b"x"]))
    assert memory.take() is None
