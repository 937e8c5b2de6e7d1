from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from dsv.cache.policy import CachedCommit, DiskSpace, EvictionPlanner, EvictionRequest, Need
from dsv.cache.record import Extent
from dsv.cache.root import CachePlace
from dsv.cache.settings import Amount, CacheLimits, CacheSettings, DatasetRule

NOW = 1_000_000.0
DAY = 86400.0
ROOMY = DiskSpace(free=10**12, total=10**12)


def place(dataset: str, number: int) -> CachePlace:
    return CachePlace(dataset, hashlib.sha256(f"{dataset}/{number}".encode()).hexdigest())


def candidate(
    number: int, age: float, size: int = 100, dataset: str = "xrays", kept_by: str | None = None
) -> CachedCommit:
    return CachedCommit(place(dataset, number), dataset, size, size, Extent(size, size), NOW - age, kept_by)


@dataclass
class Due:
    candidate: CachedCommit
    reason: str


@dataclass
class Plan:
    """The evicted commits in order with what each freed, the kept ones, and the limits that are still exceeded."""

    evicted: list[tuple[Due, Extent]] = field(default_factory=list)
    kept: list[Due] = field(default_factory=list)
    exceeded: list[str] = field(default_factory=list)

    @property
    def freed(self) -> Extent:
        return sum((extent for _, extent in self.evicted), Extent())


def plan_eviction(
    candidates: Iterable[CachedCommit],
    settings: CacheSettings,
    disk: DiskSpace,
    now: float,
    request: EvictionRequest | None = None,
    measure: Callable[[CachedCommit], Extent] = lambda one: one.room,
) -> Plan:
    """Evict all that is due; `measure` says what each frees if it goes after those before it."""

    originals = {one.place: one for one in candidates}

    def act(one: CachedCommit, others: Iterable[CachedCommit]) -> CachedCommit:
        freed = measure(originals[one.place])
        heir = next((other.place for other in others if one.room != freed), None)
        return replace(one, freed=freed, passed_on=() if heir is None else ((heir, one.room - freed),))

    def due(one: CachedCommit) -> Due:
        return Due(originals[one.place], one.reason)

    planner = EvictionPlanner(originals.values(), settings, disk, now, request or EvictionRequest())
    evicted, kept, _, exceeded = planner.run(act)
    return Plan([(due(one), one.freed) for one in evicted], list(map(due, kept)), exceeded)


def settings(**limits: object) -> CacheSettings:
    return CacheSettings(limits=CacheLimits(**limits))  # type: ignore[arg-type]


def went(plan: object) -> list[int]:
    return [due.candidate.bytes for due, _ in plan.evicted]  # type: ignore[attr-defined]


def test_unused_commits_are_evicted_by_age_oldest_first() -> None:
    plan = plan_eviction(
        [candidate(1, 3 * DAY, 11), candidate(2, 0.5 * DAY, 12), candidate(3, 5 * DAY, 13)],
        settings(unused_for=DAY), ROOMY, NOW,
    )  # fmt: skip
    assert went(plan) == [13, 11]
    assert [due.reason for due, _ in plan.evicted] == ["unused for 5d", "unused for 3d"]
    assert [due.reason for due in plan.kept] == ["used 12h ago"]
    assert plan.exceeded == []


def test_a_size_limit_takes_no_more_than_it_needs() -> None:
    old_to_new = [candidate(n, (10 - n) * 60, 100) for n in range(5)]
    plan = plan_eviction(old_to_new, settings(max_size=250), ROOMY, NOW)
    assert [due.candidate for due, _ in plan.evicted] == old_to_new[:3]


def test_a_limit_counts_what_is_really_freed_and_not_what_was_recorded() -> None:
    """Two commits that share all files: the first one's going frees nothing, so the second has to go too."""
    shared = [replace(candidate(1, 300), room=Extent(100, 1)), replace(candidate(2, 200), room=Extent(0, 0))]
    freed = iter([Extent(0, 0), Extent(100, 1)])
    plan = plan_eviction(
        [*shared, replace(candidate(3, 100), room=Extent(50, 1))], settings(max_size=60), ROOMY, NOW,
        measure=lambda _: next(freed),
    )  # fmt: skip
    assert [freed for _, freed in plan.evicted] == [Extent(0, 0), Extent(100, 1)]
    assert plan.exceeded == [] and plan.freed == Extent(100, 1)


def test_what_is_claimed_stays_and_the_limit_is_reported_as_exceeded() -> None:
    plan = plan_eviction(
        [candidate(1, 3 * DAY, kept_by="in use by run r1")], settings(max_size=10), ROOMY, NOW
    )
    assert plan.evicted == [] and [due.reason for due in plan.kept] == ["in use by run r1"]
    assert plan.exceeded == ["the cache takes 100 B, max_size is 10 B"]


