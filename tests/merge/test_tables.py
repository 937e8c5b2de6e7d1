from __future__ import annotations

import datetime
import decimal
import io
import random
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

import pytest
from blake3 import blake3

from dsv.format.recipe import cut_points
from dsv.merge.contents import _write_parquet, is_table, merge_tables
from dsv.merge.paths import ConflictChoice, MergedContent
from tests.kit.intervals import interval_table


def csv(
    base: bytes, ours: bytes, theirs: bytes, key: str = "id", name: bytes = b"d/labels.csv"
) -> bytes | str:
    return content(merge_tables(name, key, base, ours, theirs))


def content(merged: MergedContent | str) -> bytes | str:
    return merged if isinstance(merged, str) else merged.data


def test_rows_are_merged_and_the_others_stay_as_they_are_written() -> None:
    base = b'id,label\n1,cat\n2,"dog"\n3,"a ""b""\nc"\n'
    ours = b'id,label\n1,cow\n2,"dog"\n3,"a ""b""\nc"\n'
    theirs = b'id,label\n1,cat\n2,"dog"\n3,"a ""b""\nc"\n4,"x,y"\n'
    assert csv(base, ours, theirs) == b'id,label\n1,cow\n2,"dog"\n3,"a ""b""\nc"\n4,"x,y"\n'


def test_cells_of_one_row_that_different_sides_changed_are_both_taken() -> None:
    base, ours, theirs = b"id,a,b\r\n1,x,y\r\n", b'id,a,b\r\n1,"n,",y\r\n', b"id,a,b\r\n1,x,m\r\n"
    assert csv(base, ours, theirs) == b'id,a,b\r\n1,"n,",m\r\n'


def test_tabs_and_a_last_line_without_an_end() -> None:
    assert csv(b"id\ta\n1\t2", b"id\ta\n1\t3", b"id\ta\n1\t2\n5\t6", name=b"x.tsv") == b"id\ta\n1\t3\n5\t6"


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("within", [b"\n", b"\r\n", b"\r"])
def test_a_cell_with_several_lines_stays_one_cell(end: bytes, within: bytes) -> None:
    base = b'id,a,b,c^1,"x|y",p,q^2,"k|l",m,n^'.replace(b"^", end).replace(b"|", within)
    ours, theirs = base.replace(b'y",p', b'y",P'), base.replace(b"p,q", b"p,Q")
    assert csv(base, ours, theirs) == base.replace(b"p,q", b"P,Q")


def test_a_quote_inside_a_cell_and_a_long_cell() -> None:
    base = b'id,a,b\n1,5" disk,x\n2,7" disk,' + b"y" * 300_000 + b"\n"
    ours, theirs = base.replace(b",x", b",z"), base.replace(b"7", b"8")
    assert csv(base, ours, theirs) == base.replace(b",x", b",z").replace(b"7", b"8")


def test_a_byte_order_mark_is_no_part_of_the_first_column() -> None:
    base, mark = b"id,a,b\n1,x,y\n", b"\xef\xbb\xbf"
    ours, theirs, both = b"id,a,b\n1,n,y\n", b"id,a,b\n1,x,m\n", b"id,a,b\n1,n,m\n"
    assert csv(mark + base, mark + ours, mark + theirs) == mark + both
    assert csv(base, ours, mark + theirs) == mark + both == csv(base, mark + ours, theirs)
    assert csv(mark + base, ours, mark + theirs) == both


def test_how_lines_end_is_taken_from_the_side_that_changed_it() -> None:
    base, ours, theirs = b"id,a\n1,x\n2,y", b"id,a\n1,n\n2,y", b"id,a\r\n1,x\r\n2,y\r\n3,z\r\n"
    assert csv(base, ours, theirs) == b"id,a\r\n1,n\r\n2,y\r\n3,z\r\n"
    assert csv(theirs, ours, theirs) == b"id,a\n1,n\n2,y"


