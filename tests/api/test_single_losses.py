"""Each object of a small store outside of its packs is lost or damaged in turn: no version is lost with it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from dsv.api.branches import BranchPath, delete_tag, reset_branch, tag
from dsv.api.clone import clone
from dsv.api.verify import VerifyRequest, verify
from dsv.errors import Conflict, DsvError, IntegrityError, NotFound
from dsv.format import keys
from dsv.format.codec import carried
from dsv.format.records import ExpiryAction
from dsv.repo.expiry import append
from dsv.repo.repository import Repository
from dsv.repo.resolve import resolve
from dsv.repo.session import Session
from dsv.stores.memory import MemoryStore
from dsv.upkeep.roots import read_roots
from dsv.upkeep.verify import Verification
from dsv.values.names import MAIN, BranchName, Rev, TagName, Target
from tests.kit.people import SCANS, Dataset, Files, Person, dataset, every_store_is, read_commit
from tests.kit.repositories import WRITER

DEV = BranchName.parse("dev")
MISSING, FLIPPED, SHORT = "missing", "flipped", "short"


class Lab:
    """The store as it was, what its versions are, and people who have seen nothing of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.people = folder, 0
        rng = random.Random(11)
        with dataset(folder / "maker") as made:
            self.commits = [
                made.commit({f"f{n}": rng.randbytes(300), "large": rng.randbytes(2 << 20)}) for n in range(3)
            ]
            self.commits.append(made.commit({"side": b"side"}, "dev", self.commits[1], message="x" * 3000))
            tag(made.context, TagName.parse("v1"), made.target("main~1"))
            self.expired = made.commit({"dev": b"more"}, "dev")
            self.commits.append(made.commit({"dev": b"again"}, "dev"))
            append(made.repository(), WRITER, SCANS, ExpiryAction.EXPIRE, lambda _: [self.expired])
            self.contents = {item.key: bytes(made.store.get(item.key)) for item in made.store.list("")}
            self.files = {one: read_commit(made.store, one) for one in self.commits}

    def store(self, key: str, how: str) -> MemoryStore:
        store = MemoryStore()
        for one, data in self.contents.items():
            if one != key:
                store.put_if_absent(one, data)
            elif how != MISSING:
                half = len(data) // 2
                wrong = data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :]
                store.put_if_absent(one, wrong if how == FLIPPED else data[:half])
        return store

    def newcomer(self, store: MemoryStore) -> Dataset:
        self.people += 1
        folder = self.folder / f"person-{self.people}"
        folder.mkdir()
        return Dataset(store, Person(folder, "/nowhere").context(folder))

    def verify(self, store: MemoryStore, *, repair: bool = False, full: bool = False) -> Verification:
        with every_store_is(store):
            return verify(self.newcomer(store).context, VerifyRequest(repair=repair, full=full))

    def read(self, store: MemoryStore, name: str) -> Files:
        repository = Repository.open(store, None)
        found = resolve(repository.refs, repository.objects, SCANS, Rev(name))
        return read_commit(store, found.commit)

    def lost(self, store: MemoryStore) -> list[str]:
        """The versions that nobody can read by their ids, and the tag if it can't be read."""
        found = []
        for name, one in [*((str(one), one) for one in self.commits), ("v1", self.commits[1])]:
            try:
                if self.read(store, name) != self.files[one]:
                    found.append(name)
            except DsvError:
                found.append(name)
        return found


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("losses"))


APART = (keys.PACK_PREFIX, keys.FORMAT_PREFIX, keys.README_KEY)
"""Packs are another matter, and without its format log a store is read from a mirror."""


def of_key(lab: Lab, prefix: str) -> list[str]:
    found = [key for key in sorted(lab.contents) if key.startswith(prefix) and not key.startswith(APART)]
    assert found
    return found


