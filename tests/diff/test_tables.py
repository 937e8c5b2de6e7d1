from __future__ import annotations

import datetime
import io
import struct
from collections.abc import Sequence

import pytest

from dsv.diff.tables import TableDiff, diff_tables
from dsv.errors import Unsupported
from tests.kit.intervals import interval_table

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def diff(before: bytes, after: bytes, *key: str) -> TableDiff:
    return diff_tables(b"labels.csv", before, after, key)


def cells(made: TableDiff) -> Sequence[object]:
    return [(row.key, row.cells) for row in made.rows]


def test_a_cell_that_is_no_number_changes_its_row_alone() -> None:
    made = diff(b"id,v\n1,3\n2,4\n3,5\n", b"id,v\n1,3\n2,unknown\n3,5\n", "id")
    assert made.columns_retyped == {"v": ("int64", "string")}
    assert cells(made) == [({"id": 2}, {"v": ("4", "unknown")})]
    whole = diff(b"id,v\n1,3\n2,4\n3,5\n", b"id,v\n1,3\n2,unknown\n3,5\n")
    assert (whole.rows_removed, whole.rows_added) == (1, 1)


def test_a_key_that_is_no_number_leaves_the_other_rows() -> None:
    made = diff(b"id,v\n1,3\n2,4\n", b"id,v\n1,3\nx2,4\n", "id")
    assert (made.rows_removed, made.rows_added, made.rows_changed) == (1, 1, 0)


def test_numbers_that_are_written_in_another_way_differ() -> None:
    made = diff(b"id,v,w\n1,007,1.5\n2,8,2.5\n", b"id,v,w\n1,7,1.50\n2,8,2.5\n", "id")
    assert cells(made) == [({"id": 1}, {"v": ("007", 7), "w": ("1.5", "1.50")})]
    long = b"id,v\n1,12345678901234567890123\n"
    assert diff(long, long.replace(b"0123", b"0124"), "id").rows_changed == 1


def test_numbers_stay_numbers() -> None:
    made = diff(b"id,v\n1,3\n2,4\n", b"id,v\n1,3\n2,4.5\n", "id")
    assert cells(made) == [({"id": 2}, {"v": (4, 4.5)})]


def test_cells_with_several_lines_in_a_large_file() -> None:
    lines = "".join(f'{number},"a line\nanother, {number}"\n' for number in range(60_000))
    before = b"id,v\n" + lines.encode()
    assert len(before) > 1 << 20
    made = diff(before, before.replace(b', 50000"', b', changed"'), "id")
    assert cells(made) == [({"id": 50_000}, {"v": ("a line\nanother, 50000", "a line\nanother, changed")})]


def test_a_byte_order_mark_and_other_line_ends_change_no_row() -> None:
    made = diff(b"id,v\n1,x\n2,y\n", b"\xef\xbb\xbfid,v\r\n1,x\r\n2,z", "id")
    assert cells(made) == [({"id": 2}, {"v": ("y", "z")})]


def test_times_that_python_has_no_value_for() -> None:
    kinds = {
        "at": pyarrow.timestamp("ns"),
        "for": pyarrow.duration("ns"),
        "clock": pyarrow.time64("ns"),
        "day": pyarrow.date32(),
        "all": pyarrow.list_(pyarrow.timestamp("ns")),
    }

    def table(number: int) -> bytes:
        columns = {
            name: pyarrow.array([[one] for one in (1, number)] if name == "all" else [1, number], kind)
            for name, kind in kinds.items()
        }
        written = io.BytesIO()
        parquet.write_table(pyarrow.table({"id": pyarrow.array([1, 2]), **columns}), written)
        return written.getvalue()

    made = diff_tables(b"x.parquet", table(1000), table(10**8 + 1), ["id"])
    [row] = made.rows
    assert row.cells is not None and list(row.cells) == list(kinds)
    assert row.cells["clock"] == ("00:00:00.000001", "00:00:00.100000001")
    assert diff_tables(b"x.parquet", table(10**8 + 1), table(10**8 + 1)).rows == []


def parquet_of(columns: dict[str, object], **options: object) -> bytes:
    written = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), written, **options)
    return written.getvalue()


def test_a_change_of_the_sign_of_zero_is_a_change() -> None:
    nan = float("nan")
    before, after = (
        parquet_of({"id": [1, 2, 3], "v": [zero, nan, 1.0], "l": [[zero], [nan], [1.0]]})
        for zero in (0.0, -0.0)
    )
    [row] = diff_tables(b"x.parquet", before, after, ["id"]).rows
    assert str(row.cells) == "{'v': (0.0, -0.0), 'l': ('[0.0]', '[-0.0]')}"


def test_columns_of_other_types_are_compared_by_value() -> None:
    before = parquet_of(
        {
            "id": [1, 2, 3],
            "v": [1, 2, None],
            "t": ["a", "b", "c"],
            "z": pyarrow.array([0.0] * 3, pyarrow.float32()),
        }
    )
    after = parquet_of(
        {
            "id": pyarrow.array([1, 2, 3], pyarrow.int32()),
            "v": [1.0, 2.5, None],
            "z": [0.0, 0.0, -0.0],
            "t": pyarrow.array(["a", "x", "c"], pyarrow.large_string()),
        }
    )
    made = diff_tables(b"x.parquet", before, after, ["id"])
    assert list(made.columns_retyped) == ["id", "v", "t", "z"]
    assert [str(one) for one in cells(made)] == [
        "({'id': 2}, {'v': (2, 2.5), 't': ('b', 'x')})", "({'id': 3}, {'z': (0.0, -0.0)})",
    ]  # fmt: skip


