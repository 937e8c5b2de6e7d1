"""The drawing beside `dsv log --graph`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsv.cli.commands.log import Graph
from dsv.values.ids import CommitId

Line = tuple[str, str]


def commit(letter: str) -> CommitId:
    return CommitId(letter.encode() * 32)


def draw(*history: Line, rows: int = 1) -> list[str]:
    """history: each commit's letter, and those of its parents."""
    graph, drawn = Graph(), list[str]()
    for letter, parents in history:
        drawn += graph.draw(commit(letter), [commit(each) for each in parents], rows)
    return drawn


def test_a_line() -> None:
    assert draw(("C", "B"), ("B", "A"), ("A", "")) == ["*", "*", "*"]
    assert draw(("B", "A"), ("A", ""), rows=2) == ["*", "|", "*", " "]


def test_a_merge() -> None:
    assert draw(("M", "BC"), ("C", "A"), ("B", "A"), ("A", "")) == ["*", "|\\", "| *", "* |", "|/", "*"]


def test_two_merges_beside_each_other() -> None:
    drawn = draw(("M", "BC"), ("N", "BD"), ("D", "A"), ("C", "A"), ("B", "A"), ("A", ""))
    assert drawn == [
        "*",
        "|\\",
        "| | *",
        "| | |\\",
        "|_|/ /",
        "| | *",
        "| * |",
        "| |/",
        "* |",
        "|/",
        "*",
    ]


def test_two_histories_without_a_common_commit() -> None:
    assert draw(("M", "BC"), ("C", ""), ("B", "")) == ["*", "|\\", "| *", "*"]
    assert draw(("M", "BC"), ("B", ""), ("C", "")) == ["*", "|\\", "* |", " /", "*"]


@st.composite
def histories(draw_: st.DrawFn) -> list[tuple[int, list[int]]]:
    count = draw_(st.integers(1, 12))
    history = []
    for number in range(count, 0, -1):
        most = min(3, number - 1)
        parents = draw_(st.lists(st.integers(1, max(1, number - 1)), unique=True, max_size=most))
        history.append((number, parents if number > 1 else []))
    return history


@given(histories())
def test_each_commit_has_one_star_and_no_line_is_left_open(history: list[tuple[int, list[int]]]) -> None:
    graph = Graph()
    for number, parents in history:
        drawn = list(
            graph.draw(CommitId(bytes([number]) * 32), [CommitId(bytes([p]) * 32) for p in parents], 1)
        )
        assert [row.count("*") for row in drawn] == [1] + [0] * (len(drawn) - 1)
        assert all(set(row) <= set("*|\\/_ ") for row in drawn)
    assert not graph._lines
