"""The expiry log: its states, its writers, and who wins."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dsv import reader
from dsv.errors import Conflict, Denied, IntegrityError, NotFound
from dsv.format import keys, records
from dsv.format.records import ExpiryAction, ExpiryEntry, TagValue
from dsv.repo import expiry
from dsv.repo.expiry import ExpiryLog, _ends, append, expired, fold, read_expiry
from dsv.repo.format_log import EXPIRED_COMMITS
from dsv.repo.move_refs import _chain_of, _in_order
from dsv.repo.repository import Repository
from dsv.repo.resolve import resolve
from dsv.repo.session import naming
from dsv.stores.base import Bytes, ListedObject, PutResult, StoreBackend
from dsv.stores.directory import DirectoryStore
from dsv.stores.memory import MemoryStore
from dsv.stores.open import OpenStore
from dsv.values.ids import CommitId, Nonce
from dsv.values.names import Rev, TagName
from tests.kit.repositories import DATASET, WRITER, commit, create
from tests.stores.faulty import Crash
from tests.stores.wrapper import Watched, Wrapper

EXPIRE, DELETE, UNDO, FREE = ExpiryAction
IDS = [CommitId(bytes([number]) * 32) for number in range(4)]


def put(repository: Repository, action: ExpiryAction, *commits: CommitId) -> ExpiryLog:
    return append(repository, WRITER, DATASET, action, lambda _: commits, "too old")


STEPS = st.lists(st.tuples(st.sampled_from(ExpiryAction), st.sets(st.sampled_from(IDS), min_size=1)))


@given(STEPS)
def test_states_are_those_of_each_commit_alone(steps: list[tuple[ExpiryAction, set[CommitId]]]) -> None:
    entries = [
        ExpiryEntry(action, tuple(sorted(commits)), Nonce(bytes(16)), 0, "a", "", DATASET, number)
        for number, (action, commits) in enumerate(steps)
    ]
    states = fold(entries)
    for one in IDS:
        now = "kept"
        for action, commits in steps:
            if one in commits and now != "freed":
                now = {UNDO: "kept", FREE: "freed" if now == "expired" else "kept"}.get(action, "expired")
        state = states.get(one)
        assert now == ("kept" if state is None else "freed" if state.freed else "expired")


@given(STEPS)
def test_an_entry_is_put_only_for_what_it_changes(steps: list[tuple[ExpiryAction, set[CommitId]]]) -> None:
    repository = create(MemoryStore())
    for action, commits in steps:
        before = read_expiry(repository.refs, DATASET)
        log = put(repository, action, *commits)
        changed = {one for one in IDS if before.states.get(one) != log.states.get(one)}
        assert {one for entry in log.entries[len(before.entries) :] for one in entry.commits} == changed
        assert not log.affected(action, commits)


def test_a_store_that_expired_nothing_is_not_asked(repository: Repository) -> None:
    class Silent(Wrapper):
        def get(self, key: str, limit: int = 0) -> bytes:
            raise AssertionError(key)

    repository.refs.store = Silent(repository.store)
    assert read_expiry(repository.refs, DATASET).states == {}


def test_the_feature_comes_before_the_first_entry(repository: Repository) -> None:
    puts: list[str] = []

    class Watching(Wrapper):
        def put_if_absent(self, key: str, data: Bytes) -> PutResult:
            puts.append(key)
            return super().put_if_absent(key, data)

    repository.store = repository.refs.store = Watching(repository.store)
    put(repository, EXPIRE, IDS[0])
    written = [key for key in puts if not key.startswith(keys.PROBE_PREFIX)]
    assert written == [keys.format_key(1), keys.expiry_key(DATASET, 0)]
    assert Repository.open(repository.store, None).format.has(EXPIRED_COMMITS)


def test_a_large_expiry_is_split_and_continued(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsv.repo.expiry.MAX_COMMITS", 2)
    log = put(repository, EXPIRE, *IDS)
    assert [entry.commits for entry in log.entries] == [tuple(IDS[:2]), tuple(IDS[2:])]
    assert len({entry.nonce for entry in log.entries}) == 1
    assert put(repository, EXPIRE, *IDS).entries == log.entries


def test_of_an_undo_and_a_gc_one_wins(repository: Repository) -> None:
    """The gc has chosen when the undo takes its number."""
    put(repository, EXPIRE, *IDS[:2])
    other = Repository.open(repository.store, None)
    chosen: list[int] = []

    def choose(log: ExpiryLog) -> Collection[CommitId]:
        chosen.append(len(log.entries))
        if len(chosen) == 1:
            put(other, UNDO, IDS[0])
        return list(log.expired)

    log = append(repository, WRITER, DATASET, FREE, choose)
    assert log.freed == {IDS[1]} and IDS[0] not in log.states and chosen == [1, 2, 3]
    assert put(other, UNDO, *IDS[:2]).freed == {IDS[1]}, "nothing undoes that"


def test_the_log_is_read_again_where_it_ended(repository: Repository) -> None:
    put(repository, EXPIRE, IDS[0])
    other = Repository.open(repository.store, None)
    assert set(read_expiry(other.refs, DATASET).states) == {IDS[0]}
    put(repository, UNDO, IDS[0])
    assert read_expiry(other.refs, DATASET).states == {}


def test_a_missing_entry_and_a_moved_one_are_damage(repository: Repository) -> None:
    put(repository, EXPIRE, IDS[0])
    put(repository, EXPIRE, IDS[1])
    first = keys.expiry_key(DATASET, 0)
    data = repository.store.get(first)
    repository.store.delete(first)
    with pytest.raises(IntegrityError, match="lacks its entry 0") as told:
        read_expiry(Repository.open(repository.store, None).refs, DATASET)
    assert told.value.subject == first
    repository.store.put_if_absent(first, replace(ExpiryEntry.decode(data), number=7).encode())
    with pytest.raises(IntegrityError, match="was written for scans 7"):
        read_expiry(Repository.open(repository.store, None).refs, DATASET)


def many(repository: Repository, count: int) -> ExpiryLog:
    """A log of so many entries: the first commit expires and comes back again and again."""
    for number in range(len(read_expiry(repository.refs, DATASET).entries), count):
        log = put(repository, UNDO if number % 2 else EXPIRE, IDS[0])
    return log


def joined(store: StoreBackend) -> dict[int, str]:
    """The keys of joined copies, by the number of the entry after the last one in it."""
    found = [item.key for item in store.list(keys.expiry_prefix(DATASET)) if item.key.endswith("-joined")]
    numbers = [keys.parse_expiry_key(key.removesuffix("-joined")) for key in found]
    return {number[1] + 1: key for number, key in zip(numbers, found, strict=True) if number is not None}


@pytest.mark.parametrize("lost", ["nothing", "one", "damaged", "of another", "all"])
@pytest.mark.parametrize("ordered", [True, False])
def test_a_log_is_the_same_with_and_without_joined_copies(lost: str, ordered: bool) -> None:
    store = MemoryStore()
    log = many(create(store), 29)
    copies = joined(store)
    assert copies.keys() == {8, 16, 24}
    if lost == "all":
        for key in copies.values():
            store.delete(key)
    elif lost != "nothing":
        data = store.get(copies[24])
        store.delete(copies[24])
        if lost != "one":
            store.put_if_absent(copies[24], data[:-1] if lost == "damaged" else store.get(copies[8]))
    refs = Repository.open(store, None).refs
    if not ordered:
        refs.store = Backwards(store)
    assert read_expiry(refs, DATASET) == log == read_expiry(refs, DATASET, singly=True)


class Backwards(Wrapper):
    ordered_listing = False

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ListedObject]:
        return iter([*self.inner.list(prefix, start_after)][::-1])


@pytest.mark.parametrize("suffix", ["", keys.EXPIRY_JOINED])
def test_a_key_of_a_far_entry_is_refused_with_few_requests(suffix: str) -> None:
    store = OpenStore(MemoryStore())
    many(create(store), 9)
    store.put_if_absent(f"{keys.expiry_prefix(DATASET)}{0:016x}{suffix}", b"x")
    refs, before = Repository.open(store, None).refs, store.counts
    with pytest.raises(IntegrityError, match="lacks its entry 9"):
        read_expiry(refs, DATASET)
    assert (store.counts - before).requests < 300


def test_joined_copies_have_each_entry_a_few_times_and_lead_to_all(repository: Repository) -> None:
    many(repository, 520)
    assert list(joined(repository.store)) == list(range(520, 0, -8))
    for end in joined(repository.store):
        parts = [range(one & (one - 1), one) for one in _ends(end)]
        assert sorted(number for part in parts for number in part) == list(range(end))
        assert len(parts) <= 7


@pytest.mark.parametrize("before", range(3))
def test_joined_copies_that_a_kill_left_out_are_made_with_the_next_entry(
    before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what an older version has written, in which there is none. before: how many the killed one has made."""
    store = MemoryStore()
    with monkeypatch.context() as older:
        older.setattr(expiry, "JOINED", 1000)
        many(create(store), 60)

    def die(what: str, key: str) -> None:
        if what == "put" and key.endswith("-joined") and len(joined(store)) == before:
            raise Crash

    with pytest.raises(Crash):
        many(Repository.open(Watched(store, die), None), 61)
    assert len(joined(store)) == before
    log = many(Repository.open(store, None), 62)
    assert joined(store).keys() == {32, 48, 56} and len(log.entries) == 62
    assert read_expiry(Repository.open(store, None).refs, DATASET) == log


