"""A history of which only some commits are shown."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsv.api.log import shown_parents
from dsv.values.ids import CommitId

History = list[tuple[int, list[int], bool]]


def commit(number: int) -> CommitId:
    return CommitId(bytes([number]) * 32)


def shown(history: History) -> dict[int, list[int]]:
    walked = [(commit(one), tuple(map(commit, parents)), is_shown) for one, parents, is_shown in history]
    return {one[0]: [parent[0] for parent in parents] for one, parents in shown_parents(walked).items()}


def test_a_merge_of_a_branch_that_is_not_shown_has_one_parent() -> None:
    assert shown([(4, [3, 2], True), (3, [1], True), (2, [1], False), (1, [], True)]) == {
        4: [3],
        3: [1],
        1: [],
    }


def test_a_merge_that_is_not_shown_leaves_its_parents_to_its_children() -> None:
    history: History = [(5, [4], True), (4, [3, 2], False), (3, [1], True), (2, [1], True), (1, [], True)]
    assert shown(history) == {5: [3, 2], 3: [1], 2: [1], 1: []}


def test_parents_behind_the_end_of_the_walk_are_left_out() -> None:
    assert shown([(3, [2, 1], True), (2, [1], False)]) == {3: []}


@st.composite
def histories(draw: st.DrawFn) -> History:
    found: History = []
    for number in range(draw(st.integers(1, 14)), 0, -1):
        parents = (
            draw(st.lists(st.integers(1, max(1, number - 1)), unique=True, max_size=3)) if number > 1 else []
        )
        found.append((number, parents, draw(st.booleans())))
    return found


@given(histories())
def test_parents_are_the_nearest_shown_ancestors_that_no_other_one_leads_to(history: History) -> None:
    parents = {one: above for one, above, _ in history}
    is_shown = {one: showing for one, _, showing in history}

    def nearest(one: int) -> set[int]:
        return {
            found for parent in parents[one] for found in ({parent} if is_shown[parent] else nearest(parent))
        }

    def ancestors(one: int) -> set[int]:
        return {found for parent in parents[one] for found in {parent, *ancestors(parent)}}

    expected = {}
    for one in parents:
        if is_shown[one]:
            all_nearest = nearest(one)
            expected[one] = {
                each for each in all_nearest if not any(each in ancestors(other) for other in all_nearest)
            }
    assert {one: set(above) for one, above in shown(history).items()} == expected
