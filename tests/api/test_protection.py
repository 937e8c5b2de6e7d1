"""Protected branches: what their rules refuse, whoever moves them and by whatever command."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec import structs

from dsv.api.branches import (
    branches,
    create_branch,
    delete_branch,
    protect_branch,
    rename_branch,
    reset_branch,
)
from dsv.api.checkout import rollback
from dsv.api.edits import EditRequest, Remove, edit
from dsv.api.log import reflog
from dsv.api.merge import MergeRequest, cherry_pick, merge
from dsv.api.sync import SyncRequest, sync
from dsv.errors import Conflict, DsvError, IntegrityError, Unsupported
from dsv.format import keys
from dsv.format.records import BranchLimits, BranchRule, Feature, FeatureRule, RefEntry, WriterIdentity
from dsv.repo import format_log
from dsv.repo.refs.branches import Head, LostRace, Refs
from dsv.repo.repository import Repository
from dsv.repo.session import Session, naming
from dsv.stores.memory import MemoryStore
from dsv.values.ids import CommitId, Nonce
from dsv.values.names import MAIN, BranchName, Target
from tests.api.test_branches import World, path
from tests.kit.people import Person, every_store_is
from tests.kit.repositories import DATASET, WRITER, commit
from tests.stores.wrapper import Watched

MAIN_PATH = path("main")
FORWARD = BranchLimits()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "home")
    with every_store_is(made.store):
        yield made


def protect(world: World, limits: BranchLimits = FORWARD) -> None:
    """Forced if there is another rule."""
    rule = world.fresh.refs.rule(DATASET, MAIN_PATH.branch)
    replaced = rule is not None and rule.limits is not None
    context = structs.replace(world.context, override="agreed") if replaced else world.context
    protect_branch(context, MAIN_PATH, limits, "agreed")


def test_a_rule_is_not_replaced_without_force(world: World) -> None:
    protect(world, BranchLimits(only_merge=True))
    with pytest.raises(Conflict, match="has a rule already: only merges"):
        protect_branch(world.context, MAIN_PATH, FORWARD)
    assert world.fresh.refs.limits(DATASET, MAIN_PATH.branch) == BranchLimits(only_merge=True)


def entry(commit_id: CommitId, *, author: str = "ann@lab", action: str = "sync") -> RefEntry:
    return RefEntry(commit_id, False, Nonce.random(), 0, author, action)


def last_action(world: World) -> str:
    return world.fresh.refs.head(DATASET, MAIN).entry.action


def test_a_protected_branch_only_goes_forward(world: World) -> None:
    world.create("spare", 0)
    protect(world)
    protect_branch(world.context, path("spare"), BranchLimits())
    commit(world.fresh, {"more": b"files"})
    before = world.heads()
    for work in (
        lambda: reset_branch(world.context, MAIN_PATH, world.at(0)),
        lambda: delete_branch(world.context, path("spare")),
        lambda: rename_branch(world.context, path("spare"), BranchName.parse("other")),
    ):
        with pytest.raises(Conflict, match="is protected") as caught:
            work()
        assert "--force -m REASON" in str(caught.value.hint)
    assert world.heads() == before
    reset_branch(world.context, path("spare"), world.at(2))
    protect_branch(world.context, MAIN_PATH, None)
    reset_branch(world.context, MAIN_PATH, world.at(0))


def test_an_overridden_rule_is_in_the_log_of_moves(world: World) -> None:
    protect(world)
    forced = structs.replace(world.context, override="the import was wrong")
    reset_branch(forced, MAIN_PATH, world.at(0), "the import was wrong")
    with reflog(world.context, MAIN_PATH, 1) as moves:
        (move,) = moves
    assert (move.action, move.forced, move.message) == ("reset", True, "the import was wrong")
    reset_branch(forced, MAIN_PATH, world.at(3))  # forward again: nothing had to be overridden
    with reflog(world.context, MAIN_PATH, 1) as moves:
        (move,) = moves
    assert (move.action, move.forced) == ("reset", False)


def test_only_the_named_authors_move_it(world: World) -> None:
    protect(world, BranchLimits(who=("Bob@Lab", "ann@lab")))
    refs = world.fresh.refs
    head = refs.head(DATASET, MAIN)
    with pytest.raises(Conflict, match="eve@lab is not among those who may move it, Bob@Lab, ann@lab"):
        refs.move(DATASET, MAIN, head, entry(commit_on(world, head), author="eve@lab"))
    for author in ("Bob Lee <bob@lab>", "ann@lab"):
        head = refs.head(DATASET, MAIN)
        assert isinstance(refs.move(DATASET, MAIN, head, entry(commit_on(world, head), author=author)), Head)
    eve = structs.replace(world.context, writer=structs.replace(world.context.writer, author="eve@lab"))
    with pytest.raises(Conflict, match="not among those"):
        protect_branch(eve, MAIN_PATH, None)
    protect_branch(structs.replace(eve, override="ann is away"), MAIN_PATH, None, "ann is away")
    assert last_action(world) == "unprotect (forced): ann is away"


def commit_on(world: World, head: Head) -> CommitId:
    """A commit whose parent is the head, stored and on no branch; it has the same files."""
    repository = world.fresh
    assert head.commit is not None
    before = repository.objects.commit(head.commit)
    made = structs.replace(before, parents=(head.commit,), message=f"after {head.number}")
    with Session.open(repository, WRITER) as session:
        return session.put_commit(made, repository.objects.commit_locator(head.commit))


def test_only_a_merge_moves_it(world: World) -> None:
    protect(world, BranchLimits(only_merge=True))
    repository = world.fresh
    head = repository.refs.head(DATASET, MAIN)
    with pytest.raises(Conflict, match="only a merge moves it"):
        commit(repository, {"x": b"x"})
    with pytest.raises(Conflict, match="only a merge moves it"):
        repository.refs.check_mover(head, "ann@lab")
    repository.refs.check_mover(head, "ann@lab", merge=True)
    on_top = commit_on(world, head)
    assert isinstance(repository.refs.move(DATASET, MAIN, head, entry(on_top, action="merge")), Head)
    head = repository.refs.head(DATASET, MAIN)
    before = repository.objects.commit(on_top)
    merged = structs.replace(before, parents=(on_top, world.commits[0]), message="two parents")
    with Session.open(repository, WRITER) as session:
        both = session.put_commit(merged, None)
        assert isinstance(session.publish(DATASET, MAIN, head, entry(both, action="sync")), Head)


@pytest.mark.parametrize(
    ("percent", "removed", "allowed"), [(25, 1, True), (24, 1, False), (0, 1, False), (0, 0, True)]
)
def test_no_move_removes_more_than_is_allowed(
    world: World, percent: int, removed: int, allowed: bool
) -> None:
    """Of four paths."""
    protect(world, BranchLimits(max_removals=percent))
    gone = tuple(f"f{number}" for number in range(removed))
    if allowed:
        commit(world.fresh, {"new": b"n", "f3": b"changed"}, gone)
        return
    with pytest.raises(Conflict, match=f"{removed} of 4 paths would be removed, more than {percent} %"):
        commit(world.fresh, {"new": b"n"}, gone)


def test_a_refused_session_is_over_for_gc(world: World) -> None:
    """It has declared its commit, which gc would keep for as long as the session is open."""
    protect(world, BranchLimits(only_merge=True))

    def sessions(part: str) -> int:
        return sum(item.key.endswith(part) for item in world.store.list("sessions/"))

    with pytest.raises(Conflict):
        commit(world.fresh, {"x": b"x"})
    repository = world.fresh
    with pytest.raises(Conflict), naming(repository, WRITER, DATASET, world.commits[0], ""):
        repository.refs.move(DATASET, MAIN, repository.refs.head(DATASET, MAIN), entry(world.commits[0]))
    assert sessions("/open") == sessions("/closed")


def test_anyone_who_looked_before_the_rule_loses_the_race(world: World) -> None:
    repository = world.fresh
    head = repository.refs.head(DATASET, MAIN)
    protect(world, BranchLimits(only_merge=True))
    lost = repository.refs.move(DATASET, MAIN, head, entry(commit_on(world, head)))
    assert isinstance(lost, LostRace) and lost.winner.commit == head.commit
    assert last_action(world) == "protect: only merges; agreed"


def test_of_many_rules_at_once_one_is_the_next(world: World) -> None:
    def done(percent: int) -> DsvError | None:
        try:
            protect(world, BranchLimits(max_removals=percent))
        except DsvError as error:
            return error
        return None

    with ThreadPoolExecutor(6) as pool:
        ends = list(pool.map(done, range(6)))
    assert None in ends and all(isinstance(end, Conflict) for end in ends if end is not None)
    found = [key for item in world.store.list("refs/") if (key := keys.parse_branch_rule_key(item.key))]
    assert sorted(number for *_, number in found) == list(range(ends.count(None)))
    (limits,) = [item.limits for item in branches(world.context, DATASET)]
    assert limits == world.fresh.refs.limits(DATASET, MAIN) is not None


def test_a_rule_goes_with_its_branch_to_the_new_name(world: World) -> None:
    world.create("x", 0)
    limits = BranchLimits(only_merge=True, who=("ann@lab",))
    protect_branch(world.context, path("x"), limits, "agreed")
    forced = structs.replace(world.context, override="a better name")
    rename_branch(forced, path("x"), BranchName.parse("y"))
    assert world.fresh.refs.limits(DATASET, BranchName.parse("y")) == limits
    with pytest.raises(Conflict, match="only a merge"):
        reset_branch(world.context, path("y"), world.at(1))
    rename_branch(forced, path("y"), BranchName.parse("x"))  # whose last rule is the same: nothing is added
    found = [key for item in world.store.list("refs/") if (key := keys.parse_branch_rule_key(item.key))]
    assert sorted((str(branch), number) for _, branch, number in found) == [("x", 0), ("y", 0)]


def test_a_rule_survives_the_deletion_of_its_branch(world: World) -> None:
    world.create("x", 0)
    bob = structs.replace(world.context, writer=structs.replace(world.context.writer, author="bob"))
    protect_branch(bob, path("x"), BranchLimits(who=("bob",)), "agreed")
    delete_branch(structs.replace(bob, override="no longer used"), path("x"), force=True)
    with pytest.raises(Conflict, match="not among those"):
        create_branch(world.context, path("x"), world.at(1))
    create_branch(bob, path("x"), world.at(1))


# --- costs and stores without rules


def test_a_store_without_rules_is_asked_nothing_more(world: World) -> None:
    """One that has them: for the third and fourth entry of its format, the newest rule, and what may follow it. Both
    are asked once more whether the log of the format continues, after the branch has moved."""

    def asked(content: bytes) -> list[str]:
        """Return the keys that were read, and the prefixes that were listed."""
        found: list[tuple[str, str]] = []
        store = Watched(world.store, lambda kind, key: found.append((kind, key)))
        commit(Repository.open(store, None), {"cost": content})
        return [key for kind, key in found if kind in ("get", "list")]

    plain = asked(b"plain")
    protect(world)
    ruled = asked(b"ruled")
    assert [sum("rule" in key for key in each) for each in (plain, ruled)] == [0, 2]
    assert [sum("format/" in key for key in each) for each in (plain, ruled)] == [3, 5]
    for each in (plain, ruled):  # one listing; the head, what may follow it, and what was written read back
        assert sum(key.endswith("/") for key in each if key.startswith("refs/")) == 1
        assert sum("refs/" in key and "/f" in key for key in each) <= 4


def test_a_store_has_the_feature_from_its_first_rule_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not world.fresh.format.has("protected-branches")
    protect(world)
    protect(world, BranchLimits(only_merge=True))
    assert [len(entry.features) for entry in world.fresh.format.entries] == [2, 3]
    older = format_log.KNOWN_FEATURES - {"protected-branches"}
    monkeypatch.setattr(format_log, "KNOWN_FEATURES", older)
    assert world.heads()["main"] == world.commits[3]  # which an older dsv can read
    with pytest.raises(Unsupported, match="'protected-branches', which this dsv cannot write"):
        commit(world.fresh, {"x": b"x"})


def test_two_who_add_the_feature_at_once(world: World) -> None:
    one, other = world.fresh, world.fresh
    feature = Feature("protected-branches", FeatureRule.READ_ONLY)
    assert one.add_feature(feature, WriterIdentity("a", "h", "t"))
    assert not other.add_feature(feature, WriterIdentity("b", "h", "t"))
    assert len(world.fresh.format.entries) == 2 == len(other.format.entries)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_rule_is_found_in_any_listing(world: World, ordered: bool) -> None:
    """Below many moves, beside others' branches, and by somebody whose listing lags behind."""
    for number in range(4):
        protect(world, BranchLimits(max_removals=number))
        world.create(f"b{number}", number)

    class Behind(MemoryStore):
        def list(self, prefix: str, start_after: str | None = None):  # type: ignore[no-untyped-def]
            rows = [
                row for row in super().list(prefix, start_after) if "rule-fffffffffffffffc" not in row.key
            ]
            return iter(rows if ordered else reversed(rows))

    behind = Behind()
    behind.ordered_listing = ordered
    for item in world.store.list(""):
        behind.put_if_absent(item.key, world.store.get(item.key))
    for refs in (Refs(behind), Refs(behind)):
        refs.named = True
        assert refs.limits(DATASET, MAIN) == BranchLimits(max_removals=3)
        assert [head.branch for head in refs.heads(DATASET)] == ["b0", "b1", "b2", "b3", "main"]
    refs = Refs(behind)
    refs.named = True
    refs.heads(DATASET)
    assert refs.limits(DATASET, MAIN) == BranchLimits(max_removals=3)
    assert refs.limits(DATASET, BranchName.parse("b1")) is None


