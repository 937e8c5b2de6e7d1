from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from dsv.errors import IntegrityError, NotFound, Unreachable, Unsupported
from dsv.format import keys
from dsv.format.records import ExpiryAction, RefEntry, SessionVerdict, TagValue
from dsv.repo.expiry import append
from dsv.repo.refs.branches import Head
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.stores.base import LARGEST, ListedObject
from dsv.stores.directory import DirectoryStore
from dsv.stores.memory import MemoryStore
from dsv.upkeep.roots import IncompleteListing, Parents, kept, read_names, read_roots
from dsv.values.ids import CommitId, Nonce
from dsv.values.names import MAIN, BranchName, DatasetName, TagName
from tests.kit.repositories import DATASET, TIME, WRITER, commit, create
from tests.stores.wrapper import Wrapper

OTHER = DatasetName.parse("xrays")
RUN = "20261120-132145-1f2e3d4c"


def move(repository: Repository, dataset: DatasetName, branch: str, to: CommitId | None) -> None:
    name = BranchName.parse(branch)
    entry = RefEntry(to, False, Nonce.random(), next(TIME), WRITER.author, "reset")
    assert isinstance(repository.refs.move(dataset, name, repository.refs.newest(dataset, name), entry), Head)


def tag(repository: Repository, dataset: DatasetName, name: str, to: CommitId) -> None:
    value = TagValue(to, Nonce.random(), next(TIME), WRITER.author, "")
    repository.refs.set_tag(dataset, TagName.parse(name), value)


def run(dataset: DatasetName, target: CommitId, **more: object) -> bytes:
    data = [
        {"name": "", "dataset": str(dataset), "commit": str(target), "path": None, "files": 1, "bytes": 1}
    ]
    record = {
        "kind": "dsv run",
        "version": 1,
        "run": RUN,
        "dataset": str(dataset),
        "commit": str(target),
        "data": data,
    }
    return json.dumps(record | more).encode()


def lone(repository: Repository, name: str) -> CommitId:
    """A commit that no name has: that of a branch of another dataset, which is deleted with its moves."""
    made = commit(repository, {name: name.encode()})
    store = repository.store
    last = max(number for number in range(99) if repository.refs.entry(DATASET, MAIN, number) is not None)
    store.delete(keys.branch_key(DATASET, MAIN, last))
    repository.refs.forget()
    return made


def directory(above: Path) -> DirectoryStore:
    (above / "store").mkdir()
    return DirectoryStore(above / "store")


@pytest.fixture(params=["memory", "directory"])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Repository:
    return create(MemoryStore() if request.param == "memory" else directory(tmp_path))


def roots(repository: Repository, **options: object) -> set[CommitId]:
    return set(read_roots(Repository.open(repository.store, None), **options))  # type: ignore[arg-type]


def test_all_that_is_named_stays_and_why(repository: Repository) -> None:
    one, two, three = (commit(repository, {"a": b"%d" % n}) for n in range(3))
    move(repository, OTHER, "main", None)
    move(repository, OTHER, "main", two)
    tag(repository, DATASET, "v1", one)
    repository.store.put_if_absent(keys.run_key(DATASET, RUN, "start"), run(DATASET, one))
    repository.store.put_if_absent(keys.run_key(DATASET, RUN, "log"), b"not json")
    why: dict[CommitId, set[str]] = {}
    for name in read_names(repository):
        why.setdefault(name.commit, set()).add(name.why)
    assert roots(repository) == {one, two, three}
    assert why[one] >= {"tag scans@v1", f"run {RUN}", "scans@main"}
    assert why[three] == {"scans@main"}
    assert why[two] == {"scans@main", "xrays@main"}
    of_other = read_names(repository, OTHER)
    assert set(kept(Parents(repository.objects), of_other)) == {one, two}


