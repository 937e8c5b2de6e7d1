from __future__ import annotations

import random

import pytest

from dsv.errors import Conflict, IntegrityError, NotFound, Unreachable, Unsupported
from dsv.format import keys
from dsv.format.index import IndexBuilder
from dsv.format.locator import ObjectKind
from dsv.format.records import (
    CommitRecord,
    ExpiryAction,
    Feature,
    FeatureRule,
    FormatEntry,
    GcDecision,
    GcDone,
    SessionVerdict,
)
from dsv.repo import session as session_module
from dsv.repo.expiry import append
from dsv.repo.format_log import check_log
from dsv.repo.repository import Repository
from dsv.repo.session import Session, naming
from dsv.repo.tree.reader import TreeReader
from dsv.repo.tree.writer import write_tree
from dsv.stores.base import Bytes, PutResult
from dsv.stores.memory import MemoryStore
from dsv.transfer.upload import Uploader
from dsv.values.ids import ChunkId, CommitId, IndexId, Nonce, PackId
from dsv.values.names import MAIN
from tests.kit.packs import verify
from tests.kit.repositories import DATASET, WRITER, change, commit, condemn, create, packs, publish, read
from tests.stores.wrapper import Watched
from tests.waiting import until


def test_the_order_of_writes() -> None:
    """An object is written before any object that refers to it."""
    written: list[str] = []
    store = Watched(MemoryStore(), lambda kind, key: written.append(key) if kind == "put" else None)
    repository = create(store)
    written.clear()
    rng = random.Random(2)
    commit(repository, {f"f{n}": rng.randbytes(900_000) for n in range(80)})
    kinds: list[str] = []
    for key in written:
        kind = key.split("/")[0]
        if kind == "packs":
            table = verify(repository.store.get(key))
            kind = "data" if {row.kind for row in table} == {ObjectKind.CHUNK} else "metadata"
        elif kind == "sessions":
            kind = key.rsplit("/", 1)[1]
        kinds.append(kind)
    # The session's first key is put once more, to see it lose, at the same time as its verdict.
    at = kinds.index("locators") + 1
    kinds[at : at + 2] = sorted(kinds[at : at + 2])
    assert kinds == [
        "open", "data", "data", "data", "metadata", "index", "commits", "locators", "open", "verdict", "refs", "closed",
    ]  # fmt: skip


def test_a_writer_treats_condemned_packs_as_absent(repository: Repository) -> None:
    files = {f"f{n}": random.Random(n).randbytes(1000) for n in range(20)}
    commit(repository, files)
    before = packs(repository)
    condemn(repository, 0, before)
    second = commit(repository, {f"copy-{name}": data for name, data in files.items()})
    for key in before:
        repository.store.delete(key)
    fresh = Repository.open(repository.store, None)
    contents = read(fresh, second)
    assert contents == {**files, **{f"copy-{name}": data for name, data in files.items()}}


def collect(repository: Repository, epoch: int) -> list[str]:
    """The first steps of gc: copies all packs, publishes an index of the copies, and condemns what it copied."""
    before = packs(repository)
    builder = IndexBuilder()
    for key in before:
        data = repository.store.get(key)
        copy = PackId.random()
        repository.store.put_if_absent(keys.pack_key(copy), data)
        for row in verify(data).indexed(copy):
            builder.add(*row)
    repository.store.put_if_absent(keys.index_key(IndexId.random()), builder.finish())
    condemn(repository, epoch, before)
    return before


@pytest.mark.parametrize("commits", [1, 20])
def test_the_copies_that_gc_made_are_found_beside_what_it_condemned(
    repository: Repository, commits: int
) -> None:
    """However many index files there are: of many, one place of each object is searched first."""
    files: dict[str, bytes | None] = {}
    for number in range(commits):
        more = {f"f{number}": b"content %d" % number}
        files |= more
        commit(repository, more)
    condemned = collect(repository, 0)
    there = len(packs(repository))
    second = commit(Repository.open(repository.store, None), {"copy": b"content 0", "f0": b"new"})
    assert len(packs(repository)) == there + 2  # the new content, and the metadata; nothing else again
    for key in condemned:
        repository.store.delete(key)
    assert read(Repository.open(repository.store, None), second) == {
        **files,
        "copy": b"content 0",
        "f0": b"new",
    }


