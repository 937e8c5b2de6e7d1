"""The pages of the whole: overview, dataset, lineage of a commit, caches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice

from dsv.api.cached import CachedItem, CachedReport, cached
from dsv.api.evict import evict
from dsv.api.lineage_search import LineageSearch
from dsv.api.space import usage
from dsv.cache.evict import EvictionResult
from dsv.errors import DsvError
from dsv.repo.damage import read_damage
from dsv.run.lineage import Lineage, LineageNode, Linked
from dsv.site import blocks as show
from dsv.site import drawings
from dsv.site.blocks import Block, Cell, Page, Value, cells, cut, name, size, when
from dsv.site.source import DatasetHistory, PageLinks, Source, share_cell
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName
from dsv.values.units import format_bytes, format_count

_LAST_RUNS, _SPARK, _NODES, _READERS = 20, 60, 60, 200


def _bytes(count: float) -> str:
    return format_bytes(int(count))


def overview_of(source: Source) -> Page:
    space, rows = usage(source.context, list(map(str, source.only))), []
    stored = {item.name: item.stored for item in space.items}
    for of in source.histories.values():
        about, commits = of.main, list(of.commits.values())[_SPARK - 1 :: -1]
        files, count, time_ms = (about.files, about.bytes, about.time_ms) if about else (None, None, None)
        sizes = [(commit.time_ms, commit.bytes) for commit in commits]
        growth = Cell("", drawing=drawings.line("bytes", sizes, _bytes, 80, 24) if sizes[1:] else None)
        message = cut(about.message.partition("\n")[0], 90) if about else "no commit yet"
        rows.append(cells(source.to_dataset(of.dataset), files, size(count), size(stored.get(str(of.dataset))), growth,
                          len(of.commits), when(time_ms), message))  # fmt: skip
    heads = ("dataset", "files>", "size>", "stored>", "growth", "commits>", "last change", "message")
    blocks = [show.table("Datasets", heads, rows, "datasets", filters=len(rows) > 8)]
    blocks += source.run_table("Last runs", source.runs, _LAST_RUNS)
    if (store := space.store) is not None:
        freed = size(store.packs.free_bytes + store.packs.rewritten_bytes)
        lost, later = Cell(f"{space.lost:,}", look="bad" * (space.lost > 0)), size(store.expired.alone)
        parts = ("In all", size(store.total)), ("gc would free", freed), ("Expired, to be freed later", later)
        blocks.append(show.facts("Store", [*parts, ("Lost objects", lost)]))
    notes, damage = [error.message for error in source.problems[:20]], read_damage(source.repository)
    if damage is not None and (damage.packs or damage.objects or damage.missing):
        what = f"{format_count(len(damage.packs), 'pack')} and {format_count(len(damage.objects), 'object')}"
        gone = f"{format_count(len(damage.missing), 'object')} lost" if damage.missing else "no data lost"
        notes.insert(0, f"dsv verify has found damage: {what}; {gone}")
    return Page("Datasets", blocks, under=space.url, notes=tuple(notes))


def dataset_of(source: Source, of: DatasetHistory) -> Page:
    dataset, rows = of.dataset, []
    names = [(str(head.branch), "branch", head.commit, head.entry.author) for head in of.heads]
    names += [(str(tag), "tag", value.commit, value.author) for tag, value in of.tags]
    for label, kind, commit, author in names:
        about = of.commits.get(commit) if commit else None
        if commit and about:
            rows.append(cells(label, kind, source.to_commit(dataset, commit), about.files, size(about.bytes),
                              when(about.time_ms), name(author), source.about(dataset, commit)))  # fmt: skip
    heads = ("name", "kind", "commit", "files>", "size>", "time", "by", "more")
    blocks, grown = [show.table("Branches and tags", heads, rows, "names")], list(of.commits.values())[::-1]
    if len(grown) > 1:
        sizes = [(about.time_ms, about.bytes) for about in grown]
        files = drawings.line("files", [(about.time_ms, about.files) for about in grown], "{:,.0f}".format)
        drawn = drawings.line("bytes", sizes, _bytes), files
        blocks.append(show.plots("Bytes and files over time", drawn))
    runs = [view for view in source.runs if view.record.dataset == dataset]
    blocks += [_history(source, of), *source.run_table("Last runs", runs, _LAST_RUNS)]
    under = f"{format_count(of.main.files, 'file')}, {format_bytes(of.main.bytes)}" if of.main else ""
    return Page(str(dataset), blocks, under=under)


def _history(source: Source, of: DatasetHistory) -> Block:
    rows, pieces = [], drawings.lanes((commit, about.parents) for commit, about in of.commits.items())
    states = {None: "", False: "expired", True: "freed"}
    for (commit, about), piece in zip(of.commits.items(), pieces, strict=True):
        names = tuple(Cell(label, look="name") for label in of.names.get(commit, ()))
        message, by = cut(about.message.partition("\n")[0], 90), name(about.author.partition(" <")[0])
        more = source.link("changes", of.dataset, *about.parents[:1], commit)
        more = more if more.page and about.parents else Cell(states[of.expired.get(commit)])
        rows.append(cells(Cell("", drawing=piece), source.link(str(commit)[:12], of.dataset, commit),
                          Cell(message, more=names), by, when(about.time_ms), about.files, size(about.bytes),
                          more))  # fmt: skip
    heads = ("", "commit", "message", "author", "time", "files>", "size>", "more")
    note = "" if not rows or not list(of.commits.values())[-1].parents else "It has more commits than these. "
    with_page = sum(row[1].page is not None for row in rows)
    note += f"{with_page:,} of these {len(rows):,} have a page." if with_page < len(rows) else ""
    return show.table("History", heads, rows, "commits", note=note, kind="history")


def lineages_of(source: Source, dataset: DatasetName, commit: CommitId) -> tuple[Lineage, Lineage]:
    """Return where a commit comes from, and, two steps far, what was made of it: not if more than `_READERS` runs read
    it, as each record would be read."""
    up, down = LineageSearch(source.repository), LineageSearch(source.repository)
    start, few = Linked("", dataset, commit, ()), len(source.runs_on.get(commit, ())) <= _READERS
    return up.grown(up.add(start)), down.grown(down.add(start), down=True, depth=2 if few else 0)


def lineage_of(source: Source, dataset: DatasetName, commit: CommitId, both: Sequence[Lineage]) -> Page:
    blocks, target = list[Block](), source.target(dataset, commit)
    for graph, title in zip(both, ("Where it comes from", "What was made of it"), strict=True):
        blocks += graph_of(source, graph, title, target)
    notes = tuple(error.message for graph in both for error in graph.problems)
    above = source.to_dataset(dataset), source.to_commit(dataset, commit)
    return Page(f"Lineage of {target}", blocks, above, notes=notes)


def graph_of(source: PageLinks, graph: Lineage, title: str, target: str) -> list[Block]:
    more = f"It goes on: dsv lineage {target}{' --down' * graph.down} shows more." if graph.cut else ""
    if not graph.edges:
        return [show.text(title, note=more)] if graph.cut else []
    nodes = {node.id: _node(source, node, graph.start) for node in graph.nodes}
    drawn = dict(islice(nodes.items(), _NODES))
    edges = [edge[:2] for edge in graph.edges if {*edge[:2]} <= drawn.keys()]
    note = f"{len(drawn):,} of {len(nodes):,} nodes are drawn. " if len(nodes) > _NODES else ""
    drawing = drawings.layered(drawn, edges, f"{title}, as a graph")
    listed = [(nodes[edge.source], Cell(edge.name), nodes[edge.target]) for edge in graph.edges]
    table = show.table(f"{title}, as a list", ("from", "how", "to"), listed, "edges")
    return [show.plots(title, [drawing], note + more), table]


def _node(source: PageLinks, node: LineageNode, start: str) -> Cell:
    """Return a node with a second text about it."""
    is_start, text, page, look = node.id == start, node.name, None, "lost"
    if node.record is not None:
        text, page, look = node.record.name or node.record.run, source.to_run(node.record).page, "run"
    elif node.dataset is not None and node.commit is not None and node.about is not None:
        page, look = source.to_commit(node.dataset, node.commit).page, "raw" * node.raw
    second = ", ".join(filter(None, ("raw data" * node.raw, *node.facts(is_start=is_start))))
    return Cell(name(text), page, look="start" if is_start else look, more=cells(second))


def caches_of(source: Source) -> Page:
    """Show the cache in effect, and the others that the settings name."""
    settings, blocks, notes = source.context.settings, list[Block](), list[str]()
    paths = {settings.cache().path: None}
    for setting in settings.names("caches"):
        with suppress(DsvError):
            paths[settings.cache(setting).path] = None
    for path in paths:
        try:
            blocks += _cache(source, cached(path), evict(source.context, path, dry_run=True))
        except DsvError as error:
            notes.append(error.message)
    every = Counter(view.record.dataset for view in source.runs)
    hits = Counter(view.record.dataset for view in source.runs if view.record.cache_hit)
    rows = [cells(source.to_dataset(of), n, hits[of], share_cell(hits[of], n, n)) for of, n in every.items()]
    heads = ("dataset", "runs>", "found in the cache>", "share>")
    blocks.append(show.table("How often runs found their data in a cache", heads, rows, "datasets"))
    return Page("Caches", blocks, notes=tuple(notes))


def _cache(source: Source, report: CachedReport, next_evict: EvictionResult) -> list[Block]:
    room, goes = report.room, {commit.path for commit in next_evict.evicted}
    share = min(1.0, room.used_bytes / max(1, room.max_size or room.total_bytes))
    used = f"{format_bytes(room.used_bytes)} of at most {format_bytes(room.max_size or room.total_bytes)}"
    freed = f"{format_bytes(next_evict.freed_bytes)} of {format_count(len(goes), 'commit')}"
    facts: list[tuple[str, Value]] = [
        ("Used", Cell(used, drawing=drawings.bar(share))),
        ("Free on its disk", f"{format_bytes(room.free_bytes)} of {format_bytes(room.total_bytes)}"),
        ("Limits exceeded", ", ".join(room.exceeded) or "none"),
        ("The next dsv evict frees", freed if goes else "nothing"),
    ]  # fmt: skip
    rows = [
        cells(source.to_dataset(item.dataset), source.to_commit(item.dataset, item.commit), item.files,
              size(item.bytes), size(item.own_bytes), when(1000 * item.last_use), name(item.cached_by), _holders(item),
              "goes" if item.path in goes else _until("stays (protected)" if item.protected else "stays", item.may_go))
        for item in report.items
    ]  # fmt: skip
    heads = (
        "dataset",
        "commit",
        "files>",
        "size>",
        "own>",
        "last use",
        "cached by",
        "held by",
        "next dsv evict",
    )
    note = "own: whole blocks on the disk; files that commits share count for the one that was cached first."
    title = f"Cache {name(str(report.cache))}"
    return [show.facts(title, facts), show.table("Cached commits", heads, rows, "commits", note=note)]


def _until(what: str, seconds: float | None) -> str:
    return what if seconds is None else f"{what} until {when(1000 * seconds).text}"


def _holders(item: CachedItem) -> str:
    leases = ((lease, f"run {lease.run}" if lease.run else lease.purpose) for lease in item.leases)
    held = [_until(f"{pin.user}{f' ({pin.why})' if pin.why else ''}", pin.until) for pin in item.pins]
    held += [_until(f"{what} of {lease.user}@{lease.host}", lease.until) for lease, what in leases]
    return name("; ".join(held)) or "nobody"
