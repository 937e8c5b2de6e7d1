"""The page of a commit: folders, classes, images, tables and texts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from dsv.diff.lines import decode_text
from dsv.diff.paths import ROOT, FolderSums, Summary
from dsv.diff.tables import table_format
from dsv.repo.tree.reader import TreeReader
from dsv.site import blocks as show
from dsv.site import drawings
from dsv.site.blocks import Block, Cell, Fact, Line, Page, TableColumn, cells, cut, name, size, when
from dsv.site.decode_process import MOST_GROUP, ColumnHead, Order
from dsv.site.source import RUN_HEADS, Located, Source, share_cell
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName
from dsv.values.units import format_bytes, format_count

IMAGES = frozenset(b"png jpg jpeg gif webp bmp tif tiff ppm pgm pbm".split())
_TEXTS = frozenset(b"md txt json jsonl yaml yml toml xml html svg py sh ini log rst".split())
_OF_FOLDER, _IMAGE_FOLDERS, _FOLDERS, _CLASSES, _FILES = 8, 16, 200, 200, 100
_MOST = {"tables": 4, "texts": 6}
_CSV_BYTES, _TEXT_BYTES, _TEXT_LINES = 1 << 20, 64 << 10, 30


def extension(path: bytes) -> bytes:
    stem, _, ending = path.rpartition(b"/")[2].rpartition(b".")
    return ending.lower() if stem else b""


class _Content(msgspec.Struct):
    """What the page shows of a tree, and how much there is of images by folder, of tables and of texts."""

    summary: Summary
    files: list[Located]
    images: dict[bytes, list[Located]]
    image_counts: dict[bytes, int]
    chosen: dict[str, list[Located]]
    counts: dict[str, int]


def _looked_through(tree: TreeReader) -> _Content:
    of = _Content(Summary(), [], {}, defaultdict(int), {"tables": [], "texts": []}, defaultdict(int))
    for located in tree.segments():
        paths = located.segment.paths
        of.summary.add_files(paths, located.segment.sizes)
        for at, path in enumerate(paths):
            ending, folder = extension(path), path[: path.rfind(b"/") + 1]
            if len(of.files) < _FILES:
                of.files.append(located.entry(at))
            if ending in IMAGES:
                of.image_counts[folder] += 1
                is_shown = folder in of.images or len(of.images) < _IMAGE_FOLDERS
                if of.image_counts[folder] <= _OF_FOLDER and is_shown:
                    of.images.setdefault(folder, []).append(located.entry(at))
            elif (
                kind := "tables"
                if table_format(path) in ("csv", "tsv", "parquet")
                else "texts" * (ending in _TEXTS)
            ):
                of.counts[kind] += 1
                chosen = of.chosen[kind]
                here = sum(entry.path.startswith(folder) for entry, _ in chosen) if folder else 0
                if len(chosen) < _MOST[kind] and here < 2:
                    chosen.append(located.entry(at))
    return of


def commit_of(source: Source, dataset: DatasetName, commit: CommitId) -> Page:
    about, of = source.objects.commit(commit), source.histories[dataset]
    parent = source.parent(dataset, commit)
    parents = tuple(source.to_commit(dataset, parent) for parent in about.parents)
    more = [source.to_page(show.lineage_page(dataset, commit), "lineage")]
    more += [] if parent is None else [source.to_difference(dataset, parent, commit, "what changed")]
    links = tuple(link for link in more if link.page)
    rows: list[Fact] = [
        ("Names", ", ".join(of.names.get(commit, ())) or "–"), ("Commit", Cell(str(commit), look="code")),
        ("Author", name(about.author)), ("Time", when(about.time_ms)),
        ("Parents", Cell("" if parents else "none, it is the first commit", more=parents)),
        ("Content", f"{format_count(about.files, 'file')}, {format_bytes(about.bytes)}"),
        *([("More", Cell("", more=links))] if links else []),
    ]  # fmt: skip
    blocks, known = [show.facts("About", rows)], len(source.problems)
    if about.message.partition("\n")[2].strip():
        blocks.append(show.text("Message", [Line(cut(line)) for line in about.message.splitlines()[:40]]))
    tree = TreeReader(source.objects, commit)
    tree.left_out = lambda _, error: source.problems.append(error)
    content = _looked_through(tree)
    blocks += _folders(content)
    blocks += _images(source, content)
    for file in content.chosen["tables"]:
        blocks += _table(source, file)
    blocks += _texts(source, content)
    files = (cells(name(entry.path), entry.kind.word, size(entry.size)) for entry, _ in content.files)
    blocks.append(show.table("Files", ("path", "kind", "size>"), files, "paths", about.entries))
    if views := source.runs_on.get(commit):
        rows_of_runs = source.run_rows(views[:50])
        blocks.append(show.table("Runs on this commit", RUN_HEADS, rows_of_runs, "runs", len(views)))
    target = f"{dataset}@{of.named(commit)}"
    blocks.append(show.command(f"dsv show {target}", f"dsv cache {target}", f"dsv ls {target}"))
    above, under = (source.to_dataset(dataset),), show.first_line(about.message)
    notes = tuple(error.message for error in source.problems[known:])
    return Page(target, tuple(blocks), above, under, notes)


def _folders(content: _Content) -> Iterator[Block]:
    every = content.summary.by_folder(64)
    classes = _classes(every)
    above = list(dict.fromkeys(parent for counts in classes.values() for parent in counts))
    if classes:
        sums = {label: sum(counts.values()) for label, counts in classes.items()}
        whole, most = sum(sums.values()), max(sums.values())
        rows = [
            cells(name(label), *(counts.get(top, 0) for top in above), share_cell(sums[label], whole, most))
            for label, counts in classes.items()
        ]
        parents = (TableColumn(name(parent or b"files"), number=True) for parent in above)
        note = "Folders of the same depth are taken for classes."
        yield show.table("Classes", ["class", *parents, "share>"], rows, "classes", note=note)
    if len(above) != 1:
        folders, whole = content.summary.by_folder(64, _FOLDERS), content.summary.total.added
        most = max((folder.sums.added for folder in folders), default=0)
        rows = [
            cells(name(folder.folder) or "all others", folder.sums.added, size(folder.sums.added_bytes),
                  share_cell(folder.sums.added, whole, most))
            for folder in folders
        ]  # fmt: skip
        yield show.table("Folders", ("folder", "files>", "size>", "share>"), rows, "folders", len(every))


def _classes(folders: Sequence[FolderSums]) -> Mapping[bytes, Mapping[bytes, int]]:
    """Return the files of each class by the folder above; nothing if the folders do not look like classes: all of one
    depth, with three files or more, and mostly the same ones in each folder above."""
    classes = dict[bytes, dict[bytes, int]]()
    leaves = [folder for folder in folders if folder.folder != ROOT]
    for folder in leaves:
        above, _, label = folder.folder[:-1].rpartition(b"/")
        classes.setdefault(label, {})[above] = folder.sums.added
    parents = {parent for counts in classes.values() for parent in counts}
    depths = {folder.folder.count(b"/") for folder in leaves}
    same = len(depths) == 1 and len(leaves) >= 0.8 * len(classes) * len(parents)
    enough = sum(folder.sums.added for folder in leaves) >= 3 * len(leaves)
    return classes if same and enough and 2 <= len(classes) <= _CLASSES and len(parents) <= 6 else {}


def _images(source: Source, content: _Content) -> Iterator[Block]:
    for folder, files in content.images.items():
        made = tuple((picture,) for picture in source.pictures(files))
        note = f"{len(files):,} of {content.image_counts[folder]:,} images"
        yield Block("pictures", f"Images in {name(folder or ROOT)}", note, pictures=made)
    shown, every = len(content.images), len(content.image_counts)
    if shown < every:
        yield show.text("More images", note=f"{shown:,} of {every:,} folders with images are shown")


def _table(source: Source, file: Located) -> Iterator[Block]:
    entry, title = file[0], f"Table {name(file[0].path)}"
    is_parquet = table_format(entry.path) == "parquet"
    if is_parquet and entry.size > MOST_GROUP:
        yield show.text(
            title, note=f"{format_bytes(entry.size)}: more than {format_bytes(MOST_GROUP)} are not read"
        )
        return
    [(_, data)] = source.read([file], MOST_GROUP if is_parquet else _CSV_BYTES)
    if data is None:
        yield show.text(title, note="erased, or can't be read")
        return
    answer = source.decoder.ask(Order("head", entry.path, data, cut_off=len(data) < entry.size))
    head = answer.head
    if head is None:
        yield show.text(title, note=f"can't be shown: {answer.error}")
        return
    total = "" if head.total is None else f" of {head.total:,}"
    part = (
        f" (the first {format_bytes(len(data))} of {format_bytes(entry.size)})"
        if len(data) < entry.size
        else ""
    )
    note = f"Counted in {head.read:,}{total} rows{part}."
    rows = [cells(column.name, column.kind, column.missing, _values(column)) for column in head.columns]
    yield show.table(title, ("column", "kind", "missing>", "values"), rows, "columns", head.wide, note)
    heads, lines = [TableColumn(column.name) for column in head.columns], [cells(*row) for row in head.rows]
    yield show.table(f"First rows of {name(entry.path)}", heads, lines, "rows", head.total or head.read)


def _values(column: ColumnHead) -> Cell:
    return Cell(cut(column.about, 120), drawing=drawings.bars(column.bars) if column.bars else None)


def _texts(source: Source, content: _Content) -> Iterator[Block]:
    files, every = content.chosen["texts"], content.counts["texts"]
    for entry, data in source.read(files, _TEXT_BYTES):
        whole = data is not None and len(data) == entry.size
        text = None if data is None else decode_text(data if whole else data[: data.rfind(b"\n") + 1])
        lines = (text or "").splitlines()
        shown = [Line(cut(line)) for line in lines[:_TEXT_LINES]]
        note = f"{len(shown):,} of {len(lines):,} lines" if whole else f"the first {len(shown):,} lines"
        yield show.text(f"Text {name(entry.path)}", shown, "can't be read as text" if text is None else note)
    if len(files) < every:
        yield show.text("More texts", note=f"{len(files):,} of {every:,} texts are shown")
