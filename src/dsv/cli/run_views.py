"""Runs for people: a table of many, the differences of some, all of one."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from dsv.cli.call import Call
from dsv.cli.output import GAP, Column, Painted, first, local_time, printable, shortened
from dsv.cli.terminal import Style, width
from dsv.errors import NotFound
from dsv.run.listing import RunView, best_of, free_keys, free_values
from dsv.run.once import computed_again, document, in_rfc8785
from dsv.run.record import RunRecord, RunState
from dsv.run.result import data_text, result_text
from dsv.run.series import Series
from dsv.run.sweep import SweepView, grouped
from dsv.values.json import Json, as_text, flattened, params_text
from dsv.values.units import format_bytes, format_count, format_duration


def state_text(view: RunView) -> str:
    """Return how a run ended, or its state, with a mark if that is the last known one."""
    return result_text(view.record) + (" (last known)" if view.last_known is not None else "")


def _painted(result: str) -> Painted:
    """Return how runs ended in its colour. An exit code in parentheses is that of a failure."""
    failed = re.search(r"\(\d|cut off", result)
    good = re.fullmatch(r"([\d,]+ )?(ok|hit)", result)
    return Painted(result, Style.BAD if failed else Style.GOOD if good else "")


_SHORTENED = 16
"""Columns that a name or a target keeps on a terminal if parameters and metrics need the room."""
_WITH_STARTED = 100
"""Columns of a terminal that shows when a run started; otherwise the whole id, which begins with that, is shown."""
_WIDEST = 24
"""Columns that a parameter or a metric gets on a terminal, unless it is a number."""
_BESIDE = 3
"""The most runs that are compared in columns. Of more, each is a row, and the keys are columns."""
_HIDDEN_NAMED = 20
"""The most hidden columns that are named."""
# fmt: off
_CSV = (
    "run", "name", "state", "exit_code", "dataset", "target", "commit", "started", "ended", "took_seconds", "engine",
    "image", "host", "user"
)
# fmt: on


def write_table(
    call: Call, views: Sequence[RunView], first: Sequence[str] = (), *, whole: SweepView | None = None
) -> None:
    """Write a line for each run, with a column for each parameter and metric.

    On a terminal, columns that don't fit are left out; digits of a number are never cut off. first: keys to
    show before all others. whole: the sweep that these are runs of."""
    columns = [Column.parse(title) for title in ("run", "name~", "data~", "started", "took>", "result")]
    groups = grouped(views)
    views = [view for each in groups for view in (each.members if isinstance(each, SweepView) else (each,))]
    rows = [_row(call, view) for view in views]
    if not any(view.record.name for view in views):
        del columns[1]
        for row in rows:
            del row[1]
    if not call.around.stdout_is_terminal or call.around.columns() < _WITH_STARTED:
        del columns[-3]
        for row in rows:
            del row[-3]
    values = [free_values(view) for view in views]
    keys = free_keys(values)
    cells: dict[str, Sequence[str]] = {key: [_cell(each.get(key)) for each in values] for key in keys}
    if call.around.stdout_is_terminal:
        cells = {key: _best_marked(key, [each.get(key) for each in values], cells[key]) for key in keys}
    hidden = _add_columns(call, columns, rows, cells, first)
    _write_groups(call, columns, rows, groups, whole)
    _tell_hidden(call, hidden)


def _add_columns(
    call: Call,
    columns: list[Column],
    rows: Sequence[list[str]],
    cells: Mapping[str, Sequence[str]],
    first: Sequence[str] = (),
) -> list[str]:
    """Add a column for each key, on a terminal those that fit. Return the titles of the others."""
    titles = free_keys([cells])
    shown = keys = list(cells)
    if call.around.stdout_is_terminal:
        titles = {key: shortened(printable(title), _WIDEST) for key, title in titles.items()}
        room = call.around.columns() - _wide(columns, rows)
        fit = _that_fit(_by_interest(keys, cells, first), titles, cells, room)
        shown = [key for key in keys if key in fit]
    for key in shown:
        numbers = all(cell.startswith(tuple("-0123456789.")) for cell in cells[key])
        columns.append(Column(titles[key], right=numbers, keep=numbers, exact=True))
        for row, cell in zip(rows, cells[key], strict=True):
            row.append(cell)
    return [titles[key] for key in keys if key not in shown]


def _best_marked(key: str, values: Sequence[Json], cells: Sequence[str]) -> Sequence[str]:
    """Return the cells of a metric that differs with a star and a colour at the best. Digits stay aligned."""
    if (best := best_of(key, values)) is None:
        return cells
    return [
        Painted(f"{cell}*", Style.BEST) if value == best else f"{cell} "
        for value, cell in zip(values, cells, strict=True)
    ]


def _tell_hidden(call: Call, hidden: Sequence[str]) -> None:
    if hidden:
        named = list(hidden[:_HIDDEN_NAMED])
        named += [f"and {len(hidden) - _HIDDEN_NAMED} more"] if len(hidden) > _HIDDEN_NAMED else []
        call.say(f"Hidden columns: {', '.join(named)} (see --csv)")


def _write_groups(
    call: Call,
    columns: Sequence[Column],
    rows: list[list[str]],
    groups: Sequence[SweepView | RunView],
    whole: SweepView | None,
) -> None:
    """Write the table, with a row above the runs of each sweep that sums up these runs, or all of `whole`."""
    at = 0
    result = [column.title for column in columns].index("result")
    for each in groups:
        if not isinstance(each, SweepView):
            at += 1
            continue
        own = [""] * len(columns)
        own[0] = each.id.short if call.around.stdout_is_terminal else each.id
        known = whole or each
        apart = () if whole is None else whole.not_begun
        states = (state_text(view) for number, view in known.latest.items() if number not in apart)
        counted = Counter(states).most_common()
        own[result] = ", ".join(f"{count} {word}" for word, count in counted)
        if whole is not None and whole.not_begun:
            own[result] += f", {len(whole.not_begun)} not begun"
        elif len(known.latest) < known.seat.of:
            own[result] += f" of {known.seat.of}"
        own[result] = _painted(own[result])
        for row in rows[at : at + len(each.members)]:
            row[0] = f"  {row[0]}"
        rows.insert(at, own)
        at += 1 + len(each.members)
    call.table(columns, rows)


def write_csv(call: Call, views: Sequence[RunView]) -> None:
    items = [view.item() for view in views]
    values = [free_values(view) for view in views]
    keys = free_keys(values)
    rows = [
        [*(_exact(item[name]) for name in _CSV), *(_exact(each.get(key)) for key in keys)]
        for item, each in zip(items, values, strict=True)
    ]
    _write_csv(call, [[*_CSV, *keys], *rows])


def write_differences(
    call: Call,
    views: Sequence[RunView],
    differ: Sequence[tuple[str, Sequence[Json]]],
    same: int,
    *,
    as_csv: bool,
) -> None:
    if as_csv:
        heads = [["key", *(view.record.run for view in views)]]
        _write_csv(call, [*heads, *([key, *map(_exact, values)] for key, values in differ)])
        return
    names = [view.record.name or _short(call, view.record) for view in views]
    cells = {
        key: _best_marked(key, values, [_shown(key, value) for value in values]) for key, values in differ
    }
    if len(views) > _BESIDE:
        columns, rows = [Column("run", keep=True)], [[name] for name in names]
        hidden = _add_columns(call, columns, rows, cells)
        call.table(columns, rows if differ else ())
        _tell_hidden(call, hidden)
    else:
        columns = [Column("key", keep=True), *(Column(name, exact=True) for name in names)]
        call.table(columns, [[key, *cells[key]] for key in cells])
    call.say(
        f"{format_count(same, 'key')} the same"
        if differ
        else f"no differences in {format_count(same, 'key')}"
    )
    seen = list(dict.fromkeys(f"{view.record.dataset}@{str(view.record.commit)[:12]}" for view in views))
    if len(views) == len(seen) == 2:
        call.say(f"what differs in their data: dsv diff {seen[0]} {seen[1]}")


_FOR_PROGRAMS = RunRecord.keys("not shown")
_USUAL = {"nodes": 1, "retries": 0, "sent": True}
"""Usual values, which are not shown."""


def write_one(call: Call, view: RunView) -> None:
    """Write a line for each key of its JSON that is of use to a person."""
    record = view.record
    waits = record.state in (RunState.SUBMITTED, RunState.QUEUED)
    item = view.item() | {"started": None if waits else local_time(record.started_ms)}
    if record.ended_ms is not None:
        item["ended"] = local_time(record.ended_ms)
    if len(record.parts) < 2:
        item["parts"] = None
    curves = (view.series or {}).items()
    item["series"] = ", ".join(f"{name} ({format_count(curve.of, 'point')})" for name, curve in curves)
    kept = {
        key: value for key, value in item.items() if key not in _FOR_PROGRAMS and value != _USUAL.get(key)
    }
    lines = []
    for key, value in flattened(kept).items():
        if isinstance(value, list | tuple) and value and isinstance(value[0], dict):
            for part in value:
                known = {
                    name: field for name, field in flattened(part).items() if field not in (None, "", [], ())
                }
                lines.append((key, params_text(known)))
        elif value not in (None, "", [], (), {}):
            lines.append((key, _readable(key, value)))
    _write_lines(call, lines)


def _write_lines(call: Call, lines: Sequence[tuple[str, str]]) -> None:
    room = max(len(key) for key, _ in lines)
    for key, text in lines:
        call.line(f"{key:<{room}}  {text}")


def write_curve(call: Call, record: RunRecord, series: Mapping[str, Series], name: str) -> None:
    if (curve := series.get(name)) is None:
        named = ", ".join(first(list(series), 9))
        how = f"it has {named}" if named else "a job appends lines to $DSV_OUT/metrics.jsonl"
        raise NotFound(f"run {record.run} has no series {name}", subject=name, hint=how)
    if call.json:
        call.document({"series": {"name": name, "of": curve.of, "last": curve.last, "points": curve.points}})
    elif curve.points:
        from dsv.cli.plot import plot

        for line in plot(curve.points, call.around.columns()):
            call.line(line)
    call.say(f"{name}: {format_count(curve.of, 'point')}, the last value is {as_text(curve.last)}")


def write_key(call: Call, record: RunRecord) -> bool:
    """Write what is in the key of a run, and return whether its record gives the same key."""
    if record.once is None:
        raise NotFound(f"run {record.run} has no key", subject=record.run, hint="dsv run --once gives it one")
    key, members, again = record.once.key, document(record, {}), computed_again(record)
    call.result(once={"key": key, "again": again, "same": again == key, "document": in_rfc8785(members)})
    rows = flattened({"key": key, **members}).items()
    _write_lines(call, [(name.rstrip("."), "-" if value is None else as_text(value)) for name, value in rows])
    lacks = f"the key can't be computed again without the values of {', '.join(record.once.values)}"
    same = "the same" if again == key else f"another: {again}"
    call.say(f"the key, computed again from the record, is {same}" if again else lacks)
    return again == key


def _readable(key: str, value: Json) -> str:
    if isinstance(value, int | float) and not key.startswith(("params.", "metrics.")):
        if key.endswith("bytes"):
            return format_bytes(int(value))
        if key.endswith("seconds"):
            return format_duration(value)
    return as_text(value)


def _row(call: Call, view: RunView) -> list[str]:
    record = view.record
    took = "-" if view.took_seconds is None else format_duration(view.took_seconds)
    return [
        _short(call, record),
        record.name or "-",
        data_text(record, 8 if call.around.stdout_is_terminal else 12),
        local_time(record.started_ms),
        took,
        _painted(state_text(view)),
    ]


def _short(call: Call, record: RunRecord) -> str:
    """Return the id; on a terminal, only its end, which every command accepts."""
    return record.run[-8:] if call.around.stdout_is_terminal else record.run


def _by_interest(keys: Sequence[str], cells: Mapping[str, Sequence[str]], first: Sequence[str]) -> list[str]:
    """Sort keys: those asked for, those that differ, those that are equal in all runs, and last those that
    most runs don't have; parameters and metrics alternate."""
    params = sum(key.startswith("params.") for key in keys)
    turn = {key: number if number < params else number - params for number, key in enumerate(keys)}
    sparse = {key: 2 * sum(cell.rstrip() == "-" for cell in cells[key]) > len(cells[key]) for key in keys}
    return sorted(keys, key=lambda key: (key not in first, sparse[key], len(set(cells[key])) == 1, turn[key]))


