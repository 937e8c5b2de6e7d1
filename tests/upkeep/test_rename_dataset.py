"""Renaming a dataset: killed at any write, and with somebody else at work at any request.

python -m tests.upkeep.test_rename_dataset FOLDER EVERY    some of that in stores below a folder, on a host of its own
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count

import pytest

from dsv.errors import Conflict, Denied, DsvError, NotFound
from dsv.format import keys
from dsv.format.records import ExpiryAction, RefEntry, TagDeleted, TagValue, WriterIdentity
from dsv.repo.expiry import append, read_expiry
from dsv.repo.history import is_ancestor
from dsv.repo.refs.branches import LostRace
from dsv.repo.resolve import resolve
from dsv.repo.session import naming, point_branch
from dsv.stores.base import StoreBackend
from dsv.stores.memory import MemoryStore
from dsv.stores.open import open_raw
from dsv.stores.options import StoreOptions
from dsv.upkeep.datasets import delete_dataset, rename_dataset
from dsv.upkeep.expire import RetentionRules, plan_expiry
from dsv.upkeep.roots import Parents, kept, read_names, read_roots
from dsv.values.ids import CommitId, Nonce
from dsv.values.names import MAIN, BranchName, DatasetName, Rev, TagName
from tests import exhaustive
from tests.kit.repositories import DATASET as OLD
from tests.kit.repositories import WRITER, commit, create, read
from tests.labs.s3_server import S3Server
from tests.stores.wrapper import ReadOnly, Watched
from tests.upkeep.test_delete_dataset import Died, Dying, opened
from tests.upkeep.test_roots import RUN, run

NEW, OTHER = DatasetName.parse("xrays"), DatasetName.parse("other/name")
DEV, MORE, GONE = BranchName.parse("dev"), BranchName.parse("more"), BranchName.parse("gone")
V1, V2 = TagName.parse("v1"), TagName.parse("v2")
EVE = WriterIdentity("eve", "host", "test")

Commits = list[CommitId]


def place(store: StoreBackend, dataset: DatasetName, branch: BranchName, one: CommitId) -> None:
    """Move a branch, or make it."""
    repository = opened(store)
    repository.refs.head(dataset, MAIN)
    after = repository.refs.newest(dataset, branch)
    if isinstance(point_branch(repository, EVE, (dataset, branch), after, one, "sync"), LostRace):
        raise Conflict("lost")


def remove(store: StoreBackend, dataset: DatasetName, branch: BranchName) -> None:
    refs = opened(store).refs
    gone = RefEntry(None, True, Nonce.random(), 0, "a", "delete")
    if isinstance(refs.move(dataset, branch, refs.head(dataset, branch), gone), LostRace):
        raise Conflict("lost")
    refs.check_not_gone(dataset, "it was deleted")


def tag(store: StoreBackend, dataset: DatasetName, name: TagName, one: CommitId) -> None:
    repository = opened(store)
    repository.refs.require(dataset)
    with naming(repository, EVE, dataset, one, f"tag {name}"):
        repository.refs.set_tag(dataset, name, TagValue(one, Nonce.random(), 0, "a", ""))
    repository.refs.check_not_gone(dataset, "a tag was made")


def untag(store: StoreBackend, dataset: DatasetName, name: TagName) -> None:
    refs = opened(store).refs
    refs.require(dataset)
    refs.delete_tag(dataset, name, TagDeleted(Nonce.random(), 0, "eve", ""))
    refs.check_not_gone(dataset, "a tag was deleted")


def log(store: StoreBackend, dataset: DatasetName, action: ExpiryAction, one: CommitId) -> None:
    repository = opened(store)
    if action is not ExpiryAction.FREE:
        repository.refs.require(dataset)
    done = append(repository, EVE, dataset, action, lambda _: [one])
    if action is ExpiryAction.FREE and one not in done.freed:
        raise Conflict("it is not freed")


def make() -> tuple[MemoryStore, Commits]:
    """Five commits on `main`, of which the first is freed and the second expired, and a sixth that `main` was moved
    back from; `dev` at the third, the tag v1 at the fourth, and a branch that was deleted."""
    store = MemoryStore()
    repository = create(store)
    commits = [commit(repository, {"a": b"%d" % number}) for number in range(6)]
    place(store, OLD, MAIN, commits[4])
    place(store, OLD, DEV, commits[2])
    place(store, OLD, GONE, commits[2])
    remove(store, OLD, GONE)
    tag(store, OLD, V1, commits[3])
    for action, some in ((ExpiryAction.EXPIRE, commits[:2]), (ExpiryAction.FREE, commits[:1])):
        for one in some:
            log(store, OLD, action, one)
    return store, commits


def live(store: StoreBackend) -> list[DatasetName]:
    refs = opened(store).refs
    return [one for one in refs.datasets() if refs.head_or_none(one, MAIN) is not None]


def heads(store: StoreBackend, dataset: DatasetName) -> dict[str, CommitId | None]:
    return {str(head.branch): head.commit for head in opened(store).refs.heads(dataset)}


def check_is(store: StoreBackend, commits: Commits, dataset: DatasetName, other: DatasetName) -> None:
    """The dataset has this name, and the other name says so."""
    repository = opened(store)
    refs, objects = repository.refs, repository.objects
    assert live(store) == [dataset]
    assert heads(store, dataset) == {"main": commits[4], "dev": commits[2]}
    assert heads(store, other) == {}
    assert [(name, value.commit) for name, value in refs.tags(dataset)] == [(V1, commits[3])]
    expiry = read_expiry(refs, dataset)
    assert (set(expiry.expired), expiry.freed) == ({commits[1]}, {commits[0]})
    assert {state.entry.author for state in expiry.states.values()} == {"eve"}, (
        "who let them expire, not who renamed"
    )
    assert set(read_roots(repository)) == set(commits[1:])
    named = read_names(repository, dataset)
    found = kept(Parents(repository.objects), named, lambda _: expiry.freed)
    assert set(found) == set(commits[1:]), "the moves of the old name are its own"
    assert read(repository, commits[4]) == {"a": b"4"}
    for text in (None, "dev", "v1", "main~1", str(commits[4]), str(commits[4])[:12]):
        rev = None if text is None else Rev.parse(text)
        assert resolve(refs, objects, dataset, rev).dataset == dataset
        if text != str(commits[4]):
            with pytest.raises(NotFound, match=f"dataset {other} was renamed to {dataset}"):
                resolve(refs, objects, other, rev)
    for name in {OLD, dataset}:
        assert resolve(refs, objects, name, Rev.parse(str(commits[4]))).commit == commits[4], (
            "an id stays one"
        )
        with pytest.raises(NotFound, match="expired"):
            resolve(refs, objects, name, Rev.parse(str(commits[1])))
    with pytest.raises(Conflict, match="its name is not used again"):
        refs.check_new_dataset(other)
    assert plan_expiry(repository, dataset, RetentionRules(tagged=True)).commits == [commits[5]]


def test_a_dataset_gets_another_name_and_back() -> None:
    store, commits = make()
    done = rename_dataset(opened(store), WRITER, OLD, NEW, "as agreed")
    assert (done.author, done.already) == (WRITER.author, False)
    check_is(store, commits, NEW, OLD)
    assert rename_dataset(opened(store), EVE, OLD, NEW).already
    rename_dataset(opened(store), WRITER, NEW, OLD)
    check_is(store, commits, OLD, NEW)
    rename_dataset(opened(store), WRITER, OLD, NEW)
    rename_dataset(opened(store), WRITER, NEW, OTHER)
    check_is(store, commits, OTHER, NEW)
    rename_dataset(opened(store), WRITER, OTHER, OLD)
    check_is(store, commits, OLD, OTHER)


def test_what_is_freed_under_the_new_name_is_kept_by_no_move_of_the_old_one() -> None:
    store, commits = make()
    rename_dataset(opened(store), WRITER, OLD, NEW)
    log(store, NEW, ExpiryAction.EXPIRE, commits[5])
    repository = opened(store)
    with pytest.raises(NotFound, match="expired"):
        resolve(repository.refs, repository.objects, OLD, Rev.parse(str(commits[5])))
    with pytest.raises(NotFound, match="renamed to xrays"):
        log(store, OLD, ExpiryAction.UNDO, commits[1])
    assert set(read_roots(opened(store))) == set(commits[1:])
    for one in (commits[1], commits[5]):
        log(store, NEW, ExpiryAction.FREE, one)
    assert set(read_roots(opened(store))) == set(commits[2:5])
    rename_dataset(opened(store), WRITER, NEW, OLD)
    assert set(read_roots(opened(store))) == set(commits[2:5])


def test_a_commit_that_expires_again_under_the_new_name_has_a_new_grace_after_a_renaming_back() -> None:
    store, commits = make()
    rename_dataset(opened(store), WRITER, OLD, NEW)
    log(store, NEW, ExpiryAction.UNDO, commits[1])
    log(store, NEW, ExpiryAction.EXPIRE, commits[1])
    rename_dataset(opened(store), WRITER, NEW, OLD)
    states = [read_expiry(opened(store).refs, name).states[commits[1]] for name in (OLD, NEW)]
    assert states[0].entry.nonce == states[1].entry.nonce
    assert states[0].entry.number == len(read_expiry(opened(store).refs, OLD).entries) - 1


def test_the_run_of_the_old_name_keeps_its_commit_under_the_new_one() -> None:
    store, commits = make()
    place(store, OLD, DEV, commits[4])
    store.put_if_absent(keys.run_key(OLD, RUN, "start"), run(OLD, commits[2]))
    rename_dataset(opened(store), WRITER, OLD, NEW)
    assert plan_expiry(opened(store), NEW, RetentionRules(tagged=True)).commits == [commits[5]]
    found = plan_expiry(opened(store), NEW, RetentionRules(tagged=True, also_runs=True)).commits
    assert set(found) == {commits[2], commits[5]}
    reasons = [one.why for one in read_names(opened(store), NEW) if one.commit == commits[2]]
    assert f"run {RUN}" in reasons


def test_without_the_right_to_write_nothing_changes() -> None:
    store, _ = make()
    before = sorted(item.key for item in store.list(""))
    with pytest.raises(Denied):
        rename_dataset(opened(ReadOnly(store)), WRITER, OLD, NEW)
    assert sorted(item.key for item in store.list("")) == before


def test_a_name_that_was_used_is_refused() -> None:
    store, commits = make()
    refs = opened(store).refs
    refs.move(OTHER, MAIN, None, RefEntry(None, False, Nonce.random(), 0, "eve", "init"))
    with pytest.raises(Conflict, match="there is a dataset other/name already"):
        rename_dataset(opened(store), WRITER, OLD, OTHER)
    delete_dataset(opened(store), WRITER, OTHER)
    with pytest.raises(Conflict, match=r"other/name was deleted.*not used again"):
        rename_dataset(opened(store), WRITER, OLD, OTHER)
    with pytest.raises(NotFound, match="was deleted"):
        rename_dataset(opened(store), WRITER, OTHER, NEW)
    with pytest.raises(NotFound, match="there is no dataset xrays"):
        rename_dataset(opened(store), WRITER, NEW, OTHER)
    assert live(store) == [OLD] and heads(store, NEW) == {}
    rename_dataset(opened(store), WRITER, OLD, NEW)
    with pytest.raises(NotFound, match="renamed to xrays"):
        rename_dataset(opened(store), WRITER, OLD, OTHER)
    with pytest.raises(NotFound, match="renamed to xrays"):
        delete_dataset(opened(store), WRITER, OLD)
    delete_dataset(opened(store), WRITER, NEW)
    with pytest.raises(Conflict, match=r"xrays was deleted.*not used again"):
        rename_dataset(opened(store), WRITER, OLD, NEW)
    free = read_expiry(opened(store).refs, NEW)
    assert set(free.states) == set(commits), "what only the old name's moves have, too"


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("back", [False, True])
def test_killed_at_any_write_the_same_command_finishes(behind: bool, back: bool) -> None:
    names = (NEW, OLD) if back else (OLD, NEW)
    for at in count():
        store, commits = make()
        if back:
            rename_dataset(opened(store), WRITER, OLD, NEW)
        dying = Dying(store, at, behind=behind)
        try:
            rename_dataset(opened(dying), WRITER, *names)
        except Died:
            check_between(store, commits)
            rename_dataset(opened(store), EVE, *names)
        check_is(store, commits, names[1], names[0])
        if dying.puts <= at:
            break
    assert at > 7


def check_between(store: StoreBackend, commits: Commits) -> None:
    """Nothing is there twice or called damaged, and gc keeps what it is to keep."""
    assert len(live(store)) <= 1
    assert set(read_roots(opened(store))) == set(commits[1:])


class Overtaken(Watched):
    """Calls something once, before the n-th request."""

    def __init__(self, inner: StoreBackend, at: int, action: Callable[[], object]) -> None:
        super().__init__(inner, self._count)
        self.at, self.action, self.requests = at, action, 0

    def _count(self, kind: str, key: str) -> None:
        number, self.requests = self.requests, self.requests + 1
        if number == self.at:
            self.action()


def moved_on(store: StoreBackend, commits: Commits) -> None:
    """Rename the dataset, and continue with the new name."""
    rename_dataset(opened(store), EVE, OLD, NEW)
    place(store, NEW, MAIN, commits[5])
    place(store, NEW, DEV, commits[3])
    place(store, NEW, MORE, commits[3])
    untag(store, NEW, V1)
    log(store, NEW, ExpiryAction.UNDO, commits[1])


def and_back(store: StoreBackend, commits: Commits) -> None:
    moved_on(store, commits)
    rename_dataset(opened(store), EVE, NEW, OLD)


def and_expired(store: StoreBackend, commits: Commits) -> None:
    and_back(store, commits)
    log(store, OLD, ExpiryAction.EXPIRE, commits[1])
    place(store, OLD, DEV, commits[2])


def look(store: StoreBackend, commits: Commits) -> None:
    check_between(store, commits)


Do = Callable[[StoreBackend, Commits], object]
Kept = Callable[[StoreBackend, Commits, DatasetName], bool]


def on(action: Callable[..., object], *arguments: object) -> Do:
    """Call it for the old name. A number stands for the commit of that number."""

    def do(store: StoreBackend, commits: Commits) -> None:
        action(store, OLD, *(commits[one] if isinstance(one, int) else one for one in arguments))

    return do


def at(branch: BranchName, number: int) -> Kept:
    return lambda store, commits, name: heads(store, name).get(str(branch)) == commits[number]


def tags(store: StoreBackend, name: DatasetName) -> dict[str, CommitId]:
    return {str(one): value.commit for one, value in opened(store).refs.tags(name)}


def expiry(store: StoreBackend, name: DatasetName) -> tuple[set[CommitId], set[CommitId]]:
    found = read_expiry(opened(store).refs, name)
    return set(found.expired), found.freed


def went_on(store: StoreBackend, commits: Commits, name: DatasetName) -> bool:
    """Return whether the effect of `moved_on` is there, whoever else renames the dataset."""
    found = heads(store, name), tags(store, name), expiry(store, name)[0]
    return found == ({"main": commits[5], "dev": commits[3], "more": commits[3]}, {}, set())


RACES: dict[str, tuple[Do, Kept]] = {
    "look": (look, lambda *_: True),
    "sync": (
        on(place, MAIN, 5),
        lambda store, commits, name: is_ancestor(
            opened(store).objects, commits[5], heads(store, name)["main"] or commits[0]
        ),
    ),
    "move": (on(place, DEV, 3), at(DEV, 3)),
    "make": (on(place, MORE, 3), at(MORE, 3)),
    "remove": (on(remove, DEV), lambda store, _, name: "dev" not in heads(store, name)),
    "tag": (on(tag, V2, 4), lambda store, commits, name: tags(store, name).get("v2") == commits[4]),
    "untag": (on(untag, V1), lambda store, _, name: tags(store, name) == {}),
    "expire": (
        on(log, ExpiryAction.EXPIRE, 5), lambda store, commits, name: commits[5] in expiry(store, name)[0],
    ),
    "undo": (
        on(log, ExpiryAction.UNDO, 1), lambda store, commits, name: expiry(store, name)[0] == set(),
    ),
    "free": (
        on(log, ExpiryAction.FREE, 1), lambda store, commits, name: commits[1] in expiry(store, name)[1],
    ),
    "delete": (lambda store, _: delete_dataset(opened(store), EVE, OLD), lambda *_: False),
    "rename": (lambda store, _: rename_dataset(opened(store), EVE, OLD, NEW), lambda *_: True),
    "rename elsewhere": (
        lambda store, _: rename_dataset(opened(store), EVE, OLD, OTHER), lambda store, _, name: name == OTHER,
    ),
    "moved on": (moved_on, went_on),
    "and back": (and_back, went_on),
    "and expired": (
        and_expired,
        lambda store, commits, name: at(DEV, 2)(store, commits, name) and expiry(store, name)[0] == {commits[1]},
    ),
    "init": (
        lambda store, _: opened(store).refs.move(
            NEW, MAIN, None, RefEntry(None, False, Nonce.random(), 0, "eve", "init")
        ),
        lambda *_: True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("race", RACES)
def test_a_concurrent_change_takes_effect_or_fails(race: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsv.stores.base._ask", one_after_the_other)
    template, commits = make()
    for moment in exhaustive.numbers(0, 5):
        if not overtake(copied(template), commits, race, moment):
            break
    assert moment > 50


@pytest.mark.parametrize("race", [one for one in RACES if one not in ("look", "init")])
def test_a_change_overtaken_by_a_renaming_takes_effect_or_fails(
    race: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other way round: all of the renaming happens between two requests."""
    monkeypatch.setattr("dsv.stores.base._ask", one_after_the_other)
    do, kept = RACES[race]
    template, commits = make()
    heavy = race in ("moved on", "and back", "and expired")
    for moment in exhaustive.numbers(0) if heavy else count():
        store = copied(template)
        told: list[DsvError] = []

        def rename(store: StoreBackend = store) -> None:
            with suppress(DsvError):
                rename_dataset(opened(store), WRITER, OLD, NEW)

        watched = Overtaken(store, moment, rename)
        try:
            do(watched, commits)
        except DsvError as error:
            told.append(error)
        if watched.requests <= moment:
            break
        check(store, commits, kept, told, f"{race} overtaken at request {moment}")


