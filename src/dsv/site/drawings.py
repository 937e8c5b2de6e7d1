"""Drawings: a line over time, bars, the lanes of a history, and a graph in layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from dsv.site.blocks import Cell, Drawing, SvgShape, cut
from dsv.values.units import format_time

_LANE, _ROW, _MOST_LANES = 14, 34, 32
_BOX, _TALL, _ACROSS, _DOWN = 210.0, 46.0, 274.0, 62.0
"""Of a box in a graph its width and height, and the distances to the next ones."""


def _rect(x: float, y: float, width: float, height: float) -> str:
    return f"M{x:.1f} {y:.1f}h{width:.1f}v{height:.1f}h{-width:.1f}z"


def scaled(values: Sequence[float], most: float) -> list[float]:
    """Return numbers from 0 to `most`. Halves, because a difference may be larger than any number."""
    least, room = min(values) / 2, max(values) / 2 - min(values) / 2
    return [(value / 2 - least) / room * most if room else most / 2 for value in values]


def line(title: str, points: Sequence[tuple[float, float]], shown: Callable[[float], str], wide: int = 440,
         high: int = 120) -> Drawing:  # fmt: skip
    """Draw values by time (milliseconds since 1970), or by step. The label says where the line begins and ends."""
    steps, values = [x for x, _ in points], [y for _, y in points]
    places = zip(scaled(steps, wide - 4), scaled([0.0, *values], high - 4)[1:], strict=True)
    way = "L".join(f"{2 + x:.1f} {high - 2 - y:.1f}" for x, y in places)
    begin, end = (format_time(x)[:10] if x > 1e11 else f"{x:g}" for x in (steps[0], steps[-1]))
    ends = f"from {shown(values[0])} ({begin}) to {shown(values[-1])} ({end})"
    label = f"{title}: {ends}, least {shown(min(values))}, most {shown(max(values))}"
    shapes = SvgShape("area", f"M{way}V{high}H2Z"), SvgShape("line", f"M{way}")
    return Drawing(label, wide, high, shapes, "plot")


def bars(counts: Sequence[int]) -> Drawing:
    wide, unit = 96 / max(1, len(counts)), 23 / (max(counts, default=0) or 1)
    ways = (_rect(at * wide, 24 - count * unit, wide - 1, count * unit) for at, count in enumerate(counts))
    shapes = SvgShape("bar", "".join(ways)), SvgShape("axis", "M0 24H96")
    return Drawing(f"histogram: {', '.join(map(str, counts))}", 96, 24, shapes)


def bar(share: float) -> Drawing:
    shapes = SvgShape("track", _rect(0, 0, 120, 10)), SvgShape("bar", _rect(0, 0, 120 * share, 10))
    return Drawing(f"{share:.0%}", 120, 10, shapes)


def lanes(rows: Iterable[tuple[object, Sequence[object]]]) -> list[Drawing]:
    """Return a piece of the graph for each commit, children first. rows: commits with their parents."""
    below, pieces, wide, half = list[object](), list[tuple[SvgShape, ...]](), 1, _ROW // 2

    def x(commit: object) -> int:
        return _LANE // 2 + _LANE * min(below.index(commit), _MOST_LANES - 1)

    for commit, parents in rows:
        above = {waited: x(waited) for waited in below}
        below += [] if commit in below else [commit]
        own, at, wide = x(commit), below.index(commit), max(wide, len(below))
        new = [parent for parent in parents if parent not in below]
        below[at:] = [*new[:1], *below[at + 1 :], *new[1:]]
        ways = f"M{own} 0V{half}" if above.pop(commit, None) else ""
        for waited, place in above.items():
            ways += f"M{place} 0C{place} {half} {x(waited)} {half} {x(waited)} {_ROW}"
        ways += "".join(f"M{own} {half}C{own} {_ROW} {to} {half} {to} {_ROW}" for to in map(x, parents))
        dot = f"M{own - 4.5} {half}a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z"
        pieces.append((SvgShape("edge", ways), SvgShape("merge" if len(parents) > 1 else "dot", dot)))
    wide = _LANE * min(_MOST_LANES, max(wide, len(below)))
    return [Drawing("", wide, _ROW, shapes, "lanes") for shapes in pieces]


def layered(nodes: Mapping[str, Cell], edges: Sequence[tuple[str, str]], label: str) -> Drawing:
    """Draw a graph: what was first is on the left. nodes: each with a second line as the text beside it."""
    layer, filled, places = dict.fromkeys(nodes, 0), dict[int, int](), dict[str, tuple[float, float]]()
    for _ in nodes:  # as many rounds as the longest way has steps; a circle ends too
        for source, target in edges:
            layer[target] = max(layer[target], min(layer[source] + 1, len(nodes) - 1))
    for key in sorted(nodes, key=lambda node: layer[node]):
        row = filled[layer[key]] = filled.get(layer[key], -1) + 1
        places[key] = 4 + layer[key] * _ACROSS, 4 + row * _DOWN
    shapes, gap = list[SvgShape](), (_ACROSS - _BOX) / 2
    for source, target in edges:
        (x, y), (to, down) = places[source], places[target]
        x, y, down = x + _BOX, y + _TALL / 2, down + _TALL / 2
        shapes.append(SvgShape("edge", f"M{x} {y}C{x + gap} {y} {to - gap} {down} {to} {down}"))
    for key, node in nodes.items():
        x, y = places[key]
        shapes.append(SvgShape(f"box {node.look}", _rect(x, y, _BOX, _TALL)))
        shapes.append(SvgShape("", x=x + 9, y=y + 19, text=cut(node.text, 26)))
        shapes.append(SvgShape("pale", x=x + 9, y=y + 36, text=cut(node.more[0].text, 32)))
    across, down = max(layer.values(), default=0), max(filled.values(), default=0)
    return Drawing(label, across * _ACROSS + _BOX + 8, down * _DOWN + _TALL + 8, tuple(shapes), "graph")