def test_a_move_back_and_a_deleted_branch_keep_their_commits(repository: Repository) -> None:
    one = commit(repository, {"a": b"1"})
    two = commit(repository, {"a": b"2"})
    move(repository, DATASET, "side", two)
    move(repository, DATASET, "main", one)
    side = repository.refs.newest(DATASET, BranchName.parse("side"))
    gone = RefEntry(None, True, Nonce.random(), next(TIME), WRITER.author, "delete")
    assert isinstance(repository.refs.move(DATASET, BranchName.parse("side"), side, gone), Head)
    assert roots(repository) == {one, two}


def test_a_deleted_tag_keeps_nothing(repository: Repository) -> None:
    kept = commit(repository, {"a": b"1"})
    other = lone(repository, "b")
    tag(repository, DATASET, "v1", other)
    assert roots(repository) == {kept, other}
    repository.store.put_if_absent(keys.tag_deleted_key(DATASET, TagName.parse("v1")), b"gone")
    assert roots(repository) == {kept}


@pytest.mark.parametrize("member", ["code", "output"])
def test_the_trees_of_a_run_stay(repository: Repository, member: str) -> None:
    kept = commit(repository, {"a": b"1"})
    other = lone(repository, "b")
    key = keys.run_key(DATASET, RUN, "start-2")
    repository.store.put_if_absent(key, run(DATASET, kept, **{member: {"tree": str(other), "files": 1}}))
    assert other in roots(repository)
    repository.store.delete(key)
    repository.store.put_if_absent(key, run(DATASET, kept, **{member: {"tree": None}}))
    assert roots(repository) == {kept}


def test_what_a_session_is_about_to_name_stays_until_it_is_closed(repository: Repository) -> None:
    kept = commit(repository, {"a": b"1"})
    other = lone(repository, "b")
    with Session.open(repository, WRITER) as session:
        assert roots(repository) == {kept}
        verdict = SessionVerdict(other, Nonce.random())
        repository.store.put_if_absent(keys.session_key(session.id, "verdict"), verdict.encode())
        assert other in roots(repository)
        session.close()
    assert roots(repository) == {kept}


def test_freed_commits_go_whatever_names_them_but_another_dataset(repository: Repository) -> None:
    made = [commit(repository, {"a": b"%d" % n}) for n in range(4)]
    freed = {DATASET: made}
    tag(repository, DATASET, "v1", made[1])
    assert roots(repository, freed=lambda one: freed.get(one, [])) == set()
    move(repository, OTHER, "main", made[0])
    assert roots(repository, freed=lambda one: freed.get(one, [])) == {made[0]}
    repository.store.put_if_absent(keys.run_key(DATASET, RUN, "record"), run(DATASET, made[2]))
    assert made[2] not in roots(repository, freed=lambda one: freed.get(one, []))


def test_what_the_expiry_log_calls_freed_is_no_root(repository: Repository) -> None:
    made = [commit(repository, {"a": b"%d" % n}) for n in range(3)]
    append(repository, WRITER, DATASET, ExpiryAction.EXPIRE, lambda _: made[:2])
    assert roots(repository) == set(made)
    append(repository, WRITER, DATASET, ExpiryAction.FREE, lambda _: made[:1])
    assert roots(repository) == set(made[1:])
    assert roots(repository, freed=lambda _: ()) == set(made)


# --- what is not to be believed


def world() -> Repository:
    """Several datasets, branches, tags and runs, so that a listing can be cut in many places."""
    repository = create(MemoryStore())
    made = [commit(repository, {"a": b"%d" % n}) for n in range(3)]
    for dataset in (OTHER, DatasetName.parse("abc"), DatasetName.parse("zoo")):
        for branch in ("main", "side"):
            move(repository, dataset, branch, made[0])
            move(repository, dataset, branch, made[1])
        tag(repository, dataset, "v1", made[2])
        tag(repository, dataset, "v2", made[2])
        for name in ("v1", "v2"):  # a second copy that is hidden or lost says nothing
            repository.store.delete(keys.tag_key(dataset, TagName.parse(name)) + keys.TAG_COPY)
        repository.store.put_if_absent(keys.run_key(dataset, RUN, "start"), run(dataset, made[0]))
        repository.store.put_if_absent(keys.run_key(dataset, RUN, "record"), run(dataset, made[0]))
    return repository