@pytest.mark.parametrize(
    ("theirs", "reason"),
    [
        (b"id,a\n1,9\n", "the row with id 1 was changed by both in column a"),
        (b"id,a,b\n1,2,3\n", "its columns were changed"),
        (b"id,a\n1\n", "row 2 has 1 cell, but the header has 2"),
        (b"id,a\n1,2\n1,3\n", "column id has 1 twice"),
        (b"id,a\n1,2\r\n", "row 2 has another line end than the header"),
        (b'id,a\n1,"2\n', "it is not a table: unexpected end of data"),
        (b"id,a\n1,\xff\n", "it is not UTF-8"),
        (b"", "it has no header"),
    ],
)
def test_what_is_no_such_table_is_said(theirs: bytes, reason: str) -> None:
    assert csv(b"id,a\n1,2\n", b"id,a\n1,3\n", theirs) == reason


def test_a_key_that_is_no_column_is_said() -> None:
    assert csv(b"id,a\n1,2\n", b"id,a\n1,3\n", b"id,a\n1,4\n", key="name") == "it has no column name"


def test_names_of_tables() -> None:
    assert is_table(b"a/B.CSV") and is_table(b"a.parquet") and not is_table(b"csv") and not is_table(b"a.txt")


def test_parquet_rows_are_taken_as_they_are() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    def table(ids: list[int], labels: list[str | None], times: list[int], scores: list[float]) -> bytes:
        schema = pyarrow.schema(
            [
                ("id", pyarrow.int64()),
                ("label", pyarrow.dictionary(pyarrow.int32(), pyarrow.string())),
                ("at", pyarrow.timestamp("ns")),
                ("score", pyarrow.list_(pyarrow.float32())),
            ],
            metadata={"made": "by hand"},
        )
        columns = [ids, labels, times, [[score] for score in scores]]
        made = pyarrow.table(
            [pyarrow.array(one, field.type) for one, field in zip(columns, schema, strict=True)],
            schema=schema,
        )
        written = io.BytesIO()
        parquet.write_table(made, written, compression="zstd")
        return written.getvalue()

    plain = pyarrow.schema(
        [
            ("id", pyarrow.int64()),
            ("label", pyarrow.string()),
            ("at", pyarrow.int64()),
            ("score", pyarrow.list_(pyarrow.float32())),
        ]
    )
    base = table([1, 2, 3], ["a", None, "c"], [1, 2, 3], [0.1, 0.2, 0.3])
    ours = table([1, 2, 3], ["A", None, "c"], [1, 2, 3], [0.1, 0.2, 0.3])
    theirs = table([1, 2, 4], ["a", "b", "d"], [7, 2, 4], [0.1, 0.2, 0.4])
    merged = content(merge_tables(b"x.parquet", "id", base, ours, theirs))
    assert isinstance(merged, bytes)
    found = parquet.read_table(io.BytesIO(merged))
    expected = parquet.read_table(io.BytesIO(table([1, 2, 4], ["A", "b", "d"], [7, 2, 4], [0.1, 0.2, 0.4])))
    assert found.schema.equals(expected.schema)
    assert found.cast(plain).to_pydict() == expected.cast(plain).to_pydict()
    assert found.schema.metadata[b"made"] == b"by hand"
    assert parquet.ParquetFile(io.BytesIO(merged)).metadata.row_group(0).column(0).compression == "ZSTD"
    assert merge_tables(b"x.parquet", "id", base, ours, b"none") == (
        "it is not a Parquet file: Parquet file size is 4 bytes, smaller than the minimum file footer (8 bytes)"
    )
    twice = table([1, 1], ["a", "b"], [1, 2], [0.1, 0.2])
    assert merge_tables(b"x.parquet", "id", base, ours, twice) == "column id has 1 twice"


