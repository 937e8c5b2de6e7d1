"""Three-way merge of texts by lines, with the result of `git merge-file`, and of tables by rows."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

from dsv.diff.lines import edits, near, split_lines
from dsv.diff.tables import (
    RepeatedKey,
    TableFault,
    join,
    number,
    parquet_forms,
    read_parquet,
    require_pyarrow,
    shown,
    table_format,
)
from dsv.merge.paths import ConflictChoice, MergedContent, Places, winner
from dsv.values.paths import show
from dsv.values.units import format_count


class MergePiece(NamedTuple):
    """Lines of a merged text as either side has them."""

    ours: bytes
    theirs: bytes
    taken: ConflictChoice | None
    """The side whose lines are taken; None if both changed them."""


def merge_text(base: bytes, ours: bytes, theirs: bytes, choice: ConflictChoice | None) -> MergedContent | str:
    """Return the text with the changes of both sides, or why it can't be merged. Raises `TooDifferent`.

    choice: whose lines are taken where both changed them; None: they can't be merged.
    """
    merged: list[bytes] = []
    taken, resolved = Places(), Places()
    line = 1
    for piece in merge_lines(base, ours, theirs):
        side = piece.taken or choice
        if side is None:
            mine, other = map(_first_line, (piece.ours, piece.theirs))
            return f"both changed the same lines: line {line} is {mine} in ours, and {other} in theirs"
        text = piece.theirs if side is ConflictChoice.THEIRS else piece.ours
        if piece.taken is not ConflictChoice.OURS:
            count = max(len(split_lines(text)), 1)
            place = f"line {line}" if count == 1 else f"lines {line}-{line + count - 1}"
            (resolved if piece.taken is None else taken).note(place)
        merged.append(text)
        line += text.count(b"\n")
    return MergedContent(b"".join(merged), taken, resolved)


def _first_line(text: bytes) -> str:
    return show(text.split(b"\n", 1)[0][:_SHOWN]) if text else "gone"


def merge_lines(base: bytes, ours: bytes, theirs: bytes) -> Iterator[MergePiece]:
    """Yield the merged text. Overlapping or adjacent changes are one piece. Raises `TooDifferent`."""
    was, *sides = (split_lines(text) for text in (base, ours, theirs))
    changes = [edit._replace(side=side) for side in (0, 1) for edit in edits(was, sides[side])]
    at = 0
    moved = [0, 0]  # what to add to a line of the base to get that of a side
    for group in near(sorted(changes), 0):
        start, end = group[0].start, max(edit.end for edit in group)
        starts = [start + shift for shift in moved]
        for edit in group:
            moved[edit.side] += edit.added - edit.removed
        same = b"".join(was[at:start])
        yield MergePiece(same, same, ConflictChoice.OURS)
        mine, other = (
            b"".join(lines[begin : end + shift])
            for lines, begin, shift in zip(sides, starts, moved, strict=True)
        )
        yield MergePiece(mine, other, winner(b"".join(was[start:end]), mine, other))
        at = end
    same = b"".join(was[at:])
    yield MergePiece(same, same, ConflictChoice.OURS)


_SHOWN = 60  # bytes of a line in a message
MAX_TABLE = 64 << 20  # bytes of one version
MAX_ROWS = 1_000_000

_BOM = "\ufeff"
_DELIMITERS = {"csv": ",", "tsv": "\t"}
Row = int | tuple[int, ...]
"""The number of a row that is taken whole, or for each column the number of the row that its cell is taken
from. Rows are counted over all versions, base first."""


def is_table(path: bytes) -> bool:
    """Return whether the path has the name of a table that can be merged."""
    return table_format(path) in (*_DELIMITERS, "parquet")


def merge_tables(
    path: bytes, key: str, base: bytes, ours: bytes, theirs: bytes, choice: ConflictChoice | None = None
) -> MergedContent | str:
    """Return the table with the rows of both sides, or the reason why it can't be merged.

    choice: whose rows and cells are taken where both sides changed them; None: that can't be merged.
    Raises `Unsupported` if pyarrow is needed and not installed.
    """
    delimiter = _DELIMITERS.get(table_format(path) or "")
    try:
        if delimiter is None:
            return _merge_parquet(key, choice, base, ours, theirs)
        return _merge_csv(delimiter, key, choice, base, ours, theirs)
    except TableFault as fault:
        return str(fault)


def merge_rows(
    names: Sequence[str],
    key: str,
    versions: Sequence[Sequence[Sequence[Hashable]]],
    choice: ConflictChoice | None = None,
    show: Callable[[int, int], object] | None = None,
) -> tuple[list[Row], Places, Places]:
    """Return the merged rows in ours' order, those with a change of theirs, and those that `choice` decided.

    versions: the columns `names` of base, ours and theirs, with values that are equal if the cells are.
    show: returns the key of a row of a version for people.

    A new row of theirs follows the row that it follows there. A row that both sides changed has both changes,
    if these are in different columns. Raises `TableFault`.
    """
    keys = [columns[names.index(key)] for columns in versions]
    starts = (len(keys[0]), len(keys[0]) + len(keys[1]))

    def named(version: int, row: int) -> object:
        return keys[version][row] if show is None else show(version, row)

    try:
        joined = join(*keys)
    except RepeatedKey as error:
        raise TableFault(f"column {key} has {named(*error.args)} twice") from None
    taken, resolved = Places(), Places()
    merged: dict[Hashable, Row | None] = {}
    for value, places in joined.items():
        rows = [
            None if row < 0 else [column[row] for column in columns]
            for columns, row in zip(versions, places, strict=True)
        ]
        ours, theirs = (
            None if row < 0 else start + row for start, row in zip(starts, places[1:], strict=True)
        )
        merged[value] = ours
        side = winner(*rows)
        if side is ConflictChoice.OURS:
            continue
        merged[value] = theirs if (side or choice) is ConflictChoice.THEIRS else ours
        clash = ""
        if side is None:
            if rows[0] is None:
                clash = "was added by both"
            elif ours is None or theirs is None:
                clash = "was removed by one side and changed by the other"
            else:
                sides = [winner(*cells) for cells in zip(*rows, strict=True)]
                clashes = [name for name, winning in zip(names, sides, strict=True) if winning is None]
                clash = f"was changed by both in column {clashes[-1]}" if clashes else ""
                merged[value] = tuple(
                    theirs if (winning or choice) is ConflictChoice.THEIRS else ours for winning in sides
                )
        where = named(*next((version, row) for version, row in enumerate(places) if row >= 0))
        if clash and choice is None:
            raise TableFault(f"the row with {key} {where} {clash}")
        (resolved if clash else taken).note(f"row {key}={where}")
    ordered = [merged[value] for value in _order(joined, keys[1], keys[2])]
    return [row for row in ordered if row is not None], taken, resolved


def _order(
    joined: Mapping[Hashable, tuple[int, ...]], mine: Sequence[Hashable], other: Sequence[Hashable]
) -> list[Hashable]:
    """Return all keys: those of mine in order, each other one behind the one that it follows in `other`."""
    behind: dict[Hashable, list[Hashable]] = {}
    last: Hashable = None  # not a key
    for value in other:
        if joined[value][1] >= 0:
            last = value
        else:
            behind.setdefault(last, []).append(value)
    return [*behind.get(None, ()), *(each for value in mine for each in (value, *behind.get(value, ())))]


class _Csv(NamedTuple):
    names: list[str]
    cells: list[list[str]]
    """The cells of each column."""
    texts: list[str]
    """The text of each row, without its line end."""
    empty: list[str]
    """The empty lines before each row, as line feeds."""
    form: tuple[str, str, str, str]
    """The header's text, the line end, the byte order mark before the header, and the line ends at the end."""