def test_free_space_counts_what_is_promised_to_fills() -> None:
    disk = DiskSpace(free=1000, total=10_000, reserved=Extent(600, 0))
    wanted = settings(min_free=(Amount.parse("10%"),))
    plan = plan_eviction([candidate(n, 100 - n, 350) for n in range(3)], wanted, disk, NOW)
    assert len(plan.evicted) == 2 and plan.exceeded == []
    assert len(plan_eviction([candidate(1, 1, 350)], wanted, disk, NOW).exceeded) == 1


def test_files_are_a_limit_of_their_own() -> None:
    many = [replace(candidate(n, 100 - n), room=Extent(1, 10)) for n in range(4)]
    assert len(plan_eviction(many, settings(max_files=25), ROOMY, NOW).evicted) == 2


def test_free_inodes_are_room_too() -> None:
    few = replace(ROOMY, free_files=94, reserved=Extent(0, 20))
    full = [replace(candidate(n, 100 - n), room=Extent(1, 10)) for n in range(4)]
    wish = EvictionRequest(need=Need(CachePlace("xrays", "99" * 32), 1, 35))
    plan = plan_eviction(full, settings(), few, NOW, wish)
    assert [due.candidate for due, _ in plan.evicted] == full[:3] and plan.exceeded == []
    assert plan.evicted[0][0].reason == "94 inodes are free, 119 are needed"
    used = [replace(one, kept_by="in use") for one in full]
    refused = plan_eviction(used, settings(), few, NOW, wish)
    assert refused.exceeded == ["94 inodes are free, 119 are needed"]
    assert (
        plan_eviction(
            full, settings(), few, NOW, replace(wish, need=replace(wish.need, bytes=1, files=10))
        ).evicted
        == []
    )
    untold = replace(few, free_files=None)
    assert plan_eviction(full, settings(), untold, NOW, wish).evicted == []
    assert plan_eviction(full, settings(), replace(ROOMY, free_files=0), NOW).evicted == []


def test_a_dataset_has_its_own_limits() -> None:
    rules = {"scratch/*": DatasetRule(unused_for=60, max_size=150), "keep": DatasetRule(unused_for=math.inf)}
    chosen = CacheSettings(limits=CacheLimits(unused_for=DAY), datasets=rules, protected=("safe",))
    entries = [
        candidate(1, 30, 100, "scratch/a"), candidate(2, 20, 100, "scratch/a"),
        candidate(3, 90, 40, "scratch/b"), candidate(4, 9 * DAY, 10, "keep"),
        candidate(5, 9 * DAY, 10, "safe"),
    ]  # fmt: skip
    plan = plan_eviction(entries, chosen, ROOMY, NOW)
    assert {due.candidate for due, _ in plan.evicted} == {entries[0], entries[2]}
    assert ("protected by the cache's owner", "safe") in [
        (due.reason, due.candidate.dataset) for due in plan.kept
    ]


def test_making_room_is_no_reason_to_go_by_age_and_keeps_its_donors() -> None:
    entries = [candidate(1, 3 * DAY), candidate(2, 2 * DAY), candidate(3, DAY * 1.5)]
    wish = EvictionRequest(need=Need(CachePlace("xrays", "99" * 32), 50, 1, frozenset([entries[0].place])))
    assert plan_eviction(entries, settings(unused_for=DAY, max_size=1000), ROOMY, NOW, wish).evicted == []
    plan = plan_eviction(entries, settings(unused_for=DAY, max_size=300), ROOMY, NOW, wish)
    assert [due.candidate for due, _ in plan.evicted] == [entries[1]]
    assert "needed by what is being cached" in [due.reason for due in plan.kept]


def test_room_for_a_commit_is_no_matter_of_another_datasets_max_size() -> None:
    rules = {"scans": DatasetRule(max_size=150), "xrays": DatasetRule(max_size=300)}
    owner = CacheSettings(datasets=rules)
    entries = [
        candidate(1, 50, 100, "scans", kept_by="held by ann"), candidate(2, 40, 100, "scans", kept_by="in use"),
        candidate(3, 30, 100), candidate(4, 20, 100),
    ]  # fmt: skip
    room = EvictionRequest(need=Need(CachePlace("xrays", "99" * 32), 100, 1))
    plan = plan_eviction(entries, owner, ROOMY, NOW, room)
    assert plan.evicted == [] and plan.exceeded == []
    assert plan_eviction(entries, owner, ROOMY, NOW).exceeded == ["scans takes 200 B, its max_size is 150 B"]
    loose = [replace(one, kept_by=None) for one in entries]
    assert plan_eviction(loose, owner, ROOMY, NOW, room).evicted == [], "it needs nothing of them"
    more = plan_eviction(loose, owner, ROOMY, NOW, replace(room, need=replace(room.need, bytes=150, files=1)))
    assert [due.candidate for due, _ in more.evicted] == [loose[2]], "its own max_size counts"
    whole = owner.tightened(CacheLimits(max_size=450))
    assert [due.candidate for due, _ in plan_eviction(loose, whole, ROOMY, NOW, room).evicted] == [loose[0]]
    held = [replace(one, kept_by="in use") for one in entries]
    assert plan_eviction(held, whole, ROOMY, NOW, room).exceeded == [
        "the cache takes 500 B with 100 B still to come, max_size is 450 B"
    ]