def test_parquet_times_that_python_has_no_value_for_and_lists_with_not_a_number() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    nanoseconds = pyarrow.timestamp("ns")

    def table(first: int, second: int) -> bytes:
        columns = {
            "id": pyarrow.array([1, 2]),
            "n": pyarrow.array([first, second]),
            "at": pyarrow.array([[first], [second]], pyarrow.list_(nanoseconds)),
            "day": pyarrow.array([10**8 + first, second], pyarrow.date32()),
            "of": pyarrow.array([{"at": first}, None], pyarrow.struct([("at", nanoseconds)])),
            "score": pyarrow.array([[float("nan")], [1.5]]),
        }
        written = io.BytesIO()
        parquet.write_table(pyarrow.table(columns), written)
        return written.getvalue()

    merged = content(merge_tables(b"x.parquet", "id", table(1, 2), table(3, 2), table(1, 5)))
    assert isinstance(merged, bytes), merged
    assert str(parquet.read_table(io.BytesIO(merged))) == str(parquet.read_table(io.BytesIO(table(3, 5))))
    key = merge_tables(b"x.parquet", "at", table(1, 2), table(3, 2), table(1, 5))
    assert key == "column at has nested values, which can't be keys"


def parquet_of(
    columns: dict[str, object], metadata: dict[str, str] | None = None, **options: object
) -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    written = io.BytesIO()
    parquet.write_table(pyarrow.table(columns).replace_schema_metadata(metadata), written, **options)
    return written.getvalue()


def read_back(merged: MergedContent | str) -> Any:
    assert isinstance(merged, MergedContent), merged
    return pytest.importorskip("pyarrow.parquet").read_table(io.BytesIO(merged.data))


def test_key_value_metadata_of_both_sides_is_in_the_result() -> None:
    columns: dict[str, object] = {"id": [1, 2], "a": ["x", "y"]}
    base = parquet_of(columns, {"made": "by hand", "goes": "1"})
    ours = parquet_of({**columns, "a": ["X", "y"]}, {"made": "by hand", "by": "ann"})
    theirs = parquet_of(columns, {"made": "by hand", "goes": "1", "licence": "CC0"})
    merged = merge_tables(b"x.parquet", "id", base, ours, theirs)
    assert read_back(merged).schema.metadata == {b"made": b"by hand", b"by": b"ann", b"licence": b"CC0"}
    other = parquet_of({**columns, "a": ["X", "y"]}, {"made": "by hand", "licence": "MIT"})
    assert merge_tables(b"x.parquet", "id", base, other, theirs) == "both changed its metadata licence"
    for choice, licence in ((ConflictChoice.OURS, b"MIT"), (ConflictChoice.THEIRS, b"CC0")):
        resolved = merge_tables(b"x.parquet", "id", base, other, theirs, choice)
        assert read_back(resolved).schema.metadata[b"licence"] == licence
        assert isinstance(resolved, MergedContent) and str(resolved.resolved) == "metadata licence"


def test_a_change_of_the_sign_of_zero_is_a_change() -> None:
    def table(*numbers: float) -> bytes:
        return parquet_of({"id": list(range(len(numbers))), "v": list(numbers)})

    base = table(0.0, 0.0, float("nan"))
    merged = merge_tables(
        b"x.parquet", "id", base, table(0.0, 1.0, float("nan")), table(-0.0, 0.0, float("nan"))
    )
    assert [str(one) for one in read_back(merged).column("v").to_pylist()] == ["-0.0", "1.0", "nan"]


def test_a_long_text_that_many_rows_have_is_held_once() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    count, text = 300_000, "x" * 20_000  # 6 GB, if each row had its own

    def table(*changed: int) -> bytes:
        numbers = [1 if row in changed else 0 for row in range(count)]
        texts = pyarrow.DictionaryArray.from_arrays(
            pyarrow.array(numbers, pyarrow.int32()), pyarrow.array([text, "new"])
        )
        schema = pyarrow.schema([("id", pyarrow.int64()), ("text", pyarrow.string())])
        return _write_parquet([pyarrow.array(range(count)), texts], schema, "snappy")

    base, ours, theirs = table(), table(5), table(7)
    assert len(base) < 8 << 20
    before = pyarrow.total_allocated_bytes()
    merged = merge_tables(b"x.parquet", "id", base, ours, theirs)
    assert isinstance(merged, MergedContent), merged
    assert str(merged.taken) == "row id=7"
    assert pyarrow.default_memory_pool().max_memory() - before < 1 << 30
    parquet = pytest.importorskip("pyarrow.parquet")
    assert parquet.read_schema(io.BytesIO(merged.data)).field("text").type == pyarrow.string()
    column = parquet.read_table(io.BytesIO(merged.data), read_dictionary=["text"]).column("text")
    assert [column[row].as_py() for row in (4, 5, 6, 7)] == [text, "new", text, "new"]


