"""Expiry of commits by rules like those of `restic forget`, with the reasons why commits stay."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from dsv.errors import Denied, DsvError
from dsv.format import keys
from dsv.format.records import CommitRecord, ExpiryAction, WriterIdentity
from dsv.repo import history
from dsv.repo.expiry import ExpiryLog, append, read_expiry
from dsv.stores.base import StoreBackend, ask_each, if_there
from dsv.upkeep.roots import Name, list_all, names_of_refs, names_of_runs
from dsv.values.json import LONG_MAX, check_length
from dsv.values.names import MAIN, DatasetName
from dsv.values.units import format_duration

if TYPE_CHECKING:
    from dsv.repo.repository import Repository
    from dsv.values.ids import CommitId

GRACE_SECONDS: Final = 14 * 24 * 3600.0
"""Seconds from a commit's expiry until gc frees its content, unless who expires it or gc's caller says otherwise."""
_UNDO_FOR: Final = re.compile(r"undo for ([0-9]{1,10}) s(?:; |\Z)")
"""The beginning of the message of an entry that has a grace of its own: it has no field for that."""
RUNS_KEEP: Final = 365 * 86400
"""Seconds for which the record of a run keeps its commits."""


class RetentionRules(msgspec.Struct, frozen=True):
    """The rules by which commits stay. A rule that is None keeps none."""

    last: int | None = None
    hourly: int | None = None
    daily: int | None = None
    weekly: int | None = None
    monthly: int | None = None
    yearly: int | None = None
    tagged: bool = False
    """Keep only what always stays: heads of branches, and tagged commits."""
    older_than: int | None = None
    """Keep commits that were stored in the last so many seconds."""
    also_runs: bool = False
    """Records of runs keep nothing."""
    outputs: Callable[[CommitRecord], bool] | None = None
    """Only commits for which this is true and that runs on the dataset alone name; records keep nothing then."""

    @property
    def any(self) -> bool:
        """Return whether the user gave a rule for what stays."""
        return self.tagged or self.older_than is not None or any(count for _, count, _ in self.buckets)

    @property
    def buckets(self) -> list[tuple[str, int | None, Callable[[datetime, int], str]]]:
        """Each rule's name, count, and function that names the period of a UTC time, or of a position."""
        return [
            ("last", self.last, lambda _, number: str(number)),
            ("hourly", self.hourly, lambda time, _: time.strftime("%Y-%m-%d %H:00")),
            ("daily", self.daily, lambda time, _: time.strftime("%Y-%m-%d")),
            ("weekly", self.weekly, lambda time, _: time.strftime("%G-W%V")),
            ("monthly", self.monthly, lambda time, _: time.strftime("%Y-%m")),
            ("yearly", self.yearly, lambda time, _: time.strftime("%Y")),
        ]


class ExpiryItem(msgspec.Struct, frozen=True):
    """A commit that expires, or stays."""

    commit: CommitId
    time_ms: int
    author: str
    branch: str | None
    """The branch that it was made for. Rules count the commits of each branch separately."""
    message: str
    reasons: tuple[str, ...]
    """Why it stays. Empty: it expires, or would without `dry_run`."""

    @classmethod
    def of(cls, commit_id: CommitId, commit: CommitRecord, reasons: Iterable[str]) -> ExpiryItem:
        return cls(commit_id, commit.time_ms, commit.author, commit.branch, commit.message, tuple(reasons))

    @property
    def expired(self) -> bool:
        return not self.reasons


def kept_by_rules(commits: Iterable[ExpiryItem], rules: RetentionRules) -> dict[CommitId, list[str]]:
    """Return the commits that the rules keep, with the reasons.

    In each branch, from the newest commit on, a rule keeps the first commit of each period until it has kept
    its count. A rule that has kept fewer also keeps the oldest commit, as restic does. Commits with equal
    times are taken in the given order.
    """
    by_branch: dict[str | None, list[ExpiryItem]] = {}
    for one in commits:
        by_branch.setdefault(one.branch, []).append(one)
    kept: dict[CommitId, list[str]] = {}
    for branch, some in by_branch.items():
        of = f" of {branch}" if branch is not None else ""
        ordered = sorted(some, key=lambda one: -one.time_ms)
        for name, count, period in rules.buckets:
            left, before = count or 0, None
            for number, one in enumerate(ordered):
                if not left:
                    break
                now = period(datetime.fromtimestamp(one.time_ms / 1000, UTC), number)
                is_oldest = number == len(ordered) - 1
                if now != before or is_oldest:
                    what = f"the oldest{of}, for --keep-{name}" if now == before else f"{name}{of}"
                    at = "" if name == "last" or now == before else f", {now}"
                    kept.setdefault(one.commit, []).append(what + at)
                    left, before = left - 1, now
    return kept