class Cut(Wrapper):
    """Some listings end early, each time they are made; `keep` says how many of so many rows they still have."""

    def __init__(
        self, inner: MemoryStore, prefix: str, flat: bool, folders: bool, keep: Callable[[int], int]
    ) -> None:
        super().__init__(inner)
        self.prefix, self.flat, self.by_folder, self.keep = prefix, flat, folders, keep
        self.hidden = 0

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ListedObject]:
        rows = list(self.inner.list(prefix))
        if self.flat and prefix.startswith(self.prefix):
            left = self.keep(len(rows))
            self.hidden += len(rows) - left
            rows = rows[:left]
        return iter([row for row in rows if start_after is None or row.key > start_after])

    def folders(self, prefix: str) -> Sequence[str]:
        found = self.inner.folders(prefix)
        if self.by_folder and prefix.startswith(self.prefix):
            left = self.keep(len(found))
            self.hidden += len(found) - left
            found = found[:left]
        return found


PREFIXES = [keys.REFS_PREFIX, keys.RUNS_PREFIX, keys.SESSIONS_PREFIX]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(
    "keep", [lambda n: n - 1, lambda n: n // 2, lambda n: 0], ids=["all but one", "half", "none"]
)
@pytest.mark.parametrize(("flat", "folders"), [(True, False), (False, True)], ids=["flat", "folders"])
def test_a_listing_that_is_cut_short_is_an_error(
    prefix: str, keep: Callable[[int], int], flat: bool, folders: bool
) -> None:
    repository = world()
    with Session.open(repository, WRITER):
        store = Cut(repository.store, prefix, flat, folders, lambda n: max(0, keep(n)))  # type: ignore[arg-type]
        complete = roots(repository)
        try:
            found = set(read_roots(Repository.open(store, None)))
        except IncompleteListing as error:
            assert error.hint
        else:
            assert (
                found == complete
            )  # what was hidden says nothing: moves and runs that name what is named elsewhere
            assert prefix != keys.REFS_PREFIX or not store.hidden


def test_every_place_where_a_flat_listing_may_end_is_noticed() -> None:
    repository = world()
    for prefix in (keys.REFS_PREFIX, keys.COMMIT_PREFIX):
        count = len(list(repository.store.list(prefix)))
        assert count >= 3
        for left in range(count):
            store = Cut(repository.store, prefix, True, False, lambda n, left=left: min(left, n))  # type: ignore
            with pytest.raises(IncompleteListing):
                read_roots(Repository.open(store, None))


def test_a_dataset_that_all_listings_of_names_hide_is_found_by_its_commits() -> None:
    """The commits of `scans` say for which branch they were made, and nothing that is listed names them."""
    repository = world()
    for item in list(repository.store.list(keys.REFS_PREFIX)):
        if not item.key.startswith((keys.dataset_prefix(DATASET), keys.dataset_prefix(OTHER))):
            repository.store.delete(item.key)
    for item in list(repository.store.list(keys.RUNS_PREFIX)):
        repository.store.delete(item.key)
    for item in list(repository.store.list(keys.dataset_prefix(OTHER))):
        repository.store.delete(item.key)
    store = Cut(repository.store, keys.REFS_PREFIX, True, True, lambda n: 0)  # type: ignore[arg-type]
    with pytest.raises(IncompleteListing, match="scans/branches/main"):
        read_roots(Repository.open(store, None))


def test_a_listing_that_was_cut_once_is_made_again() -> None:
    repository = world()

    class Once(Cut):
        def list(self, prefix: str, start_after: str | None = None) -> Iterator[ListedObject]:
            rows = super().list(prefix, start_after)
            self.flat = self.flat and not prefix.startswith(self.prefix)
            return rows

    store = Once(repository.store, keys.REFS_PREFIX, True, False, lambda n: n // 2)  # type: ignore[arg-type]
    assert read_roots(Repository.open(store, None)) == read_roots(repository)
    assert store.hidden


def test_an_empty_folder_is_nothing(tmp_path: Path) -> None:
    repository = create(directory(tmp_path))
    made = commit(repository, {"a": b"1"})
    for empty in (
        "refs/old/branches/main",
        "refs/scans/branches/b",
        "refs/scans/tags/t",
        f"runs/scans/{RUN}",
    ):
        (tmp_path / "store" / empty).mkdir(parents=True)
    assert roots(repository) == {made}


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_gap_in_a_branch_is_an_error(number: int) -> None:
    repository = create(MemoryStore())
    for n in range(3):
        commit(repository, {"a": b"%d" % n})
    repository.store.delete(keys.branch_key(DATASET, MAIN, number))
    with pytest.raises(IncompleteListing, match=keys.branch_key(DATASET, MAIN, number)):
        roots(repository)


def each_record(repository: Repository) -> list[str]:
    """The keys of all records that name commits, and of the commits."""
    prefixes = (keys.REFS_PREFIX, keys.RUNS_PREFIX, keys.COMMIT_PREFIX)
    found = [item.key for prefix in prefixes for item in repository.store.list(prefix)]
    verdicts = [
        item.key for item in repository.store.list(keys.SESSIONS_PREFIX) if item.key.endswith("verdict")
    ]
    return found + verdicts


def test_every_record_that_can_not_be_read_is_an_error() -> None:
    """Damaged, gone between listing and reading, or a store that does not answer."""
    repository = world()
    with Session.open(repository, WRITER) as session:
        verdict = SessionVerdict(next(iter(roots(repository))), Nonce.random())
        repository.store.put_if_absent(keys.session_key(session.id, "verdict"), verdict.encode())
        records = [key for key in each_record(repository) if "verdict" not in key or str(session.id) in key]
        assert len(records) > 20

        class Bad(Wrapper):
            key, how = "", ""

            def get(self, key: str, limit: int = LARGEST) -> bytes:
                if key.startswith(keys.LOCATOR_PREFIX):  # which has a second copy of a commit
                    raise NotFound("it is gone")
                if key != self.key:
                    return self.inner.get(key, limit)
                if self.how == "away":
                    raise Unreachable("the store is away")
                if self.how == "gone":
                    raise NotFound("it is gone")
                return self.inner.get(key, limit)[:-9]

        for key in records:
            for how in ("damaged", "gone", "away"):
                if how == "gone" and not key.startswith((keys.REFS_PREFIX, keys.COMMIT_PREFIX)):
                    continue  # a run may be deleted meanwhile; a session without a verdict has not published
                store = Bad(repository.store)
                store.key, store.how = key, how
                with pytest.raises((IntegrityError, Unreachable, NotFound)):
                    read_roots(Repository.open(store, None))


@pytest.mark.parametrize(
    "record",
    [
        b"[]",
        b"{}",
        b"no json",
        b'{"kind": "dsv run", "version": 1}',
        b"\xff",
        b'{"kind": "dsv run part", "version": 1}',
    ],
)
def test_a_run_that_can_not_be_read_is_an_error(record: bytes) -> None:
    repository = world()
    key = keys.run_key(DATASET, RUN, "record")
    repository.store.put_if_absent(key, record)
    with pytest.raises(IntegrityError, match=key):
        roots(repository)


def test_a_run_of_a_newer_version_is_an_error() -> None:
    repository = world()
    made = next(iter(roots(repository)))
    repository.store.put_if_absent(keys.run_key(DATASET, RUN, "start-3"), run(DATASET, made, version=2))
    with pytest.raises(Unsupported, match="newer"):
        roots(repository)


def test_a_dataset_that_is_made_meanwhile_is_found() -> None:
    """Its first commit is there after the names were listed, and before the commits are."""
    repository = create(MemoryStore())
    before = commit(repository, {"a": b"1"})
    made: list[CommitId] = []

    class Overtaken(Wrapper):
        def list(self, prefix: str, start_after: str | None = None) -> Iterator[ListedObject]:
            if prefix == keys.COMMIT_PREFIX and not made:
                made.append(commit(repository, {"b": b"2"}))
            return self.inner.list(prefix, start_after)

    assert set(read_roots(Repository.open(Overtaken(repository.store), None))) == {before}
    assert roots(repository) == {before, *made}