def test_a_rule_that_was_copied_from_another_branch_is_damage(world: World) -> None:
    world.create("x", 0)
    protect(world)
    data = world.store.get(keys.branch_rule_key(DATASET, MAIN, 0))
    world.store.put_if_absent(keys.branch_rule_key(DATASET, BranchName.parse("x"), 0), data)
    with pytest.raises(IntegrityError, match="it was written for scans main 0, not for scans x 0"):
        reset_branch(world.context, path("x"), world.at(1))


def test_limits_that_make_no_sense_are_not_written(world: World) -> None:
    for limits in (BranchLimits(max_removals=101), BranchLimits(who=("b", "a")), BranchLimits(who=("",))):
        rule = BranchRule.of(limits, Nonce.random(), 0, "a", "", DATASET, MAIN, 0)
        with pytest.raises(ValueError, match=r"sorted|percent"):
            rule.encode()


# --- people with workspaces


def test_sync_and_rollback_keep_to_the_rule(tmp_path: Path) -> None:
    ann = Person(tmp_path / "ann", str(tmp_path / "store"))
    ann.init()
    ann.write({f"f{number}": b"%d" % number for number in range(30)})
    ann.sync("first")
    main = path("main")
    protect_branch(ann.context(), main, BranchLimits(who=("bob@lab",), max_removals=10), "agreed")
    ann.write({"f0": b"changed"})
    with pytest.raises(Conflict, match="ann@lab is not among those"):
        ann.sync("mine")
    bob = Person(ann.home, ann.store, "bob")
    bob.sync("by bob")
    for number in range(5):
        (ann.workspace / f"f{number}").unlink()
    with pytest.raises(Conflict, match="5 of 30 paths would be removed, more than 10 %"):
        bob.sync("too many")
    assert bob.context().workspace().base() is not None
    sync(structs.replace(bob.context(), override="they were empty"), SyncRequest(message="they were empty"))
    for dry_run in (True, False):
        with pytest.raises(Conflict, match="not among those"):
            rollback(ann.context(), Target.parse("@main~1"), dry_run=dry_run)
    rollback(bob.context(), Target.parse("@main~1"))
    with reflog(bob.context(), None, 2) as found:
        moves = list(found)
    assert [(move.action, move.forced) for move in moves] == [("rollback", False), ("sync", True)]
    assert moves[1].message == "they were empty"