def test_a_base_that_lies_in_condemned_packs_alone_is_stored_again(repository: Repository) -> None:
    large = random.Random(1).randbytes(3 << 20)
    commit(repository, {"f": b"content", "g": b"other", "large": large})
    condemned = packs(repository)
    condemn(repository, 0, condemned)
    second = commit(Repository.open(repository.store, None), {"h": b"new"})
    for key in condemned:
        repository.store.delete(key)
    fresh = Repository.open(repository.store, None)
    assert read(fresh, second) == {"f": b"content", "g": b"other", "h": b"new", "large": large}


def test_what_gc_has_decided_to_keep_is_relied_on(repository: Repository) -> None:
    commit(repository, {"f": b"content"})
    kept, gone = PackId.random(), PackId.random()
    condemn(repository, 0, [keys.pack_key(kept), keys.pack_key(gone)])
    decision = GcDecision(0, (gone,), Nonce.random(), 0, "dsv")
    repository.store.put_if_absent(keys.gc_key(0, "decision"), decision.encode())
    with Session.open(repository, WRITER) as session:
        assert session.condemned == frozenset({gone})


def test_a_session_that_has_declared_nothing_is_closed_at_its_end(repository: Repository) -> None:
    def parts() -> set[str]:
        listed = repository.store.list(keys.session_prefix(session.id))
        return {item.key.rpartition("/")[2] for item in listed}

    with Session.open(repository, WRITER) as session:
        pass
    assert parts() == {"open", "closed"}
    with pytest.raises(KeyboardInterrupt), Session.open(repository, WRITER) as session:
        raise KeyboardInterrupt
    assert parts() == {"open"}


def test_what_an_index_said_before_the_session_does_not_count(repository: Repository) -> None:
    """A whole epoch of gc may have passed since it was read."""
    kept = ChunkId.hash(b"kept")
    commit(repository, {"f": b"kept"})
    before = Repository.open(repository.store, None)
    assert before.objects.indexes.find(ObjectKind.CHUNK, kept) is not None
    old = [item.key for item in repository.store.list(keys.INDEX_PREFIX)]
    for key in [*collect(repository, 0), *old]:
        repository.store.delete(key)
    repository.store.put_if_absent(keys.gc_key(0, "done"), GcDone(0, Nonce.random(), 0).encode())
    with Session.open(before, WRITER) as session:
        found = session.find(ObjectKind.CHUNK, kept)
        assert found is not None and keys.pack_key(found.pack) in packs(repository)
    for item in list(repository.store.list(keys.INDEX_PREFIX)):
        repository.store.delete(item.key)
    with Session.open(before, WRITER) as session:
        assert session.find(ObjectKind.CHUNK, kept) is None


def test_an_epoch_that_is_over_condemns_nothing(repository: Repository) -> None:
    commit(repository, {"f": b"content"})
    condemn(repository, 0, packs(repository))
    repository.store.put_if_absent(keys.gc_key(0, "done"), GcDone(0, Nonce.random(), 0).encode())
    with Session.open(repository, WRITER) as session:
        assert session.condemned == frozenset()


def test_a_fenced_session_publishes_nothing(repository: Repository) -> None:
    head = repository.refs.head(DATASET, MAIN)
    with Session.open(repository, WRITER) as session, Uploader(session) as uploader:
        tree = write_tree(uploader, None, [change(uploader, "f", b"content")])
        uploader.finish()
        made = CommitRecord(tree.root, tree.level, (), "a", 0, "", tree.files, tree.bytes, tree.entries)
        commit_id = session.put_commit(made, tree.locator)
        fence = SessionVerdict(None, Nonce.random())
        assert (
            repository.store.put_if_absent(keys.session_key(session.id, "verdict"), fence.encode())
            is PutResult.WON
        )
        with pytest.raises(Conflict, match="suspended so long"):
            publish(session, head, commit_id)
    assert repository.refs.head(DATASET, MAIN).commit is None


class Forgetful(MemoryStore):
    """A server that was updated, and no longer knows conditions."""

    honours = True

    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        if not self.honours:
            self.delete(key)
        return super().put_if_absent(key, data)