def _merge_csv(delimiter: str, key: str, choice: ConflictChoice | None, *versions: bytes) -> MergedContent:
    tables = [_read_csv(delimiter, version) for version in versions]
    names = _check_columns(key, *(table.names for table in tables))
    rows, taken, resolved = merge_rows(names, key, [table.cells for table in tables], choice)
    header, line_end, bom, end = (
        theirs if winner(base, ours, theirs) is ConflictChoice.THEIRS else ours
        for base, ours, theirs in zip(*(table.form for table in tables), strict=True)
    )
    texts = list(chain.from_iterable(table.texts for table in tables))
    columns = [list(chain(*cells)) for cells in zip(*(table.cells for table in tables), strict=True)]
    at = names.index(key)
    empty = [dict(filter(itemgetter(1), zip(table.cells[at], table.empty, strict=True))) for table in tables]
    lines = [header]
    for row in rows:
        if isinstance(row, int):
            value, text = columns[at][row], texts[row]
        else:
            cells = [column[place] for column, place in zip(columns, row, strict=True)]
            value, text = cells[at], _write_row(delimiter, cells)
        before = [blanks.get(value, "") for blanks in empty]
        above = before[2 if winner(*before) is ConflictChoice.THEIRS else 1]
        lines.append(above.replace("\n", line_end) + text)
    data = bom + line_end.join(lines) + end.replace("\n", line_end)
    return MergedContent(data.encode(), taken, resolved)


