"""A Parquet file with a column of intervals, which pyarrow reads and can't write."""

from __future__ import annotations

import io
from collections.abc import Mapping

import pytest


def interval_table(columns: Mapping[str, object], name: str, intervals: list[bytes]) -> bytes:
    """Return the file with one more column: its values have 12 bytes each."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    written = io.BytesIO()
    table = pyarrow.table({**columns, name: pyarrow.array(intervals, pyarrow.binary(12))})
    parquet.write_table(table, written, store_schema=False)
    data = written.getvalue()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    # Thrift's compact form of the column's name (field 4), and the end of its element of the schema. Between them,
    # field 6 is the converted type, 21 (written twice as large) for an interval.
    element = b"\x18" + bytes([len(name)]) + name.encode()
    assert data.count(element + b"\0", start) == 1
    footer = data[start:-8].replace(element + b"\0", element + b"\x25\x2a\0")
    return data[:start] + footer + len(footer).to_bytes(4, "little") + b"PAR1"