def test_a_table_that_takes_too_much_memory_is_refused_with_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dsv.diff.tables.MOST_DECODED", 1_000_000)
    base = parquet_of({"id": list(range(200_000)), "v": [0] * 200_000})
    small = parquet_of({"id": [1], "v": [0]})
    monkeypatch.setattr("dsv.diff.tables._gathered", lambda *_: pytest.fail("it was decoded"))
    merged = merge_tables(b"x.parquet", "id", base, small, small)
    assert isinstance(merged, str) and len(base) < 1_500_000
    assert merged.endswith("MB in memory, and tables of up to 1.00 MB are read")


FAR = [datetime.datetime(2020, 1, 1), datetime.datetime(9999, 12, 31), datetime.datetime(1, 1, 1)]
OLD_TIMES = {"use_deprecated_int96_timestamps": True}


@pytest.mark.parametrize(
    ("make", "options", "why"),
    [
        (lambda arrow: arrow.array(FAR, arrow.timestamp("us")), OLD_TIMES, "INT96"),
        (lambda arrow: arrow.array(FAR[:1] * 3, arrow.timestamp("us")), OLD_TIMES, "INT96"),
        (
            lambda arrow: arrow.array([datetime.time(1)] * 3, arrow.time64("us")),
            {"write_time_adjusted_to_utc": True},
            "isAdjustedToUTC=True",
        ),
        (
            lambda arrow: arrow.array([decimal.Decimal("1.5")] * 3, arrow.decimal128(9, 2)),
            {"store_decimal_as_integer": True},
            "INT32 Decimal",
        ),
    ],
)
def test_a_parquet_column_that_would_change_its_type_is_named(
    make: Callable[[Any], Any], options: dict[str, Any], why: str
) -> None:
    arrow = pytest.importorskip("pyarrow")

    def table(*counts: int) -> bytes:
        return parquet_of({"id": [1, 2, 3], "n": counts, "x": make(arrow)}, **options)

    merged = merge_tables(b"x.parquet", "id", table(0, 0, 0), table(1, 0, 0), table(0, 0, 2))
    assert isinstance(merged, str) and merged.startswith("column x can't be written as it is")
    assert why in merged


def test_a_column_of_intervals_is_named() -> None:
    pytest.importorskip("pyarrow")

    def table(*counts: int) -> bytes:
        return interval_table({"id": [1, 2], "n": counts}, "x", [b"\1" * 12, b"\2" * 12])

    merged = merge_tables(b"x.parquet", "id", table(0, 0), table(1, 0), table(0, 2))
    assert isinstance(merged, str) and merged.startswith("column x can't be written as it is")
    assert "Interval" in merged
    assert merge_tables(b"x.parquet", "x", table(0, 0), table(1, 0), table(0, 2)) == merged


