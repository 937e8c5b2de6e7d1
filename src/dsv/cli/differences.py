"""Differences for people: one by one, with git's letters, and summed by folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from dsv.cli.declare import option, whole
from dsv.cli.output import Keys, printable, to_item
from dsv.cli.terminal import CHANGES, width
from dsv.diff.paths import OTHERS
from dsv.format.tree import Kind
from dsv.repo.tree.diff import What
from dsv.values.units import format_bytes

if TYPE_CHECKING:
    from dsv.cli.call import Call
    from dsv.cli.terminal import Ink
    from dsv.diff.paths import Difference, FolderSums, Summary, Sums
    from dsv.format.tree import Entry

_MODES = {Kind.FILE: "644", Kind.EXECUTABLE: "755"}
_LETTERS = {What.ADDED: "A", What.REMOVED: "D", What.CHANGED: "M", What.RETYPED: "T", What.RENAMED: "R"}
COUNTED = ("added", "changed", "renamed", "removed")
ITEM_KEYS = "items(path change old_path similarity kind old_kind size old_size id old_id target old_target)"
FOLDER_KEYS = (
    "folders(folder added removed changed renamed added_bytes removed_bytes changed_bytes renamed_bytes "
    "net_bytes)"
)
SUM_KEYS = "added removed changed renamed net_bytes"

Dirs = Annotated[int | None, option("--dirs DEPTH", "Sum up folders to this depth.", parser=whole(0))]
NameOnly = Annotated[bool, option("--name-only", "Print the paths alone.")]
NameStatus = Annotated[bool, option("--name-status", "Print git's letters (A D M R T) and the paths.")]


def name_status(one: Difference) -> str:
    """Return a line as git prints it: letter, percents of a rename, and paths, between tabs."""
    letter = _LETTERS[one.what]
    if one.what is What.RENAMED and one.old_path is not None:
        return f"{letter}{one.similarity:03}\t{printable(one.old_path)}\t{printable(one.path)}"
    return f"{letter}\t{printable(one.path)}"


def line(one: Difference, ink: Ink) -> str:
    """Return the difference in a line for people."""
    return ink.paint(CHANGES[one.what.value], f"{one.what.value:<8}") + f"  {_paths(one)}{_details(one)}"


def long_lines(difference: Difference) -> list[str]:
    """Return the properties of both sides, for contents that are not shown line by line."""
    before, after = _facts(difference.before), _facts(difference.after)
    lines = []
    for name in ("kind", "size", "mode", "id", "target"):
        old, new = before.get(name), after.get(name)
        if name == "id" and old and not new and after.get("size"):
            continue  # the file was not read: its size shows that it differs
        if old == new and old is not None and name in ("size", "id"):
            lines.append(f"  {name:<6}  {old}")
        elif old != new:
            lines.append(f"  {name:<6}  " + " -> ".join(text for text in (old, new) if text is not None))
    return lines


def item(one: Difference) -> dict[str, object]:
    """Return one of the `items` of a JSON document."""
    now, before = _side(one.after), _side(one.before)
    return {
        "path": _text(one.path),
        "change": one.what.value,
        "old_path": None if one.old_path is None else _text(one.old_path),
        "similarity": one.similarity,
        **now,
        **{f"old_{key}": value for key, value in before.items()},
    }


def _side(entry: Entry | None) -> dict[str, object]:
    if entry is None:
        return dict.fromkeys(("kind", "size", "id", "target"))
    return {
        "kind": entry.kind.word,
        "size": entry.size if entry.is_file else None,
        "id": None if entry.file_id is None else str(entry.file_id),
        "target": None if entry.target is None else _text(entry.target),
    }


def folder_item(row: FolderSums) -> dict[str, object]:
    return to_item(row.sums, Keys.parse(FOLDER_KEYS)["folders"], folder=row.folder)


def sums_item(total: Sums) -> dict[str, object]:
    return to_item(total, SUM_KEYS)


FOLDERS = 20
"""Folders with a row of their own, if no depth is named."""


def write_folders(call: Call, summary: Summary, depth: int | None) -> None:
    """Print a table with a row for each folder, and one for all of them if there are several."""
    rows, total = summary.by_folder(depth, FOLDERS if depth is None else None), summary.total
    counted = [name for name in COUNTED if getattr(total, name)]
    cells = [_row(folder_name(row), row.sums, counted) for row in rows]
    if len(rows) > 1:
        cells.append(_row("total", total, counted))
    call.table(["folder", *(f"{name}>" for name in counted), "net>"], cells)


def folder_lines(summary: Summary) -> list[str]:
    """Return a line for each folder, where no table fits."""
    rows = summary.by_folder(None, FOLDERS)
    widest = max((width(folder_name(row)) for row in rows), default=0)
    return [
        f"{folder_name(row)}{' ' * (widest - width(folder_name(row)))}  {counts(row.sums)}" for row in rows
    ]


def folder_name(row: FolderSums) -> str:
    return printable(row.folder) if row.folder != OTHERS else "others"


def rename(one: Difference) -> str:
    """Return `renamed from PATH (97%)`, or the word for another difference."""
    if one.what is not What.RENAMED:
        return str(one.what.value)
    return f"renamed from {printable(one.old_path or b'')}{_similarity(one)}"


def _similarity(one: Difference) -> str:
    return "" if one.similarity == 100 else f" ({one.similarity}%)"


def counts(total: Sums) -> str:
    """Return `2 added, 1 renamed; +1.20 kB`, or `no differences`."""
    parts = [f"{getattr(total, name):,} {name}" for name in COUNTED if getattr(total, name)]
    # A net size without any of these means that files were moved out of a folder.
    net = [signed(total.net_bytes)] if parts or total.net_bytes else []
    return "; ".join([*([", ".join(parts)] if parts else []), *net]) or "no differences"


def unsearched(count: int) -> str:
    """Return a sentence about large files that were too many to compare."""
    return f"{count:,} large files were added or removed: too many to find out whether some were renamed and changed"


def signed(count: int) -> str:
    return f"{'+' if count > 0 else ''}{format_bytes(count)}"


def _row(name: str, sums: Sums, counted: Sequence[str]) -> list[str]:
    cells = []
    for what in counted:
        count, size = getattr(sums, what), getattr(sums, f"{what}_bytes")
        cells.append(f"{count:,} ({format_bytes(size)})" if count else "-")
    return [name, *cells, signed(sums.net_bytes)]


def _paths(one: Difference) -> str:
    if one.what is not What.RENAMED or one.old_path is None:
        return printable(one.path)
    return f"{printable(one.old_path)} => {printable(one.path)}{_similarity(one)}"


def _details(one: Difference) -> str:
    before, after = one.before, one.after
    if before is None or after is None:
        there = before or after
        if there is not None and there.is_file:
            return f"  {format_bytes(there.size)}"
        return f"  {_kind_and_target(there)}"
    parts = []
    if one.what is What.RETYPED:
        parts.append(f"{_kind_and_target(before)} -> {_kind_and_target(after)}")
    elif before.target != after.target:
        parts.append(f"-> {printable(after.target or b'')}, was -> {printable(before.target or b'')}")
    elif one.content_changed:
        parts.append(_sizes(before.size, after.size))
    if one.mode_changed:
        parts.append(f"mode {mode(before)} -> {mode(after)}")
    return f"  {', '.join(parts)}" if parts else ""


def _sizes(before: int, after: int) -> str:
    old, new = format_bytes(before), format_bytes(after)
    if old != new:
        return f"{old} -> {new}"
    return new if before == after else f"{new} ({signed(after - before)})"


def _kind_and_target(entry: Entry | None) -> str:
    if entry is None:
        return ""
    target = "" if entry.target is None else f" to {printable(entry.target)}"
    return f"{entry.kind.word}{target}"


def _facts(entry: Entry | None) -> dict[str, str | None]:
    if entry is None:
        return {}
    return {
        "kind": "file" if entry.is_file else entry.kind.word,
        "size": format_bytes(entry.size) if entry.is_file else None,
        "mode": mode(entry),
        "id": None if entry.file_id is None else str(entry.file_id),
        "target": None if entry.target is None else printable(entry.target),
    }


def mode(entry: Entry) -> str | None:
    """Return a file's mode as `chmod` takes it."""
    return _MODES.get(entry.kind)


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")