def test_a_dry_run_keeps_to_the_rule(tmp_path: Path) -> None:
    ann = Person(tmp_path / "ann", str(tmp_path / "store"))
    ann.init()
    ann.write({"a": b"1", "b": b"2"})
    few = ann.sync("few").commit
    ann.write({f"f{number}": b"%d" % number for number in range(20)})
    full = ann.sync("full").commit
    assert few is not None and full is not None
    create_branch(ann.context(), path("less"), Target.parse(f"scans@{full}"))
    edit(
        ann.context(),
        Target.parse("scans@less"),
        [Remove("f*")],
        EditRequest("fewer", allow_removals=True),
    )
    protect_branch(ann.context(), path("main"), BranchLimits(max_removals=10), "agreed")
    many = "20 of 22 paths would be removed, more than 10 %"
    remove = EditRequest(dry_run=True, allow_removals=True)
    for work in (
        lambda: rollback(ann.context(), Target.parse(f"@{few}"), dry_run=True),
        lambda: merge(ann.context(), MergeRequest(Target.parse("scans@less"), dry_run=True)),
        lambda: merge(
            ann.context(), MergeRequest(Target.parse("scans@less"), fast_forward=False, dry_run=True)
        ),
        lambda: cherry_pick(ann.context(), MergeRequest(Target.parse("scans@less"), dry_run=True)),
    ):
        with pytest.raises(Conflict, match=many):
            work()
    planned = edit(ann.context(), Target.parse("scans@main"), [Remove("f*")], remove)
    assert len(planned.paths) == 20 and planned.files is None and many in (planned.refused or "")