def test_what_was_refused_before_it_had_a_name_leaves_no_session_for_gc_to_wait_for(
    repository: Repository,
) -> None:
    """Nobody will name what it has stored. If the store does not answer, nobody knows."""
    expired = commit(repository, {"a": b"a"})
    commit(repository, {"a": b"b"})
    append(repository, WRITER, DATASET, ExpiryAction.EXPIRE, lambda _: [expired])
    with pytest.raises(NotFound), naming(repository, WRITER, DATASET, expired, "tag v1"):
        pass
    with pytest.raises(Unreachable), Session.open(repository, WRITER) as away:
        raise Unreachable("no answer")
    left: dict[str, set[str]] = {}
    for item in repository.store.list(keys.SESSIONS_PREFIX):
        _, session_id, part = item.key.split("/")
        left.setdefault(session_id, set()).add(part)
    assert [one for one, parts in left.items() if not parts & {"closed", "verdict"}] == [away.id.hex()]


def test_an_entry_of_the_format_log_that_is_gone_is_found(repository: Repository) -> None:
    """Also where those who only read have no reason to ask for what comes after it."""
    store = repository.store
    for number in range(5):
        feature = Feature(f"feature-{number}", FeatureRule.IGNORE)
        repository.add_feature(feature, WRITER)
    whole = {item.key: store.get(item.key) for item in store.list(keys.FORMAT_PREFIX)}
    for gone in range(1, 5):
        damaged = MemoryStore()
        for key, data in whole.items():
            if key != keys.format_key(gone):
                damaged.put_if_absent(key, data)
        with pytest.raises(IntegrityError, match=keys.format_key(gone)):
            found = Repository.open(damaged, None)
            assert gone % 2, "seen by everybody"
            found.add_feature(Feature("more", FeatureRule.IGNORE), WRITER)
        with pytest.raises(IntegrityError, match=keys.format_key(gone)):
            check_log(damaged)
    check_log(store)


def test_a_store_that_no_longer_lets_one_writer_win_gets_no_ref() -> None:
    """It has done so before, and what it overwrites would be somebody's move."""
    store = Forgetful()
    repository = create(store)
    first = commit(repository, {"a": b"1"})
    store.honours = False
    before = {item.key: store.get(item.key) for item in store.list("refs/")}
    with pytest.raises(
        IntegrityError, match=r"no longer lets one writer win.*no branch and no tag"
    ) as caught:
        commit(repository, {"a": b"2"})
    assert caught.value.exit_code == 5 and str(caught.value.subject).endswith("/open")
    with (
        pytest.raises(IntegrityError, match="no longer lets one writer win"),
        naming(repository, WRITER, DATASET, first, ""),
    ):
        pytest.fail("a name was about to be written")
    assert {item.key: store.get(item.key) for item in store.list("refs/")} == before


def test_nothing_follows_a_move_that_has_vanished(repository: Repository) -> None:
    """Its number would go to a move that knows nothing of it, and no reader finds the way across the gap."""
    first = commit(repository, {"a": b"1"})
    head = repository.refs.head(DATASET, MAIN)
    key = keys.branch_key(DATASET, MAIN, head.number)
    repository.store.delete(key)
    before = {item.key for item in repository.store.list("refs/")}
    with Session.open(repository, WRITER) as session, pytest.raises(IntegrityError) as caught:
        publish(session, head, first)
    assert (caught.value.subject, caught.value.exit_code) == (key, 5)
    assert "lacks its entry" in caught.value.message and f"put {key} back" in str(caught.value.hint)
    assert {item.key for item in repository.store.list("refs/")} == before


def test_a_writer_who_promised_to_be_alone_may_continue() -> None:
    store = Forgetful()
    store.honours = False
    repository = create(store, single_writer=True)
    assert read(repository, commit(repository, {"a": b"2"})) == {"a": b"2"}


def test_a_session_renews_itself_while_it_is_open(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "RENEW_SECONDS", 0.01)
    with Session.open(repository, WRITER) as session:
        for count in range(3):
            key = keys.session_beat_key(session.id, count)
            until(lambda key=key: any(repository.store.list(key)), key)  # type: ignore[misc]


