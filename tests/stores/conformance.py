"""What every store and every wrapper must do. A subclass names how one is made; see test_conformance.py."""

from __future__ import annotations

import hashlib
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import pytest

from dsv.errors import IntegrityError, NotFound
from dsv.stores.base import CutShortError, PutResult, StoreBackend, TooLargeError
from dsv.stores.options import StoreOptions
from dsv.stores.probe import prove
from tests.stores.outside import Outside
from tests.stores.racers import race_processes
from tests.waiting import PATIENCE

UNUSUAL_KEYS = [
    "a",
    "team-a%2Flungs/branches/main/ffffffffffffffff",
    "a%20b/c%00",
    "%",
    "plus+equals=at@comma,bang!",
    "~",
    "trailing.",
    "double..dot",
    "-dash",
    "_/__/___",
    "UPPER/lower",
    "upper/LOWER",
    "x" * 255,
    "/".join(["deep"] * 40),
]
NO_KEYS = [
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "../a",
    "a/../b",
    "a/./b",
    ".hidden",
    "a/.tmp",
    "a b",
    "é",
    "a\n",
]
NO_KEYS += ["a\0b", "a?b", "a#b", "a*", "C:\\x", "x" * 256, "y/" * 500 + "y"]
WRITERS = 16


@dataclass(frozen=True, slots=True)
class Subject:
    """A new, empty store, the way around it, and how another process opens it (None: it can't)."""

    store: StoreBackend
    outside: Outside
    opening: tuple[str, StoreOptions] | None = None


ANSWERS: Final = (
    "test_has_the_protocol",
    "test_puts_what_others_then_read",
    "test_reads_what_others_have_put",
    "test_never_overwrites",
    "test_reads_no_object_beyond_its_limit",
    "test_ranges_are_exact",
    "test_range_past_the_end_is_an_integrity_error",
    "test_absent_key",
    "test_lists_what_comes_after",
    "test_lists_folders_without_what_is_in_them",
    "test_tells_when_an_object_was_made",
    "test_deletes_one_and_only_once",
    "test_one_of_many_threads_wins",
    "test_is_proven",
)
"""The `runs` of a wrapper: each call once, as the values and keys are the business of the store below."""