def _that_fit(
    keys: Sequence[str], titles: Mapping[str, str], cells: Mapping[str, Sequence[str]], room: int
) -> Sequence[str]:
    """Return the keys that fit; all if no key fits, because the table is then written one value per line."""
    shown: list[str] = []
    for key in keys:
        needs = len(GAP) + min(_WIDEST, max(width(text) for text in (titles[key], *cells[key])))
        if needs <= room:
            shown.append(key)
            room -= needs
    return shown or keys


def _wide(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> int:
    """Return the least width of these columns: those that may be shortened are."""
    needs = [max(map(width, column)) for column in zip([each.head for each in columns], *rows, strict=True)]
    least = [
        need if column.keep else min(need, _SHORTENED) for column, need in zip(columns, needs, strict=True)
    ]
    return sum(least) + len(GAP) * (len(columns) - 1)


def _cell(value: Json) -> str:
    """Return a value in a short form: six digits of a number, and a dash for none."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return repr(value) if len(repr(value)) <= 8 else f"{value:.6g}"
    return as_text(value)


def _shown(key: str, value: Json) -> str:
    if isinstance(value, int) and key.endswith("bytes"):
        return format_bytes(value)
    if value is not None and key.endswith("seconds") and not key.startswith(("params.", "metrics.")):
        return _readable(key, value)
    return str(value)[:12] if key in ("commit", "code.commit") else _cell(value)


def _exact(value: Json) -> str:
    return "" if value is None else as_text(value)


def _write_csv(call: Call, rows: Sequence[Sequence[str]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    call.out.write(text.getvalue().encode("utf-8", "surrogateescape"))