@pytest.mark.parametrize("how", [MISSING, FLIPPED, SHORT])
def test_no_version_is_lost_with_any_object_outside_of_packs(lab: Lab, how: str) -> None:
    for key in of_key(lab, ""):
        store = lab.store(key, how)
        if lab.lost(store):
            assert key.startswith(keys.INDEX_PREFIX), key  # all else is read without a repair
            lab.verify(store, repair=True)
            assert not lab.lost(store), key


@pytest.mark.parametrize("how", [MISSING, FLIPPED, SHORT])
def test_a_commit_whose_record_is_lost_is_read_by_every_name_and_repaired(lab: Lab, how: str) -> None:
    for key in of_key(lab, keys.COMMIT_PREFIX):
        store = lab.store(key, how)
        for branch in (MAIN, DEV):
            assert Repository.open(store, None).refs.head(SCANS, branch).commit in lab.commits
        found = lab.verify(store)
        [fault] = [fault for fault in found.faults if fault.what == "commit"]
        assert "its locator has a copy" in fault.text
        assert lab.verify(store, repair=True).repaired == 1
        assert bytes(store.get(key)) == lab.contents[key]
        assert lab.verify(store, full=True).is_whole


@pytest.mark.parametrize("how", [MISSING, FLIPPED, SHORT])
def test_a_lost_tag_is_read_from_its_copy_noticed_and_put_back(lab: Lab, how: str) -> None:
    v1 = TagName.parse("v1")
    value, copy = keys.tag_key(SCANS, v1), keys.tag_key(SCANS, v1) + keys.TAG_COPY
    assert lab.contents[value] == lab.contents[copy]
    store = lab.store(value, how)
    with every_store_is(store):
        maker = lab.newcomer(store)
        with pytest.raises(IntegrityError):
            read_roots(maker.repository())  # so gc keeps what it names
        with pytest.raises(Conflict, match="already names"):  # though a put-if-absent of its key would win
            tag(maker.context, v1, maker.target("main"))
    assert lab.read(store, "v1") == lab.files[lab.commits[1]]
    store = lab.store(value, how)
    [fault] = [fault for fault in lab.verify(store).faults if fault.what == "tag"]
    assert (fault.name, fault.hint) == ("scans@v1", "dsv verify --repair")
    assert lab.verify(store, repair=True).repaired == 1
    assert bytes(store.get(value)) == lab.contents[value] and lab.verify(store).is_whole
    store = lab.store(copy, how)
    assert lab.verify(store, repair=True).repaired == 1
    assert bytes(store.get(copy)) == lab.contents[copy]


def test_a_tag_that_was_deleted_does_not_come_back_by_its_copy(lab: Lab) -> None:
    store, v1 = lab.store("", MISSING), TagName.parse("v1")
    with every_store_is(store):
        maker = lab.newcomer(store)
        delete_tag(maker.context, SCANS, v1, force=True)
        for lost in (keys.tag_key(SCANS, v1), keys.tag_key(SCANS, v1) + keys.TAG_COPY):
            store.delete(lost)
            assert lab.verify(store, repair=True).is_whole
            with pytest.raises(NotFound):
                store.get(lost)
            assert Repository.open(store, None).refs.tags(SCANS) == []
        with pytest.raises(Conflict, match="was deleted"):
            tag(maker.context, v1, maker.target("main~1"))


@pytest.mark.parametrize("lost", [0, 1])
def test_a_tag_whose_writer_died_between_the_two_copies_is_made_again(lab: Lab, lost: int) -> None:
    store, v1 = lab.store("", MISSING), TagName.parse("v1")
    key = (keys.tag_key(SCANS, v1) + keys.TAG_COPY, keys.tag_key(SCANS, v1))[lost]
    store.delete(key)
    with every_store_is(store):
        maker = lab.newcomer(store)
        made = tag(maker.context, v1, maker.target("main~1"))
        assert made.commit == lab.commits[1]
    store.get(key)
    assert lab.read(store, "v1") == lab.files[lab.commits[1]]


