"""dsv diff."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dsv.api.context import Context
from dsv.api.diff import Comparison, Side
from dsv.api.diff import diff as compare
from dsv.api.lock_files import read_lock
from dsv.cli import differences as view
from dsv.cli.call import Call
from dsv.cli.commands.site import Html, write_page
from dsv.cli.declare import PATHS, argument, command, option
from dsv.cli.options import All, ExitCode, JsonLines, Offline, commit_target, dataset_paths, one_of
from dsv.cli.output import printable, to_item
from dsv.cli.terminal import Ink, Style
from dsv.diff.lines import decode_text, diff_lines, split_lines
from dsv.diff.paths import Difference, Summary
from dsv.diff.tables import LARGEST, TableDiff, diff_tables, require_pyarrow, table_format
from dsv.errors import DsvError, Unsupported, UsageError
from dsv.values.names import Target

ON_SCREEN = 50
"""Paths listed on a terminal: more are shown by folder, because they would scroll everything else away."""
LARGEST_TEXT = 1 << 20
"""Bytes of a file that is compared line by line."""
ROWS = 20
"""Rows of a table that are shown to people; a program gets all."""
_LINE = 300
"""Characters of a line in a comment."""
_LOCK_FILE = re.compile(r"[^@:]+\.lock|\.{0,2}/.*", re.DOTALL)
_STYLES = {"+": Style.ADDED, "-": Style.REMOVED, "~": Style.CHANGED, "@": Style.HINT}


@command(
    "diff",
    unused=["--cache"],
    words=PATHS,
    examples="""
        dsv diff  # what differs between this folder and its base
        dsv diff @v1  # between a tag and this folder
        dsv diff chest-xray@v1 chest-xray@v2 --stat  # between two tags, summed by folder
        dsv diff @v1 @v2 --table --key image -- labels.csv  # row by row
        dsv diff old.lock data.lock  # for each dataset of two files of 'dsv lock'
        dsv diff old.lock data.lock --markdown  # a comment for a merge request
    """,
    result=(
        f"before before_dataset after after_dataset workspace {view.SUM_KEYS} unsearched note problems(path "
        f"reason) {view.ITEM_KEYS} items(lines table) {view.FOLDER_KEYS} locks(target before after items)"
    ),
)
def diff(
    call: Call,
    a: str | None = argument("[A]"),
    b: str | None = argument("[B]"),
    stat: bool = option("--stat", "Sum up by folder, with bytes."),
    dirs: view.Dirs = None,
    name_only: view.NameOnly = False,
    name_status: view.NameStatus = False,
    text: bool = option("--text", "Show how texts below 1 MiB differ, line by line."),
    table: bool = option("--table", "Show how CSV, Parquet and Arrow files differ, row by row."),
    key: list[str] | None = option("--key COLUMN", "With --table: a column that identifies a row."),
    html: Html = None,
    markdown: bool = option("--markdown", "Sum up for a comment on a merge request."),
    everything: All = False,
    exit_code: ExitCode = False,
    jsonl: JsonLines = False,
    offline: Offline = False,
) -> int:
    """Show what differs between two commits, or in this workspace.

    Without A and B the workspace is compared with its base, with A alone with that commit. A and B are
    [DATASET][@REV], or together [DATASET]@REV..REV. A file whose content was at another path before counts as renamed,
    and so does a large one that shares at least half of its chunks with one that is gone. Paths are those of the
    dataset; in a workspace they are relative to the working directory. A and B may also be files of 'dsv lock', if they
    end with .lock or begin with /, ./ or ../.
    """
    one_of(stat=stat, text=text, table=table, name_only=name_only, name_status=name_status)
    forms = {"html": html, "markdown": markdown}
    one_of(json=call.json, jsonl=jsonl, name_only=name_only, name_status=name_status, **forms)
    for form in filter(forms.get, forms):
        call.takes_only(f"--{form}", "a", "b", form, "exit_code", "offline")
    one_of(dirs=dirs is not None, text=text, table=table, name_only=name_only, name_status=name_status)
    shown = _Shown(text, table, tuple(key or ()), stat or dirs is not None, dirs, everything)
    shown.check()
    files = [word for word in (a, b) if word is not None and _LOCK_FILE.fullmatch(word)]
    if files:
        if len(files) != 2 or call.words or name_only or name_status or jsonl or html:
            why = "a lock file is compared with another one, without paths and options for one list of paths"
            raise UsageError(why, subject=files[0], hint="dsv diff OLD.lock NEW.lock")
        return _diff_locks(call, files, shown, exit_code=exit_code, offline=offline)
    if a is not None and b is None and ".." in a:
        a, b = _range(a)
    targets = [_target(word) for word in (a, b)]
    with call.context(offline=offline) as context:
        paths = dataset_paths(context, call.words, targets)
        with compare(context, targets[0], targets[1], paths) as comparison:
            if html is not None or markdown:
                _write_form(call, context, comparison)
            elif call.json or jsonl:
                _say(call, comparison)  # before the document: nothing is printed after it
                _write_json(call, comparison, shown, lines=jsonl)
            elif name_only or name_status:
                for difference in comparison.found.differences:
                    call.out.line(view.name_status(difference) if name_status else printable(difference.path))
            else:
                _write(call, comparison, shown)
            if not (call.json or jsonl):
                _say(call, comparison)
            differs = comparison.found.differences or any(problem.data for problem in comparison.problems)
            return shown.exit_code or int(exit_code and bool(differs))


def _write_form(call: Call, context: Context, comparison: Comparison) -> None:
    """Write a page, or a comment."""
    before, after = comparison.before, comparison.after
    if (file := call.params["html"]) is not None:
        if before.commit is None or after.commit is None or before.dataset != after.dataset or call.words:
            hint = "dsv diff DATASET@A DATASET@B --html FILE"
            raise UsageError("--html compares two whole commits of a dataset", subject="--html", hint=hint)
        sides = before.dataset, before.commit, after.commit
        write_page(call, context, file, [before.dataset], "difference", *sides)
        return
    _write_comment(call, comparison, f"{_name(before)} -> {_name(after)}", ON_SCREEN)


def _write_comment(call: Call, comparison: Comparison, what: str, most: int) -> None:
    """Write a comment for a merge request that lists at most so many paths."""
    listed = comparison.found.differences
    summary = Summary(listed)
    lines = [what, "", *view.folder_lines(summary), ""] if most else [what]
    lines += [view.line(difference, Ink(False)) for difference in listed[:most]]
    lines += [f"and {len(listed) - most:,} more"] if len(listed) > most > 0 else []
    _write_block(call, view.counts(summary.total), lines)


def _write_block(call: Call, heading: str, lines: Sequence[str]) -> None:
    """Write a heading, and lines in a block of code, in which nothing is markup. Hosts refuse comments of 64 kB."""
    cut = [line if len(line) <= _LINE else f"{line[:_LINE]}…" for line in map(printable, lines)]
    fence = max(["``", *re.findall("`+", "\n".join(cut))], key=len) + "`"
    for line in (f"**{heading}**", "", fence, *cut, fence):
        call.out.line(line)


@dataclass(frozen=True, slots=True)
class _Shown:
    text: bool
    table: bool
    key: tuple[str, ...]
    """Columns that name a row."""
    summed: bool
    dirs: int | None
    everything: bool
    failed: list[DsvError] = field(default_factory=list)
    """One error for each file that was skipped."""

    @property
    def exit_code(self) -> int:
        """The exit code of the first file that could not be compared; 0 if all could."""
        return self.failed[0].exit_code if self.failed else 0

    def check(self) -> None:
        """Raises `UsageError`, or `Unsupported` if tables can't be read here."""
        if self.key and not self.table:
            raise UsageError("--key is for --table", subject="--key", hint="dsv diff --table --key COLUMN")
        if self.table:
            require_pyarrow()


