"""Copies of datasets in another store: everything under the same ids, only what is lacking, checked, and continued."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from dsv.api.branches import tag
from dsv.api.copy import CopyRequest, CopyResult, copy
from dsv.errors import (
    Conflict,
    Denied,
    IntegrityError,
    NoRoom,
    NotFound,
    Unreachable,
    Unsupported,
    UsageError,
)
from dsv.format import keys
from dsv.format.records import RefEntry, TagValue
from dsv.repo.history import walk
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.stores import open as opening
from dsv.stores.base import Bytes, PutResult, StoreBackend
from dsv.stores.memory import MemoryStore
from dsv.values.ids import CommitId, Nonce
from dsv.values.names import MAIN, BranchName, DatasetName, TagName, Target
from tests.exhaustive import some
from tests.kit.people import SCANS, Dataset, Kept, Person, read_commit
from tests.kit.repositories import condemn, create, packs
from tests.stores.faulty import Crash, Fault, Faulty, Kind
from tests.stores.wrapper import ReadOnly, Watched, Wrapper

HERE, THERE = "memory://here", "memory://there"
RNG = random.Random(20)
LARGE = RNG.randbytes(5 << 20)
FIRST: Mapping[str, bytes | None] = {
    **{f"d{number % 7}/{number:04}": RNG.randbytes(200) for number in range(1500)},
    "large": LARGE,
    "empty": b"",
    "run.sh": b"echo",
    "link@": b"large",
}


@dataclass
class World:
    """Two stores, the first with a dataset, and somebody who copies from one to the other."""

    home: Path
    stores: dict[str, StoreBackend]
    data: Dataset

    @property
    def here(self) -> StoreBackend:
        return self.stores[HERE]

    @property
    def there(self) -> StoreBackend:
        return self.stores[THERE]

    def copy(self, target: str = "scans", **options: object) -> CopyResult:
        wanted = Target.parse(target) if target else Target()
        return copy(self.data.context, wanted, THERE, CopyRequest(**options))  # type: ignore[arg-type]

    def commits(self, branch: str = "main") -> list[CommitId]:
        """The history of a branch of the first store."""
        repository = Repository.open(self.here, None)
        return [one for one, _ in walk(repository.objects, [self.data.head(branch)])]

    def forget(self) -> None:
        """From now on it is another machine, which has no local copies."""
        self.data = replace(
            self.data, context=structs.replace(self.data.context, metadata=self.home / Nonce.random().hex())
        )

    def check_same(self, branch: str = "main") -> None:
        """Every commit of the branch is there as it is here, by locators alone."""
        there = Repository.open(self.there, None)
        assert there.refs.head(SCANS, BranchName.parse(branch)).commit == self.data.head(branch)
        for commit in self.commits(branch):
            assert self.there.get(keys.commit_key(commit)) == self.here.get(keys.commit_key(commit))
            assert read_commit(NoIndex(self.there), commit) == read_commit(self.here, commit)


class NoIndex(Wrapper):
    """A store of which no index can be read, so that what is found is found by locators."""

    def list(self, prefix: str, start_after: str | None = None):  # type: ignore[no-untyped-def]
        assert prefix != keys.INDEX_PREFIX
        return super().list(prefix, start_after)


@contextmanager
def world(folder: Path, there: StoreBackend | None = None) -> Iterator[World]:
    here, there = MemoryStore(), there or MemoryStore()
    here.url = HERE
    create(here)
    Repository.create(there, None, author="bob", tool="test")
    folder.mkdir(parents=True, exist_ok=True)
    context = Person(folder, HERE).context(folder)
    made = World(folder, {HERE: here, THERE: there}, Dataset(here, context))
    before = opening.open_store
    opening.open_store = lambda url, *_, **__: Kept(made.stores[url])
    try:
        yield made
    finally:
        opening.open_store = before


def with_history(made: World) -> None:
    """Main with a merge, a branch of its own, two large files that share chunks."""
    made.data.commit(FIRST)
    made.data.commit({"d1/0001": b"changed", "large": LARGE[: 2 << 20] + b"inserted" + LARGE[2 << 20 :]})
    made.data.commit({"side": b"side"}, "dev", made.data.head())
    made.data.commit({"d2/0002": None, "more/f": RNG.randbytes(3000)})
    made.data.commit({"side": b"side"}, "main", made.data.head(), made.data.head("dev"))
    made.data.commit({"dev": b"only here"}, "dev")


def test_a_copy_has_every_commit_of_every_branch_under_its_id(tmp_path: Path) -> None:
    with world(tmp_path) as made:
        with_history(made)
        done = made.copy()
        assert [(one.name, one.state, one.commits) for one in done.names] == [
            ("main", "copied", 5),
            ("dev", "copied", 1),
        ]
        made.check_same()
        made.check_same("dev")
        assert sum(item.size for item in made.there.list("packs/")) < 12 << 20  # chunks are stored once


def test_a_second_copy_sends_nothing_and_a_small_commit_little(tmp_path: Path) -> None:
    with world(tmp_path) as made:
        with_history(made)
        made.copy()
        before = [item.key for item in made.there.list("")]
        done = made.copy()
        assert [one.state for one in done.names] == ["up to date", "up to date"] and not done.bytes
        assert [item.key for item in made.there.list("")] == before
        made.data.commit({"d3/0003": b"small"})
        for _ in range(2):
            assert made.copy().bytes < 150_000  # the chunk, its segment, and a node
        made.check_same()


def test_a_branch_or_a_tag_is_copied_alone(tmp_path: Path) -> None:
    with world(tmp_path) as made:
        with_history(made)
        tag(made.data.context, TagName.parse("v1"), made.data.target("main~1"), "as published")
        for state in ("copied", "up to date"):
            (found,) = made.copy("scans@v1").names
            assert (found.name, found.kind, found.state) == ("v1", "tag", state)
        there = Repository.open(made.there, None)
        value = there.refs.tag(SCANS, TagName.parse("v1"))
        assert value is not None and value == Repository.open(made.here, None).refs.tag(
            SCANS, TagName.parse("v1")
        )
        assert there.refs.head(SCANS, MAIN).commit is None  # so that the dataset is there
        assert read_commit(made.there, value.commit) == read_commit(made.here, value.commit)
        assert [one.name for one in made.copy("scans@dev").names] == ["dev"]
        made.check_same("dev")
        assert [one.kind for one in made.copy(tags=True).names] == ["branch", "branch"]  # it has the tag
        made.check_same()


def test_tags_and_all_datasets(tmp_path: Path) -> None:
    other = DatasetName.parse("team/other")
    with world(tmp_path) as made:
        made.data.commit({"a": b"1"})
        tag(made.data.context, TagName.parse("v1"), made.data.target("main"))
        repository = Repository.open(made.here, None)
        entry = RefEntry(None, False, Nonce.random(), 1, "ann", "init")
        repository.refs.move(other, MAIN, None, entry)
        replace(made.data, name=other).commit({"b": b"2"})
        done = made.copy("", every=True, tags=True)
        assert [(one.dataset, one.name) for one in done.names] == [
            (SCANS, "main"), (SCANS, "v1"), (other, "main"),
        ]  # fmt: skip
        assert Repository.open(made.there, None).refs.datasets() == [SCANS, other]
        assert not made.copy("", every=True, tags=True).commits
        key = keys.tag_key(SCANS, TagName.parse("v1"))
        assert made.there.get(key) == made.there.get(key + keys.TAG_COPY) == made.here.get(key)


def test_a_tag_that_is_lost_here_is_copied_from_its_copy(tmp_path: Path) -> None:
    with world(tmp_path) as made:
        made.data.commit({"a": b"1"})
        tag(made.data.context, TagName.parse("v1"), made.data.target("main"))
        key = keys.tag_key(SCANS, TagName.parse("v1"))
        made.here.delete(key)
        made.copy(tags=True)
        assert (
            made.there.get(key) == made.there.get(key + keys.TAG_COPY) == made.here.get(key + keys.TAG_COPY)
        )


def test_a_branch_with_other_commits_is_refused_and_the_others_are_copied(tmp_path: Path) -> None:
    with world(tmp_path) as made:
        made.data.commit({"a": b"1"})
        made.copy()
        elsewhere = replace(made.data, store=made.there)
        own = elsewhere.commit({"theirs": b"x"})
        assert made.copy().names[0].state == "ahead"
        made.data.commit({"ours": b"y"})
        made.data.commit({"c": b"3"}, "dev", made.data.head())
        with pytest.raises(Conflict, match="not in the history") as raised:
            made.copy()
        assert "--reset --store memory://there" in (raised.value.hint or "")
        assert elsewhere.head() == own
        made.check_same("dev")
        assert made.copy(dry_run=True).names[0].state == "diverged"


def test_what_can_not_be_copied_is_named(tmp_path: Path) -> None:
    with world(tmp_path) as made:
        made.data.commit({"a": b"1"})
        for target, wrong in (
            (f"scans@{made.data.head()}", "neither a branch nor a tag"),
            ("scans@main~1", "neither a branch nor a tag"),
            ("scans:a", "names a path"),
        ):
            with pytest.raises(UsageError, match=wrong):
                made.copy(target)
        with pytest.raises(NotFound, match="no branch or tag"):
            made.copy("scans@nowhere")
        with pytest.raises(NotFound, match="no dataset"):
            made.copy("nowhere")
        made.stores[THERE] = MemoryStore()
        with pytest.raises(NotFound) as raised:
            made.copy()
        assert raised.value.hint == "--create makes it"
        made.copy(create=True)
        made.check_same()
        made.stores[THERE] = made.here
        with pytest.raises(UsageError, match="itself"):
            made.copy()


def test_a_store_of_another_kind_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with world(tmp_path) as made:
        made.data.commit({"a": b"1"})
        monkeypatch.setattr("dsv.repo.repository.features", lambda *_: ())
        made.stores[THERE] = MemoryStore()
        Repository.create(made.there, None, author="bob", tool="test")
        with pytest.raises(Unsupported, match="was made by an older dsv"):
            made.copy()
        assert not list(made.there.list("packs/"))


def test_a_dry_run_says_what_a_copy_sends_and_writes_nothing(tmp_path: Path) -> None:
    with world(tmp_path) as made:
        with_history(made)
        planned = made.copy(dry_run=True)
        assert [
            item.key for item in made.there.list("") if not item.key.startswith(("format/", "README"))
        ] == []
        done = made.copy()
        assert planned.commits == done.commits == 6
        sent = sum(item.size for item in made.there.list("packs/"))
        assert abs(planned.bytes - sent) < sent / 10
        assert planned.requests > 0
        assert made.copy(dry_run=True).bytes == 0


def test_a_dry_run_of_a_store_to_make_makes_none(tmp_path: Path) -> None:
    with world(tmp_path) as made:
        made.data.commit({"a": b"1"})
        made.stores[THERE] = MemoryStore()
        planned = made.copy(dry_run=True, create=True)
        assert list(made.there.list("")) == [] and planned.to == THERE
        assert made.copy(create=True).commits == planned.commits == 1
        assert planned.bytes > 0
        assert made.copy(dry_run=True, create=True).bytes == 0, "it is there by now"


def test_a_tag_of_another_commit_is_reported_and_the_others_are_copied(tmp_path: Path) -> None:
    with world(tmp_path) as made:
        first = made.data.commit({"a": b"1"})
        made.copy()
        elsewhere = replace(made.data, store=made.there)
        there = Repository.open(made.there, None)
        there.refs.set_tag(SCANS, TagName.parse("v1"), TagValue(first, Nonce.random(), 0, "eve", ""))
        there.refs.set_tag(SCANS, TagName.parse("same"), TagValue(first, Nonce.random(), 0, "eve", ""))
        second = made.data.commit({"a": b"2"})
        for name, commit in (("v1", second), ("same", first), ("v2", second)):
            Repository.open(made.here, None).refs.set_tag(
                SCANS, TagName.parse(name), TagValue(commit, Nonce.random(), 0, "ann", "")
            )
        with pytest.raises(Conflict, match="a tag never moves") as raised:
            made.copy(tags=True)
        assert str(first)[:12] in raised.value.message and str(second)[:12] in raised.value.message
        assert elsewhere.head() == second
        assert {name: value.commit for name, value in Repository.open(made.there, None).refs.tags(SCANS)} == {
            "same": first, "v1": first, "v2": second,
        }  # fmt: skip
        again = made.copy(tags=True, dry_run=True)
        assert [(one.name, one.state) for one in again.names] == [("v1", "diverged"), ("main", "up to date")]
        with pytest.raises(Conflict, match="a tag never moves"):
            made.copy("scans@v1")
        got: list[tuple[str, str]] = []
        counted = Watched(made.there, lambda *asked: got.append(asked))
        made.stores[THERE] = counted
        assert made.copy(tags=True, dry_run=True).names == again.names
        tags = [key for kind, key in got if kind == "get" and "/tags/" in key]
        assert got and not tags, "what names a tag is known by now"


def test_damage_is_not_copied(tmp_path: Path) -> None:
    with world(tmp_path) as made:
        made.data.commit({"good": b"1"})
        made.copy()
        made.data.commit({"bad/file": RNG.randbytes(5000)})
        for key in packs(Repository.open(made.here, None)):
            data = bytearray(made.here.get(key))
            if len(data) > 5000:
                data[2000] ^= 1
                made.here.delete(key)
                made.here.put_if_absent(key, bytes(data))
        before = replace(made.data, store=made.there).head()
        made.forget()
        with pytest.raises(IntegrityError, match="bad/file can't be copied"):
            made.copy()
        assert replace(made.data, store=made.there).head() == before
        opened = {item.key.split("/")[1] for item in made.there.list("sessions/")}
        closed = {
            item.key.split("/")[1] for item in made.there.list("sessions/") if item.key.endswith("/closed")
        }
        assert opened == closed  # gc need not wait for it


def test_a_dataset_that_can_not_be_copied_keeps_no_other_from_it(tmp_path: Path) -> None:
    other = DatasetName.parse("team/other")
    with world(tmp_path) as made:
        made.data.commit({"bad": RNG.randbytes(5000)})
        [broken, *_] = [
            key for key in packs(Repository.open(made.here, None)) if len(made.here.get(key)) > 5000
        ]
        made.here.delete(broken)
        entry = RefEntry(None, False, Nonce.random(), 1, "ann", "init")
        Repository.open(made.here, None).refs.move(other, MAIN, None, entry)
        second = replace(made.data, name=other)
        second.commit({"b": b"2"})
        with pytest.raises(IntegrityError, match="bad can't be copied"):
            made.copy("", every=True)
        assert replace(second, store=made.there).head() == second.head()


def test_two_copies_at_once_and_a_sync_between_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with world(tmp_path) as made:
        made.data.commit({"a": b"1"})
        made.copy()
        made.data.commit({"a": b"2"})
        declare = Session.declare
        others: list[Callable[[], object]] = [made.copy]

        def declare_late(session: Session, *rest: Any) -> None:
            if others:
                others.pop()()  # while this one has uploaded, and not named anything yet
            declare(session, *rest)

        monkeypatch.setattr(Session, "declare", declare_late)
        assert made.copy().names[0].state == "copied"
        made.check_same()
        made.data.commit({"a": b"3"})
        theirs = replace(made.data, store=made.there)
        others.append(lambda: theirs.commit({"b": b"theirs"}))
        with pytest.raises(Conflict, match="somebody else has moved branch main"):
            made.copy()
        assert theirs.files()["b"] == b"theirs"


def test_what_gc_is_about_to_remove_there_is_sent_again(tmp_path: Path) -> None:
    with world(tmp_path) as made:
        with_history(made)
        made.copy()
        for item in list(made.there.list("refs/")):
            made.there.delete(item.key)  # as if the copy had been killed before it named anything
        there = Repository.open(made.there, None)
        doomed = packs(there)
        condemn(there, 0, doomed)
        made.forget()
        made.copy()
        for key in doomed:
            made.there.delete(key)
        for commit in made.commits():
            assert read_commit(made.there, commit) == read_commit(made.here, commit)


# --- ends in the middle


def count_calls(folder: Path, url: str) -> int:
    with world(folder) as made:
        small_history(made)
        made.stores[url] = counting = Faulty(made.stores[url])
        made.copy()
        return counting.calls


def small_history(made: World) -> None:
    made.data.commit(
        {"a": b"1", "b": RNG.randbytes(2 << 20), **{f"d/{n}": RNG.randbytes(50) for n in range(40)}}
    )
    made.data.commit({"c": b"2"}, "dev", made.data.head())
    made.data.commit({"a": b"3"})


@pytest.mark.parametrize("kind", [Kind.CRASH_BEFORE, Kind.CRASH_AFTER])
@pytest.mark.parametrize("url", [HERE, THERE])
def test_a_copy_that_dies_at_any_call_is_continued(tmp_path: Path, kind: Kind, url: str) -> None:
    calls = count_calls(tmp_path / "count", url)
    assert calls > 10
    for number in some(range(1, calls + 1)):
        with world(tmp_path / str(number)) as made:
            small_history(made)
            whole = made.stores[url]
            made.stores[url] = Faulty(whole, {number: Fault(kind)})
            with suppress(Crash):
                made.copy()
            made.stores[url] = whole
            check_names_are_whole(made)
            made.forget()
            made.copy()
            made.check_same()
            made.check_same("dev")


def check_names_are_whole(made: World) -> None:
    """Whatever the other store names can be read."""
    there = Repository.open(made.there, None)
    for dataset in there.refs.datasets():
        for head in there.refs.heads(dataset):
            if head.commit is not None:
                for commit, _ in walk(there.objects, [head.commit]):
                    assert read_commit(made.there, commit) == read_commit(made.here, commit)


class Dying(Wrapper):
    """Dies before it has so many bytes of packs, and then crashes in every thread."""

    def __init__(self, inner: StoreBackend, room: int) -> None:
        super().__init__(inner)
        self.room, self.lock = room, threading.Lock()

    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        with self.lock:
            if self.room >= 0 and key.startswith("packs/"):
                self.room -= len(data)
            if self.room < 0:
                raise Crash(f"before {key}")
        return super().put_if_absent(key, data)


def test_what_an_index_lists_is_not_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 40 MB, an index after each 4: a kill after 36 costs the rest, those, and what was under way."""
    monkeypatch.setattr("dsv.upkeep.copy.INDEX_BYTES", 4 << 20)
    monkeypatch.setattr("dsv.transfer.packing.PACK_TARGET", 1 << 20)
    with world(tmp_path) as made:
        made.data.commit({f"f{n}": RNG.randbytes(500_000) for n in range(80)})
        whole = made.there
        made.stores[THERE] = Dying(whole, 36_000_000)
        with pytest.raises(Crash):
            made.copy()
        assert sum(item.size for item in whole.list("packs/")) > 30_000_000
        made.stores[THERE] = whole
        made.forget()
        assert made.copy().bytes < 24_000_000
        made.check_same()


class Full(Wrapper):
    """Has room for the first so many bytes."""

    def __init__(self, inner: StoreBackend, room: int) -> None:
        super().__init__(inner)
        self.room = room

    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        self.room -= len(data)
        if self.room < 0:
            raise NoRoom(f"no room for {key}", subject=key)
        return super().put_if_absent(key, data)


def test_a_target_without_room_or_rights_and_a_source_that_goes_away(tmp_path: Path) -> None:
    with world(tmp_path) as made:
        small_history(made)
        whole = made.there
        made.stores[THERE] = ReadOnly(whole)
        with pytest.raises(Denied, match="but not write to it"):
            made.copy()
        made.stores[THERE] = Full(whole, 1 << 20)
        with pytest.raises(NoRoom):
            made.copy()
        check_names_are_whole(made)
        made.stores[THERE] = whole
        source = made.here
        calls = count_calls(tmp_path / "count", HERE)
        made.stores[HERE] = Faulty(
            source, {number: Fault(Kind.REFUSED) for number in range(calls // 2, 9 * calls)}
        )
        with pytest.raises(Unreachable):
            made.copy()
        made.stores[HERE] = source
        check_names_are_whole(made)
        made.copy()
        made.check_same()
