"""What a notebook shows of values: the tables and drawings of the pages, without links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from typing import Any

from dsv.api.datasets import DatasetItem
from dsv.api.program import Change, Commit
from dsv.diff.paths import ROOT
from dsv.errors import DsvError, Unsupported
from dsv.run.lineage import Lineage
from dsv.run.listing import RunView
from dsv.site import blocks as show
from dsv.site.blocks import Block, Cell, Page, Row, Value, cells, cut, name, size, when
from dsv.site.contents import kind_of
from dsv.site.decoding import Decoder, Order
from dsv.site.folder import Renderer
from dsv.site.overviews import graph_of
from dsv.site.runs import runs_of
from dsv.site.source import PageLinks, share_cell
from dsv.values.units import format_bytes, format_count

_LOOKED_AT, _IMAGES, _LARGEST = 1_000, 6, 1 << 20
"""Files of a commit that are looked at, images that are shown, and bytes of one."""


def html(value: Any) -> str | None:
    """Return a part of a page; None for what has none, and without the extra `site`."""
    images = dict[str, bytes]()
    makers: dict[type, Callable[[], list[Block]]] = {
        Commit: lambda: _commit(value, images),
        Lineage: lambda: graph_of(PageLinks(), value, "Lineage", value.start),
        RunView: lambda: runs_of(PageLinks(), value).blocks,
        DatasetItem: lambda: [show.table("Datasets", ("dataset", "commit", "files>", "size>", "time"),
            (cells(str(item.dataset), str(item.commit or "none")[:12], item.files, size(item.bytes),
                   when(item.time_ms)) for item in value), "datasets")],
        Change: lambda: [show.table("Changes", ("change", "path", "before", "size>"), _changes(value), "paths")],
    }  # fmt: skip
    make = makers.get(type(next(iter(value), None) if isinstance(value, list) else value))
    with suppress(Unsupported):
        return None if make is None else Renderer().fragment(Page("", make()), images)
    return None


def _changes(changes: Iterable[Change]) -> Iterable[Row]:
    for change in changes:
        now = change.after or change.before
        old = change.before.path if change.before and change.before.path != change.path else ""
        what = Cell(change.what, look=change.what)
        yield cells(what, name(change.path), name(old), size(now.size if now else 0))


def _commit(commit: Commit, images: dict[str, bytes]) -> list[Block]:
    """Show a commit, with the folders of its first files and a few images among them."""
    content = f"{format_count(commit.files, 'file')}, {format_bytes(commit.size)}"
    made, message = when(1000 * commit.time.timestamp()), cut(commit.message.partition("\n")[0])
    about: list[tuple[str, Value]] = [
        ("Commit", commit.id[:12]), ("Author", name(commit.author)), ("Time", made), ("Message", message),
        ("Content", content),
    ]  # fmt: skip
    with commit._opened.explaining():
        entries = [entry for entry, _ in islice(commit._tree.below(b""), _LOOKED_AT)]
    folders = Counter(entry.path[: entry.path.rfind(b"/") + 1] or ROOT for entry in entries).most_common(20)
    rows = [cells(name(folder), n, share_cell(n, len(entries), folders[0][1])) for folder, n in folders]
    title, pictures = f"Folders of the first {format_count(len(entries), 'file')}", list[tuple[Cell]]()
    fit = (entry for entry in entries if kind_of(entry.path) == "image" and entry.size <= _LARGEST)
    with Decoder() as decoder, suppress(DsvError):  # some are erased, damaged or out of reach
        for entry in islice(fit, _IMAGES):
            path = entry.path.decode("utf-8", "surrogateescape")
            image = decoder.ask(Order("image", entry.path, [commit.read_bytes(path)])).image
            images |= {path: image} if image else {}
            note = cells(format_bytes(entry.size))
            pictures.append((Cell(name(entry.path), image=path if image else "", more=note),))
    table = show.table(title, ("folder", "files>", "share>"), rows, "folders")
    return [show.facts(commit.dataset, about), table, Block("pictures", "Images", tuple(pictures))]