def _range(text: str) -> tuple[str, str]:
    """Return both sides of [DATASET]@A..B."""
    names, _, revs = text.partition("@")
    first, _, last = revs.partition("..")
    return f"{names}@{first}", f"{names}@{last}"


def _target(text: str | None) -> Target | None:
    if text is None:
        return None
    try:
        return commit_target("diff", text)
    except UsageError as error:
        if os.path.lexists(text):
            error.hint = f"paths follow after --: dsv diff -- {shlex.quote(text)}"
        raise


def _diff_locks(call: Call, files: Sequence[str], shown: _Shown, *, exit_code: bool, offline: bool) -> int:
    """Print for each dataset, or part of one, how its commits in two lock files differ."""
    old, new = (read_lock(Path(file), may_be_empty=True) for file in files)
    items: list[dict[str, object]] = []
    markdown, most = call.params["markdown"], ON_SCREEN
    with call.context(offline=offline) as context:
        for place in sorted({*old, *new}, key=str):
            before, after = old.get(place), new.get(place)
            if before == after:
                continue
            item: dict[str, object] = {"target": str(place), "before": None, "after": None, "items": []}
            item |= {side: str(line.rev) for side, line in (("before", before), ("after", after)) if line}
            items.append(item)
            if before is None or after is None:
                what = "added" if before is None else "removed"
                if markdown:
                    _write_block(call, what, [str(before or after)])
                else:
                    call.line(f"{before or after}: {what}")
                continue
            left, right = (Target(line.dataset, line.rev) for line in (before, after))
            with compare(context, left, right, [place.path] if place.path else ()) as comparison:
                heading = f"{place}: {str(before.rev)[:12]} -> {str(after.rev)[:12]}"
                if markdown:
                    _write_comment(call, comparison, heading, most)
                    most = max(0, most - len(comparison.found.differences))
                    continue
                call.line(f"{heading}: {view.counts(Summary(comparison.found.differences).total)}")
                if call.json:
                    item["items"] = list(_items(call, comparison, shown))
                else:
                    _write(call, comparison, shown)
    if markdown and not items:
        call.out.line("**no differences**")
    call.result(locks=items)
    return shown.exit_code or int(exit_code and bool(items))


