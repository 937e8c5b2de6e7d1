"""A curve in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from dsv.site.drawings import scaled

_ROWS = 16
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bits of a Braille character, which has 4 × 2 dots."""


def plot(points: Sequence[tuple[float, float]], columns: int) -> list[str]:
    """Return the lines of a plot of at least one point, joined by straight lines."""
    steps, values = [step for step, _ in points], [value for _, value in points]
    labels = [f"{max(values):.6g}", *[""] * (_ROWS - 2), f"{min(values):.6g}"]
    margin = max(map(len, labels))
    across, down = max(columns - margin - 2, 10), 4 * _ROWS - 1
    scales = scaled(steps, 2 * across - 1), scaled(values, down)
    places = list(zip(*(map(round, scale) for scale in scales), strict=True))
    cells = [[0] * across for _ in range(_ROWS)]
    for (x, y), (to_x, to_y) in pairwise([places[0], *places]):
        count = max(abs(to_x - x), abs(to_y - y), 1)
        for part in range(count + 1):
            column, row = x + (to_x - x) * part // count, down - y - (to_y - y) * part // count
            cells[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
    rows = ["".join(chr(0x2800 + cell) if cell else " " for cell in row) for row in cells]
    lines = [f"{label:>{margin}} |{row}".rstrip() for label, row in zip(labels, rows, strict=True)]
    first, last = f"{min(steps):.10g}", f"{max(steps):.10g}"
    return [*lines, " " * (margin + 2) + first + last.rjust(max(across - len(first), len(last) + 1))]