def test_a_locator_is_made_again_with_its_copy_of_the_commit(lab: Lab) -> None:
    for key in of_key(lab, keys.LOCATOR_PREFIX):
        commit_id = keys.parse_locator_key(key)
        assert commit_id is not None
        for how in (MISSING, SHORT):
            store = lab.store(key, how)
            lab.verify(store, repair=True)
            made = bytes(store.get(key))
            assert made == lab.contents[key]
            assert carried(made, 1 << 20) == lab.contents[keys.commit_key(commit_id)]


@pytest.mark.parametrize("branch", [MAIN, DEV])
def test_a_commit_of_a_lost_newest_move_is_listed_and_named_again(lab: Lab, branch: BranchName) -> None:
    key = of_key(lab, keys.branch_prefix(SCANS, branch))[0]
    store = lab.store(key, MISSING)
    found = lab.verify(store)
    newest = lab.commits[2] if branch == MAIN else lab.commits[-1]
    [one] = found.unnamed
    assert (one.commit, one.dataset, one.branch) == (newest, SCANS, branch) and found.is_whole
    assert one.parent == (lab.commits[1] if branch == MAIN else lab.expired)
    with every_store_is(store):
        made = lab.newcomer(store)
        target = Target.parse(f"scans@{str(newest)[:12]}")
        reset_branch(made.context, BranchPath.parse(f"scans@{branch}"), target)
        assert made.head(str(branch)) == newest
    assert not lab.verify(store).unnamed


def test_a_commit_of_a_lost_move_is_listed_also_after_the_next_sync(lab: Lab) -> None:
    store = lab.store(of_key(lab, keys.branch_prefix(SCANS, MAIN))[0], MISSING)
    with every_store_is(store):
        made = lab.newcomer(store)
        made.commit({"next": b"next"})
        made.commit({"after": b"that"})
        gone = made.commit({"freed": b"by a log"}, "gone", lab.commits[0])
        append(made.repository(), WRITER, SCANS, ExpiryAction.EXPIRE, lambda _: [lab.commits[0]])
        repository = made.repository()
        expired = replace(repository.objects.commit(gone), message="late", parents=(lab.commits[0],))
        with Session.open(repository, WRITER) as session:
            session.put_commit(expired, repository.objects.commit_locator(gone))
            session.close()
    [one] = lab.verify(store).unnamed  # what follows an expired commit alone is not listed
    assert (one.commit, one.branch, one.parent) == (lab.commits[2], MAIN, lab.commits[1])


def test_what_older_moves_name_or_is_being_written_is_not_listed(lab: Lab) -> None:
    store = lab.store("", MISSING)
    with every_store_is(store):
        made = lab.newcomer(store)
        base = made.head()
        made.commit({"a": b"1"})
        reset_branch(made.context, BranchPath.parse("scans@main"), made.target(str(base)[:12]))
        repository = made.repository()
        commit = repository.objects.commit(base)
        under_way = replace(commit, message="under way", parents=(base,))
        with Session.open(repository, WRITER) as session:
            session.declare(session.put_commit(under_way, repository.objects.commit_locator(base)))
        assert not lab.verify(store).unnamed
        session.close()
        assert [one.commit for one in lab.verify(store).unnamed] == [under_way.id]


def test_a_version_whose_record_is_lost_is_not_overwritten(tmp_path: Path) -> None:
    """Its copy is in the store, so that others have read it is no right to publish past it."""
    ann = Person(tmp_path / "ann", str(tmp_path / "store"))
    ann.init()
    ann.write({"a": b"a"})
    first = ann.sync().commit
    bob = Person(tmp_path / "bob", ann.store, "bob")
    clone(bob.context(tmp_path), Target.parse("scans"), bob.workspace)
    ann.write({"important": b"important"})
    second = ann.sync().commit
    assert first is not None and second is not None
    (Path(ann.store) / keys.commit_key(second)).unlink()
    bob.write({"b": b"b"})
    for _ in range(2):
        with pytest.raises(DsvError):
            bob.sync()
        assert bob.read(second)["important"] == b"important"
    with bob.context().repository() as repository:
        assert repository.refs.head(SCANS, MAIN).commit == second
