"""The two plots: files per second against the number of files, time against the bytes that changed."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.notebook import Notebook


def draw(book: Notebook, output: Path) -> list[tuple[str, Path]]:
    """(title, file) of each plot; a plot without figures is left out."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "dsv"  # the same figures give the same file
    output.mkdir(parents=True, exist_ok=True)
    made = []
    for title, name, plot in (
        ("Files per second against the number of files", "files-per-second.svg", _files_per_second),
        ("Time against the bytes that changed", "time-by-change.svg", _time_by_change),
    ):
        curves = plot(book)
        if curves:
            _save(title, curves, output / name, *AXES[name])
            made.append((title, output / name))
    return made


AXES = {
    "files-per-second.svg": ("files of 1 KB", "files per second"),
    "time-by-change.svg": ("bytes changed, of 50,000 files of 8 KB", "seconds"),
}
Curves = dict[str, list[tuple[float, float]]]


def _files_per_second(book: Notebook) -> Curves:
    curves: Curves = {}
    for row in book.rows:
        if "files of 1 KB" in row.work and row.work.endswith(("up", "down")):
            files = median(row.figures["files"])
            curves.setdefault(f"{row.program}, {row.work.rsplit(' ', 1)[1]}", []).append(
                (files, files / row.median)
            )
    return curves


def _time_by_change(book: Notebook) -> Curves:
    curves: Curves = {}
    for row in book.rows:
        verb = row.work.split(",")[0]
        if row.work.endswith(" changed") and "changed" in row.figures:
            curves.setdefault(verb, []).append((median(row.figures["changed"]), row.median))
    return curves


def _save(title: str, curves: Curves, path: Path, across: str, upward: str) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    plotted: Any = axes
    for name, points in sorted(curves.items()):
        plotted.plot(*zip(*sorted(points), strict=True), marker="o", label=name)
    plotted.set(title=title, xlabel=across, ylabel=upward, xscale="log", yscale="log")
    plotted.grid(alpha=0.3)
    plotted.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