class Expiry(msgspec.Struct, frozen=True):
    """The commits of a dataset that were not expired before, newest first."""

    dataset: DatasetName
    items: tuple[ExpiryItem, ...]
    dry_run: bool
    undo_for: int | None = None
    """Seconds until gc may free their content; None for gc's usual grace."""
    free_from_ms: int | None = None

    @property
    def commits(self) -> list[CommitId]:
        """Return the commits that expire."""
        return [one.commit for one in self.items if one.expired]


def plan_expiry(
    repository: Repository, dataset: DatasetName, rules: RetentionRules, *, dry_run: bool = False
) -> Expiry:
    """Return which commits of a dataset expire, of those that its moves and tags name, and their ancestors.

    Heads of branches, tagged commits, merge bases of `main` and other branches, and commits of the last
    year's runs stay. Ages are measured by the store's clock, periods of rules by the times in commits. Raises
    `NotFound` if there is no such dataset, and what reading raises: nothing is skipped.
    """
    repository.refs.head(dataset, MAIN)
    names = list(names_of_refs(repository, dataset))
    gone = read_expiry(repository.refs, dataset).states
    listed = list(history.walk(repository.objects, dict.fromkeys(name.commit for name in names)))
    if rules.outputs is not None:
        others, of_runs = {one for one, _ in listed}, list(names_of_runs(repository, dataset))
        asked = {name.commit for name in of_runs if name.dataset == dataset} - others - gone.keys()
        found = ask_each(repository.objects.commit, sorted(asked))
        listed = sorted((item for item in found if rules.outputs(item[1])), key=lambda item: -item[1].time_ms)
    standing = [ExpiryItem.of(commit_id, commit, ()) for commit_id, commit in listed if commit_id not in gone]
    reasons: dict[CommitId, list[str]] = {item.commit: [] for item in standing}
    for name in names:
        if name.holds and name.commit in reasons:
            reasons[name.commit].append(_named(name))
    for commit_id, why in _forks(repository, names):
        if commit_id in reasons:
            reasons[commit_id].append(why)
    for commit_id, by_rules in kept_by_rules(standing, rules).items():
        reasons[commit_id] += by_rules
    _keep_young(repository, reasons, rules.older_than, dry_run=dry_run)
    if not rules.also_runs and rules.outputs is None:
        _keep_of_runs(repository, dataset, reasons, dry_run=dry_run)
    items = (replace(item, reasons=tuple(reasons[item.commit])) for item in standing)
    return Expiry(dataset, tuple(items), dry_run)


def _named(name: Name) -> str:
    return f"head of {name.branch}" if name.branch is not None else name.why.replace(f"{name.dataset}@", "")


def _forks(repository: Repository, names: Sequence[Name]) -> Iterable[tuple[CommitId, str]]:
    """Yield the merge bases of `main` and each other branch: a merge needs their trees."""
    heads = {one.branch: one.commit for one in names if one.branch is not None and one.holds}
    main = heads.pop(MAIN, None)
    for branch, commit_id in heads.items():
        if main is not None:
            for base in history.merge_bases(repository.objects, main, commit_id):
                yield base, f"where {branch} and main meet"


def _keep_young(
    repository: Repository, reasons: dict[CommitId, list[str]], older_than: int | None, *, dry_run: bool
) -> None:
    wanted = [commit for commit, why in reasons.items() if not why]
    if older_than is None or not wanted:
        return
    now = store_time(repository, dry_run=dry_run)
    for commit, made in ask_each(lambda one: repository.store.modified(keys.commit_key(one)), wanted):
        if now - made < older_than:
            reasons[commit].append(f"younger than {format_duration(older_than)}")


def _keep_of_runs(
    repository: Repository, dataset: DatasetName, reasons: dict[CommitId, list[str]], *, dry_run: bool
) -> None:
    """Add the reasons of runs: records of runs of any dataset may name a commit of this one."""
    wanted = {commit for commit, why in reasons.items() if not why}
    if not wanted:
        return
    named = [name for name in names_of_runs(repository) if name.dataset == dataset and name.commit in wanted]
    if not named:
        return
    parts: dict[str, str] = {}
    for item in list_all(repository.store, keys.RUNS_PREFIX, 2):
        if (run := keys.parse_run_key(item.key)) is not None:
            parts.setdefault(f"run {run[1]}", item.key)
    now = store_time(repository, dry_run=dry_run)
    for name, made in ask_each(lambda one: _modified(repository.store, parts.get(one.why)), named):
        if made is not None and now - made < RUNS_KEEP and name.why not in reasons[name.commit]:
            reasons[name.commit].append(name.why)