def test_a_long_text_that_many_rows_have_is_held_once() -> None:
    count, text = 1_000, "x" * 100_000  # 100 MB, if each row had its own
    numbers = pyarrow.array([0] * count, pyarrow.int32())

    def table(*ends: str) -> bytes:
        return parquet_of(
            {
                "id": list(range(count)),
                "text": pyarrow.DictionaryArray.from_arrays(numbers, pyarrow.array([text + ends[0]])),
                "texts": pyarrow.ListArray.from_arrays(
                    pyarrow.array(range(count + 1), pyarrow.int32()),
                    pyarrow.DictionaryArray.from_arrays(numbers, pyarrow.array(["y"])),
                ),
            }
        )

    tables = table("a"), table("b")
    pool = pyarrow.default_memory_pool()
    before = pool.max_memory()  # of the tests before this one too
    made = diff_tables(b"x.parquet", *tables, ["id"])
    assert made.rows_changed == count
    assert made.columns_retyped == {}
    assert pool.max_memory() <= max(before, 64 << 20)


@pytest.mark.parametrize("form", ["parquet", "file", "stream", "dictionary"])
def test_a_table_that_takes_too_much_memory_is_refused_with_the_limit(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is decoded."""
    table = pyarrow.table({"id": [7] * 200_000, "t": ["x"] * 200_000})
    if form == "dictionary":
        long = pyarrow.array(["x" * 2_000_000])
        numbers = pyarrow.array([0] * 10, pyarrow.int32())
        table = pyarrow.table(
            {"id": list(range(10)), "t": pyarrow.DictionaryArray.from_arrays(numbers, long)}
        )
    written = io.BytesIO()
    if form == "parquet":
        parquet.write_table(table, written)
    else:
        new = pyarrow.ipc.new_stream if form == "stream" else pyarrow.ipc.new_file
        with new(written, table.schema, options=pyarrow.ipc.IpcWriteOptions(compression="zstd")) as file:
            file.write_table(table)
    name = b"x.parquet" if form == "parquet" else b"x.arrow"
    assert len(written.getvalue()) < 600_000
    assert diff_tables(name, written.getvalue(), written.getvalue()).rows == []
    monkeypatch.setattr("dsv.diff.tables.MOST_DECODED", 1_000_000)
    monkeypatch.setattr("dsv.diff.tables._gathered", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(Unsupported, match=r"in memory, and tables of up to 1\.00 MB are read"):
        diff_tables(name, written.getvalue(), b"")


def test_times_of_int96_are_those_that_were_written() -> None:
    def table(*times: datetime.datetime | int) -> bytes:
        kind = pyarrow.timestamp("ns" if isinstance(times[0], int) else "us")
        columns = {"id": [1, 2], "at": pyarrow.array(times, kind)}
        return parquet_of(columns, use_deprecated_int96_timestamps=True)

    last, first = datetime.datetime(9999, 12, 31, 23, 59, 59, 999999), datetime.datetime(1, 1, 1)
    made = diff_tables(b"x.parquet", table(last, first), table(last, last), ["id"])
    assert [row.cells for row in made.rows] == [{"at": (str(first), str(last))}]
    near = datetime.datetime(2020, 1, 1)
    made = diff_tables(b"x.parquet", table(last, near), table(near, near), ["id"])
    assert [row.cells for row in made.rows] == [{"at": (str(last), str(near))}]
    made = diff_tables(b"x.parquet", table(1, 2), table(1, 3), ["id"])
    assert made.rows_changed == 1  # by a nanosecond


def test_an_interval_is_no_text_of_bytes() -> None:
    one, other = b"\1" * 12, b"\2" * 12
    plain = parquet_of({"id": [1, 2], "x": pyarrow.array([one, one], pyarrow.binary(12))}, store_schema=False)
    base, changed = (interval_table({"id": [1, 2]}, "x", each) for each in ([one, one], [one, other]))
    made = diff_tables(b"x.parquet", base, changed, ["id"])
    assert [(row.key, row.cells) for row in made.rows] == [({"id": 2}, {"x": (str(one), str(other))})]
    assert not made.columns_retyped
    made = diff_tables(b"x.parquet", base, plain, ["id"])
    assert made.columns_retyped == {"x": ("interval", "fixed_size_binary[12]")} and not made.rows


def test_a_file_with_far_times_and_nanoseconds_is_refused_by_the_name_of_its_column() -> None:
    written = parquet_of(
        {"at": pyarrow.array([1, 2], pyarrow.timestamp("ns"))}, use_deprecated_int96_timestamps=True
    )
    plain = parquet_of(
        {"at": pyarrow.array([1, 2], pyarrow.timestamp("ns"))},
        use_deprecated_int96_timestamps=True, use_dictionary=False, compression="none",
    )  # fmt: skip
    day = struct.pack("<QI", 2, 2440588)  # nanoseconds, and the Julian day of 1970
    assert plain.count(day) >= 1 and written != plain
    far = plain.replace(day, struct.pack("<QI", 2, 5373484))  # 9999-12-31
    assert len(parquet.read_table(io.BytesIO(far))) == 2
    with pytest.raises(Unsupported, match="column at has times with nanoseconds"):
        diff_tables(b"x.parquet", far, plain)


def test_empty_lines_of_csv_are_no_rows() -> None:
    made = diff(b"id,a\n1,2\n\n3,4\n", b"id,a\n1,2\n3,4\n\n", "id")
    assert not made.rows
