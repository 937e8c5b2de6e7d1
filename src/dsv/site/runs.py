"""The pages of runs: all of them, and each with another one beside it."""

from __future__ import annotations

from collections.abc import Sequence

from dsv.run.listing import RunView, best_of, differences, free_keys, free_values
from dsv.run.record import RunRecord
from dsv.site import blocks as show
from dsv.site import drawings
from dsv.site.blocks import Block, Cell, Page, Value, cells, cut, name, number, took, when
from dsv.site.source import RUN_HEADS, PageLinks, Source, result_cell
from dsv.values.json import Json, as_text, flattened
from dsv.values.units import format_bytes, format_count, format_duration

_KEYS, _DRAWINGS = 40, 12
"""Columns of parameters and metrics, and drawings."""
_ELSEWHERE = {"params", "metrics", "data", "started", "ended", "command", *RunRecord.keys("not shown")}
"""Keys of a record that a page shows in another way, or that are for programs."""


def _cell(key: str, value: Json, most: int = show.LONGEST_CELL, best: Json = None) -> Cell:
    """best: the value that gets a star."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        text = "–" if value is None else as_text(value)
        return Cell(text[:12] if key.endswith("commit") and most < 100 else cut(text, most))
    text = f"{value:.6g}" if isinstance(value, float) else f"{value:,}"
    text = format_bytes(int(value)) if key.endswith("bytes") else text
    text = format_duration(value) if key.endswith("seconds") else text
    return number(value, f"{text} ★", "best") if value == best else number(value, text)


def runs_of(source: PageLinks, chosen: Sequence[RunView], total: int = 0) -> Page:
    """total: of all runs, if these are not all."""
    views, total = chosen[: show.ROWS], total or len(chosen)
    values = [free_values(view) for view in views]
    titles, heads, best = free_keys(values), list[Cell | str](RUN_HEADS), dict[str, Json]()
    keys = list(titles)[:_KEYS]
    for key in keys:
        known = [of_run[key] for of_run in values if of_run.get(key) is not None]
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in known)
        best[key] = best_of(key, known)
        heads.append(Cell(name(titles[key]), look=f"optional{' number' * numbers}"))
    rows = [
        (*row, *(_cell("", of_run.get(key), best=best[key]) for key in keys))
        for of_run, row in zip(values, source.run_rows(views), strict=True)
    ]
    note = "★ is the best value of a metric. " if any(value is not None for value in best.values()) else ""
    note += f"{_KEYS} of {len(titles):,} parameters and metrics." if len(titles) > _KEYS else ""
    blocks = [show.table("Runs", heads, rows, "runs", total=total, note=note, filters=True)]
    return Page("Runs", blocks, under=format_count(total, "run"))


def run_of(source: Source, view: RunView, other: RunView | None) -> Page:
    """other: one to compare it with."""
    record = view.record
    command = Cell(cut(as_text(list(record.command)), 2_000), look="code")
    data = [(source.to_commit(of.dataset, of.commit), of) for of in record.data]
    links = [
        Cell(f"{of.name} {of.dataset} {name(of.path or '')} {link.text}", link.page) for link, of in data
    ]
    about: list[tuple[str, Value]] = [
        ("Result", result_cell(record)), ("Data", Cell("", more=tuple(links))), ("Command", command),
        ("Started", when(record.started_ms)), ("Took", took(view.took_seconds)),
        ("By", name(f"{record.user}@{record.host}")),
    ]  # fmt: skip
    into = None if record.output is None else record.output.into
    if into is not None and into.commit is not None:
        about.append(("Made", source.to_commit(into.dataset, into.commit)))
    blocks = [show.facts("About", about)]
    for title, values in (("Metrics", record.metrics or {}), ("Parameters", record.params)):
        rows = [(name(key), _cell("", value)) for key, value in flattened(values).items()]
        blocks += [show.facts(title, rows[: show.ROWS])] if rows else []
    known = {name(key): curve.points for key, curve in source.series(record).items() if curve.points}
    curves = [drawings.line(key, known[key], "{:.4g}".format) for key in list(known)[:_DRAWINGS]]
    blocks += [show.plots("Curves", curves)] if curves else []
    blocks += show.left_out(len(curves), len(known), "curves")
    blocks += [] if other is None else [_beside(source, view, other)]
    kept = flattened({key: value for key, value in view.item().items() if key not in _ELSEWHERE})
    rows = [
        (key, _cell(key, value, 2_000)) for key, value in kept.items() if value not in (None, "", [], (), {})
    ]
    blocks.append(show.facts("Record", rows[: show.ROWS]))
    above = Cell("Runs", show.RUNS), source.to_dataset(record.dataset)
    return Page(record.name or record.run, blocks, above, f"run {record.run} on {record.dataset}")


def _beside(source: Source, view: RunView, other: RunView) -> Block:
    """Return what differs between two runs, with the command that shows how their data differ."""
    differ, same = differences([other, view])
    rows = [cells(name(key), *(_cell(key, value, 60) for value in values)) for key, values in differ]
    old, new, note = other.record, view.record, f"{format_count(same, 'key')} the same."
    if old.commit != new.commit:
        targets = (f"{record.dataset}@{str(record.commit)[:12]}" for record in (old, new))
        note += f" What differs in their data: dsv diff {' '.join(targets)}"
    changes = source.link("how their data differ", new.dataset, old.commit, new.commit)
    rows.append(cells("pages", source.to_run(old, "the other run"), changes if changes.page else "–"))
    title = name(old.name or old.run)
    return show.table(f"Beside {title}", ("key", Cell(title), "this run"), rows, "keys", note=note)
