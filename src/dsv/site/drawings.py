"""Drawings: a line over time, bars, the lanes of a history, and a graph in layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from dsv.site.blocks import Drawing, SvgShape, cut
from dsv.values.units import utc

_WIDE, _FLOOR, _LEFT = 454.0, 130.0, 62.0
_LANE, _ROW, _MOST_LANES = 14, 34, 32
_BOX, _TALL, _ACROSS, _DOWN = 210.0, 46.0, 274.0, 62.0
"""Of a box in a graph its width and height, and the distances to the next ones."""


def line(title: str, points: Sequence[tuple[float, float]], shown: Callable[[float], str], *, times: bool = True,
         dots: bool = False) -> Drawing:  # fmt: skip
    """Draw values by time (milliseconds), or by step. dots: each value on its own, and not from zero on."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    least, most, first = min(ys), max(ys), min(xs)
    low, high = (least, most) if dots else (min(0.0, least), most)
    pad, span = 0.06 * (high - low) or 1.0, (max(xs) - first) or 1.0
    low, high = low - pad * dots, high + pad

    def down(y: float) -> float:
        return round(_FLOOR - (y - low) / (high - low) * (_FLOOR - 8), 1)

    def named(x: float) -> str:
        return f"{utc(x):%Y-%m-%d}" if times else f"{x:g}"

    placed = [(round(_LEFT + (x - first) / span * (_WIDE - _LEFT - 4), 1), down(y)) for x, y in points]
    shapes = [SvgShape("path", "axis", path=f"M{_LEFT} 4V{_FLOOR}H{_WIDE}")]
    for value in (least, most) if down(least) - down(most) > 14 else (most,):
        shapes.append(SvgShape("path", "grid", path=f"M{_LEFT} {down(value)}H{_WIDE}"))
        shapes.append(SvgShape("text", "end", _LEFT - 5, down(value) + 4, text=shown(value)))
    begin, end = named(first), named(max(xs))
    shapes.append(SvgShape("text", "", _LEFT, _FLOOR + 15, text=begin))
    shapes += [SvgShape("text", "end", _WIDE, _FLOOR + 15, text=end)] if begin != end else []
    if not dots and len(points) > 1:
        way = "L".join(f"{x} {y}" for x, y in placed)
        shapes.append(SvgShape("path", "area", path=f"M{placed[0][0]} {_FLOOR}L{way}V{_FLOOR}Z"))
        shapes.append(SvgShape("path", "line", path=f"M{way}"))
    shapes += [SvgShape("circle", "dot", x, y, 3) for x, y in placed] if dots or len(points) < 40 else []
    ends = f"from {shown(ys[0])} ({begin}) to {shown(ys[-1])} ({end})"
    said = f"{title}: {ends}, least {shown(least)}, most {shown(most)}"
    return Drawing(said, _WIDE + 6, _FLOOR + 20, tuple(shapes), "plot")


def spark(values: Sequence[float]) -> Drawing:
    high, step = max(values) or 1, 80 / max(1, len(values) - 1)
    way = "L".join(
        f"{round(at * step, 1)} {round(22 - 20 * value / high, 1)}" for at, value in enumerate(values)
    )
    shapes = (SvgShape("path", "area", path=f"M0 23L{way}V23Z"), SvgShape("path", "line", path=f"M{way}"))
    return Drawing("bytes over time", 82, 24, shapes)


def bars(counts: Sequence[int]) -> Drawing:
    wide, unit = round(96 / max(1, len(counts)), 2), 23 / (max(counts, default=0) or 1)
    shapes = [
        SvgShape(
            "rect",
            "bar",
            round(at * wide, 2),
            round(24 - count * unit, 1),
            round(wide - 1, 2),
            round(count * unit, 1),
        )
        for at, count in enumerate(counts)
    ]
    said = f"histogram: {', '.join(map(str, counts))}"
    return Drawing(said, 96, 24, (*shapes, SvgShape("path", "axis", path="M0 24H96")))


def bar(share: float) -> Drawing:
    shapes = (
        SvgShape("rect", "track", 0, 0, 120, 10),
        SvgShape("rect", "bar", 0, 0, round(120 * share, 1), 10),
    )
    return Drawing(f"{share:.0%}", 120, 10, shapes)


def lanes(rows: Iterable[tuple[object, Sequence[object]]]) -> list[Drawing]:
    """Return a piece of the graph for each commit, children first. rows: commits with their parents."""
    below, pieces, wide, half = list[object](), list[list[SvgShape]](), 1, _ROW // 2

    def x(lane: int) -> int:
        return _LANE // 2 + _LANE * min(lane, _MOST_LANES - 1)

    for commit, parents in rows:
        above = list(below)
        below += [] if commit in below else [commit]
        own = below.index(commit)
        new = [parent for parent in parents if parent not in below]
        wide = max(wide, len(below))
        below[own : own + 1] = new[:1]
        below += new[1:]
        ways = [f"M{x(own)} 0V{half}"] if commit in above else []
        for lane, waited in enumerate(above):
            if waited != commit:
                to = x(below.index(waited))
                ways.append(f"M{x(lane)} 0C{x(lane)} {half} {to} {half} {to} {_ROW}")
        down = [x(below.index(parent)) for parent in parents]
        ways += [f"M{x(own)} {half}C{x(own)} {_ROW} {to} {half} {to} {_ROW}" for to in down]
        dot = SvgShape("circle", "merge" if len(parents) > 1 else "dot", x(own), half, 4.5)
        pieces.append([*(SvgShape("path", "edge", path=way) for way in ways), dot])
        wide = max(wide, len(below))
    return [Drawing("", _LANE * min(_MOST_LANES, wide), _ROW, tuple(shapes), "lanes") for shapes in pieces]


class GraphNode(NamedTuple):
    first: str
    second: str
    page: str | None
    look: str


def layered(nodes: Mapping[str, GraphNode], edges: Sequence[tuple[str, str]], label: str) -> Drawing:
    """Draw a graph: what was first is on the left."""
    layer, filled, places = dict.fromkeys(nodes, 0), dict[int, int](), dict[str, tuple[float, float]]()
    for _ in nodes:  # as many rounds as the longest way has steps; a circle ends too
        for source, target in edges:
            layer[target] = max(layer[target], min(layer[source] + 1, len(nodes) - 1))
    for key in sorted(nodes, key=lambda node: layer[node]):
        row = filled[layer[key]] = filled.get(layer[key], -1) + 1
        places[key] = (4 + layer[key] * _ACROSS, 4 + row * _DOWN)
    shapes, gap = list[SvgShape](), (_ACROSS - _BOX) / 2
    for source, target in edges:
        (x, y), (to, down) = places[source], places[target]
        x, y, down = x + _BOX, y + _TALL / 2, down + _TALL / 2
        shapes.append(SvgShape("path", "edge", path=f"M{x} {y}C{x + gap} {y} {to - gap} {down} {to} {down}"))
    for key, node in nodes.items():
        x, y = places[key]
        shapes.append(SvgShape("rect", f"box {node.look}", x, y, _BOX, _TALL))
        shapes.append(SvgShape("text", "", x + 9, y + 19, text=cut(node.first, 26), page=node.page))
        shapes.append(SvgShape("text", "pale", x + 9, y + 36, text=cut(node.second, 32)))
    wide, high = (
        max(layer.values(), default=0) * _ACROSS + _BOX + 8,
        max(filled.values(), default=0) * _DOWN + _TALL + 8,
    )
    return Drawing(label, wide, high, tuple(shapes), "graph")
