"""External packs: what is written is read, and nothing else is."""

from __future__ import annotations

import pytest
import zstandard
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from dsv.errors import IntegrityError, Unsupported
from dsv.format.codec import compress
from dsv.format.external import MAGIC, MAX_TEXT, Builder, ExternalPack, ExternalSource
from dsv.format.locator import PACK_MAX
from dsv.format.recipe import MAX_CHUNK
from dsv.values.ids import EXTERNAL_END, ChunkId, PackId
from tests.format.strategies import mutations

TEXTS = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20)
SOURCES = st.builds(ExternalSource, TEXTS, TEXTS, TEXTS, TEXTS, st.integers(0, (1 << 63) - 1))
SPANS = st.tuples(st.binary(min_size=32, max_size=32), st.integers(1, 4000), st.integers(0, 1 << 62))


@st.composite
def rows(draw: st.DrawFn) -> list[tuple[ChunkId, ExternalSource, int, int]]:
    """Chunks of a few files, each within its file."""
    sources = draw(st.lists(SOURCES.filter(lambda one: one.size > 4000), min_size=1, max_size=4))
    found = []
    for raw, length, start in draw(st.lists(SPANS, min_size=1, max_size=20)):
        source = draw(st.sampled_from(sources))
        found.append((ChunkId(raw), source, start % (source.size - length + 1), length))
    return found


def built(chunks: list[tuple[ChunkId, ExternalSource, int, int]]) -> ExternalPack:
    builder = Builder()
    places = [builder.add(*row) for row in chunks]
    found = builder.finish()
    assert [place for _, _, place in found.indexed(builder.pack)] == places
    for row, place in zip(chunks, places, strict=True):
        known = found.find(place.offset, place.length)
        assert known is not None and (known.id, known.source, known.start, known.length) == row
        assert found.find(place.offset, place.length + 1) is None
    return found


@given(rows())
def test_round_trip(chunks: list[tuple[ChunkId, ExternalSource, int, int]]) -> None:
    encoded = built(chunks).encode()
    assert ExternalPack.decode(encoded).encode() == encoded


@given(rows(), st.data())
def test_what_was_changed_is_refused(
    chunks: list[tuple[ChunkId, ExternalSource, int, int]], data: st.DataObject
) -> None:
    """Of the bytes, and of the columns with a right hash around them."""
    encoded = built(chunks).encode()
    changed = data.draw(mutations(encoded))
    if changed != encoded:
        with pytest.raises((IntegrityError, Unsupported)):
            ExternalPack.decode(changed)
    plain = zstandard.decompress(encoded[8:-40])
    body = MAGIC + compress(data.draw(mutations(plain)))
    hashed = body + blake3(body).digest() + MAGIC
    try:
        found = ExternalPack.decode(hashed)
    except (IntegrityError, Unsupported):
        return
    for at in range(len(found)):
        row = found.row(at)
        assert 0 < row.length <= MAX_CHUNK and row.start + row.length <= row.source.size


def test_limits() -> None:
    source = ExternalSource("s3://a/b", "", "", "", 1 << 40)
    builder = Builder()
    while not builder.is_full:
        builder.add(ChunkId(bytes(32)), source, 0, MAX_CHUNK)
    found = builder.finish()
    assert PACK_MAX - MAX_CHUNK < found.ends[-1] <= PACK_MAX
    assert ExternalPack.decode(found.encode()).ends == found.ends
    for one, start, reason in (
        (ExternalSource("file:///a", "", "", "", 5), 3, "behind the end"),
        (ExternalSource("x" * (MAX_TEXT + 1), "", "", "", 5), 0, "too long"),
    ):
        builder = Builder()
        builder.add(ChunkId(bytes(32)), one, start, 3)
        with pytest.raises(ValueError, match=reason):
            builder.finish().encode()


def test_only_ids_of_external_packs_end_as_those() -> None:
    assert PackId.external().is_external and PackId.external().endswith(EXTERNAL_END)
    assert not any(PackId.random().is_external for _ in range(100))