def test_newer_features_are_judged_by_their_rule(repository: Repository) -> None:
    first = repository.format.entries[0]

    def entry(rule: FeatureRule) -> bytes:
        return FormatEntry(
            first.store_id, Nonce.random(), 0, "a", "t", features=(Feature("holograms", rule),)
        ).encode()

    repository.store.put_if_absent(keys.format_key(1), entry(FeatureRule.IGNORE))
    with Session.open(Repository.open(repository.store, None), WRITER):
        pass
    repository.store.put_if_absent(keys.format_key(2), entry(FeatureRule.READ_ONLY))
    reader = Repository.open(repository.store, None)
    with pytest.raises(Unsupported, match="holograms"):
        Session.open(reader, WRITER)
    repository.store.put_if_absent(keys.format_key(3), entry(FeatureRule.REFUSE))
    with pytest.raises(Unsupported, match="holograms"):
        Repository.open(repository.store, None)


def test_a_damaged_pack_is_an_integrity_error_that_names_it(repository: Repository) -> None:
    files = {f"f{n}": random.Random(n).randbytes(5000) for n in range(3)}
    head = commit(repository, files)
    for key in packs(repository):
        data = bytearray(repository.store.get(key))
        if {row.kind for row in verify(data)} == {ObjectKind.CHUNK}:
            data[6000] ^= 1
            repository.store.delete(key)
            repository.store.put_if_absent(key, data)
            damaged = key
    with pytest.raises(IntegrityError, match=damaged.rsplit("/", 1)[1]):
        read(Repository.open(repository.store, None), head)


def test_lost_locators_cost_nothing_but_time(repository: Repository) -> None:
    files = {f"f{n}": random.Random(n).randbytes(5000) for n in range(3)}
    head = commit(repository, files)
    repository.store.delete(keys.locator_key(head))
    assert read(Repository.open(repository.store, None), head) == files


def test_a_wrong_locator_is_overruled_by_the_index(repository: Repository) -> None:
    one = commit(repository, {"f": b"one" * 100})
    two = commit(repository, {"f": b"two" * 100})
    wrong = repository.store.get(keys.locator_key(one))
    repository.store.delete(keys.locator_key(two))
    repository.store.put_if_absent(keys.locator_key(two), wrong)
    assert read(Repository.open(repository.store, None), two) == {"f": b"two" * 100}


def test_a_commit_that_is_named_and_missing_is_an_integrity_error(repository: Repository) -> None:
    missing = CommitId(b"\7" * 32)
    with pytest.raises(IntegrityError, match=str(missing)):
        TreeReader(repository.objects, missing)
    assert repository.objects.commit_or_none(missing) is None


def test_an_index_that_claims_what_its_pack_lacks(repository: Repository) -> None:
    head = commit(repository, {"f": b"x" * 5000})
    for key in packs(repository):
        data = repository.store.get(key)
        repository.store.delete(key)
        repository.store.put_if_absent(key, data[: len(data) // 4])
    with pytest.raises(IntegrityError):
        read(Repository.open(repository.store, None), head)


def test_a_store_that_lists_in_no_order_says_so_for_ever() -> None:
    """The head of a branch is then looked for in the whole listing."""

    class Shuffled(MemoryStore):
        def list(self, prefix: str, start_after: str | None = None):  # type: ignore[no-untyped-def]
            rows = list(super().list(prefix, start_after))
            random.Random(1).shuffle(rows)
            return iter(rows)

    store = Shuffled()
    Repository.create(store, None, author="a", tool="t", ordered=False)
    store.ordered_listing = True  # what a client assumes before it has read the format
    repository = create(store)
    assert not store.ordered_listing
    ids = [commit(repository, {f"f{number}": b"x"}) for number in range(6)]
    assert Repository.open(store, None).refs.head(DATASET, MAIN).commit == ids[-1]


def test_a_commit_that_gc_is_removing_gets_no_new_name(repository: Repository) -> None:
    rng = random.Random(8)
    head = commit(repository, {"small": b"x", "large": rng.randbytes(3 << 20)})
    with naming(repository, WRITER, DATASET, head, ""):
        pass
    condemn(repository, 0, packs(repository))
    with pytest.raises(Conflict, match="being removed"), naming(repository, WRITER, DATASET, head, ""):
        pytest.fail("a name was given")
    repository.store.put_if_absent(keys.gc_key(0, "done"), GcDone(0, Nonce.random(), 0).encode())
    with naming(Repository.open(repository.store, None), WRITER, DATASET, head, ""):
        pass