def _modified(store: StoreBackend, key: str | None) -> float | None:
    """Return the time of a record; None if it was deleted."""
    return None if key is None else if_there(partial(store.modified, key))


def grace_ends(
    repository: Repository, logs: Iterable[ExpiryLog], grace: float | None = None
) -> dict[tuple[DatasetName, int], float]:
    """Return when the grace of each entry by which commits are expired ends, in seconds since 1970: the longer of its
    own and `grace`, which gc's caller asks for; `GRACE_SECONDS` if there is neither."""
    graces: dict[tuple[DatasetName, int], float] = {}
    for log in logs:
        for state in log.expired.values():
            is_expired = state.entry.action is ExpiryAction.EXPIRE
            own = _UNDO_FOR.match(state.entry.message) if is_expired else None
            given = [*([int(own[1])] if own else []), *([] if grace is None else [grace])]
            graces[log.dataset, state.entry.number] = max(given, default=GRACE_SECONDS)
    times = ask_each(lambda one: repository.store.modified(keys.expiry_key(*one)), sorted(graces))
    return {entry: made + graces[entry] for entry, made in times}


def due_ms(repository: Repository, logs: Iterable[ExpiryLog], grace: float | None = None) -> int | None:
    """Return when the grace of the first of these expired commits ends, in milliseconds since 1970."""
    ends = grace_ends(repository, logs, grace).values()
    return int(1000 * min(ends)) if ends else None


def store_time(repository: Repository, *, dry_run: bool = False) -> float:
    """Return the time by the store's clock, in seconds since 1970: that of a key that is written for this.
    dry_run: return the time of this machine if the user may not write."""
    store, key = repository.store, f"{keys.PROBE_PREFIX}{secrets.token_hex(8)}"
    try:
        store.put_if_absent(key, b"")
    except Denied:
        if not dry_run:
            raise
        return repository.clock() / 1000
    try:
        return store.modified(key)
    finally:
        with suppress(DsvError):
            store.delete(key)


def expire(repository: Repository, writer: WriterIdentity, plan: Expiry, message: str = "") -> ExpiryLog:
    """Expire the commits of a plan, and return the log.

    What a branch or tag names by now stays: this reads the names after writing the entry, and a command that
    writes a name reads the log after that.
    """
    wanted = set(plan.commits)
    if plan.undo_for is not None:
        message = f"undo for {plan.undo_for} s" + (f"; {message}" if message else "")
        check_length(message, LONG_MAX, "the message of an entry with --undo-for")
    if not wanted:
        return read_expiry(repository.refs, plan.dataset)
    append(repository, writer, plan.dataset, ExpiryAction.EXPIRE, lambda _: wanted, message)

    def named(log: ExpiryLog) -> set[CommitId]:
        heads, tags = repository.refs.names(plan.dataset)
        now = {*(head.commit for head in heads), *(value.commit for _, value in tags)}
        return {one for one in now if one in log.expired}

    return append(repository, writer, plan.dataset, ExpiryAction.UNDO, named, "a branch or a tag names it")


def last_expiry(log: ExpiryLog) -> list[CommitId]:
    """Return the commits of the last expiry, including those kept again since."""
    of_expiry = [entry for entry in log.entries if entry.action is ExpiryAction.EXPIRE]
    same = [entry for entry in of_expiry if entry.nonce == of_expiry[-1].nonce]
    return sorted({commit for entry in same for commit in entry.commits})


def undo_expiry(
    repository: Repository,
    writer: WriterIdentity,
    dataset: DatasetName,
    commits: Sequence[CommitId],
    message: str = "",
) -> tuple[list[CommitId], list[CommitId]]:
    """Keep expired commits again. Return these, and those that gc has freed, which can't be kept."""
    before = read_expiry(repository.refs, dataset).expired
    log = append(repository, writer, dataset, ExpiryAction.UNDO, lambda _: commits, message)
    kept = [one for one in commits if one in before and one not in log.states]
    return kept, [one for one in commits if one in log.freed]
