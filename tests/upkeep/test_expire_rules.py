"""The rules by which commits expire, against a plain model of `restic forget`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from dsv.upkeep.expire import ExpiryItem, RetentionRules, kept_by_rules
from dsv.values.ids import CommitId

START = datetime(2026, 12, 28, 22, tzinfo=UTC)
COUNTS = st.none() | st.integers(1, 4)
RULES = st.builds(RetentionRules, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS)
PERIODS = {
    "hourly": lambda time: (time.date(), time.hour),
    "daily": lambda time: time.date(),
    "weekly": lambda time: time.isocalendar()[:2],
    "monthly": lambda time: (time.year, time.month),
    "yearly": lambda time: time.year,
}


def _ms(hour: int) -> int:
    return int((START + timedelta(hours=hour)).timestamp() * 1000)


def commits_of(hours: list[int], branches: list[str | None]) -> list[ExpiryItem]:
    return [
        ExpiryItem(
            CommitId(bytes([at]) * 32),
            int((START + timedelta(hours=hour)).timestamp() * 1000),
            "",
            branch,
            "",
            (),
        )
        for at, (hour, branch) in enumerate(zip(hours, branches, strict=True))
    ]


COMMITS = st.lists(
    st.tuples(
        st.integers(0, 6) | st.integers(0, 24 * 10) | st.integers(0, 24 * 900),
        st.sampled_from(["main", "dev", None]),
    ),
    max_size=20,
).map(lambda found: commits_of([hour for hour, _ in found], [branch for _, branch in found]))


def model(commits: list[ExpiryItem], rules: RetentionRules) -> set[CommitId]:
    kept = set[CommitId]()
    for branch in {one.branch for one in commits}:
        newest_first = sorted((one for one in commits if one.branch == branch), key=lambda one: -one.time_ms)
        kept |= {one.commit for one in newest_first[: rules.last or 0]}
        for name, period in PERIODS.items():
            count = getattr(rules, name)
            if count is None:
                continue
            first_of: dict[object, ExpiryItem] = {}
            for one in newest_first:
                first_of.setdefault(period(datetime.fromtimestamp(one.time_ms / 1000, UTC)), one)
            kept |= {one.commit for one in list(first_of.values())[:count]}
            if len(first_of) < count:
                kept.add(newest_first[-1].commit)
    return kept


@given(COMMITS, RULES)
def test_the_rules_keep_what_the_model_keeps(commits: list[ExpiryItem], rules: RetentionRules) -> None:
    kept = kept_by_rules(commits, rules)
    assert set(kept) == model(commits, rules)
    assert all(kept.values())


@given(COMMITS, RULES, RULES)
def test_more_rules_never_keep_less(
    commits: list[ExpiryItem], one: RetentionRules, other: RetentionRules
) -> None:
    both = RetentionRules(
        *(max(filter(None, pair), default=None) for pair in zip(_counts(one), _counts(other), strict=True))
    )
    assert set(kept_by_rules(commits, one)) | set(kept_by_rules(commits, other)) <= {
        *kept_by_rules(commits, both), *_oldest(commits)
    }  # fmt: skip


def _counts(rules: RetentionRules) -> tuple[int | None, ...]:
    return rules.last, rules.hourly, rules.daily, rules.weekly, rules.monthly, rules.yearly


def _oldest(commits: list[ExpiryItem]) -> set[CommitId]:
    """A rule that has kept fewer than it may also keeps the oldest, and keeps it no more if it may keep fewer."""
    return {
        sorted((one for one in commits if one.branch == branch), key=lambda one: -one.time_ms)[-1].commit
        for branch in {one.branch for one in commits}
    }


def test_days_end_at_midnight_in_utc_and_weeks_with_sunday() -> None:
    commits = commits_of([0, 1, 2, 3, 26, 122, 146], ["main"] * 7)  # Mon 22:00 … Sun 00:00, Mon 00:00
    ids = [one.commit for one in commits]
    assert kept_by_rules(commits, RetentionRules(daily=3)) == {
        ids[6]: ["daily of main, 2027-01-04"],
        ids[5]: ["daily of main, 2027-01-03"],
        ids[4]: ["daily of main, 2026-12-30"],
    }
    assert set(kept_by_rules(commits, RetentionRules(weekly=2))) == {ids[6], ids[5]}
    assert kept_by_rules(commits, RetentionRules(yearly=9))[ids[0]] == [
        "the oldest of main, for --keep-yearly"
    ]
    assert kept_by_rules(commits, RetentionRules(last=1)) == {ids[6]: ["last of main"]}


def test_what_counts_as_a_rule() -> None:
    assert not RetentionRules().any and not RetentionRules(also_runs=True).any
    assert all(
        one.any
        for one in (
            RetentionRules(last=1),
            RetentionRules(tagged=True),
            RetentionRules(older_than=1),
            RetentionRules(yearly=1),
        )
    )