def test_who_may_not_write_a_joined_copy_writes_entries_all_the_same() -> None:
    class Refuses(Wrapper):
        def put_if_absent(self, key: str, data: Bytes) -> PutResult:
            if key.endswith("-joined"):
                raise Denied("no", subject=key)
            return self.inner.put_if_absent(key, data)

    store = MemoryStore()
    create(store)
    log = many(Repository.open(Refuses(store), None), 9)
    assert len(log.entries) == 9 and not joined(store)
    assert many(Repository.open(store, None), 10).entries[:9] == log.entries and joined(store).keys() == {8}


def test_the_error_says_when_and_by_whom(repository: Repository) -> None:
    log = put(repository, EXPIRE, IDS[0])
    error = expired(log, IDS[0])
    assert error is not None and error.exit_code == 3 and expired(log, IDS[1]) is None
    assert (
        error.message == "commit 000000000000 of scans was expired on 2023-11-14 by Ann Lee <ann@example.org>"
    )
    assert "dsv expire scans --undo 000000000000" in str(error.hint)
    error = expired(put(repository, FREE, IDS[0]), IDS[0])
    assert error is not None and "gc has freed its content" in str(error.hint)
    log = put(repository, DELETE, IDS[1])
    error = expired(log, IDS[1])
    assert error is not None and "was deleted on" in error.message and "--undelete scans" in str(error.hint)