def test_a_datasets_max_size_counts_for_its_first_commit_too() -> None:
    owner = CacheSettings(datasets={"scans": DatasetRule(max_size=150)})
    wish = EvictionRequest(need=Need(CachePlace("scans", "99" * 32), 200, 1))
    assert plan_eviction([], owner, ROOMY, NOW, wish).exceeded == ["scans takes 200 B, its max_size is 150 B"]
    assert (
        plan_eviction(
            [], owner, ROOMY, NOW, replace(wish, need=replace(wish.need, bytes=150, files=1))
        ).exceeded
        == []
    )


AGES = st.none() | st.floats(0, 10 * DAY)
RULES = st.builds(DatasetRule, unused_for=AGES, max_size=st.none() | st.just(9)) | st.just(
    DatasetRule(unused_for=math.inf)
)


@given(AGES, RULES, AGES)
@example(6 * 3600.0, DatasetRule(max_size=9), 7 * DAY)
def test_a_flag_is_a_limit_beside_the_owners_and_never_hides_it(
    everywhere: float | None, rule: DatasetRule, flag: float | None
) -> None:
    owner = CacheSettings(limits=CacheLimits(unused_for=everywhere), datasets={"scratch/*": rule})
    for dataset in ("scratch/a", "other"):
        both = [age for age in (owner.unused_for(dataset), flag) if age is not None]
        assert owner.tightened(CacheLimits(unused_for=flag)).unused_for(dataset) == min(both, default=None)


def test_named_and_everything() -> None:
    entries = [candidate(1, 10), candidate(2, 20, kept_by="held by ann"), candidate(3, 30)]
    named = plan_eviction(
        entries, settings(), ROOMY, NOW, EvictionRequest(only=frozenset(e.place for e in entries[:2]))
    )
    assert [d.candidate for d, _ in named.evicted] == [entries[0]] and [d.candidate for d in named.kept] == [
        entries[1]
    ]
    everything = plan_eviction(entries, settings(), ROOMY, NOW, EvictionRequest(everything=True))
    assert [d.candidate for d, _ in everything.evicted] == [entries[2], entries[0]]


def test_flags_only_tighten() -> None:
    owner = CacheSettings(limits=CacheLimits(unused_for=DAY, max_size=500, min_free=(Amount.parse("5%"),)))
    loose = owner.tightened(CacheLimits(unused_for=9 * DAY, max_size=900, min_free=(Amount.parse("1%"),)))
    assert loose.limits.unused_for == DAY and loose.limits.max_size == 500 and len(loose.limits.min_free) == 2
    strict = owner.tightened(CacheLimits(unused_for=1, max_size=5))
    assert strict.limits.unused_for == 1 and strict.limits.max_size == 5


candidates = st.lists(
    st.builds(
        candidate, st.integers(0, 9), st.floats(0, 5 * DAY), st.integers(0, 1000),
        st.sampled_from(["a1", "b1"]), st.sampled_from([None, None, "held"]),
    ),
    max_size=10, unique_by=lambda one: one.place,
)  # fmt: skip
limits = st.builds(
    CacheLimits, st.none() | st.floats(0, 5 * DAY), st.none() | st.integers(0, 5000),
    st.none() | st.integers(0, 5000), st.just(()) | st.tuples(st.builds(Amount, bytes=st.integers(0, 5000))),
)  # fmt: skip


@given(candidates, limits, st.integers(0, 5000))
def test_every_plan_evicts_the_least_that_keeps_the_limits(
    entries: list[CachedCommit], limits: CacheLimits, free: int
) -> None:
    chosen = CacheSettings(limits=limits)
    plan = plan_eviction(entries, chosen, DiskSpace(free, 10_000), NOW)
    gone = [due.candidate for due, _ in plan.evicted]
    stay = [due.candidate for due in plan.kept]
    assert sorted(one.place for one in gone + stay) == sorted(one.place for one in entries)
    assert all(one.kept_by is None for one in gone)

    def too_old(one: CachedCommit) -> bool:
        return limits.unused_for is not None and NOW - one.last_use > limits.unused_for

    def exceeded(present: list[CachedCommit]) -> bool:
        size = sum(one.room.bytes for one in present)
        now_free = free + sum(one.room.bytes for one in entries) - size
        return (
            (limits.max_size is not None and size > limits.max_size)
            or (limits.max_files is not None and sum(one.room.files for one in present) > limits.max_files)
            or any(now_free < amount.bytes for amount in limits.min_free)
        )

    assert not any(too_old(one) for one in stay if one.kept_by is None)
    assert bool(plan.exceeded) == exceeded(stay)
    assert not plan.exceeded or all(one.kept_by for one in stay)
    young = [one for one in gone if not too_old(one)]
    if young:  # without the last of them a limit would not hold, and nobody older than it was passed over
        assert exceeded([*stay, young[-1]])
        assert all(
            one.kept_by or (one.last_use, one.place) > (young[-1].last_use, young[-1].place) for one in stay
        )
