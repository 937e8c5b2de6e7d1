"""What put, rm and mv share: their options, lists of paths, and how they tell what they did."""

from __future__ import annotations

import csv
import io
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from dsv.api.edits import Edited, PathEdit
from dsv.cli.call import Call
from dsv.cli.declare import text
from dsv.cli.output import printable
from dsv.errors import UsageError
from dsv.fs.errors import about
from dsv.values.names import Target
from dsv.values.units import format_bytes, format_count

Message = Annotated[
    str | None, typer.Option("-m", "--message", parser=text, metavar="TEXT", help="Message of the commit.")
]
Author = Annotated[
    str | None,
    typer.Option(
        "--author", parser=text, metavar="WHO", help="Who commits, instead of the configured author."
    ),
]
DryRun = Annotated[bool, typer.Option("-n", "--dry-run", help="Show what would change, and write nothing.")]
AllowRemovals = Annotated[
    bool, typer.Option("--allow-removals", help="Publish even if more than half of the paths go.")
]
FromFile = Annotated[
    str | None, typer.Option("--from-file", metavar="LIST", help="Read paths from a CSV file; - is stdin.")
]

RESULT: Mapping[str, str] = {
    "commit": "the branch's head now; null where there is none yet",
    "parent": "the branch's head before",
    "dataset": "the dataset",
    "branch": "the branch",
    "files": "files in the commit; null with --dry-run",
    "bytes": "their size; null with --dry-run",
    "added": "how many paths are new",
    "changed": "how many were replaced",
    "moved": "how many have another name",
    "removed": "how many went",
    "any_change": "false where there was nothing to publish",
    "dry_run": "whether nothing was written",
    "uploaded_bytes": "bytes written to the store",
    "uploaded_objects": "objects written to the store",
    "items.path": "with --dry-run, each path that would change; without it there is no items",
    "items.change": "added, changed, moved or removed",
    "items.old": "the path before it is moved; else null",
}

HEADINGS = ({"old", "new"}, {"path"})
"""A first row of a list that says no more than this is not a path."""


def stdin(call: Call) -> BinaryIO:
    return call.around.stdin or sys.stdin.buffer


def read_list(call: Call, name: str, columns: int) -> list[list[str]]:
    """The rows of a CSV file with so many columns; empty lines and a heading are passed over. Raises `UsageError`."""
    if name == "-":
        raw = stdin(call).read()
    else:
        with about(name):
            try:
                raw = Path(name).read_bytes()
            except FileNotFoundError:
                raise UsageError(f"there is no list {name}", subject=name) from None
    try:
        lines = io.StringIO(raw.decode("utf-8-sig"), newline="")
    except UnicodeDecodeError as error:
        raise UsageError(f"the list {name} is not UTF-8: byte {error.start}", subject=name) from None
    rows: list[list[str]] = []
    reader = csv.reader(lines, strict=True)
    try:
        for row in reader:
            if not row or (not rows and set(row) in HEADINGS):
                continue
            if len(row) != columns or not all(row):
                form = "OLD,NEW" if columns == 2 else "PATH"
                raise UsageError(
                    f"line {reader.line_num} of {name} is not {form}",
                    subject=name,
                    hint='a path with a comma stands in double quotes: "a,b.png"',
                )
            rows.append(row)
    except csv.Error as error:
        raise UsageError(f"line {reader.line_num} of {name} is no CSV: {error}", subject=name) from None
    if not rows:
        raise UsageError(f"the list {name} has no paths", subject=name)
    return rows


def one_dataset(verb: str, words: Sequence[str]) -> tuple[Target, list[bytes]]:
    """Targets in one branch, and their paths. All but the first may leave out the dataset. verb: the command."""
    for word in words:
        if ":" not in word:
            hint = f"dsv ls {word} lists the paths"
            if os.path.lexists(word):
                hint = f"in a workspace: {verb} {shlex.quote(word)}{' NEW' if verb == 'mv' else ''}, then dsv sync"
            raise UsageError(
                f"{word} names no path of a dataset, as DATASET:PATH does",
                subject=word,
                hint=f"{hint}; without a workspace: dsv {verb} DATASET:PATH",
            )
    targets = [Target.parse(word) for word in words]
    first = targets[0]
    for target, word in zip(targets, words, strict=True):
        if target.dataset not in (None, first.dataset) or (
            target.dataset is not None and target.rev != first.rev
        ):
            raise UsageError(
                f"{word} is in another dataset or branch than {words[0]}, and a commit is made on one",
                subject=word,
            )
    return Target(first.dataset, first.rev), [target.path or b"" for target in targets]


def show_edited(call: Call, done: Edited, *, dry_run: bool, more: Mapping[str, object] | None = None) -> None:
    """more: further keys of the JSON document."""
    for problem in done.skipped:
        call.warn(f"left out {problem}")
    counts = {what: done.count(what) for what in ("added", "changed", "moved", "removed")}
    if call.json:
        items = {"items": list(map(_item, done.paths))} if dry_run else {}
        call.result(done, dry_run=dry_run, **counts, **items, **(more or {}))
        return
    if dry_run:
        for path in done.paths:
            old = "" if path.old is None else f"{printable(path.old)} -> "
            call.out.line(f"{path.what:<8} {old}{printable(path.path)}")
    elif done.commit is not None:
        call.line(str(done.commit))
    call.say(_summary(done, counts, dry_run))


def _summary(done: Edited, counts: Mapping[str, int], dry_run: bool) -> str:
    where = f"{done.dataset}@{done.branch}"
    if not done.any_change:
        at = "has no commit yet" if done.commit is None else f"is at {str(done.commit)[:12]}"
        return f"nothing {'would change' if dry_run else 'changed'}; {where} {at}"
    told = [f"{count:,} {what}" for what, count in counts.items() if count]
    changes = f"{format_count(len(done.paths), 'path')}: {', '.join(told)}"
    if dry_run:
        return f"{where} would change in {changes}; nothing was written"
    total = f"{format_count(done.files or 0, 'file')}, {format_bytes(done.bytes or 0)}"
    return f"{where}: {changes}; now {total}; {format_bytes(done.uploaded_bytes)} uploaded"


def _item(path: PathEdit) -> dict[str, object]:
    return {
        "path": path.path.decode("utf-8", "surrogateescape"),
        "change": path.what,
        "old": None if path.old is None else path.old.decode("utf-8", "surrogateescape"),
    }


def default_message(verb: str, names: Iterable[str]) -> str:
    """What a commit says if nobody gave a message."""
    found = list(names)
    if len(found) == 1 and len(found[0]) <= 60:
        return f"{verb} {printable(found[0])}".encode("utf-8", "replace").decode()
    return f"{verb} {format_count(len(found), 'path')}"
