"""Erased contents are read by nobody, stored by nobody, and gone from every pack after a garbage collection."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from dsv.errors import Conflict, Denied, DsvError, Erased
from dsv.format import keys
from dsv.format.records import ExpiryAction, TagValue
from dsv.repo.expiry import append
from dsv.repo.objects.erasures import RefusedContent
from dsv.repo.repository import Repository
from dsv.repo.session import Session, point_branch
from dsv.repo.tree.reader import TreeReader
from dsv.stores.base import StoreBackend
from dsv.stores.memory import MemoryStore
from dsv.transfer.download import Fetcher, WantedFile
from dsv.transfer.upload import Uploader
from dsv.upkeep.copy import make_successor
from dsv.upkeep.erase import DatasetPath, ErasePlan, Eraser, adopt, refuse_shared
from dsv.values.ids import CommitId, FileId, Nonce
from dsv.values.names import MAIN, BranchName, DatasetName, TagName
from tests.kit.packs import everything
from tests.kit.repositories import DATASET, WRITER, Files, commit, create
from tests.stores.faulty import Crash, Fault, Faulty, Kind, Operation
from tests.stores.wrapper import ReadOnly
from tests.upkeep.gc_world import SOON, Writing, collect, copy_of
from tests.upkeep.gc_world import read_left as read_files

SECRET = b"the patient's name and number: " * 40
OTHER = b"another patient's picture" * 50


def noise(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


LARGE = noise(1, 9_000_000)
SIMILAR = LARGE[:8_000_000] + noise(2, 1_000_000)
"""Shares its first chunks with LARGE."""


def opened(store: StoreBackend) -> Repository:
    return Repository.open(store, None)


def read_left(store: StoreBackend, commit_id: CommitId) -> Files:
    """Read what was not erased, as somebody without a copy of anything."""
    repository = opened(store)
    found, _ = read_files(repository, commit_id)
    repository.objects.threads.close()
    return found


def plan_for(
    repository: Repository, *contents: bytes, paths: tuple[str, ...] | None = None, choice: str | None = None
) -> tuple[Eraser, ErasePlan]:
    eraser = Eraser(repository)
    asked = None if paths is None else [DatasetPath(str(DATASET), one.encode()) for one in paths]
    return eraser, eraser.plan([FileId.hash(one) for one in contents], asked, choice)  # type: ignore[arg-type]


def erase(
    store: StoreBackend, *contents: bytes, paths: tuple[str, ...] | None = None, choice: str | None = None
) -> ErasePlan:
    eraser, plan = plan_for(opened(store), *contents, paths=paths, choice=choice)
    refuse_shared(plan, choice)  # type: ignore[arg-type]
    eraser.carry_out(plan, WRITER, "consent withdrawn")
    return plan


def test_an_erased_file_is_read_by_nobody_and_its_bytes_go_with_the_next_gc(tmp_path: Path) -> None:
    store = MemoryStore()
    repository = create(store)
    first = commit(repository, {"a": OTHER, "b/secret": SECRET, "c": b"c" * 100, "large": LARGE})
    second = commit(repository, {"a": b"changed"}, removed=("b/secret",))
    assert SECRET in everything(store)
    erase(store, SECRET, LARGE)
    for one, path in ((first, b"b/secret"), (first, b"large"), (second, b"large")):
        fresh = opened(store)
        found = TreeReader(fresh.objects, one).entry(path)
        assert found is not None
        with pytest.raises(
            Erased, match=rf"{path.decode()} was erased on .* by Ann Lee.*: consent withdrawn"
        ):
            next(Fetcher(fresh.objects).files([WantedFile(*found)]))
        fresh.objects.threads.close()
    assert read_left(store, first) == {"a": OTHER, "c": b"c" * 100}
    done = collect(store, tmp_path / "1")
    assert done.plan is not None and done.plan.rewrite
    stays = everything(store)
    assert SECRET not in stays and LARGE[:1000] not in stays and LARGE[-1000:] not in stays
    assert OTHER in stays
    assert read_left(store, first) == {"a": OTHER, "c": b"c" * 100}
    assert read_left(store, second) == {"a": b"changed", "c": b"c" * 100}
    again = collect(store, tmp_path / "2")
    assert again.deleted == again.copied == 0


def test_a_pack_of_which_most_is_needed_is_rewritten(tmp_path: Path) -> None:
    store = MemoryStore()
    made = commit(create(store), {"secret": SECRET, **{f"other {at}": noise(at, 50_000) for at in range(20)}})
    before = {item.key for item in store.list(keys.PACK_PREFIX)}
    erase(store, SECRET)
    done = collect(store, tmp_path / "1")
    assert done.plan is not None and len(done.plan.rewrite) == 1
    assert done.copied == 20
    assert SECRET not in everything(store)
    assert len(read_left(store, made)) == 20
    assert before - {item.key for item in store.list(keys.PACK_PREFIX)}


def test_what_was_erased_is_not_stored_again(tmp_path: Path) -> None:
    store = MemoryStore()
    commit(create(store), {"secret": SECRET, "large": LARGE, "a": OTHER})
    erase(store, SECRET, LARGE)
    fresh = opened(store)
    for files in ({"new": SECRET}, {"new": LARGE}, {"new": SIMILAR}):
        with pytest.raises(RefusedContent, match="was erased from the store on"):
            commit(fresh, files)
    collect(store, tmp_path / "1")
    for files in ({"new": SECRET}, {"new": LARGE}):
        with pytest.raises(RefusedContent):
            commit(opened(store), files)
    done = commit(opened(store), {"new": b"something else"})
    assert read_left(store, done) == {"a": OTHER, "new": b"something else"}


def test_a_commit_that_still_lists_an_erased_file_can_be_made(tmp_path: Path) -> None:
    store = MemoryStore()
    commit(create(store), {"secret": SECRET, "large": LARGE, "a": OTHER})
    erase(store, SECRET, LARGE)
    second = commit(opened(store), {"b": b"b"})
    collect(store, tmp_path / "1")
    third = commit(opened(store), {"a": b"2", "c": b"c"})
    collect(store, tmp_path / "2")
    assert read_left(store, second) == {"a": OTHER, "b": b"b"}
    assert read_left(store, third) == {"a": b"2", "b": b"b", "c": b"c"}
    repository = opened(store)
    assert [entry.path for entry, _ in TreeReader(repository.objects, third).below(b"")] == [
        b"a", b"b", b"c", b"large", b"secret",
    ]  # fmt: skip


def test_another_path_with_the_same_content_has_to_be_decided(tmp_path: Path) -> None:
    store = MemoryStore()
    made = commit(create(store), {"secret": SECRET, "copy": SECRET, "a": OTHER})
    with pytest.raises(Conflict, match="such as scans:copy"):
        erase(store, SECRET, paths=("secret",))
    kept = erase(store, SECRET, paths=("secret",), choice="keep")
    assert not kept.files and [one.path for one in kept.kept] == [b"copy"]
    assert read_left(store, made) == {"secret": SECRET, "copy": SECRET, "a": OTHER}
    erased = erase(store, SECRET, paths=("secret",), choice="erase")
    assert [place.path for place, _ in erased.places] == [b"copy", b"secret"]
    assert read_left(store, made) == {"a": OTHER}
    collect(store, tmp_path / "1")
    assert SECRET not in everything(store)


def test_files_that_share_a_part_have_to_be_decided(tmp_path: Path) -> None:
    store = MemoryStore()
    made = commit(create(store), {"large": LARGE, "similar": SIMILAR, "a": OTHER})
    with pytest.raises(Conflict, match="such as scans:similar"):
        erase(store, LARGE)
    _, plan = plan_for(opened(store), LARGE)
    assert [(one.path, one.shared_bytes == one.size) for one in plan.shared] == [(b"similar", False)]
    kept = erase(store, LARGE, choice="keep")
    assert kept.kept_bytes > 1_000_000
    collect(store, tmp_path / "1")
    assert read_left(store, made) == {"similar": SIMILAR, "a": OTHER}
    stays = everything(store)
    assert LARGE[-1000:] not in stays and LARGE[:1000] in stays


def test_files_that_share_a_part_are_erased_too(tmp_path: Path) -> None:
    store = MemoryStore()
    third = SIMILAR[-500_000:] + noise(3, 3_000_000)
    made = commit(create(store), {"large": LARGE, "similar": SIMILAR, "third": third, "a": OTHER})
    erase(store, LARGE, choice="erase")
    collect(store, tmp_path / "1")
    assert read_left(store, made) == {"third": third, "a": OTHER}
    stays = everything(store)
    assert LARGE[:1000] not in stays and LARGE[-1000:] not in stays


@pytest.mark.parametrize("choice", ["erase", "keep"])
def test_each_version_of_a_path_that_shares_a_part_is_decided(choice: str, tmp_path: Path) -> None:
    store = MemoryStore()
    repository = create(store)
    versions = [LARGE[:8_000_000] + noise(seed, 1_000_000) for seed in (3, 4, 5)]
    commits = [commit(repository, {"large": LARGE, "other": one}) for one in versions]
    plan = erase(store, LARGE, choice=choice)
    assert {one.file_id for one in plan.shared} == {FileId.hash(one) for one in versions}
    assert len(plan.files) == (4 if choice == "erase" else 1)
    collect(store, tmp_path / "1")
    for one, version in zip(commits, versions, strict=True):
        assert read_left(store, one) == ({} if choice == "erase" else {"other": version})


def test_a_commit_that_was_under_way_is_not_published(tmp_path: Path) -> None:
    """It may have taken a part of what was erased for stored."""
    store = MemoryStore()
    commit(create(store), {"secret": noise(4, 2_000), "large": LARGE})
    commit(opened(store), {}, removed=("secret",))
    erase(store, noise(4, 2_000))
    writing = Writing(store, {"similar": SIMILAR})
    erase(store, LARGE)
    assert not writing.publish()
    collect(store, tmp_path / "1")
    assert LARGE[:1000] not in everything(store)


def test_a_file_that_was_stored_meanwhile_has_lost_a_part_and_is_no_damage(tmp_path: Path) -> None:
    """Only the first erasure of a store may overlap with a writer that does not look for it."""
    store = MemoryStore()
    commit(create(store), {"large": LARGE, "a": OTHER})
    eraser, plan = plan_for(opened(store), LARGE)
    made = commit(opened(store), {"similar": SIMILAR})
    eraser.carry_out(plan, WRITER, "consent withdrawn")
    assert [one.path for one in eraser.late(plan)] == [b"similar"]
    repository = opened(store)
    found = TreeReader(repository.objects, made).entry(b"similar")
    assert found is not None
    with pytest.raises(Erased, match="a part of similar was erased"):
        list(Fetcher(repository.objects).files([WantedFile(*found)]))
    collect(store, tmp_path / "1")
    assert LARGE[:1000] not in everything(store)
    assert read_partly(store, made)["a"] == OTHER


def test_a_content_that_no_commit_has_any_more_is_erased_by_its_id(tmp_path: Path) -> None:
    store = MemoryStore()
    made = commit(create(store), {f"other {at}": noise(at, 50_000) for at in range(5)})
    repository = opened(store)
    with Session.open(repository, WRITER) as session, Uploader(session) as uploader:
        uploader.add_bytes(SECRET)
        uploader.add_bytes(noise(9, 90_000))
        uploader.finish()
        session.close()
    erase(store, SECRET)
    collect(store, tmp_path / "1")
    assert SECRET not in everything(store)
    assert len(read_left(store, made)) == 5


def test_without_the_right_to_write_nothing_is_erased() -> None:
    store = MemoryStore()
    made = commit(create(store), {"secret": SECRET})
    before = sorted(item.key for item in store.list(""))
    with pytest.raises(Denied):
        erase(ReadOnly(store), SECRET)
    assert sorted(item.key for item in store.list("")) == before
    assert read_left(store, made) == {"secret": SECRET}


def test_no_more_is_copied_at_once_than_is_allowed(tmp_path: Path) -> None:
    store = MemoryStore()
    made = commit(create(store), {"secret": SECRET, **{f"other {at}": noise(at, 50_000) for at in range(20)}})
    erase(store, SECRET)
    none = collect(store, tmp_path / "1", replace(SOON, max_repack=1_000))
    assert none.plan is not None and none.plan.left == 1 and not none.deleted
    assert collect(store, tmp_path / "2").deleted
    assert SECRET not in everything(store) and len(read_left(store, made)) == 20


def test_erasing_twice_and_by_two_at_once(tmp_path: Path) -> None:
    store = MemoryStore()
    made = commit(create(store), {"secret": SECRET, "a": OTHER, "b": b"b" * 200})
    one, its = plan_for(opened(store), SECRET)
    other, theirs = plan_for(opened(store), SECRET, b"b" * 200)
    one.carry_out(its, WRITER, "one")
    other.carry_out(theirs, WRITER, "other")
    assert read_left(store, made) == {"a": OTHER}
    assert len(opened(store).objects.erasures.known) == 2
    _, again = plan_for(opened(store), SECRET)
    assert not again.files
    collect(store, tmp_path / "1")
    assert SECRET not in everything(store)


def test_two_who_keep_a_part_for_the_file_that_the_other_erases_leave_nothing_of_it(tmp_path: Path) -> None:
    store = MemoryStore()
    commit(create(store), {"large": LARGE, "similar": SIMILAR, "a": OTHER})
    one, its = plan_for(opened(store), LARGE, choice="keep")
    other, theirs = plan_for(opened(store), SIMILAR, choice="keep")
    one.carry_out(its, WRITER, "one")
    other.carry_out(theirs, WRITER, "other")
    collect(store, tmp_path / "1")
    stays = everything(store)
    assert LARGE[:1000] not in stays and LARGE[-1000:] not in stays and SIMILAR[-1000:] not in stays
    named = {one for record in opened(store).objects.erasures.known.values() for one in record.objects}
    assert its.taken and its.taken.keys() <= named


@pytest.mark.parametrize("kind", [Kind.CRASH_BEFORE, Kind.CRASH_AFTER, Kind.LOST_ANSWER])
def test_killed_at_any_write_the_same_command_does_the_rest(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsv.upkeep.erase.MAX_ERASED", 3)
    for number in range(1, 20):
        inner = MemoryStore()
        made = commit(create(inner), {"large": LARGE, "secret": SECRET, "a": OTHER})
        faulty = Faulty(inner, {number: Fault(kind)}, only=[Operation.PUT])
        ended = False
        try:
            erase(faulty, LARGE, SECRET)
            ended = True
        except (Crash, DsvError):
            pass
        left = read_partly(inner, made)
        assert left.items() <= {"large": LARGE, "secret": SECRET, "a": OTHER}.items() and left["a"] == OTHER
        erase(inner, LARGE, SECRET)
        assert read_left(inner, made) == {"a": OTHER}
        collect(inner, tmp_path / f"{kind.name}{number}")
        assert LARGE[:1000] not in everything(inner) and SECRET not in everything(inner)
        if ended and kind is not Kind.LOST_ANSWER:
            break
    assert number >= 4, number


@pytest.mark.parametrize(
    "kind",
    [
        Kind.CRASH_AFTER,
        pytest.param(Kind.CRASH_BEFORE, marks=pytest.mark.exhaustive),
        pytest.param(Kind.LOST_ANSWER, marks=pytest.mark.exhaustive),
    ],
)
def test_a_successor_that_is_killed_at_any_write_is_finished_by_the_same_command(kind: Kind) -> None:
    new, dev = DatasetName("new"), BranchName("dev")
    inner = MemoryStore()
    first = commit(create(inner), {"secret": SECRET, "a": OTHER})
    point_branch(opened(inner), WRITER, (DATASET, dev), None, first, "branch")
    commit(opened(inner), {"b": b"b"})
    erase(inner, SECRET)
    for number in range(1, 60):
        store = copy_of(inner)
        ended = False
        try:
            faulty = Faulty(store, {number: Fault(kind)}, only=[Operation.PUT])
            make_successor(opened(faulty), WRITER, DATASET, new)
            ended = True
        except (Crash, DsvError):
            pass
        done = make_successor(opened(store), WRITER, DATASET, new)
        assert (done.commits, done.paths, done.branches) == (2, 2, 2)
        heads = {head.branch: head.commit for head in opened(store).refs.heads(new)}
        at = heads[MAIN]
        assert at is not None and read_left(store, at) == {"a": OTHER, "b": b"b"}
        assert heads[dev] is not None
        tree = TreeReader(opened(store).objects, at)
        assert [entry.path for entry, _ in tree.below(b"")] == [b"a", b"b"]
        if ended:
            break
    assert number >= 6, number


def test_a_successor_has_what_a_branch_names_and_no_tag_of_an_expired_commit() -> None:
    """`dsv expire` that was killed leaves a branch at a commit that has expired."""
    new, dev = DatasetName("new"), BranchName("dev")
    store = MemoryStore()
    repository = create(store)
    first, second = commit(repository, {"a": OTHER}), commit(repository, {"b": b"b"})
    commit(repository, {"c": b"c"})
    point_branch(repository, WRITER, (DATASET, dev), None, second, "branch")
    for name, one in (("v1", first), ("v2", second)):
        repository.refs.set_tag(DATASET, TagName(name), TagValue(one, Nonce.random(), 0, "a", ""))
    append(repository, WRITER, DATASET, ExpiryAction.EXPIRE, lambda _: [first, second])
    done = make_successor(opened(store), WRITER, DATASET, new)
    assert (done.commits, done.branches, done.tags) == (2, 2, 1)
    refs = opened(store).refs
    [(tag, value)] = refs.tags(new)
    assert (tag, value.commit) == ("v2", refs.head(new, dev).commit)


def read_partly(store: StoreBackend, commit_id: CommitId) -> Files:
    repository = opened(store)
    found: Files = {}
    for entry, where in TreeReader(repository.objects, commit_id).below(b""):
        try:
            _, pieces = next(Fetcher(repository.objects).files([WantedFile(entry, where)]))
            found[entry.path.decode()] = b"".join(pieces)
        except Erased:
            pass
    repository.objects.threads.close()
    return found


def test_a_store_that_never_erased_anything_pays_no_request() -> None:
    store = MemoryStore()
    made = commit(create(store), {"a": OTHER})
    listed: list[str] = []
    fresh = opened(_Lists(store, listed.append))
    found = TreeReader(fresh.objects, made).entry(b"a")
    assert found is not None
    _, pieces = next(Fetcher(fresh.objects).files([WantedFile(*found)]))
    assert b"".join(pieces) == OTHER
    Session.open(fresh, WRITER).close()
    assert not [one for one in listed if one.startswith(keys.ERASURE_PREFIX)]


class _Lists:
    def __init__(self, store: StoreBackend, tell: Callable[[str], None]) -> None:
        self._store, self._tell = store, tell

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def list(self, prefix: str, start_after: str | None = None) -> object:
        self._tell(prefix)
        return self._store.list(prefix, start_after)


def test_another_store_takes_erasures_over() -> None:
    store, there = MemoryStore(), MemoryStore()
    commit(create(store), {"secret": SECRET})
    erase(store, SECRET)
    other = create(there)
    assert adopt(other, WRITER, opened(store).objects.erasures) == 1
    assert adopt(opened(there), WRITER, opened(store).objects.erasures) == 0
    with pytest.raises(RefusedContent):
        commit(opened(there), {"x": SECRET})


def test_what_another_store_erased_stays_for_other_files_that_share_a_part(tmp_path: Path) -> None:
    store, there = MemoryStore(), MemoryStore()
    commit(create(store), {"large": LARGE})
    erase(store, LARGE)
    made = commit(create(there), {"large": LARGE, "similar": SIMILAR, "a": OTHER})
    assert adopt(opened(there), WRITER, opened(store).objects.erasures) == 1
    collect(there, tmp_path / "1")
    assert read_left(there, made) == {"similar": SIMILAR, "a": OTHER}
    stays = everything(there)
    assert LARGE[:1000] in stays and LARGE[-1000:] not in stays
