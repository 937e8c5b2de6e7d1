from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsv.diff.tables import TableFault
from dsv.merge.contents import merge_rows
from dsv.merge.paths import ConflictChoice

Row = tuple[object, ...]

COLUMNS = ["id", "a", "b"]
TABLES = st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 2), st.integers(0, 2))).map(
    lambda found: [(key, *cells) for key, cells in found.items()]
)


def merge(
    base: list[Row], ours: list[Row], theirs: list[Row], choice: ConflictChoice | None = None
) -> list[Row] | str:
    versions = [list(zip(*rows, strict=True)) or [(), (), ()] for rows in (base, ours, theirs)]
    try:
        found, _, _ = merge_rows(COLUMNS, "id", versions, choice)  # type: ignore[arg-type]
    except TableFault as fault:
        return str(fault)
    every = [*base, *ours, *theirs]
    return [
        every[row] if isinstance(row, int) else tuple(every[at][column] for column, at in enumerate(row))
        for row in found
    ]


@given(TABLES, TABLES)
def test_a_side_without_changes_takes_the_rows_of_the_other(base: list[Row], other: list[Row]) -> None:
    assert merge(base, other, base) == other == merge(base, other, other)
    found = merge(base, base, other)
    assert isinstance(found, list) and sorted(found) == sorted(other)  # type: ignore[type-var]


@given(TABLES, TABLES, TABLES)
def test_each_cell_is_that_of_the_side_which_changed_it(
    base: list[Row], ours: list[Row], theirs: list[Row]
) -> None:
    merged, mirrored = merge(base, ours, theirs), merge(base, theirs, ours)
    assert isinstance(merged, str) == isinstance(mirrored, str)
    if isinstance(merged, str) or isinstance(mirrored, str):
        return
    assert sorted(merged) == sorted(mirrored)  # type: ignore[type-var]
    was, one, other, found = ({row[0]: row for row in rows} for rows in (base, ours, theirs, merged))
    for key in range(6):
        before, left, right = was.get(key), one.get(key), other.get(key)
        if left == before:
            assert found.get(key) == right
        elif right in (before, left):
            assert found.get(key) == left
        else:
            assert before is not None and left is not None and right is not None
            for column in (1, 2):
                expected = right[column] if left[column] == before[column] else left[column]
                assert found[key][column] == expected


BASE: list[Row] = [(1, "x", "y"), (2, "x", "y"), (3, "x", "y")]


def test_new_rows_of_theirs_stand_where_they_stood() -> None:
    ours: list[Row] = [(9, 0, 0), *BASE, (8, 0, 0)]
    theirs: list[Row] = [(7, 1, 1), BASE[0], (6, 1, 1), (5, 1, 1), *BASE[1:]]
    assert merge(BASE, ours, theirs) == [
        (7, 1, 1), (9, 0, 0), BASE[0], (6, 1, 1), (5, 1, 1), *BASE[1:], (8, 0, 0),
    ]  # fmt: skip


def test_what_can_not_be_merged_is_said_with_its_row() -> None:
    changed: list[Row] = [(1, "new", "y"), *BASE[1:]]
    other: list[Row] = [(1, "other", "y"), *BASE[1:]]
    assert merge(BASE, changed, other) == "the row with id 1 was changed by both in column a"
    assert (
        merge(BASE, BASE[1:], other) == "the row with id 1 was removed by one side and changed by the other"
    )
    assert merge(BASE, [*BASE, (4, 0, 0)], [*BASE, (4, 0, 1)]) == "the row with id 4 was added by both"
    assert merge(BASE, [*BASE, BASE[0]], BASE) == "column id has 1 twice"


@given(TABLES, TABLES, TABLES)
def test_a_choice_decides_of_the_cells_that_both_changed_and_of_no_others(
    base: list[Row], ours: list[Row], theirs: list[Row]
) -> None:
    merged = {
        choice: merge(base, ours, theirs, choice) for choice in (ConflictChoice.OURS, ConflictChoice.THEIRS)
    }
    was, one, other = ({row[0]: row for row in rows} for rows in (base, ours, theirs))
    for choice, rows in merged.items():
        assert isinstance(rows, list)
        found = {row[0]: row for row in rows}
        for key in range(6):
            before, left, right = was.get(key), one.get(key), other.get(key)
            if left == before:
                assert found.get(key) == right
            elif right in (before, left):
                assert found.get(key) == left
            elif before is None or left is None or right is None:
                assert found.get(key) == (left if choice is ConflictChoice.OURS else right)
            else:
                for column in (1, 2):
                    cells = left[column], right[column]
                    expected = cells[choice is ConflictChoice.THEIRS]
                    if before[column] in cells:
                        expected = cells[cells[0] == before[column]]
                    assert found[key][column] == expected
