"""The pages of runs: all of them, and each with another one beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dsv.run.listing import RunView, as_text, differences, flattened, sort_order
from dsv.run.record import RunRecord
from dsv.site import blocks as show
from dsv.site import drawings
from dsv.site.blocks import Block, Cell, Drawing, Page, TableColumn, cells, cut, name, took, when
from dsv.site.source import RUN_HEADS, Source, result_cell
from dsv.values.json import Json
from dsv.values.units import format_bytes, format_count, format_duration

_KEYS, _DRAWINGS, _STEPS = 40, 12, 1_000
"""Columns of parameters and metrics, drawings, and points of a curve."""
_ELSEWHERE = {"params", "metrics", "data", "started", "ended", "command", *RunRecord.keys("not shown")}
"""Keys of a record that a page shows in another way, or that are for programs."""
Values = Mapping[str, Json]


def _values(view: RunView) -> Values:
    return flattened(view.record.params, "params.") | flattened(view.record.metrics or {}, "metrics.")


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: Json, most: int = show.LONGEST_CELL) -> Cell:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(f"{value:.6g}" if isinstance(value, float) else f"{value:,}", sort=value)
    return Cell("–" if value is None else cut(as_text(value), most))


def runs_of(source: Source, chosen: Sequence[RunView] | None = None) -> Page:
    """chosen: None for all runs."""
    total = source.all_runs if chosen is None else len(chosen)
    views, rows = (source.runs if chosen is None else chosen)[: show.ROWS], list[tuple[Cell, ...]]()
    values = [_values(view) for view in views]
    every = dict.fromkeys(key for of_run in values for key in of_run if not _points(of_run[key]))
    keys = sorted(every, key=lambda key: not key.startswith("params."))[:_KEYS]
    best = {key: _best(key, values) for key in keys}
    numbers = [
        all(_is_number(of_run[key]) for of_run in values if of_run.get(key) is not None) for key in keys
    ]
    more = [
        TableColumn(_title(key, keys), is_number, True) for key, is_number in zip(keys, numbers, strict=True)
    ]
    for of_run, row in zip(values, source.run_rows(views), strict=True):
        rows.append((*row, *(_marked(of_run.get(key), best[key]) for key in keys)))
    marked = [key for key in keys if best[key] is not None]
    note = "★ is the best value of a metric. " if marked else ""
    note += f"{_KEYS} of {len(every):,} parameters and metrics." if len(every) > _KEYS else ""
    blocks = [show.table("Runs", [*RUN_HEADS, *more], rows, "runs", total, note, filters=True)]
    drawn = [_over_time(key, views, values) for key in marked]
    blocks += [_plots("Metrics by the start of the run", drawn)] if drawn else []
    some = views[0].record.run if views else "RUN"
    blocks.append(
        show.command(f"dsv runs {some}", f"dsv runs --compare {some} OTHER", "dsv runs --sort metrics.NAME")
    )
    return Page("Runs", tuple(blocks), under=format_count(total, "run"))


def _marked(value: Json, best: float | None) -> Cell:
    cell = _cell(value)
    return (
        Cell(f"{cell.text} ★", sort=cell.sort, look="best") if value is not None and value == best else cell
    )


def _plots(title: str, drawn: Sequence[Drawing]) -> Block:
    note = f"{_DRAWINGS} of {len(drawn):,} drawings" if len(drawn) > _DRAWINGS else ""
    return show.plots(title, drawn[:_DRAWINGS], note)


def _title(key: str, keys: Sequence[str]) -> str:
    """Return a key without `params.` or `metrics.`, unless both have the name."""
    head, _, rest = key.partition(".")
    return name(key if f"{'metrics' if head == 'params' else 'params'}.{rest}" in keys else rest)


def _best(key: str, values: Sequence[Values]) -> float | None:
    """Return the best value of a metric, if several runs have it and they differ."""
    known = [value for of_run in values if isinstance(value := of_run.get(key), int | float)]
    several = key.startswith("metrics.") and len(set(known)) > 1
    return (max if sort_order(key)[1] else min)(known) if several else None


def _over_time(key: str, views: Sequence[RunView], values: Sequence[Values]) -> Drawing:
    pairs = zip(views, values, strict=True)
    points = [(view.record.started_ms, of_run[key]) for view, of_run in pairs if _is_number(of_run.get(key))]
    return drawings.line(_title(key, ()), points[::-1], "{:.4g}".format, dots=True)


def beside(views: Sequence[RunView]) -> dict[str, RunView]:
    """Return for the page of each run the one before it on its dataset."""
    before, pages = dict[str, RunView](), dict[str, RunView]()
    for view in reversed(views):
        dataset = str(view.record.dataset)
        pages |= {show.run_page(view.record): before[dataset]} if dataset in before else {}
        before[dataset] = view
    return pages


def run_of(source: Source, view: RunView, other: RunView | None) -> Page:
    record = view.record
    about = [
        ("Result", result_cell(record)), ("Data", Cell("", more=tuple(_data(source, record)))),
        ("Command", Cell(cut(as_text(list(record.command)), 2_000), look="code")), ("Started", when(record.started_ms)),
        ("Took", took(view.took_seconds)), ("By", Cell(name(f"{record.user}@{record.host}"))),
    ]  # fmt: skip
    into = None if record.output is None else record.output.into
    if into is not None and into.commit is not None:
        about.append(("Made", source.to_commit(into.dataset, into.commit, (str(into.branch),))))
    blocks = [show.facts("About", about)]
    metrics = flattened(record.metrics or {})
    for title, values in (("Metrics", metrics), ("Parameters", flattened(record.params))):
        rows = [(name(key), _cell(value)) for key, value in values.items() if not _points(value)]
        blocks += [show.facts(title, rows[: show.ROWS])] if rows else []
    curves = [
        drawings.line(name(key), points, "{:.4g}".format, times=False)
        for key, value in metrics.items()
        if (points := _points(value))
    ]
    blocks += [_plots("Curves", curves)] if curves else []
    blocks += [] if other is None else [_pair(source, view, other)]
    kept = {key: value for key, value in view.item().items() if key not in _ELSEWHERE}
    known = ((key, value) for key, value in flattened(kept).items() if value not in (None, "", [], (), {}))
    blocks.append(show.facts("Record", [(key, _readable(key, value)) for key, value in known][: show.ROWS]))
    blocks.append(show.command(f"dsv logs {record.run}", f"dsv run --again {record.run}"))
    above = (Cell("Runs", show.RUNS), source.to_dataset(record.dataset))
    return Page(record.name or record.run, tuple(blocks), above, f"run {record.run} on {record.dataset}")


def _data(source: Source, record: RunRecord) -> Iterator[Cell]:
    for data in record.data:
        link = source.to_commit(data.dataset, data.commit)
        words = (f"{data.name}:" if data.name else "", str(data.dataset), name(data.path or ""), link.text)
        yield Cell(" ".join(filter(None, words)), link.page)


def _readable(key: str, value: Json) -> str:
    if isinstance(value, int | float) and key.endswith(("bytes", "seconds")):
        return format_bytes(int(value)) if key.endswith("bytes") else format_duration(value)
    return cut(as_text(value), 2_000)


def _beside(key: str, value: Json) -> str:
    """Return a value of a run in a short form."""
    if value is None:
        return "–"
    if key.endswith("commit"):
        return str(value)[:12]
    return cut(_readable(key, value), 60) if key.endswith("bytes") else _cell(value, 60).text


def _points(value: Json) -> list[tuple[float, float]]:
    """Return the points of a curve, if the value of a metric is a list of numbers."""
    if not isinstance(value, list | tuple) or len(value) < 2 or not all(map(_is_number, value)):
        return []
    return [(float(step), float(number)) for step, number in enumerate(value, 1)][:: -(-len(value) // _STEPS)]


def _pair(source: Source, view: RunView, other: RunView) -> Block:
    """What differs between two runs, with the command that shows how their data differ."""
    differ, same = differences([other, view])
    rows = [
        cells(name(key), *(_beside(key, value) for value in values))
        for key, values in differ
        if not any(isinstance(value, list) and value and not isinstance(value[0], str) for value in values)
    ]
    sides, note = (other.record, view.record), f"{format_count(same, 'key')} the same."
    old, new = (record.commit for record in sides)
    if old != new:
        targets = (f"{record.dataset}@{str(record.commit)[:12]}" for record in sides)
        note += f" What differs in their data: dsv diff {' '.join(targets)}"
    changes = source.to_difference(view.record.dataset, old, new, "how their data differ")
    rows.append(cells("pages", source.to_run(other, "the other run"), changes if changes.page else "–"))
    title = name(other.record.name or other.record.run)
    return show.table(f"Beside {title}", ("key", TableColumn(title), "this run"), rows, "keys", note=note)
