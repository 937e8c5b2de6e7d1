"""The pages of the whole: overview, dataset, lineage of a commit, caches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice

from dsv.api.cached import CachedItem, CachedReport
from dsv.api.lineage_search import LineageSearch
from dsv.api.space import SpaceUsage, StoreUsed
from dsv.cache.evict import EvictionResult
from dsv.run.lineage import Lineage, LineageNode, Linked
from dsv.run.result import result_text
from dsv.site import blocks as show
from dsv.site import drawings
from dsv.site.blocks import Block, Cell, Fact, Page, cells, first_line, name, size, when
from dsv.site.drawings import GraphNode
from dsv.site.source import RUN_HEADS, DatasetHistory, Source, share_cell
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName
from dsv.values.units import format_bytes, format_count

_LAST_RUNS, _SPARK, _NODES, _READERS = 20, 60, 60, 200


def overview_of(source: Source, space: SpaceUsage) -> Page:
    stored, rows = {item.name: item.stored for item in space.items}, []
    for of in source.histories.values():
        about = None if of.main is None else of.commits[of.main]
        sizes = [commit.bytes for commit in of.commits.values()][_SPARK - 1 :: -1]
        growth = Cell("", sort=len(sizes), drawing=drawings.spark(sizes) if len(sizes) > 1 else None)
        files, count, time_ms = (
            (None, None, None) if about is None else (about.files, about.bytes, about.time_ms)
        )
        message = "no commit yet" if about is None else first_line(about.message)
        rows.append(cells(source.to_dataset(of.dataset), files, size(count), size(stored.get(str(of.dataset))),
                          growth, len(of.commits), when(time_ms), message))  # fmt: skip
    heads = ("dataset", "files>", "size>", "stored>", "growth", "commits>", "last change", "message")
    blocks = [show.table("Datasets", heads, rows, "datasets", filters=len(rows) > 8)]
    if source.runs:
        last = source.run_rows(source.runs[:_LAST_RUNS])
        blocks.append(show.table("Last runs", RUN_HEADS, last, "runs", source.all_runs))
    blocks += [] if space.store is None else [_store(space.store, space.lost)]
    notes, damage = [error.message for error in source.problems[:20]], source.damage
    if damage is not None and (damage.packs or damage.objects or damage.missing):
        packs, objects = len(damage.packs), len(damage.objects) + len(damage.missing)
        parts = f"{format_count(packs, 'pack')} and {format_count(objects, 'object')}"
        notes.insert(0, f"The store is damaged: {parts}. dsv verify lists what was lost.")
    return Page("Datasets", tuple(blocks), under=space.url, notes=tuple(notes))


def _store(store: StoreUsed, lost: int) -> Block:
    needed, expired, packs = store.needed, store.expired, store.packs
    free = packs.free_bytes + packs.rewritten_bytes
    later = f"{format_bytes(expired.alone)} of {format_count(expired.commits, 'commit')}, to be freed later"
    rows: list[Fact] = [
        ("In all", size(store.total)),
        ("Needed", f"{format_bytes(needed.stored)}, {format_bytes(needed.original)} before compression"),
        ("gc would free", format_bytes(free) if free else "nothing"),
        ("Expired", later if expired.commits else "nothing"),
        ("Records of runs", size(store.runs)),
        ("Lost", Cell(f"{lost:,} objects: dsv verify lists them", look="bad") if lost else "nothing"),
    ]  # fmt: skip
    return show.facts("Store", rows)


def dataset_of(source: Source, of: DatasetHistory) -> Page:
    dataset, rows = of.dataset, []
    names = [(str(head.branch), "branch", head.commit, head.entry.author) for head in of.heads]
    names += [(str(tag), "tag", value.commit, value.author) for tag, value in of.tags]
    for label, kind, commit, author in names:
        about = None if commit is None else of.commits.get(commit)
        if commit is None or about is None:
            rows.append(cells(label, kind, "no commit yet", None, None, "–", name(author), ""))
            continue
        lineage = source.to_page(show.lineage_page(dataset, commit), "lineage")
        rows.append(cells(label, kind, source.to_commit(dataset, commit), about.files, size(about.bytes),
                          when(about.time_ms), name(author), lineage if lineage.page else ""))  # fmt: skip
    heads = ("name", "kind", "commit", "files>", "size>", "time", "by", "more")
    blocks, grown = [show.table("Branches and tags", heads, rows, "names")], list(of.commits.values())[::-1]
    if len(grown) > 1:
        sizes = drawings.line(
            "bytes", [(commit.time_ms, commit.bytes) for commit in grown], lambda y: format_bytes(int(y))
        )
        counts = drawings.line(
            "files", [(commit.time_ms, commit.files) for commit in grown], "{:,.0f}".format
        )
        blocks.append(show.plots("Bytes and files over time", [sizes, counts]))
    blocks.append(_history(source, of))
    runs = [view for view in source.runs if view.record.dataset == dataset]
    if runs:
        last = source.run_rows(runs[:_LAST_RUNS])
        blocks.append(show.table("Last runs", RUN_HEADS, last, "runs", len(runs)))
    blocks.append(show.command(f"dsv clone {dataset}", f"dsv log {dataset} --graph", f"dsv cache {dataset}"))
    main = None if of.main is None else of.commits[of.main]
    under = "" if main is None else f"{format_count(main.files, 'file')}, {format_bytes(main.bytes)}"
    return Page(str(dataset), tuple(blocks), under=under)


def _history(source: Source, of: DatasetHistory) -> Block:
    rows, pieces = [], drawings.lanes((commit, about.parents) for commit, about in of.commits.items())
    for (commit, about), piece in zip(of.commits.items(), pieces, strict=True):
        names = tuple(Cell(label, look="name") for label in of.names.get(commit, ()))
        more = Cell("freed" if of.is_freed(commit) else "expired" if commit in of.expired else "")
        if about.parents:
            link = source.to_difference(of.dataset, about.parents[0], commit, "changes")
            more = link if link.page else more
        rows.append(cells(
            Cell("", drawing=piece), source.to_commit(of.dataset, commit), Cell(first_line(about.message), more=names),
            name(about.author.partition(" <")[0]), when(about.time_ms), about.files, size(about.bytes), more,
        ))  # fmt: skip
    heads = ("", "commit", "message", "author", "time", "files>", "size>", "more")
    note = "It has more commits than these." if of.cut else ""
    return show.table("History", heads, rows, "commits", note=note, kind="history")


def lineages_of(source: Source, dataset: DatasetName, commit: CommitId) -> tuple[Lineage, Lineage]:
    """Return where a commit comes from, and, two steps far, what was made of it: not if more than `_READERS` runs read
    it, as each record would be read."""
    up, down = LineageSearch(source.repository), LineageSearch(source.repository)
    start, few = Linked("", dataset, commit, ()), len(source.runs_on.get(commit, ())) <= _READERS
    return up.grown(up.add(start)), down.grown(down.add(start), down=True, depth=2 if few else 0)


def lineage_of(source: Source, dataset: DatasetName, commit: CommitId, both: Sequence[Lineage]) -> Page:
    blocks, target = list[Block](), f"{dataset}@{source.histories[dataset].named(commit)}"
    for graph, title in zip(both, ("Where it comes from", "What was made of it"), strict=True):
        if not graph.edges:
            many = f"more than {_READERS} runs read it: dsv lineage {target} --down lists them"
            blocks += [show.text(title, note=many)] if graph.cut else []
            continue
        nodes = {node.id: _node(source, node, graph.start) for node in graph.nodes}
        drawn = dict(islice(nodes.items(), _NODES))
        edges = [
            (edge.source, edge.target) for edge in graph.edges if {edge.source, edge.target} <= drawn.keys()
        ]
        note = f"{_NODES} of {len(nodes):,} nodes are drawn. " if len(nodes) > _NODES else ""
        note += "It goes on: dsv lineage shows more." if graph.cut else ""
        blocks.append(show.plots(title, [drawings.layered(drawn, edges, f"{title}, as a graph")], note))
        sides = [(nodes[edge.source], edge.name, nodes[edge.target]) for edge in graph.edges]
        rows = [
            cells(Cell(old.first, old.page), old.second, how, Cell(new.first, new.page), new.second)
            for old, how, new in sides
        ]
        heads = ("from", "about it", "how", "to", "about it")
        blocks.append(show.table(f"{title}, as a list", heads, rows, "edges"))
    blocks.append(show.command(f"dsv lineage {target}", f"dsv lineage {target} --down"))
    notes = tuple(error.message for graph in both for error in graph.problems)
    above = (source.to_dataset(dataset), source.to_commit(dataset, commit))
    return Page(f"Lineage of {target}", tuple(blocks), above, notes=notes)


def _node(source: Source, node: LineageNode, start: str) -> GraphNode:
    record, about = node.record, node.about
    if record is not None:
        second = " ".join(
            ["run", result_text(record), *(f"{key}={value}" for key, value in record.params.items())]
        )
        return GraphNode(
            record.name or record.run, second, source.to_page(show.run_page(record), "").page, "run"
        )
    if node.dataset is None or node.commit is None or about is None:
        return GraphNode(name(node.id), "not in this store", None, "lost")
    of = source.histories.get(node.dataset)
    rev = node.rev or (str(node.commit)[:8] if of is None else of.named(node.commit))
    first = f"{node.dataset}@{rev}{f':{name(node.path)}' if node.path else ''}"
    moved = f"{node.branch} {'has moved' if node.branch_state == 'moved' else 'is gone'}"
    words = (
        "raw data" * node.raw,
        format_count(about.files, "file"),
        moved * (node.branch_state in ("moved", "gone")),
    )
    look = "start" if node.id == start else "raw" if node.raw else ""
    return GraphNode(
        first, ", ".join(filter(None, words)), source.to_commit(node.dataset, node.commit).page, look
    )


def caches_of(
    source: Source, reports: Sequence[tuple[CachedReport, EvictionResult]], errors: Sequence[str]
) -> Page:
    blocks = list[Block]()
    for report, next_evict in reports:
        room, goes = report.room, {commit.path for commit in next_evict.evicted}
        share = min(1.0, room.used_bytes / max(1, room.max_size or room.total_bytes))
        used = f"{format_bytes(room.used_bytes)} in {format_count(room.used_files, 'file')}"
        limits = [f"at most {format_bytes(room.max_size)}"] if room.max_size else []
        freed = f"{format_bytes(next_evict.freed_bytes)} of {format_count(len(goes), 'commit')}"
        filling = [
            f"{fill.dataset}@{fill.commit}: {fill.files_done:,} of {fill.files:,} files"
            for fill in report.fills
        ]
        facts: list[Fact] = [
            ("Used", Cell(used, drawing=drawings.bar(share))),
            ("Free on its disk", f"{format_bytes(room.free_bytes)} of {format_bytes(room.total_bytes)}"),
            ("Limits", ", ".join([*limits, *(f"{amount} free" for amount in room.min_free)]) or "none"),
            ("The next evict frees", freed if goes else "nothing"),
            *(("Exceeded", Cell(limit, look="bad")) for limit in room.exceeded),
            *(("Being filled", text) for text in filling),
        ]
        rows = [
            cells(source.to_dataset(item.dataset), source.to_commit(item.dataset, item.commit, item.names), item.files,
                  size(item.bytes), size(item.own_bytes), when(1000 * item.last_use), name(item.cached_by),
                  _holders(item), _fate(item, item.path in goes))
            for item in report.items
        ]  # fmt: skip
        heads = [
            *["dataset", "commit", "files>", "size>", "own>"],
            "last use",
            "cached by",
            "held by",
            "next evict",
        ]
        note = "own: what the disk has on its account; of commits that share files, the first one has these."
        blocks.append(show.facts(f"Cache {name(str(report.cache))}", facts))
        blocks.append(show.table("Cached commits", heads, rows, "commits", note=note))
    every = Counter(view.record.dataset for view in source.runs)
    hits = Counter(view.record.dataset for view in source.runs if view.record.cache_hit)
    rows_by_dataset = [
        cells(source.to_dataset(dataset), n, hits[dataset], share_cell(hits[dataset], n, n))
        for dataset, n in every.items()
    ]
    columns = ("dataset", "runs>", "found in the cache>", "share>")
    blocks.append(
        show.table("How often runs found their data in a cache", columns, rows_by_dataset, "datasets")
    )
    blocks.append(show.command("dsv cached", "dsv evict --dry-run", "dsv hold TARGET --for 2d"))
    return Page("Caches", tuple(blocks), notes=tuple(errors))


def _until(seconds: float | None) -> str:
    return "" if seconds is None else f" until {when(1000 * seconds).text}"


def _holders(item: CachedItem) -> str:
    held = [f"{pin.user}{_until(pin.until)}{f' ({pin.why})' if pin.why else ''}" for pin in item.pins]
    for lease in item.leases:
        what = f"run {lease.run}" if lease.run else lease.purpose
        held.append(f"{what} of {lease.user}@{lease.host}{_until(lease.until)}")
    return name("; ".join(held)) or "nobody"


def _fate(item: CachedItem, goes: bool) -> str:
    return "goes" if goes else "stays (protected)" if item.protected else f"stays{_until(item.may_go)}"
