"""Contents that come many at a time are stored as those that come one by one."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsv.format.codec import Compressor
from dsv.format.keys import INDEX_PREFIX
from dsv.format.locator import ObjectKind
from dsv.format.pack import Packed
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.stores.memory import MemoryStore
from dsv.transfer import packing
from dsv.transfer import upload as upload_module
from dsv.transfer.upload import Uploader
from dsv.values.ids import ChunkId
from tests.kit.packs import verify
from tests.kit.repositories import WRITER, condemn, create, packs, store_content

CONTENTS = st.integers(0, 40).map(lambda number: bytes([number]) * (40 * number) + b"end")
STEPS = st.lists(st.lists(CONTENTS, min_size=1, max_size=12), min_size=1, max_size=8)


def packed(contents: list[bytes]) -> Packed:
    made = [Compressor().pack(content) for content in contents]
    return Packed(
        [ChunkId.hash(content) for content in contents],
        bytes(codec for codec, _ in made),
        list(map(len, contents)),
        [len(data) for _, data in made],
        memoryview(b"".join(data for _, data in made)),
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=STEPS, before=st.lists(CONTENTS, max_size=5), target=st.sampled_from([300, 1000, 1 << 20]))
def test_whatever_is_known_or_there_twice(
    monkeypatch: pytest.MonkeyPatch, steps: list[list[bytes]], before: list[bytes], target: int
) -> None:
    """With contents that the store has, some that come again, and packs that end in the middle of a batch."""
    monkeypatch.setattr(packing, "PACK_TARGET", target)
    repository = create(MemoryStore())
    with Session.open(repository, WRITER) as session, Uploader(session) as uploader:
        known = {content: uploader.add_bytes(content).location for content in before}
        uploader.finish()
    with Session.open(repository, WRITER) as session, Uploader(session) as uploader:
        places = dict(known)
        for contents in steps:
            for content, place in zip(contents, uploader.add_all(packed(contents)), strict=True):
                assert places.setdefault(content, place) == place  # stored once
                assert uploader.add_bytes(content).location == place
        uploader.finish()
    fresh = Repository.open(repository.store, None)
    for content, place in places.items():
        assert place is not None
        chunk_id = ChunkId.hash(content)
        assert fresh.objects.find(ObjectKind.CHUNK, chunk_id) == place
        assert fresh.objects.read(ObjectKind.CHUNK, chunk_id, place) == content


def test_a_full_index_is_written_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload_module, "INDEX_ROWS", 100)
    store = MemoryStore()
    with Session.open(create(store), WRITER) as session, Uploader(session) as uploader:
        for batch in range(5):
            uploader.add_all(packed([b"%d of %d" % (number, batch) for number in range(60)]))
        assert len(list(store.list(INDEX_PREFIX))) == 2
        uploader.finish()
    assert len(list(store.list(INDEX_PREFIX))) == 3


def test_a_large_content_is_not_stored_while_a_chunk_of_it_is_condemned() -> None:
    """Though its recipe, which lies in another pack, is."""
    repository = create(MemoryStore())
    content = random.Random(1).randbytes(3 << 20)
    with Session.open(repository, WRITER) as session, Uploader(session) as uploader:
        stored = store_content(uploader, content)
        uploader.finish()
    ids = stored.size, stored.file_id, stored.recipe_id
    chunks = [key for key in packs(repository) if ObjectKind.CHUNK in verify(repository.store.get(key)).kinds]
    assert len(chunks) == 1 and len(packs(repository)) == 2
    with Session.open(repository, WRITER) as session, Uploader(session) as uploader:
        assert uploader.find(*ids) == stored
    condemn(repository, 0, chunks)
    with Session.open(repository, WRITER) as session, Uploader(session) as uploader:
        assert uploader.find(*ids) is None
        again = store_content(uploader, content)
        assert uploader.find(*ids) == again
        uploader.finish()
    repository.store.delete(chunks[0])
    objects = Repository.open(repository.store, None).objects
    assert stored.recipe_id is not None
    recipe, _ = objects.recipe(stored.recipe_id, again.location)
    assert b"".join(objects.read(ObjectKind.CHUNK, one) for one in recipe.children()) == content
