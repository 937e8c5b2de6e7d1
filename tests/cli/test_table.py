"""Tables in a pipe and in windows of several widths."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv.cli.output import Column, CommandOutput, shortened, width, write_table
from dsv.cli.terminal import Surroundings

COLUMNS = [Column("dataset", keep=True), Column("message"), Column("files", right=True)]
ROWS = [
    ["chest-xray", "NIH release, 15 classes, with a longer explanation than fits into a window", "627,615"],
    ["胸部", "x\x1b[31m", "1"],
]


def drawn(terminal: bool, columns: int, colour: bool, rows: list[list[str]]) -> list[str]:
    raw = io.BytesIO()
    environ = {} if colour else {"NO_COLOR": "1"}
    around = Surroundings(environ, raw, io.StringIO(), terminal, terminal, columns)
    with CommandOutput(raw) as out:
        write_table(out, around, COLUMNS, rows)
        out.publish()
    return raw.getvalue().decode().splitlines()


def test_in_a_pipe_columns_are_aligned_whole_and_plain() -> None:
    lines = drawn(False, 20, True, ROWS)
    assert lines[0].startswith("DATASET     MESSAGE  ")
    assert lines[0].endswith("FILES")
    assert "than fits into a window  627,615" in lines[1]
    assert {width(line) for line in lines} == {width(lines[1])}
    assert "\\x1b[31m" in lines[2]


def test_no_rows_no_table() -> None:
    assert drawn(False, 80, False, []) == []
    assert drawn(True, 80, False, []) == []


@pytest.mark.parametrize("columns", [36, 60, 120])
def test_on_a_terminal_it_fits_the_window(columns: int) -> None:
    lines = drawn(True, columns, False, ROWS)
    assert max(width(line) for line in lines) <= columns
    assert "\x1b" not in "".join(lines)
    assert "chest-xray" in lines[1]
    assert "627,615" in lines[1]
    assert ("…" in lines[1]) == (columns < 100)


def test_a_window_too_narrow_for_the_table_gets_blocks() -> None:
    lines = drawn(True, 20, False, [["chest-xray", "short", "7"]])
    assert lines == ["chest-xray", "  message  short", "  files    7"]


@given(st.text(max_size=30), st.integers(1, 40))
def test_a_shortened_cell_fits_and_is_a_beginning(text: str, room: int) -> None:
    short = shortened(text, room)
    assert width(short) <= room
    assert short == text or text.startswith(short[:-1])


def test_colour_only_where_it_is_wanted() -> None:
    assert "\x1b[1m" in drawn(True, 80, True, ROWS)[0]
    assert "\x1b" not in "".join(drawn(True, 80, False, ROWS))


def test_markup_in_a_name_is_text() -> None:
    assert "[bold]x" in drawn(True, 80, True, [["a", "[bold]x", "1"]])[1]