def _say(call: Call, found: Comparison) -> None:
    for problem in found.problems:
        call.warn(f"not compared: {problem}")
    if found.note is not None:
        call.warn(found.note)
    if found.found.unsearched:
        call.say(view.unsearched(found.found.unsearched))
    total = Summary(found.found.differences).total
    call.say(f"{_name(found.before)} -> {_name(found.after)}: {view.counts(total)}")


def _name(side: Side) -> str:
    if side.workspace is not None:
        return str(side.workspace)
    return f"{side.dataset}@{str(side.commit)[:12]}" if side.commit is not None else f"{side.dataset}, empty"


def _write_json(call: Call, found: Comparison, shown: _Shown, *, lines: bool) -> None:
    summary = Summary(found.found.differences)
    folders = map(view.folder_item, summary.by_folder(shown.dirs)) if shown.summed else None
    if folders is not None and not lines:
        call.document({**_head(found, summary), "folders": list(folders)})
    else:
        call.items(
            _items(call, found, shown) if folders is None else folders, _head(found, summary), lines=lines
        )


def _items(call: Call, comparison: Comparison, shown: _Shown) -> Iterator[dict[str, object]]:
    for difference, lines, table in _compared(call, comparison, shown):
        item = view.item(difference)
        if shown.text:
            item["lines"] = lines
        if shown.table:
            item["table"] = msgspec.to_builtins(table)
        yield item


