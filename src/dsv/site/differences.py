"""The page of what differs between two commits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsv.api.log import changes_between
from dsv.diff.lines import decode_text, diff_lines, split_lines
from dsv.diff.paths import Difference, Summary
from dsv.diff.tables import TableDiff, table_format
from dsv.repo.tree.diff import What
from dsv.repo.tree.reader import TreeReader
from dsv.site import blocks as show
from dsv.site.blocks import Block, Cell, Line, Page, Picture, cells, cut, name, size
from dsv.site.commits import IMAGES, extension
from dsv.site.decode_process import Order
from dsv.site.source import Located, Source
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName
from dsv.values.paths import WHOLE
from dsv.values.units import format_bytes

_PATHS, _FOLDERS, _IMAGES, _TABLES, _TEXTS, _LINES = 500, 100, 32, 6, 10, 120
_LARGEST_TEXT, _LARGEST_TABLE = 1 << 20, 16 << 20
_LOOKS = {"+": "added", "-": "removed", "@": "pale"}
_UNREADABLE = "erased, or can't be read"


def difference_of(source: Source, dataset: DatasetName, before: CommitId, after: CommitId) -> Page:
    objects, of = source.objects, source.histories[dataset]
    compared = changes_between(objects, TreeReader(objects, before), TreeReader(objects, after), WHOLE)
    listed, summary = compared.differences, Summary(compared.differences)
    total, folders = summary.total, summary.by_folder(None, _FOLDERS) if listed else []
    counts = f"{total.added:,} added, {total.removed:,} removed, {total.changed:,} changed, {total.renamed:,} renamed"
    grown = f"{'+' if total.net_bytes >= 0 else ''}{format_bytes(total.net_bytes)}"
    sides = [source.to_commit(dataset, commit, of.names.get(commit, ())) for commit in (before, after)]
    rows = [
        cells(name(folder.folder) or "all others", folder.sums.added, folder.sums.removed, folder.sums.changed,
              folder.sums.renamed, size(folder.sums.net_bytes))
        for folder in folders
    ]  # fmt: skip
    paths = map(_path_row, listed[:_PATHS])
    command = f"dsv diff {dataset}@{of.named(before)} {dataset}@{of.named(after)}"
    heads, many = ("folder", "added>", "removed>", "changed>", "renamed>", "net size>"), len(listed) > 10
    blocks = (
        show.facts("About", [("From", sides[0]), ("To", sides[1]), ("Paths", counts), ("Size", grown)]),
        show.table("Folders", heads, rows, "folders"),
        *_images(source, listed),
        *_tables(source, listed),
        *_texts(source, listed),
        show.table("Paths", ("change", "path", "before", "size>"), paths, "paths", len(listed), filters=many),
        show.command(command, f"{command} --text"),
    )
    title = f"{dataset}: {of.named(before)} to {of.named(after)}"
    return Page(title, blocks, (source.to_dataset(dataset),), "What differs between two commits")


def _what(change: str) -> Cell:
    return Cell(change, look=change)


def _path_row(difference: Difference) -> tuple[Cell, ...]:
    old = name(difference.old_path or b"") if difference.what is What.RENAMED else ""
    old += f" ({difference.similarity} % the same)" if difference.similarity not in (None, 100) else ""
    return cells(_what(difference.what.value), name(difference.path), old, size(difference.entry.size))


def _sides(difference: Difference) -> list[Located]:
    sides: list[Located] = [] if difference.before is None else [(difference.before, None)]
    return sides if difference.after is None else [*sides, (difference.after, difference.location)]


def _images(source: Source, listed: Sequence[Difference]) -> Iterator[Block]:
    every = [
        difference
        for difference in listed
        if extension(difference.path) in IMAGES and difference.entry.is_file
    ]
    chosen, pairs = every[:_IMAGES], list[tuple[Picture, ...]]()
    made = source.pictures([side for difference in chosen for side in _sides(difference)])
    for difference in chosen:
        shown = [next(made) for _ in _sides(difference)]
        if len(shown) == 2 and not difference.content_changed:
            shown = [Picture(f"{shown[0].name} → {shown[1].name}", "", shown[1].file, shown[1].pixelated)]
        last = shown[-1]
        shown[-1] = Picture(last.name, f"{difference.what.value} {last.note}", last.file, last.pixelated)
        pairs.append(tuple(shown))
    if pairs:
        note = f"{len(pairs):,} of {len(every):,} images that differ; those of a pair are before and after"
        yield Block("pictures", "Images", note, pictures=tuple(pairs))


def _contents(
    source: Source, chosen: Sequence[Difference], most: int
) -> Iterator[tuple[Difference, bytes | None, bytes | None]]:
    """Yield both sides of each; b"" for a side that does not exist, None for one that can't be read."""
    contents = source.read([side for difference in chosen for side in _sides(difference)], most)
    for difference in chosen:
        before = b"" if difference.before is None else next(contents)[1]
        yield difference, before, b"" if difference.after is None else next(contents)[1]