class StoreConformance:
    """Inherit, and define a fixture `subject` that yields a Subject."""

    many = 1100
    """Objects that make more than one page of a listing."""

    @pytest.fixture
    def store(self, subject: Subject) -> StoreBackend:
        return subject.store

    @pytest.fixture
    def outside(self, subject: Subject) -> Outside:
        return subject.outside

    def test_has_the_protocol(self, store: StoreBackend) -> None:
        assert isinstance(store, StoreBackend)
        assert "secret" not in store.url
        assert store.free_bytes() is None or store.free_bytes() > 0  # type: ignore[operator]

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_puts_what_others_then_read(self, store: StoreBackend, outside: Outside, kind: type) -> None:
        assert store.put_if_absent("a/b", kind(b"some bytes")) is PutResult.WON
        assert outside.get("a/b") == b"some bytes"
        assert outside.keys() == {"a/b"}

    def test_puts_a_part_of_a_buffer(self, store: StoreBackend, outside: Outside) -> None:
        assert store.put_if_absent("part", memoryview(b"0123456789")[3:7]) is PutResult.WON
        assert outside.get("part") == b"3456"

    def test_reads_what_others_have_put(self, store: StoreBackend, outside: Outside) -> None:
        outside.put("a/b", b"some bytes")
        whole, part = store.get("a/b"), store.get_range("a/b", 5, 5)
        assert type(whole) is bytes and whole == b"some bytes"
        assert type(part) is memoryview and bytes(part) == b"bytes"
        assert part.format == "B" and part.c_contiguous and part.readonly

    def test_never_overwrites(self, store: StoreBackend, outside: Outside) -> None:
        assert store.put_if_absent("k", b"first") is PutResult.WON
        assert store.put_if_absent("k", b"second") is PutResult.LOST
        assert store.put_if_absent("k", b"") is PutResult.LOST
        assert outside.get("k") == b"first"
        outside.put("other", b"theirs")
        assert store.put_if_absent("other", b"mine") is PutResult.LOST
        assert outside.get("other") == b"theirs"

    def test_empty_value(self, store: StoreBackend, outside: Outside) -> None:
        assert store.put_if_absent("empty", b"") is PutResult.WON
        assert outside.get("empty") == store.get("empty") == b""
        assert [item.size for item in store.list("empty")] == [0]
        assert bytes(store.get_range("empty", 0, 0)) == b""
        with pytest.raises(CutShortError):
            store.get_range("empty", 0, 1)
        assert store.put_if_absent("empty", b"x") is PutResult.LOST

    def test_big_value(self, store: StoreBackend, outside: Outside) -> None:
        value = random.Random(1).randbytes(9_000_001)
        assert store.put_if_absent("big", value) is PutResult.WON
        stored = outside.get("big")
        assert stored is not None and hashlib.sha256(stored).digest() == hashlib.sha256(value).digest()
        assert store.get("big") == value
        assert store.get_range("big", 123, 8_388_608) == value[123 : 123 + 8_388_608]

    def test_reads_no_object_beyond_its_limit(self, store: StoreBackend, outside: Outside) -> None:
        outside.put("k", b"12345")
        assert store.get("k", 5) == b"12345"
        for limit in (0, 4):
            with pytest.raises(TooLargeError, match="more than the"):
                store.get("k", limit)

    def test_ranges_are_exact(self, store: StoreBackend, outside: Outside) -> None:
        value = random.Random(2).randbytes(4096)
        outside.put("ranges", value)
        chance = random.Random(3)
        edges = [(0, 1), (0, 4096), (4095, 1), (1, 4095), (4096, 0), (9999, 0)]
        for start, length in edges + [self._some_range(chance, 4096) for _ in range(20)]:
            got = store.get_range("ranges", start, length)
            assert len(got) == length and got == value[start : start + length]

    @staticmethod
    def _some_range(chance: random.Random, size: int) -> tuple[int, int]:
        start = chance.randrange(size)
        return start, chance.randint(1, size - start)

    @pytest.mark.parametrize(("start", "length"), [(0, 11), (9, 2), (10, 1), (500, 5)])
    def test_range_past_the_end_is_an_integrity_error(
        self, store: StoreBackend, outside: Outside, start: int, length: int
    ) -> None:
        outside.put("ten", b"0123456789")
        with pytest.raises(IntegrityError, match="cut short") as caught:
            store.get_range("ten", start, length)
        assert caught.value.subject == "ten"

    def test_senseless_ranges(self, store: StoreBackend, outside: Outside) -> None:
        outside.put("ten", b"0123456789")
        for start, length in [(-1, 1), (0, -1)]:
            with pytest.raises(ValueError, match="range"):
                store.get_range("ten", start, length)

    @pytest.mark.parametrize("key", ["absent", "there/absent", "there/key/absent/deep", "ther"])
    def test_absent_key(self, store: StoreBackend, outside: Outside, key: str) -> None:
        outside.put("there/other", b"x")
        calls: list[Callable[[], object]] = [lambda: store.get(key), lambda: store.get_range(key, 0, 1)]
        for call in calls:
            with pytest.raises(NotFound) as caught:
                call()
            assert caught.value.subject == key

    def test_refuses_what_is_no_key(self, store: StoreBackend, outside: Outside) -> None:
        calls: list[Callable[[str], object]] = [
            store.get,
            lambda key: store.get_range(key, 0, 1),
            lambda key: store.put_if_absent(key, b"x"),
            store.delete,
        ]
        for key, call in itertools.product(NO_KEYS, calls):
            with pytest.raises(ValueError, match="key"):
                call(key)
        for prefix in ["/", "..", "../", "a/../", "a//", "a b", "é"]:
            with pytest.raises(ValueError, match="key"):
                list(store.list(prefix))
        assert outside.keys() == set()

    def test_unusual_keys(self, store: StoreBackend, outside: Outside) -> None:
        for key in UNUSUAL_KEYS:
            assert store.put_if_absent(key, key.encode()) is PutResult.WON
        assert outside.keys() == set(UNUSUAL_KEYS)
        assert {item.key for item in store.list("")} == set(UNUSUAL_KEYS)
        for key in UNUSUAL_KEYS:
            assert outside.get(key) == store.get(key) == key.encode()
            assert [item.key for item in store.list(key)][:1] == [key]
            store.delete(key)
        assert outside.keys() == set()

    KEYS = ("a-b", "a.b/x", "a/b/c", "a/b/d", "a/b2", "a/bb", "a/z/1", "a0", "b/1", "b/10", "b/9", "b~")

    def _listed(self, store: StoreBackend, prefix: str, start_after: str | None = None) -> list[str]:
        found = [item.key for item in store.list(prefix, start_after)]
        return found if store.ordered_listing else sorted(found)

    def test_lists_a_prefix_in_order(self, store: StoreBackend, outside: Outside) -> None:
        for key in random.Random(4).sample(self.KEYS, len(self.KEYS)):
            outside.put(key, b"x" * len(key))
        for prefix in ["", "a", "a/", "a/b", "a/b/", "a/b/c", "a/b/cc", "b/1", "b/2", "zz", "a!"]:
            expected = [key for key in sorted(self.KEYS) if key.startswith(prefix)]
            assert self._listed(store, prefix) == expected, prefix
        assert all(item.size == len(item.key) for item in store.list(""))

    def test_lists_what_comes_after(self, store: StoreBackend, outside: Outside) -> None:
        for key in self.KEYS:
            outside.put(key, b"x")
        afters = [*self.KEYS, "a/b", "a/b/", "a", "0", "~", "b/1/5", "a/b/cc"]
        for prefix, after in itertools.product(["", "a/", "a/b", "b/"], afters):
            expected = [key for key in sorted(self.KEYS) if key.startswith(prefix) and key > after]
            assert self._listed(store, prefix, after) == expected, (prefix, after)

    def test_lists_folders_without_what_is_in_them(self, store: StoreBackend, outside: Outside) -> None:
        for key in [*self.KEYS, "refs/a%2Fb/x/y", "refs/a/x", "refs/a-b/x", "refs/plain", "refs/B/x"]:
            outside.put(key, b"x")
        assert store.folders("refs/") == ["B", "a", "a%2Fb", "a-b"]
        assert store.folders("refs/a%2Fb/") == ["x"]
        assert store.folders("refs/a/") == store.folders("none/") == []
        assert store.folders("") == sorted({"refs"} | {key.split("/")[0] for key in self.KEYS if "/" in key})
        with pytest.raises(ValueError, match="not a folder"):
            store.folders("refs")

    def test_lists_more_folders_than_a_page_has(self, store: StoreBackend) -> None:
        keys = [f"wide/{number:05}/x" for number in range(self.many)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: store.put_if_absent(key, b""), keys))
        assert store.folders("wide/") == [key.split("/")[1] for key in keys]

    def test_lists_more_than_a_page(self, store: StoreBackend, outside: Outside) -> None:
        keys = [f"many/{number * 7919 % 100_003:06}" for number in range(self.many)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: store.put_if_absent(key, b""), keys))
        assert self._listed(store, "many/") == sorted(keys)
        middle = sorted(keys)[self.many // 2]
        assert self._listed(store, "many/", middle) == sorted(keys)[self.many // 2 + 1 :]

    def test_a_listing_may_be_left_early(self, store: StoreBackend, outside: Outside) -> None:
        for key in self.KEYS:
            outside.put(key, b"x")
        rows = store.list("a/")
        assert next(rows).key in self.KEYS
        del rows
        assert len(list(store.list(""))) == len(self.KEYS)

    def test_tells_when_an_object_was_made(self, store: StoreBackend) -> None:
        with pytest.raises(NotFound):
            store.modified("m/late")
        store.put_if_absent("m/early", b"x")
        store.put_if_absent("m/late", b"x")
        for key in ("m/early", "m/late"):
            assert abs(store.modified(key) - time.time()) < 24 * 3600  # of one day, whatever the clocks

    def test_deletes_one_and_only_once(self, store: StoreBackend, outside: Outside) -> None:
        for key in ("d/one", "d/one1", "d/two"):
            outside.put(key, b"x")
        store.delete("d/one")
        store.delete("d/one")
        store.delete("never/there")
        assert outside.keys() == {"d/one1", "d/two"}
        with pytest.raises(NotFound):
            store.get("d/one")
        assert store.put_if_absent("d/one", b"again") is PutResult.WON
        assert outside.get("d/one") == b"again"

    def test_one_of_many_threads_wins(self, store: StoreBackend, outside: Outside) -> None:
        for number in range(8):
            key, start = f"race/{number}", threading.Barrier(WRITERS)
            values = [b"%d-" % writer + bytes(1 << (2 * number)) for writer in range(WRITERS)]

            def write(value: bytes, key: str = key, start: threading.Barrier = start) -> PutResult:
                start.wait(PATIENCE)
                return store.put_if_absent(key, value)

            with ThreadPoolExecutor(WRITERS) as pool:
                results = list(pool.map(write, values))
            assert results.count(PutResult.WON) == 1
            assert outside.get(key) == store.get(key) == values[results.index(PutResult.WON)]

    def test_readers_never_see_a_part(self, store: StoreBackend) -> None:
        """While a value is written, a reader finds all of it or nothing."""
        value = random.Random(5).randbytes(1 << 20)
        stop = threading.Event()

        def read() -> set[int]:
            seen = set()
            while not stop.is_set():
                for item in store.list("whole/"):
                    seen |= {item.size, len(store.get(item.key))}
            return seen

        with ThreadPoolExecutor(1) as pool:
            reader = pool.submit(read)
            try:
                for number in range(12):
                    assert store.put_if_absent(f"whole/{number}", value) is PutResult.WON
            finally:
                stop.set()
        assert reader.result() <= {1 << 20}

    def test_is_proven(self, store: StoreBackend, outside: Outside) -> None:
        proof = prove(store, rounds=3)
        assert proof.ok and not proof.findings
        assert proof.ordered or not store.ordered_listing
        assert outside.keys() == set()


class SharedStoreConformance(StoreConformance):
    """For stores that several processes can open."""

    def test_one_of_many_processes_wins(self, subject: Subject) -> None:
        assert subject.opening is not None
        keys = [f"race/{number}" for number in range(20)]
        won = race_processes(subject.opening, keys, processes=4, threads=4)
        for key in keys:
            assert len(won[key]) == 1, f"{key}: {len(won[key])} of 16 won"
            assert subject.outside.get(key) == won[key][0]


def subjects(make: Callable[[], Subject]) -> Iterator[Subject]:
    """A fixture's body: makes the subject, and closes its store."""
    subject = make()
    yield subject
    subject.store.close()
