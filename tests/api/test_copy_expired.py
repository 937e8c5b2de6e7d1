"""Copies of datasets with expired commits or a limited history: what comes without content, and what stays."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from dsv.api.branches import tag
from dsv.api.settings import Settings, SettingsSource
from dsv.api.verify import VerifyRequest, verify
from dsv.errors import Conflict, NotFound
from dsv.format import keys
from dsv.format.records import ExpiryAction, RefEntry
from dsv.repo.expiry import FEATURE, append, read_expiry
from dsv.repo.history import walk
from dsv.repo.repository import Repository
from dsv.repo.resolve import resolve
from dsv.stores.base import Bytes, PutResult, StoreBackend
from dsv.values.ids import CommitId
from dsv.values.names import MAIN, BranchName, DatasetName, Rev, TagName
from tests.api.test_copy import HERE, RNG, THERE, World, world
from tests.exhaustive import some
from tests.kit.people import SCANS, read_commit
from tests.kit.repositories import WRITER
from tests.stores.faulty import Crash, Fault, Faulty, Kind
from tests.stores.wrapper import Wrapper


def expire_here(made: World, commits: list[CommitId], *actions: ExpiryAction) -> None:
    repository = Repository.open(made.here, None)
    for action in actions:
        append(repository, WRITER, SCANS, action, lambda _: commits)


def linear(made: World, count: int) -> list[CommitId]:
    return [made.data.commit({f"f{n}": RNG.randbytes(2000), "same": b"same"}) for n in range(count)]


def check_verified(made: World) -> None:
    """An independent look at the other store finds every byte that its names need."""
    context = structs.replace(
        made.data.context,
        settings=Settings([SettingsSource("test", {"store": THERE})], made.home, made.home, made.home),
    )
    found = verify(context, VerifyRequest(full=True))
    assert found.is_whole and not found.unasked and found.packs_read, found


def test_expired_commits_come_without_their_content(tmp_path: Path) -> None:
    with world(tmp_path) as made:
        commits = linear(made, 6)
        expire_here(made, commits[1:3], ExpiryAction.EXPIRE, ExpiryAction.FREE)
        expire_here(made, commits[3:4], ExpiryAction.EXPIRE)
        [done] = made.copy().names
        assert (done.commits, done.expired) == (3, 3)
        there = Repository.open(made.there, None)
        assert [one for one, _ in walk(there.objects, [commits[-1]])] == commits[::-1]
        assert read_expiry(there.refs, SCANS).freed == set(commits[1:4])
        for commit in (commits[0], *commits[4:]):
            assert read_commit(made.there, commit) == read_commit(made.here, commit)
        with pytest.raises(NotFound, match="expired"):
            resolve(there.refs, there.objects, SCANS, Rev(str(commits[2])))
        check_verified(made)
        commits.append(made.data.commit({"new": b"1"}))
        assert made.copy().names[0].commits == 1
        check_verified(made)


def test_a_limited_history_has_the_content_of_the_last_commits_and_of_tags(tmp_path: Path) -> None:
    with world(tmp_path) as made:
        commits = linear(made, 8)
        side = made.data.commit({"side": b"x"}, "dev", commits[2])
        tag(made.data.context, TagName.parse("v1"), made.data.target("main~5"))
        planned = made.copy(tags=True, history=2, dry_run=True)
        done = made.copy(tags=True, history=2)
        assert [(one.name, one.commits, one.expired) for one in done.names] == [
            ("main", 3, 5), ("dev", 1, 0), ("v1", 0, 0),
        ]  # fmt: skip
        assert planned.commits == done.commits == 4
        there = Repository.open(made.there, None)
        whole = [side, commits[7], commits[6], commits[2]]
        for commit in whole:
            assert read_commit(made.there, commit) == read_commit(made.here, commit)
        assert read_expiry(there.refs, SCANS).freed == set(commits) - set(whole)
        check_verified(made)
        linear(made, 3)
        assert [one.commits for one in made.copy(tags=True, history=2).names] == [2, 0]
        check_verified(made)


def test_an_expired_commit_gets_no_name_there(tmp_path: Path) -> None:
    with world(tmp_path) as made:
        commits = linear(made, 4)
        made.copy(history=1)
        tag(made.data.context, TagName.parse("old"), made.data.target("main~2"))
        with pytest.raises(
            Conflict, match=f"commit {str(commits[1])[:12]} of scans is expired in memory://"
        ) as no:
            made.copy(tags=True)
        assert no.value.hint is not None and "can't be undone" in no.value.hint
        assert Repository.open(made.there, None).refs.tag(SCANS, TagName.parse("old")) is None


def check_content(made: World, commits: list[CommitId]) -> None:
    there = Repository.open(made.there, None)
    assert not read_expiry(there.refs, SCANS).states.keys() & set(commits)
    for commit in commits:
        assert read_commit(made.there, commit) == read_commit(made.here, commit)


def test_a_limited_history_takes_nothing_from_names_of_the_other_store(tmp_path: Path) -> None:
    """Neither what a tag there leads to, nor an older move of a branch."""
    with world(tmp_path) as made:
        commits = linear(made, 3)
        tag(made.data.context, TagName.parse("v1"), made.data.target("main~1"))
        made.copy("scans@v1")
        assert made.copy(history=1, dry_run=True).names[0].expired == 0
        [done] = made.copy(history=1).names
        assert (done.commits, done.expired) == (1, 0)
        check_content(made, commits)
        commits += linear(made, 3)
        [done] = made.copy(history=1).names
        assert (done.commits, done.expired) == (1, 2)
        check_content(made, [*commits[:3], commits[5]])
        check_verified(made)


def test_a_limited_history_takes_nothing_from_a_branch_that_only_the_other_store_has(tmp_path: Path) -> None:
    with world(tmp_path) as made:
        commits = linear(made, 3)
        made.copy()
        there = Repository.open(made.there, None)
        head, back = there.refs.head(SCANS, MAIN), RefEntry.of(WRITER, 0, commits[0], "reset")
        there.refs.move(SCANS, MAIN, head, back)
        commits += linear(made, 2)
        [done] = made.copy(history=1).names
        assert (done.commits, done.expired) == (1, 1)
        check_content(made, [*commits[:3], commits[4]])
        check_verified(made)


def test_a_damaged_commit_that_the_other_store_has_ends_no_copy(tmp_path: Path) -> None:
    with world(tmp_path) as made:
        commits = linear(made, 2)
        tag(made.data.context, TagName.parse("v1"), made.data.target("main~1"))
        made.copy(tags=True)
        commits += linear(made, 2)
        for key in (keys.commit_key(commits[0]), keys.locator_key(commits[0])):
            made.here.delete(key)
            made.here.put_if_absent(key, b"damaged")
        made.forget()
        [done] = made.copy(history=1).names
        assert (done.commits, done.expired) == (1, 1)
        assert read_expiry(Repository.open(made.there, None).refs, SCANS).freed == {commits[2]}
        check_verified(made)


def test_what_expired_here_stays_where_a_tag_of_the_other_store_names_it(tmp_path: Path) -> None:
    with world(tmp_path) as made:
        commits = linear(made, 3)
        tag(made.data.context, TagName.parse("v1"), made.data.target("main~1"))
        made.copy("scans@v1")
        expire_here(made, commits[:2], ExpiryAction.EXPIRE, ExpiryAction.FREE)
        made.copy()
        check_content(made, commits)


class TaggedMeanwhile(Wrapper):
    """Somebody copies a tag to this store just after the first entry of the expiry log was written."""

    made: World
    tagged = False

    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        done = super().put_if_absent(key, data)
        if keys.parse_expiry_key(key) is not None and not self.tagged:
            self.tagged = True
            made = self.made
            made.stores[THERE] = self.inner
            repository = Repository.open(self.inner, None)
            repository.refs.expiry.clear()
            value = Repository.open(made.here, None).refs.tag(SCANS, TagName.parse("v1"))
            assert value is not None
            repository.refs.set_tag(SCANS, TagName.parse("v1"), value)
        return done


def test_a_tag_that_the_other_store_gets_during_a_copy_keeps_its_content(tmp_path: Path) -> None:
    with world(tmp_path) as made:
        commits = linear(made, 4)
        tag(made.data.context, TagName.parse("v1"), made.data.target("main~2"))
        made.data.commit({"x": b"x"}, "dev", commits[1])
        made.copy("scans@dev")
        for item in list(made.there.list(keys.branch_prefix(SCANS, BranchName.parse("dev")))):
            made.there.delete(item.key)  # the content is there, and no name leads to it
        racing = TaggedMeanwhile(made.there)
        racing.made = made
        made.stores[THERE] = racing
        made.copy(history=1)
        assert racing.tagged
        check_content(made, [*commits[:2], commits[3]])
        assert commits[2] in read_expiry(Repository.open(made.there, None).refs, SCANS).freed


class DeletedMeanwhile(Wrapper):
    """Somebody deletes a dataset when its branches are first listed."""

    def __init__(self, inner: StoreBackend, dataset: DatasetName) -> None:
        super().__init__(inner)
        self.dataset, self.deleted = dataset, False

    def list(self, prefix: str, start_after: str | None = None):  # type: ignore[no-untyped-def]
        if prefix == keys.branches_prefix(self.dataset) and not self.deleted:
            self.deleted = True
            repository = Repository.open(self.inner, None)
            main = repository.refs.head(self.dataset, MAIN)
            repository.add_feature(FEATURE, WRITER)
            gone = RefEntry.of(WRITER, 0, None, "delete dataset", deleted=True)
            repository.refs.move(self.dataset, MAIN, main, gone)
        return super().list(prefix, start_after)


def test_a_dataset_that_is_deleted_meanwhile_is_not_made_there_and_ends_nothing(tmp_path: Path) -> None:
    with world(tmp_path) as made:
        linear(made, 1)
        made.data.commit({"x": b"x"}, "dev", made.data.head())
        first = replace(made.data, name=DatasetName.parse("a"))
        first.commit({"f": b"1"})
        first.commit({"f": b"2"}, "dev", first.head())
        made.stores[HERE] = DeletedMeanwhile(made.here, DatasetName.parse("a"))
        done = made.copy("", every=True)
        assert {str(one.dataset) for one in done.names} == {"scans"}
        assert Repository.open(made.there, None).refs.datasets() == [SCANS]


def test_a_limited_copy_that_dies_at_any_call_is_continued(tmp_path: Path) -> None:
    def prepare(folder: Path) -> World:
        return stack.enter_context(world(folder))

    with ExitStack() as stack:
        made = prepare(tmp_path / "count")
        linear(made, 4)
        made.stores[THERE] = counting = Faulty(made.there)
        made.copy(history=2)
    for number in some(range(1, counting.calls + 1)):
        with ExitStack() as stack:
            made = prepare(tmp_path / str(number))
            commits = linear(made, 4)
            whole = made.there
            made.stores[THERE] = Faulty(whole, {number: Fault(Kind.CRASH_AFTER)})
            with suppress(Crash):
                made.copy(history=2)
            made.stores[THERE] = whole
            if Repository.open(whole, None).refs.datasets():
                check_verified(made)
            made.copy(history=2)
            for commit in commits[2:]:
                assert read_commit(whole, commit) == read_commit(made.here, commit)
            check_verified(made)
