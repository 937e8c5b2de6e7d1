from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv.upkeep import ids
from dsv.upkeep.ids import IdSet, Seen, is_in

few = st.binary(min_size=32, max_size=32)
alike = st.tuples(
    st.sampled_from([b"\0" * 8, b"\xff" * 8, b"a" * 7 + b"\0", b"a" * 8]),
    st.sampled_from([b"\0" * 8, b"b" * 8, b"\xff" * 8]),
).map(lambda parts: b"".join(parts) + b"\0" * 16)
batches = st.lists(st.lists(few | alike, max_size=20), max_size=20)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So that a few ids are written to the files several times, and sorted there several times."""
    monkeypatch.setattr(ids, "_HELD", 16)
    monkeypatch.setattr(ids, "_SLACK", 4)
    yield


def head(one: bytes) -> int:
    return int.from_bytes(one[:8], "big")


@given(batches)
def test_a_set_on_disk_has_what_was_added(
    tmp_path_factory: pytest.TempPathFactory, added: list[list[bytes]]
) -> None:
    folder = tmp_path_factory.mktemp("ids") / "set"
    known: set[int] = set()
    with IdSet(folder) as found:
        for batch in added:
            found.add(b"".join(batch))
            known.update(map(head, batch))
            if len(batch) % 3 == 0:
                assert len(found) == len(known)
        for first in range(256):
            wanted = sorted(one for one in known if one >> 56 == first)
            assert found.bucket(first).tolist() == wanted
    assert not folder.exists()


@given(batches)
def test_what_was_seen_is_not_new_again(added: list[list[bytes]]) -> None:
    seen, known = Seen(), set[bytes]()
    for batch in added:
        wanted = []
        for one in batch:
            wanted.append(one[:16] not in known)
            known.add(one[:16])
        assert seen.add(b"".join(batch)).tolist() == wanted
    assert len(seen) == len(known)


def test_half_an_id_is_refused(tmp_path: Path) -> None:
    with IdSet(tmp_path / "ids") as found, pytest.raises(ValueError, match="33 bytes"):
        found.add(b"x" * 33)


def test_nothing_is_in_an_empty_set() -> None:
    assert not is_in(np.array([0, 2**64 - 1], np.uint64), np.zeros(0, np.uint64)).any()