def _check_columns(key: str, names: list[str], *others: list[str]) -> list[str]:
    if any(other != names for other in others):
        raise TableFault("its columns were changed")
    if key not in names:
        raise TableFault(f"it has no column {key}")
    if len(set(names)) != len(names):
        raise TableFault("it has two columns with the same name")
    return names


def _read_csv(delimiter: str, data: bytes) -> _Csv:
    try:
        text = data.decode("utf-8")
        bom = _BOM if text.startswith(_BOM) else ""
        records = list(_records(delimiter, text[len(bom) :]))
    except UnicodeDecodeError:
        raise TableFault("it is not UTF-8") from None
    except csv.Error as error:
        raise TableFault(f"it is not a table: {error}") from None
    end = records.pop()[1] if records and not records[-1][0] else ""  # empty lines
    if not records:
        raise TableFault("it has no header")
    (names, header), *records = records
    line_end = _end(header) or "\n"
    if len(records) > MAX_ROWS:
        raise TableFault(f"it has more than {MAX_ROWS:,} rows")
    columns: list[list[str]] = [[] for _ in names]
    texts, empty = list[str](), list[str]()
    for line, (cells, written) in enumerate(records, 2):
        if len(cells) != len(names):
            count = format_count(len(cells), "cell")
            raise TableFault(f"row {line} has {count}, but the header has {len(names)}")
        if _end(written) not in (line_end, ""):
            raise TableFault(f"row {line} has another line end than the header")
        for column, cell in zip(columns, cells, strict=True):
            column.append(cell)
        texts.append(written.lstrip("\r\n").removesuffix(line_end))
        empty.append(written[: len(written) - len(written.lstrip("\r\n"))])
    if any(each.replace(line_end, "") for each in (*empty, end)):
        raise TableFault("an empty line has another line end than the header")
    last = "\n" * (text.endswith("\n") + end.count("\n"))
    empty = [each.replace(line_end, "\n") for each in empty]
    return _Csv(names, columns, texts, empty, (header.removesuffix(line_end), line_end, bom, last))


def _records(delimiter: str, text: str) -> Iterator[tuple[list[str], str]]:
    """Yield the rows, each with its text: a quoted cell may have line ends in it. Empty lines belong to the row
    behind them, and at the end to one without cells."""
    csv.field_size_limit(MAX_TABLE)
    taken: list[str] = []

    def lines() -> Iterator[str]:
        for line in io.StringIO(text, newline="\n"):
            taken.append(line)
            yield line

    for row in csv.reader(lines(), delimiter=delimiter, strict=True):
        if row:
            yield row, "".join(taken)
            taken.clear()
    if taken:
        yield [], "".join(taken)


def _end(written: str) -> str:
    return written[len(written.rstrip("\r\n")) :]


def _write_row(delimiter: str, row: Sequence[str]) -> str:
    """Write a row, quoting cells with any line end. Python before 3.13 does so only for that of its rows."""
    written = io.StringIO()
    csv.writer(written, delimiter=delimiter, lineterminator="\r\n").writerow(row)
    return written.getvalue().removesuffix("\r\n")