def test_the_independent_reader_says_expired(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    repository = create(DirectoryStore(tmp_path / "store"))
    first, second, third = [commit(repository, {"a": b"%d" % at}) for at in range(3)]
    repository.refs.set_tag(DATASET, TagName.parse("v1"), TagValue(second, Nonce.random(), 0, "a", ""))
    put(repository, EXPIRE, first, third)
    for target, one in (("scans@main~2", first), (f"scans@{first}", first), (f"scans@{third}", third)):
        with pytest.raises(
            reader.StoreError, match=f"commit {one} of scans was expired on 2023-11-14 by Ann"
        ):
            reader.restore(tmp_path / "store", target, tmp_path / "out")
    for number, target in enumerate(
        ("scans", "scans@v1", "scans@main~1")
    ):  # a head is read whatever the log says
        reader.restore(tmp_path / "store", target, tmp_path / f"out{number}")
    put(repository, FREE, first)
    put(repository, UNDO, first, third)
    reader.restore(tmp_path / "store", f"scans@{third}", tmp_path / "again")
    with pytest.raises(reader.StoreError, match="and its content was removed"):
        reader.restore(tmp_path / "store", f"scans@{first}", tmp_path / "out")


def test_an_entry_names_commits_in_order_and_each_once() -> None:
    made = ExpiryEntry(EXPIRE, (IDS[0],), Nonce(bytes(16)), 0, "a", "", DATASET, 0)
    too_many = tuple(CommitId(at.to_bytes(32)) for at in range(records.MAX_COMMITS + 1))
    for commits in ((), (IDS[1], IDS[0]), (IDS[0], IDS[0]), too_many):
        with pytest.raises(ValueError, match="commits"):
            replace(made, commits=commits).encode()
    whole = replace(made, commits=too_many[1:], message="m" * 65_536, author="ä" * 1024)
    assert ExpiryEntry.decode(whole.encode()) == whole


def tag(repository: Repository, one: CommitId, name: str = "v1") -> None:
    value = TagValue(one, Nonce.random(), 0, "a", "")
    with naming(repository, WRITER, DATASET, one, f"tag {name}"):
        repository.refs.set_tag(DATASET, TagName.parse(name), value)


def test_a_name_is_not_put_to_an_expired_commit(repository: Repository) -> None:
    first, _ = [commit(repository, {"a": b"%d" % at}) for at in range(2)]
    before = Repository.open(repository.store, None)  # from before the feature
    put(Repository.open(repository.store, None), EXPIRE, first)
    with pytest.raises(NotFound, match="was expired on"):
        tag(Repository.open(repository.store, None), first)
    assert Repository.open(repository.store, None).refs.tags(DATASET) == []
    tag(before, first)
    log = read_expiry(Repository.open(repository.store, None).refs, DATASET)
    assert log.states == {}, (
        "one that could not know the feature finds it behind its own write, and undoes that"
    )
    assert log.entries[-1].message == "tag v1 names it"


def test_a_commit_that_expires_while_it_is_named_stays(repository: Repository) -> None:
    first, _ = [commit(repository, {"a": b"%d" % at}) for at in range(2)]
    other = Repository.open(repository.store, None)
    value = TagValue(first, Nonce.random(), 0, "a", "")
    with naming(repository, WRITER, DATASET, first, "tag v1"):
        put(other, EXPIRE, first)
        repository.refs.set_tag(DATASET, TagName.parse("v1"), value)
    assert read_expiry(other.refs, DATASET).states == {}


def test_a_new_tag_of_a_freed_commit_is_refused(repository: Repository) -> None:
    first, _ = [commit(repository, {"a": b"%d" % at}) for at in range(2)]
    other = Repository.open(repository.store, None)
    value = TagValue(first, Nonce.random(), 0, "a", "")
    message = f"tag v1 of scans names commit {str(first)[:12]}, which expired meanwhile"
    with (
        pytest.raises(Conflict, match=message),
        naming(repository, WRITER, DATASET, first, "tag v1"),
    ):
        put(other, EXPIRE, first)
        put(other, FREE, first)
        repository.refs.set_tag(DATASET, TagName.parse("v1"), value)


def test_ids_tags_and_ancestors_of_an_expired_commit_are_refused(repository: Repository) -> None:
    first, second, third = [commit(repository, {"a": b"%d" % at}) for at in range(3)]
    tag(repository, second)
    put(repository, EXPIRE, first)
    opened = Repository.open(repository.store, None)
    for text in (str(first), str(first)[:12], "main~2", "v1~1"):
        with pytest.raises(NotFound, match="was expired on"):
            resolve(opened.refs, opened.objects, DATASET, Rev.parse(text))
        found = resolve(opened.refs, opened.objects, DATASET, Rev.parse(text), expired_too=True)
        assert found.commit == first
    for text, one in (("main", third), ("v1", second), ("main~1", second), (str(third), third)):
        assert resolve(opened.refs, opened.objects, DATASET, Rev.parse(text)).commit == one


def test_the_log_moves_with_the_names(repository: Repository) -> None:
    for one in IDS[:3]:
        put(repository, EXPIRE, one)
    chain = [keys.expiry_key(DATASET, number) for number in range(3)]
    assert {_chain_of(key) for key in chain} == {chain[0]}
    assert _in_order([chain[2], chain[0]]) == chain, "one that a listing has missed is copied too, in order"
