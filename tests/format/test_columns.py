"""What is said of all numbers of a column at once is what looking at each of them says."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv.format.columns import any_above, count_zeros, first_seen, surely_below

EDGES = [0, 1, 255, 256, 65_535, 65_536, (1 << 20) - 1, 1 << 20, (1 << 24) - 1, 1 << 24, (1 << 32) - 1]


@st.composite
def columns(draw: st.DrawFn) -> array[int]:
    code, most = draw(st.sampled_from([("I", (1 << 32) - 1), ("Q", (1 << 64) - 1)]))
    largest = draw(st.sampled_from([*EDGES, most]).filter(lambda one: one <= most))
    edges = st.sampled_from([one for one in EDGES if one <= largest])
    return array(code, draw(st.lists(edges | st.integers(0, largest), max_size=40)))


limits = st.sampled_from(EDGES) | st.integers(0, 1 << 70)


@given(columns(), limits)
def test_limits(column: array[int], limit: int) -> None:
    above = any(number > limit for number in column)
    assert any_above(column, limit) == above
    if surely_below(column, limit):
        assert all(number < limit for number in column)


@pytest.mark.parametrize("code", ["I", "Q"])
def test_what_is_far_below_a_limit_needs_no_second_look(code: str) -> None:
    assert surely_below(array(code, [0, 1, (1 << 20) - 1]), 1 << 20)
    assert surely_below(array(code, [0, 1, (1 << 24) - 1]), 3 << 24)
    assert surely_below(array(code), 0)
    assert not surely_below(array(code, [1 << 20]), 1 << 20)


@given(columns())
def test_zeros(column: array[int]) -> None:
    assert count_zeros(column) == list(column).count(0)


@given(st.lists(st.integers(0, 3) | st.sampled_from([255, 256, 1 << 20]), max_size=12), st.integers(0, 5))
def test_a_table_without_slack(values: list[int], count: int) -> None:
    expected = list(dict.fromkeys(values)) == list(range(count))
    assert first_seen(array("I", values), count) == expected


@pytest.mark.parametrize("count", [255, 256, 257, 600])
def test_tables_of_many_rows(count: int) -> None:
    values = [*range(count), 0, count - 1]
    assert first_seen(array("I", values), count)
    assert not first_seen(array("I", values), count + 1) and not first_seen(array("I", values), count - 1)
    assert not first_seen(array("I", values[::-1]), count)