def test_two_who_rename_at_once_while_one_of_them_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsv.stores.base._ask", one_after_the_other)
    template, commits = make()
    for death in range(1, 14):
        for moment in exhaustive.some(range(death, 160, 3)):
            store = copied(template)

            def act(store: StoreBackend = store, death: int = death) -> None:
                with suppress(Died):
                    rename_dataset(opened(Dying(store, death, behind=bool(death % 2))), EVE, OLD, NEW)

            rename_dataset(opened(Overtaken(store, moment, act)), WRITER, OLD, NEW)
            check_is(store, commits, NEW, OLD)


def test_who_renames_while_another_does_the_same_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsv.stores.base._ask", one_after_the_other)
    template, commits = make()
    for moment in range(30):
        store = copied(template)

        def act(store: StoreBackend = store) -> None:
            rename_dataset(opened(store), EVE, OLD, NEW)

        rename_dataset(opened(Overtaken(store, moment, act)), WRITER, OLD, NEW)
        check_is(store, commits, NEW, OLD)


def one_after_the_other(calls: Sequence[Callable[[], object]], *, first_failure_ends: bool) -> list[object]:
    """The requests of a run come in the same order each time."""
    return [call() for call in calls]


def copied(store: MemoryStore, made: StoreBackend | None = None) -> StoreBackend:
    made = MemoryStore() if made is None else made
    for item in store.list(""):
        made.put_if_absent(item.key, store.get(item.key))
    return made