def _merge_parquet(key: str, choice: ConflictChoice | None, *versions: bytes) -> MergedContent:
    require_pyarrow("to merge Parquet files by their rows, dsv needs pyarrow")
    import pyarrow
    from pyarrow import compute, parquet

    try:
        if any(parquet.read_metadata(io.BytesIO(version)).num_rows > MAX_ROWS for version in versions):
            raise TableFault(f"it has more than {MAX_ROWS:,} rows")
        schemas = [parquet.read_schema(io.BytesIO(version)) for version in versions]
        forms = [parquet_forms(version) for version in versions]
        if not all(schema.equals(schemas[1]) for schema in schemas) or any(one != forms[1] for one in forms):
            raise TableFault("its columns were changed")
        names = _check_columns(key, schemas[1].names)
        read = [read_parquet(version) for version in versions]
    except (pyarrow.ArrowException, OSError) as error:
        raise TableFault(f"it is not a Parquet file: {str(error).splitlines()[0]}") from None
    tables = [table for table, _ in read]
    keys = [table.column(key) for table in tables]
    if any(compute.any(compute.is_null(column, nan_is_null=True)).as_py() for column in keys):
        raise TableFault(f"column {key} has a row without a value")
    if pyarrow.types.is_nested(keys[0].type):
        raise TableFault(f"column {key} has nested values, which can't be keys")
    numbers = [number(*(table.column(name) for table in tables)) for name in names]
    columns = list(zip(*numbers, strict=True))
    rows, taken, resolved = merge_rows(
        names, key, columns, choice, lambda version, row: shown(keys[version][row])
    )
    metadata: dict[bytes, bytes] = {}
    for name in {**(schemas[1].metadata or {}), **(schemas[2].metadata or {})}:
        values = [(schema.metadata or {}).get(name) for schema in schemas]
        side, where = winner(*values), f"metadata {name.decode('utf-8', 'backslashreplace')}"
        if (side or choice) is None:
            raise TableFault(f"both changed its {where}")
        if side is not ConflictChoice.OURS:
            (taken if side else resolved).note(where)
        value = values[2 if (side or choice) is ConflictChoice.THEIRS else 1]
        if value is not None:
            metadata[name] = value
    try:
        every = pyarrow.concat_tables(tables).unify_dictionaries()
        cells = [
            column.take(
                pyarrow.array([row if isinstance(row, int) else row[at] for row in rows], pyarrow.int64())
            )
            for at, column in enumerate(every.columns)
        ]
        of_ours = read[1][1].metadata
        compression = "snappy"
        if of_ours.num_row_groups and of_ours.num_columns:
            compression = of_ours.row_group(0).column(0).compression.replace("UNCOMPRESSED", "none").lower()
        data = _write_parquet(cells, schemas[1].with_metadata(metadata or None), compression)
        for (name, form), other in zip(forms[1].items(), parquet_forms(data).values(), strict=True):
            if form != other:
                raise TableFault(f"column {name} can't be written as it is: {form} would become {other}")
    except pyarrow.ArrowException as error:
        raise TableFault(f"its columns can't be put together: {str(error).splitlines()[0]}") from None
    return MergedContent(data, taken, resolved)


def _write_parquet(columns: Sequence[Any], schema: Any, compression: str) -> bytes:
    """Return a file that declares this schema, even if texts of the columns are in dictionaries."""
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table(list(columns), names=schema.names)
    written, how = io.BytesIO(), {"compression": compression, "use_content_defined_chunking": True}
    if table.schema.equals(schema):
        parquet.write_table(pyarrow.table(list(columns), schema=schema), written, **how)
        return written.getvalue()
    declared = base64.b64encode(schema.serialize().to_pybytes())
    fields = [
        field.with_type(column.type).with_metadata(field.metadata)
        for field, column in zip(schema, table.columns, strict=True)
    ]
    made = pyarrow.schema(fields)
    with parquet.ParquetWriter(written, made, store_schema=False, **how) as writer:
        writer.write_table(pyarrow.table(list(columns), schema=made))
        writer.add_key_value_metadata({**(schema.metadata or {}), b"ARROW:schema": declared})
    return written.getvalue()
