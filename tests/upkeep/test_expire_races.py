"""Expiring commits while others name them, expire them too, or run them, and without the right to write."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from msgspec.structs import replace

from dsv.errors import Denied
from dsv.format import keys
from dsv.format.records import ExpiryAction, TagValue
from dsv.repo.expiry import append, read_expiry
from dsv.repo.session import naming, point_branch
from dsv.stores.base import StoreBackend
from dsv.stores.memory import MemoryStore
from dsv.upkeep.datasets import delete_dataset, undelete_dataset
from dsv.upkeep.expire import RetentionRules, expire, plan_expiry, undo_expiry
from dsv.values.ids import CommitId, Nonce
from dsv.values.names import BranchName, TagName
from tests.kit.repositories import DATASET, WRITER, commit, create, read
from tests.stores.wrapper import ReadOnly
from tests.upkeep.gc_world import SOON, collect
from tests.upkeep.test_delete_dataset import Died, Dying, heads, make, opened

LAST = RetentionRules(last=1)
ENTRY = keys.expiry_key(DATASET, 0)


@pytest.fixture(autouse=True, params=[8, 1], ids=["", "joined"])
def joined(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with a joined copy after each entry."""
    monkeypatch.setattr("dsv.repo.expiry.JOINED", request.param)


def four() -> tuple[MemoryStore, list[CommitId]]:
    store = MemoryStore()
    repository = create(store)
    return store, [commit(repository, {"a": b"%d" % number}) for number in range(4)]


def tag(store: StoreBackend, one: CommitId) -> None:
    repository, name = opened(store), TagName.parse("v1")
    with naming(repository, WRITER, DATASET, one, "tag v1"):
        repository.refs.set_tag(DATASET, name, TagValue(one, Nonce.random(), 0, "a", ""))


def branch(store: StoreBackend, one: CommitId) -> None:
    point_branch(opened(store), WRITER, (DATASET, BranchName.parse("dev")), None, one, "create")


@pytest.mark.parametrize("name", [tag, branch])
def test_what_is_named_before_the_entry_stays(name: Callable[[StoreBackend, CommitId], None]) -> None:
    """The plan was made before the name."""
    store, commits = four()
    dying = Dying(store)
    dying.before[ENTRY] = lambda: name(store, commits[1])
    repository = opened(dying)
    log = expire(repository, WRITER, plan_expiry(repository, DATASET, LAST))
    assert set(log.expired) == {commits[0], commits[2]}
    assert log.entries[-1].message == "a branch or a tag names it"
    assert set(read_expiry(opened(store).refs, DATASET).expired) == set(log.expired)


def test_of_two_who_expire_at_once_each_commit_expires_once() -> None:
    store, commits = four()
    dying = Dying(store)

    def other() -> None:
        repository = opened(store)
        expire(repository, WRITER, plan_expiry(repository, DATASET, LAST))

    dying.before[ENTRY] = other
    repository = opened(dying)
    log = expire(repository, WRITER, plan_expiry(repository, DATASET, LAST))
    assert set(log.expired) == set(commits[:3]) and len(log.entries) == 1


@pytest.mark.parametrize("behind", [False, True])
def test_killed_at_any_write_the_same_command_does_the_rest(
    behind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also between the entries of a large expiry. Before that, an undo takes back what it has done."""
    monkeypatch.setattr("dsv.repo.expiry.MAX_COMMITS", 1)
    for at in count():
        store, commits = four()
        dying = Dying(store, at, behind=behind)
        repository = opened(dying)
        with suppress(Died):
            expire(repository, WRITER, plan_expiry(repository, DATASET, LAST))
        known = read_expiry(opened(store).refs, DATASET)
        undo_expiry(opened(store), WRITER, DATASET, list(known.expired))
        assert read_expiry(opened(store).refs, DATASET).states == {}
        again = opened(store)
        assert set(expire(again, WRITER, plan_expiry(again, DATASET, LAST)).expired) == set(commits[:3])
        assert read(opened(store), commits[0]) == {"a": b"0"}
        if dying.puts <= at:
            break
    assert at > 3


def test_undo_and_grace_hold_in_a_log_of_many_entries(tmp_path: Path) -> None:
    store, commits = four()
    repository = opened(store)
    for number in range(20):
        action = ExpiryAction.UNDO if number % 2 else ExpiryAction.EXPIRE
        append(repository, WRITER, DATASET, action, lambda _: commits[:1])
    assert len(list(store.list(keys.expiry_prefix(DATASET)))) > 20, "joined copies"
    expire(repository, WRITER, plan_expiry(repository, DATASET, LAST))
    own_grace = replace(SOON, grace=None)
    assert collect(store, tmp_path / "1", own_grace).freed == {}, "for two weeks"
    assert undo_expiry(opened(store), WRITER, DATASET, commits[:2]) == (commits[:2], [])
    assert collect(store, tmp_path / "2").freed == {DATASET: 1}
    again = opened(store)
    expire(again, WRITER, replace(plan_expiry(again, DATASET, LAST), undo_for=3600))
    assert collect(store, tmp_path / "3").freed == {}, "for an hour"
    assert undo_expiry(opened(store), WRITER, DATASET, commits[:1]) == (commits[:1], [])
    again = opened(store)
    expire(again, WRITER, plan_expiry(again, DATASET, LAST))
    assert collect(store, tmp_path / "4").freed == {DATASET: 1}
    assert undo_expiry(opened(store), WRITER, DATASET, commits[:3]) == (
        commits[1:2],
        [commits[0], commits[2]],
    )


def test_a_run_of_the_last_year_keeps_its_commit() -> None:
    """Of whatever dataset the run is."""
    store, commits = four()
    run = (
        b'{"kind":"dsv run","version":1,"dataset":"other","commit":"%s","data":[{"dataset":"scans","commit":"%s"}]}'
    ) % (b"0" * 64, str(commits[1]).encode())
    store.put_if_absent("runs/other/20261120-132145-1f2e3d4c/record", run)
    plan = plan_expiry(opened(store), DATASET, LAST)
    reasons = {one.commit: one.reasons for one in plan.items}
    assert reasons[commits[1]] == ("run 20261120-132145-1f2e3d4c",)
    assert set(plan.commits) == {commits[0], commits[2]}
    assert set(plan_expiry(opened(store), DATASET, RetentionRules(last=1, also_runs=True)).commits) == set(
        commits[:3]
    )


def test_without_the_right_to_write_nothing_changes() -> None:
    store, _ = make()
    before = sorted(item.key for item in store.list(""))
    denied = opened(ReadOnly(store))
    with pytest.raises(Denied):
        delete_dataset(denied, WRITER, DATASET)
    assert sorted(item.key for item in store.list("")) == before
    delete_dataset(opened(store), WRITER, DATASET)
    with pytest.raises(Denied):
        undelete_dataset(opened(ReadOnly(store)), WRITER, DATASET)
    assert heads(store) == {}
    store, commits = four()
    denied = opened(ReadOnly(store))
    old = RetentionRules(older_than=0)
    considered = plan_expiry(denied, DATASET, old, dry_run=True).items
    assert [one.commit for one in considered] == commits[::-1], "a dry run needs no right to write"
    with pytest.raises(Denied):
        plan_expiry(denied, DATASET, old)
    with pytest.raises(Denied):
        expire(denied, WRITER, plan_expiry(denied, DATASET, LAST))
    assert read_expiry(opened(store).refs, DATASET).states == {}