def check(store: StoreBackend, commits: Commits, kept: Kept, told: list[DsvError], when: str) -> None:
    names = [one for one in live(store) if heads(store, one)["main"] is not None]
    if not names:
        main = opened(store).refs.deleted_dataset(OLD)
        assert main is not None and not told, when
        return
    assert len(names) == 1, (when, names)
    (name,) = names
    assert told or kept(store, commits, name), (when, name, heads(store, name), tags(store, name))
    expired, freed = expiry(store, name)
    assert set(read_roots(opened(store))) == set(commits) - freed, when
    named = {*heads(store, name).values(), *tags(store, name).values()}
    assert not named & (expired | freed), when


def in_places(places: Iterator[StoreBackend], every: int) -> int:
    """Kill a renaming at its writes, and have somebody else at work at its requests: one of so many cases, each in a
    new place. Return how many there were."""
    template, commits = make()
    cases: list[tuple[str | None, int]] = [(None, at) for at in range(14)]
    cases += [(race, at) for at in range(0, 80, 5) for race in RACES]
    chosen = cases[1::every]
    for race, moment in chosen:
        place = next(places)
        store = copied(template, place)
        if race is None:
            with suppress(Died):
                rename_dataset(opened(Dying(store, moment, behind=bool(moment % 2))), WRITER, OLD, NEW)
            check_between(store, commits)
            rename_dataset(opened(store), EVE, OLD, NEW)
            check_is(store, commits, NEW, OLD)
        else:
            overtake(store, commits, race, moment)
        place.close()
    return len(chosen)


def overtake(store: StoreBackend, commits: Commits, race: str, moment: int) -> bool:
    """Rename while somebody else is at work at a request, and return whether there was such a request."""
    do, kept = RACES[race]
    told: list[DsvError] = []

    def act() -> None:
        try:
            do(store, commits)
        except DsvError as error:
            told.append(error)

    watched = Overtaken(store, moment, act)
    for attempt in (watched, store):
        with suppress(DsvError):
            rename_dataset(opened(attempt), WRITER, OLD, NEW)
    assert watched.requests < 1000, "it ends"
    if watched.requests <= moment:
        return False
    check(store, commits, kept, told, f"{race} at request {moment}")
    return True


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("every", [150, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_killed_and_overtaken_on_ceph(every: int, ceph_s3: S3Server) -> None:
    bucket = ceph_s3.bucket()
    options = StoreOptions.from_environment(ceph_s3.env)
    in_places((open_raw(f"s3://{bucket}/{number}", options) for number in count()), every)
    ceph_s3.remove_bucket(bucket)


if __name__ == "__main__":
    folders = (open_raw(f"{sys.argv[1]}/{number}", StoreOptions(), create=True) for number in count())
    print(in_places(folders, int(sys.argv[2])), "stores")
