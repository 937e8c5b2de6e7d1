"""The pages of a commit, and of what differs between two: folders, classes, images, tables and texts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from msgspec.structs import replace

from dsv.api.log import changes_between
from dsv.diff.paths import ROOT, Difference, FolderSums, Summary
from dsv.diff.tables import table_format
from dsv.repo.tree.diff import What
from dsv.repo.tree.reader import TreeReader
from dsv.site import blocks as show
from dsv.site.blocks import Block, Cell, Page, Row, Value, cells, cut, name, size, when
from dsv.site.decoding import MOST_GROUP, Answer
from dsv.site.source import Located, Source, share_cell
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName
from dsv.values.paths import WHOLE
from dsv.values.units import format_bytes, format_count

_IMAGES = frozenset(b"png jpg jpeg gif webp bmp tif tiff ppm pgm pbm".split())
_TEXTS = frozenset(
    b"md txt json jsonl yaml yml toml xml html svg py sh ini log rst js ts c h cpp rs go cfg".split()
)
_OF_COMMIT = {"image": (8, 16), "table": (2, 2), "text": (2, 3)}
"""Files of each kind that are shown of a folder, and folders."""
_DIFFERENT = {"image": 32, "table": 6, "text": 10}
"""Files of each kind that are shown of a difference."""
_MOST_BOTH, _MOST_TEXT = 16 << 20, 1 << 20
"""Bytes of a table that is compared, and of lines that are read."""
_FOLDERS, _CLASSES, _FILES, _PATHS, _OTHERS = 200, 200, 100, 500, "all others"


def kind_of(path: bytes) -> str:
    """Return how a page shows a file: `image`, `table`, `text`, or "" for another."""
    stem, _, ending = path.rpartition(b"/")[2].lower().rpartition(b".")
    if not stem or ending in _IMAGES:
        return "image" if stem else ""
    return "table" if table_format(path) in ("csv", "tsv", "parquet") else "text" if ending in _TEXTS else ""


class _Content:
    """What the page shows of a tree: its first files, those of each kind by folder, and how many of these there are."""

    def __init__(self, tree: TreeReader) -> None:
        self.summary, self.files = Summary(), list[Located]()
        self.chosen = {kind: defaultdict[bytes, list[Located]](list) for kind in _OF_COMMIT}
        self.counts = {kind: Counter[bytes]() for kind in _OF_COMMIT}
        for located in tree.segments():
            self.summary.add_files(located.segment.paths, located.segment.sizes)
            for at, path in enumerate(located.segment.paths):
                if len(self.files) < _FILES:
                    self.files.append(located.entry(at))
                if kind := kind_of(path):
                    folder, chosen = path[: path.rfind(b"/") + 1], self.chosen[kind]
                    self.counts[kind][folder] += 1
                    files, folders = _OF_COMMIT[kind]
                    if self.counts[kind][folder] <= files and (folder in chosen or len(chosen) < folders):
                        chosen[folder].append(located.entry(at))

    def of(self, kind: str) -> list[Difference]:
        files = chain.from_iterable(self.chosen[kind].values())
        return [Difference(What.ADDED, None, entry, None, location) for entry, location in files]


def commit_of(source: Source, dataset: DatasetName, commit: CommitId) -> Page:
    about, parent = source.objects.commit(commit), source.parent(dataset, commit)
    parents = tuple(source.to_commit(dataset, parent) for parent in about.parents)
    rows: list[tuple[str, Value]] = [
        ("Names", ", ".join(source.names(dataset, commit)) or "–"), ("Commit", Cell(str(commit), look="code")),
        ("Author", name(about.author)), ("Time", when(about.time_ms)),
        ("Parents", Cell("" if parents else "none, it is the first commit", more=parents)),
        ("Content", f"{format_count(about.files, 'file')}, {format_bytes(about.bytes)}"),
        ("More", source.about(dataset, commit, parent)),
    ]  # fmt: skip
    tree, known = TreeReader(source.objects, commit), len(source.problems)
    tree.left_out = lambda _, error: source.problems.append(error)
    content, message = _Content(tree), about.message.strip()
    files = (cells(name(entry.path), entry.kind.word, size(entry.size)) for entry, _ in content.files)
    blocks = [
        show.facts("About", rows),
        *([show.text("Message", message.splitlines()[:40])] if "\n" in message else []),
        *_folders(content),
        *(Block("pictures", f"Images in {name(folder or ROOT)}", tuple(zip(source.pictures(files))),
                total=content.counts["image"][folder], what="images")
          for folder, files in content.chosen["image"].items()),
        *show.left_out(len(content.chosen["image"]), len(content.counts["image"]), "folders with images"),
        *(block for kind in ("table", "text")
          for block in _shown(source, kind, content.of(kind), sum(content.counts[kind].values()))),
        show.table("Files", ("path", "kind", "size>"), files, "paths", total=about.entries),
        *source.run_table("Runs on this commit", source.runs_on.get(commit, []), 50),
    ]  # fmt: skip
    notes, above = tuple(error.message for error in source.problems[known:]), (source.to_dataset(dataset),)
    return Page(source.target(dataset, commit), blocks, above, cut(message.partition("\n")[0], 90), notes)


def _folders(content: _Content) -> Iterator[Block]:
    every = content.summary.by_folder(64)
    if classes := _classes(every):
        whole, most = sum(classes.values()), max(classes.values())
        rows = (cells(name(label), n, share_cell(n, whole, most)) for label, n in classes.items())
        note, heads = "Folders of the same depth are taken for classes.", ("class", "files>", "share>")
        yield show.table("Classes", heads, rows, "classes", note=note)
    heads, sums = ("folder", "files>", "size>"), content.summary.by_folder(64, _FOLDERS)
    rows = (cells(name(row.folder) or _OTHERS, row.sums.added, size(row.sums.added_bytes)) for row in sums)
    yield show.table("Folders", heads, rows, "folders", total=len(every))


def _classes(folders: Sequence[FolderSums]) -> Mapping[bytes, int]:
    """Return the files of each class; nothing if the folders do not look like classes: all of one depth, with three
    files or more, and mostly the same ones in each folder above."""
    classes, parents = defaultdict[bytes, int](int), set[bytes]()
    leaves = [row for row in folders if row.folder != ROOT]
    for row in leaves:
        above, _, label = row.folder[:-1].rpartition(b"/")
        classes[label] += row.sums.added
        parents.add(above)
    one_depth = len({row.folder.count(b"/") for row in leaves}) == 1
    same = one_depth and len(leaves) >= 0.8 * len(classes) * len(parents) and len(parents) <= 6
    enough = sum(classes.values()) >= 3 * len(leaves) and 2 <= len(classes) <= _CLASSES
    return classes if same and enough else {}


def difference_of(source: Source, dataset: DatasetName, before: CommitId, after: CommitId) -> Page:
    trees = TreeReader(source.objects, before), TreeReader(source.objects, after)
    listed = changes_between(source.objects, *trees, WHOLE).differences
    summary = Summary(listed)
    total, sums = summary.total, summary.by_folder(None, _FOLDERS) if listed else []
    targets = [source.target(dataset, side) for side in (before, after)]
    counts = f"{total.added:,} added, {total.removed:,} removed, {total.changed:,} changed, {total.renamed:,} renamed"
    rows: list[tuple[str, Value]] = [
        ("From", source.to_commit(dataset, before)), ("To", source.to_commit(dataset, after)), ("Paths", counts),
        ("Net size", size(total.net_bytes)), ("In a terminal", Cell(f"dsv diff {' '.join(targets)}", look="code")),
    ]  # fmt: skip
    kinds = "added", "removed", "changed", "renamed"
    counted = ((row, [getattr(row.sums, kind) for kind in kinds]) for row in sums)
    folders = [cells(name(row.folder) or _OTHERS, *n, size(row.sums.net_bytes)) for row, n in counted]
    files = {kind: list[Difference]() for kind in _DIFFERENT}
    for difference in listed:
        entries = [entry for entry, _ in _sides(difference)]
        kind = kind_of(difference.path) if all(entry.is_file for entry in entries) else ""
        differs = kind == "image" or len(entries) == 1 or difference.content_changed
        if kind and differs:
            files[kind].append(difference)
    chosen = {kind: _first(files[kind], most) for kind, most in _DIFFERENT.items()}
    paths, heads = map(_path_row, listed[:_PATHS]), ("change", "path", "before", "size>")
    blocks = [
        show.facts("About", rows),
        show.table("Folders", ("folder", *(f"{kind}>" for kind in kinds), "net size>"), folders, "folders"),
        Block("pictures", "Images", tuple(_pairs(source, chosen["image"])), "Of a changed image: before and after."),
        *show.left_out(len(chosen["image"]), len(files["image"]), "images"),
        *(block for kind in ("table", "text") for block in _shown(source, kind, chosen[kind], len(files[kind]))),
        show.table("Paths", heads, paths, "paths", total=len(listed), filters=len(listed) > 10),
    ]  # fmt: skip
    title = f"{dataset}: {' to '.join(target.partition('@')[2] for target in targets)}"
    return Page(title, blocks, (source.to_dataset(dataset),), "What differs between two commits")


def _first(files: Sequence[Difference], most: int) -> Sequence[Difference]:
    """Return so many, of each way to differ alike many if there are more."""
    seen = Counter[What]()
    ranks = [(seen.update([file.what]), seen[file.what])[1] for file in files]
    return [files[at] for at in sorted(sorted(range(len(files)), key=ranks.__getitem__)[:most])]


def _path_row(difference: Difference) -> Row:
    old = name(difference.old_path or b"") if difference.what is What.RENAMED else ""
    old += f" ({difference.similarity} % the same)" if difference.similarity not in (None, 100) else ""
    what = Cell(difference.what.value, look=difference.what.value)
    return cells(what, name(difference.path), old, size(difference.entry.size))


def _sides(difference: Difference) -> list[Located]:
    sides = (difference.before, None), (difference.after, difference.location)
    return [(entry, location) for entry, location in sides if entry is not None]


def _pairs(source: Source, chosen: Sequence[Difference]) -> Iterator[Row]:
    made = source.pictures([side for difference in chosen for side in _sides(difference)])
    for difference in chosen:
        *first, last = [next(made) for _ in _sides(difference)]
        if first and not difference.content_changed:
            first, last = [], replace(last, text=f"{first[0].text} → {last.text}")
        yield *first, replace(last, more=(Cell(f"{difference.what.value} {last.more[0].text}"),))


def _shown(source: Source, kind: str, files: Sequence[Difference], every: int) -> Iterator[Block]:
    """Yield tables or texts: those of one side with their beginning, else what differs between both."""
    for file in files:
        sides, is_group = _sides(file), table_format(file.path) == "parquet"
        is_whole = len(sides) > 1 or is_group
        most = (_MOST_BOTH if sides[1:] else MOST_GROUP) if kind == "table" and is_whole else _MOST_TEXT
        if is_whole and any(entry.size > most for entry, _ in sides):
            answer = Answer(error=f"files of more than {format_bytes(most)} are not read")
        else:
            answer = source.decoded(kind, sides, most)
        yield from answer.blocks
        if answer.error:
            yield show.text(f"{kind.title()} {name(file.path)}", note=answer.error)
    yield from show.left_out(len(files), every, f"{kind}s")