def test_files_whose_columns_are_of_another_type_on_disk_are_not_merged() -> None:
    """Both are times in nanoseconds to pyarrow."""
    arrow = pytest.importorskip("pyarrow")
    times = arrow.array(FAR[:1] * 2, arrow.timestamp("ns"))

    def table(first: int, second: int, **options: object) -> bytes:
        return parquet_of({"id": [1, 2], "n": [first, second], "x": times}, **options)

    merged = merge_tables(b"x.parquet", "id", table(0, 0), table(1, 0), table(0, 2, **OLD_TIMES))
    assert merged == "its columns were changed"
    merged = merge_tables(b"x.parquet", "id", table(0, 0), table(1, 0), table(0, 2))
    assert read_back(merged).column("n").to_pylist() == [1, 2]


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "merged"),
    [
        (b"id,a\n1,2\n\n3,4\n", b"id,a\n1,5\n\n3,4\n", b"id,a\n1,2\n\n3,6\n", b"id,a\n1,5\n\n3,6\n"),
        (b"\nid,a\n1,2\n3,4\n\n", b"\nid,a\n1,5\n3,4\n\n", b"\nid,a\n1,2\n3,6\n\n", b"\nid,a\n1,5\n3,6\n\n"),
        (
            b"id,a\r\n\r\n1,2\r\n3,4",
            b"id,a\r\n\r\n1,5\r\n3,4",
            b"id,a\r\n1,2\r\n3,6",
            b"id,a\r\n1,5\r\n3,6",  # theirs has removed it
        ),
        (b"id,a\n1,2\n3,4\n", b"id,a\n1,5\n3,4\n", b"id,a\n1,2\n3,6\n\n\n", b"id,a\n1,5\n3,6\n\n\n"),
    ],
)
def test_empty_lines_are_no_rows(base: bytes, ours: bytes, theirs: bytes, merged: bytes) -> None:
    assert csv(base, ours, theirs) == merged


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize(
    ("ours", "theirs", "merged"),
    [
        (b"^1,x,b^2,c,d", b"^1,a,y^2,c,d", b"^1,x,y^2,c,d"),  # both changed the row behind it
        (b"^1,a,b^2,x,d", b"1,a,y^^^2,c,d", b"1,a,y^^^2,x,d"),  # theirs moved it, and added one
        (b"^1,a,b^2,x,d", b"^2,c,d", b"^2,x,d"),  # theirs removed only the row
        (b"^1,a,b^2,x,d", b"2,c,d", b"2,x,d"),
        (b"^^1,x,b^2,c,d", b"1,a,y^2,c,d", b"^^1,x,y^2,c,d"),  # both changed it
        (b"^1,x,b^2,c,d", b"^9,n,n^1,a,y^2,c,d", b"^9,n,n^1,x,y^2,c,d"),
        (b"^1,x,b^2,c,d", b"^1,a,b^2,c,d^^9,n,n", b"^1,x,b^2,c,d^^9,n,n"),
    ],
)
def test_empty_lines_stay_where_they_are_or_follow_who_changed_them(
    end: bytes, ours: bytes, theirs: bytes, merged: bytes
) -> None:
    base, *found = (b"id,a,b^" + each + b"^" for each in (b"^1,a,b^2,c,d", ours, theirs, merged))
    base, ours, theirs, merged = (each.replace(b"^", end) for each in (base, *found))
    assert csv(base, ours, theirs) == merged


def test_an_empty_line_takes_the_line_end_of_the_file_and_never_loses_its_own() -> None:
    base, ours, theirs = b"id,a\n\n1,x\n", b"id,a\n\n1,n\n", b"id,a\r\n\r\n1,x\r\n"
    assert csv(base, ours, theirs) == b"id,a\r\n\r\n1,n\r\n"
    for other in (b"id,a\n\r\n1,x\n", b"id,a\n1,x\n\r\n", b"id,a\n\r\n"):
        assert csv(other, ours, other) == "an empty line has another line end than the header"


def test_most_of_a_merged_parquet_file_is_in_the_chunks_of_the_last_merge() -> None:
    """Rows that are added early in the table move all others; pages that end by content begin again as before."""
    pyarrow = pytest.importorskip("pyarrow")
    count = 1_000_000
    cells = pyarrow.array(memoryview(random.Random(1).randbytes(8 * (count + 500))).cast("q"))
    moved = pyarrow.concat_arrays([cells[:1000], cells[count:], cells[1000:count]])

    def chunks(column: Any) -> dict[bytes, int]:
        data = _write_parquet([column], pyarrow.schema({"id": pyarrow.int64()}), "snappy")
        ends = [0, *accumulate(cut_points(data))]
        return {blake3(data[begin:end]).digest(): end - begin for begin, end in pairwise(ends)}

    first, second = chunks(cells[:count]), chunks(moved)
    known = sum(size for chunk, size in second.items() if chunk in first)
    assert known > 0.3 * sum(second.values()), (known, sum(second.values()))