def _head(found: Comparison, summary: Summary) -> dict[str, object]:
    fields: dict[str, object] = {
        "before": found.before.commit,
        "before_dataset": found.before.dataset,
        "after": found.after.commit,
        "after_dataset": found.after.dataset,
        "workspace": found.after.workspace,
        **view.sums_item(summary.total),
        "unsearched": found.found.unsearched,
    }
    return to_item(found, f"{' '.join(fields)} note problems(path reason)", **fields)


def _write(call: Call, comparison: Comparison, shown: _Shown) -> None:
    """Print the differences for people."""
    if shown.text or shown.table:
        _write_contents(call, comparison, shown)
        return
    whole_list = shown.everything or not call.around.stdout_is_terminal
    many = len(comparison.found.differences) > ON_SCREEN and not whole_list
    if shown.summed or many:
        view.write_folders(call, Summary(comparison.found.differences), shown.dirs)
    else:
        for difference in comparison.found.differences:
            call.out.line(view.line(difference, call.around.stdout_ink))
    if many and not shown.summed:
        call.say("dsv diff --all lists every path")


def _write_contents(call: Call, comparison: Comparison, shown: _Shown) -> None:
    """Print each difference, with how its contents differ below it."""
    ink = call.around.stdout_ink
    for difference, lines, table in _compared(call, comparison, shown):
        call.out.line(view.line(difference, ink))
        if lines is not None:
            for line in lines:
                call.out.line(_painted(line, ink))
        elif table is not None:
            _write_table(call, table, ink)
        else:
            for line in view.long_lines(difference):
                call.out.line(line)


def _compared(
    call: Call, comparison: Comparison, shown: _Shown
) -> Iterator[tuple[Difference, list[str] | None, TableDiff | None]]:
    """Yield each difference, with how its contents differ if they are to be compared."""
    chosen = [
        difference
        for difference in comparison.found.differences
        if _fits(difference, shown) and not comparison.is_erased(difference)
    ]
    contents = comparison.contents(chosen) if chosen else iter(())
    readable = {id(difference) for difference in chosen}
    for difference in comparison.found.differences:
        if id(difference) not in readable:
            yield difference, None, None
            continue
        _, before, after = next(contents)
        if shown.text:
            yield difference, _lines(before or b"", after or b""), None
        else:
            yield difference, None, _table(call, difference, before, after, shown, alone=len(chosen) == 1)


def _table(
    call: Call, one: Difference, before: bytes | None, after: bytes | None, shown: _Shown, *, alone: bool
) -> TableDiff | None:
    """Compare a table. If it is one of several and can't be compared, complain and skip it."""
    try:
        return diff_tables(one.path, before, after, shown.key)
    except (Unsupported, UsageError) as error:
        if alone:
            raise
        call.complain(error)
        shown.failed.append(error)
        return None


def _fits(one: Difference, shown: _Shown) -> bool:
    """Return whether the contents of a file are to be compared."""
    limit = LARGEST_TEXT if shown.text else LARGEST
    sides = [entry for entry in (one.before, one.after) if entry is not None]
    if not all(entry.is_file and entry.size <= limit for entry in sides):
        return False
    if shown.text:
        return one.what.value in ("added", "removed") or one.content_changed
    return shown.table and table_format(one.path) is not None and one.content_changed


def _lines(before: bytes, after: bytes) -> list[str] | None:
    old, new = decode_text(before), decode_text(after)
    return None if old is None or new is None else list(diff_lines(split_lines(old), split_lines(new)))


def _painted(text: str, ink: Ink) -> str:
    """Return text with control characters escaped, all but tabs."""
    safe = "\t".join(printable(part) for part in text.split("\t"))
    style = _STYLES.get(text[:1])
    return safe if style is None else ink.paint(style, safe)


def _write_table(call: Call, table: TableDiff, ink: Ink) -> None:
    for line in table.lines(ROWS):
        call.out.line("  " + ink.paint(_STYLES.get(line[:1], ""), printable(line)))
    more = len(table.rows) - ROWS
    if more > 0:
        call.out.line(f"  … and {more:,} more rows; --json has them all")