def _that_fit(listed: Sequence[Difference], largest: int) -> Iterator[Difference]:
    for difference in listed:
        sides = _sides(difference)
        small = all(entry.is_file and entry.size <= largest for entry, _ in sides)
        differs = len(sides) == 1 or difference.content_changed
        if small and differs and extension(difference.path) not in IMAGES:
            yield difference


def _tables(source: Source, listed: Sequence[Difference]) -> Iterator[Block]:
    every = [
        difference
        for difference in _that_fit(listed, _LARGEST_TABLE)
        if table_format(difference.path) and len(_sides(difference)) == 2
    ]
    for difference, before, after in _contents(source, every[:_TABLES], _LARGEST_TABLE):
        title = f"Table {name(difference.path)}"
        if before is None or after is None:
            yield show.text(title, note=_UNREADABLE)
            continue
        answer = source.decoder.ask(Order("difference", difference.path, before, after))
        fault = show.text(title, note=f"can't be compared: {answer.error}")
        yield fault if answer.difference is None else _rows(title, answer.difference)
    if len(every) > _TABLES:
        yield show.text("More tables", note=f"{_TABLES} of {len(every):,} tables that differ are shown")


def _rows(title: str, table: TableDiff) -> Block:
    said = [
        f"rows: {table.rows_added:,} added, {table.rows_removed:,} removed, {table.rows_changed:,} changed"
    ]
    said += [f"column {column} ({kind}) is new" for column, kind in table.columns_added.items()]
    said += [f"column {column} ({kind}) is gone" for column, kind in table.columns_removed.items()]
    said += [f"column {column} is {new}, not {old}" for column, (old, new) in table.columns_retyped.items()]
    rows = []
    for row in table.rows:
        changed = [f"{column}: {old} → {new}" for column, (old, new) in (row.cells or {}).items()]
        values = changed or [
            f"{column}: {value}" for column, value in (row.before or row.after or {}).items()
        ]
        key = ", ".join(str(value) for value in row.key.values()) if changed else ""
        rows.append(cells(_what(row.change), cut(key, 60), "; ".join(values)))
    total = table.rows_added + table.rows_removed + table.rows_changed
    return show.table(title, ("change", "row", "values"), rows, "rows", total, cut("; ".join(said), 1_000))


def _texts(source: Source, listed: Sequence[Difference]) -> Iterator[Block]:
    every = [
        difference for difference in _that_fit(listed, _LARGEST_TEXT) if table_format(difference.path) is None
    ]
    shown = 0
    for difference, before, after in _contents(source, every[: 2 * _TEXTS], _LARGEST_TEXT):
        old, new = (None if side is None else decode_text(side) for side in (before, after))
        if old is not None and new is not None and shown < _TEXTS:
            shown += 1
            lines = list(diff_lines(split_lines(old), split_lines(new)))
            made = [Line(cut(line.rstrip("\n")), _LOOKS.get(line[:1], "")) for line in lines[:_LINES]]
            note = f"{difference.what.value}; {len(made):,} of {len(lines):,} lines"
            yield show.text(f"Text {name(difference.path)}", made, note)
    if shown < len(every):
        yield show.text(
            "More files", note=f"{shown:,} of {len(every):,} other files that differ are shown as text"
        )
