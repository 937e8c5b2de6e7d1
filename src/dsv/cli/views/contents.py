"""How the contents of files differ: lines of texts, and rows of tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dsv.cli.failure import of_error
from dsv.cli.output import printable
from dsv.cli.style import Style
from dsv.cli.views import differences as told
from dsv.diff.lines import diff_lines, split_lines
from dsv.diff.tables import LARGEST, diff_tables, is_table, require_pyarrow
from dsv.errors import Unsupported, UsageError

if TYPE_CHECKING:
    from dsv.api.diff import Comparison
    from dsv.cli.call import Call
    from dsv.cli.style import Ink
    from dsv.diff.renames import Difference
    from dsv.diff.tables import TableDiff
    from dsv.errors import DsvError
    from dsv.format.tree import Entry

LARGEST_TEXT = 1 << 20
"""Bytes of a file that is compared line by line."""
ROWS = 20
"""Rows of a table that are shown to people; a program gets all."""
_STYLES = {"+": Style.ADDED, "-": Style.REMOVED, "@": Style.HINT}


@dataclass(frozen=True, slots=True)
class Shown:
    """Which contents to show. key: the columns that name a row. failed: one error for each file that was skipped."""

    text: bool = False
    table: bool = False
    key: tuple[str, ...] = ()
    failed: list[DsvError] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """That of the first file that could not be compared; 0 if all could."""
        return self.failed[0].exit_code if self.failed else 0

    @property
    def any(self) -> bool:
        return self.text or self.table

    def check(self) -> None:
        """Raises `UsageError`, and `Unsupported` if tables can't be read here."""
        if self.key and not self.table:
            raise UsageError("--key is for --table", subject="--key", hint="dsv diff --table --key COLUMN")
        if self.table:
            require_pyarrow()


def write_contents(call: Call, found: Comparison, shown: Shown) -> None:
    """Each difference as a line of its own, with how its contents differ below it."""
    ink = call.around.stdout_ink
    for one, lines, table in _compared(call, found, shown):
        call.out.line(told.line(one, ink))
        if lines is not None:
            for each in lines:
                call.out.line(_painted(each, ink))
        elif table is not None:
            _write_table(call, table, ink)
        else:
            for each in told.long_lines(one):
                call.out.line(each)


def contents_item(
    call: Call, found: Comparison, shown: Shown
) -> Iterator[tuple[Difference, dict[str, object]]]:
    """Each difference with what a JSON item has of its contents besides."""
    for one, lines, table in _compared(call, found, shown):
        if shown.text:
            yield one, {"lines": None if lines is None else list(lines)}
        else:
            yield one, {"table": None if table is None else table.document()}


def _compared(
    call: Call, found: Comparison, shown: Shown
) -> Iterator[tuple[Difference, list[str] | None, TableDiff | None]]:
    fits = _fits_text if shown.text else _fits_table
    chosen = [one for one in found.found.differences if fits(one)]
    contents = found.contents(chosen)
    readable = {id(one) for one in chosen}
    for one in found.found.differences:
        if id(one) not in readable:
            yield one, None, None
            continue
        _, before, after = next(contents)
        if shown.text:
            yield one, _lines(before or b"", after or b""), None
        else:
            yield one, None, _table(call, one, before, after, shown, alone=len(chosen) == 1)


def _table(
    call: Call, one: Difference, before: bytes | None, after: bytes | None, shown: Shown, *, alone: bool
) -> TableDiff | None:
    """How a table differs. If it is one of several, what is wrong with it is told, and the others are compared."""
    try:
        return diff_tables(one.path, before, after, shown.key)
    except (Unsupported, UsageError) as error:
        if alone:
            raise
        call.complain(of_error(error))
        shown.failed.append(error)
        return None


def _fits_text(one: Difference) -> bool:
    return (
        one.what.value in ("added", "removed") or one.content_changed if _small(one, LARGEST_TEXT) else False
    )


def _fits_table(one: Difference) -> bool:
    return is_table(one.path) and one.content_changed and _small(one, LARGEST)


def _small(one: Difference, limit: int) -> bool:
    sides = [entry for entry in (one.before, one.after) if entry is not None]
    return all(_is_file_up_to(entry, limit) for entry in sides)


def _is_file_up_to(entry: Entry, limit: int) -> bool:
    return entry.is_file and entry.size <= limit


def _lines(before: bytes, after: bytes) -> list[str] | None:
    old, new = split_lines(before), split_lines(after)
    return None if old is None or new is None else list(diff_lines(old, new))


def _painted(text: str, ink: Ink) -> str:
    """Text with control characters escaped, all but tabs."""
    safe = "\t".join(printable(part) for part in text.split("\t"))
    style = _STYLES.get(text[:1])
    return safe if style is None else ink.paint(style, safe)


def _write_table(call: Call, table: TableDiff, ink: Ink) -> None:
    for text, style in _column_lines(table):
        call.out.line("  " + ink.paint(style, printable(text)))
    call.out.line(
        f"  rows: {table.rows_added:,} added, {table.rows_removed:,} removed, {table.rows_changed:,} changed"
    )
    for row in table.rows[:ROWS]:
        mark = {"added": "+", "removed": "-", "changed": "~"}[row.change]
        cells = row.after if row.change == "added" else row.before
        if row.change == "changed":
            told_cells = [*_cells(row.key), *(f"{name}: {old} -> {new}" for name, old, new in row.cells)]
        else:
            told_cells = _cells(cells)
        style = {"+": Style.ADDED, "-": Style.REMOVED, "~": Style.CHANGED}[mark]
        call.out.line("  " + ink.paint(style, printable(f"{mark} {'  '.join(told_cells)}")))
    more = len(table.rows) - ROWS
    if more > 0:
        call.out.line(f"  … and {more:,} more rows; --json has them all")


def _column_lines(table: TableDiff) -> Iterator[tuple[str, str]]:
    for name, kind in table.columns_added:
        yield f"column + {name} ({kind})", Style.ADDED
    for name, kind in table.columns_removed:
        yield f"column - {name} ({kind})", Style.REMOVED
    for name, old, new in table.columns_retyped:
        yield f"column ~ {name} ({old} -> {new})", Style.CHANGED


def _cells(cells: Sequence[tuple[str, object]]) -> list[str]:
    return [f"{name}={value}" for name, value in cells]
