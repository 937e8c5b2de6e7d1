"""Sweeps, purely: from what was typed to combinations, and to the runs that are due."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv.errors import UsageError
from dsv.run.parameters import (
    MOST_RUNS,
    SweepId,
    combination,
    count_of,
    due,
    parse_axes,
    split_values,
    varied,
)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0.1,0.01", ["0.1", "0.01"]), ("a", ["a"]), ("", [""]), ("[1,2],[3]", ["[1,2]", "[3]"]),
        ('"a,b",c', ['"a,b"', "c"]), ('{"x":[1,2]},{}', ['{"x":[1,2]}', "{}"]), ('"a\\",b",c', ['"a\\",b"', "c"]),
        ("a],b", ["a]", "b"]), ('"\\\\",x', ['"\\\\"', "x"]), ('don"t', ['don"t']),
    ],
)  # fmt: skip
def test_commas_within_quotes_and_brackets_separate_nothing(text: str, values: list[str]) -> None:
    assert split_values("p", text) == values


@pytest.mark.parametrize(
    "texts",
    [
        ["lr=1,,2"],
        ["lr=1,"],
        ["lr=[1,2"],
        ['lr="a,b'],
        ["lr=1"],
        ["lr=1,1"],
        ["lr"],
        ["=1,2"],
        ["lr=1,2", "lr=3"],
        [],
    ],
)
def test_what_is_no_sweep(texts: list[str]) -> None:
    with pytest.raises(UsageError):
        parse_axes(texts)


def test_values_are_json_if_they_can_be() -> None:
    axes = parse_axes(['a=1,"1",true,x', "b=[1,2]"])
    assert axes == {"a": [1, "1", True, "x"], "b": [[1, 2]]}
    assert parse_axes(["a=1,true,1.0"])["a"] == [1, True, 1.0]


def test_a_sweep_has_a_limit() -> None:
    with pytest.raises(UsageError, match="at most"):
        parse_axes([f"a={','.join(map(str, range(MOST_RUNS)))}", "b=1,2"])


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_each_combination_is_there_once_and_the_last_parameter_changes_fastest(sizes: list[int]) -> None:
    axes = {f"p{at}": list(range(size)) for at, size in enumerate(sizes)}
    found = [tuple(combination(axes, number).values()) for number in range(1, count_of(axes) + 1)]
    assert found == list(product(*axes.values()))
    assert list(combination(axes, 1)) == list(axes)


@given(st.integers(1, 12), st.sets(st.integers(1, 12)), st.integers(0, 5), st.integers(1, 5))
def test_what_is_due_was_not_begun_and_fits(of: int, begun: set[int], going: int, parallel: int) -> None:
    now = due(of, begun, going, parallel)
    left = [number for number in range(1, of + 1) if number not in begun]
    assert list(now) == left[: len(now)]
    assert len(now) == min(len(left), max(0, parallel - going))


def test_only_what_differs_is_shown() -> None:
    assert varied({"lr": 1, "bs": 2, "seed": 0}, {"lr": [1, 2], "bs": [2]}) == {"lr": 1}


def test_a_sweep_is_meant_by_parts_of_its_id() -> None:
    sweep = SweepId.make(1_795_000_000_000, b"\x1f\x2e\x3d\x4c")
    assert SweepId.parse(sweep) == sweep and sweep.short == "sweep-1f2e3d4c"
    for text in (sweep, sweep.short, "3d4c", sweep[:20]):
        assert sweep.is_meant_by(text)
    for text in ("sweep-", "d4c", "baseline", "sweep-00000000"):
        assert not sweep.is_meant_by(text)
    with pytest.raises(UsageError):
        SweepId.parse("sweep-1")
