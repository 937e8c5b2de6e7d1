"""Tables and plots from the figures, for RESULTS.md and, between two marks, for docs/internals/performance.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from textwrap import fill

from benchmarks.notebook import Notebook, Row
from benchmarks.plots import draw

FROM, TO = "<!-- figures: made by python -m benchmarks -->", "<!-- end of figures -->"
HEAD = """\
# Results

Made by `python -m benchmarks`. [Performance](../docs/internals/performance.md) says what the figures mean."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A ratio or a figure that is to be held. `value` raises KeyError where it was not measured."""

    what: str
    target: str
    value: Callable[[Figures], float]
    reached: Callable[[float], bool]
    unit: str = ""


class Figures:
    """Medians by work and program."""

    def __init__(self, book: Notebook) -> None:
        self._rows = {(row.work, row.program): row for row in book.rows}

    def date(self, work: str, program: str) -> str:
        return self._rows[work, program].date

    def seconds(self, work: str, program: str = "dsv") -> float:
        return self._rows[work, program].median

    def figure(self, work: str, name: str, program: str = "dsv") -> float:
        return median(self._rows[work, program].figures[name])

    def memory(self, work: str, program: str = "dsv") -> float:
        return max(self._rows[work, program].memory)


def _at_least(bound: float) -> Callable[[float], bool]:
    return lambda value: value >= bound


def _at_most(bound: float) -> Callable[[float], bool]:
    return lambda value: value <= bound


LAST, BEFORE = "627615 files of 1 KB", "50209 files of 1 KB"


def _per_file(way: str) -> Callable[[Figures], float]:
    """Time per file of the largest set against that of the one with about 50,000."""

    def value(figures: Figures) -> float:
        each = [
            figures.seconds(work) / figures.figure(work, "files")
            for work in (f"{LAST} {way}", f"{BEFORE} {way}")
        ]
        return each[0] / each[1]

    return value


def _ratio(work: str, program: str, reference: str) -> Callable[[Figures], float]:
    """How many times as long one program takes as the other."""
    return lambda figures: figures.seconds(work, program) / figures.seconds(work, reference)


def _against_copy(work: str, way: str) -> Callable[[Figures], float]:
    """Against `cp -r` of the same files from folder to folder."""
    return lambda figures: figures.seconds(work) / figures.seconds(f"small files {way} a folder", "cp -r")


def _over_the_wire(work: str) -> Callable[[Figures], float]:
    """Against the bytes over the bandwidth plus 20 round trips."""
    return lambda figures: figures.seconds(work) / (50_000 * 8192 * 8 / 1e9 + 20 * 0.020)


def _seconds(work: str) -> Callable[[Figures], float]:
    return lambda figures: figures.seconds(work)


def _memory(work: str) -> Callable[[Figures], float]:
    return lambda figures: figures.memory(work) / 2**20


def _goals_of_transfers() -> Iterator[Goal]:
    for way in ("to", "from"):
        small, large = f"small files {way} S3", f"large files {way} S3"
        yield Goal(f"{small}: s5cmd / dsv", "≥ 12", _ratio(small, "s5cmd", "dsv"), _at_least(12))
        yield Goal(f"{small}: DVC / dsv", "≥ 50", _ratio(small, "dvc", "dsv"), _at_least(50))
        yield Goal(f"{small}: dsv / cp -r", "≤ 1.5", _against_copy(small, way), _at_most(1.5))
        yield Goal(f"{large}: dsv / s5cmd", "≤ 1", _ratio(large, "dsv", "s5cmd"), _at_most(1))
        for work in (f"small files {way} a folder", f"large files {way} a folder"):
            yield Goal(f"{work}: dsv / restic", "≤ 0.6", _ratio(work, "dsv", "restic"), _at_most(0.6))
        far, wide = f"{small} over 20 ms", f"{large} over 20 ms"
        yield Goal(f"{far}: dsv / what the wire takes", "≤ 1.3", _over_the_wire(far), _at_most(1.3))
        yield Goal(f"{wide}: dsv / s5cmd", "≤ 1", _ratio(wide, "dsv", "s5cmd"), _at_most(1))
    work = "small files from a folder"
    yield Goal(f"{work}: dsv / cp -r", "≤ 1", _ratio(work, "dsv", "cp -r"), _at_most(1))
    for shape in ("small", "large"):
        work = f"{shape} files from a folder"
        yield Goal(f"{work}: dsv / cp -r; sync -f", "≤ 1", _ratio(work, "dsv", "cp -r; sync -f"), _at_most(1))


def _goals_of_changes() -> Iterator[Goal]:
    same, one, hundredth = "sync, nothing changed", "sync, one file changed", "cache, 1% changed"
    insert = "1 KB inserted into 1 GiB"
    yield Goal(f"{same}: dsv / find", "≤ 4", _ratio(same, "dsv", "find"), _at_most(4))
    yield Goal(f"{one}: / {same}", "< 2", lambda f: f.seconds(one) / f.seconds(same), _at_most(2))
    yield Goal(
        f"{one}: uploaded beside it",
        "≤ 300 KB",
        lambda f: f.figure(one, "uploaded") / 1e3 - 8.2,
        _at_most(300),
        " KB",
    )
    yield Goal(
        f"{insert}: uploaded", "≤ 6 MiB", lambda f: f.figure(insert, "uploaded") / 2**20, _at_most(6), " MiB"
    )
    yield Goal(
        f"{hundredth}: fetched / changed",
        "≤ 1.5",
        lambda f: f.figure(hundredth, "fetched") / f.figure(hundredth, "changed"),
        _at_most(1.5),
    )
    yield Goal(
        f"{hundredth}, less the fetch of that alone: / cp -al",
        "≤ 1.3",
        lambda f: (
            (f.seconds(hundredth) - f.seconds("cache, the changed 1% alone"))
            / f.seconds("link the tree", "cp -al")
        ),
        _at_most(1.3),
    )


def _goals_of_size() -> Iterator[Goal]:
    for files in ("", ", 627615 files"):
        work = f"a cache hit{files}"
        yield Goal(work, "≤ 0.3 s", _seconds(work), _at_most(0.3), " s")
    for way in ("up", "down"):
        many = f"{LAST} {way}"
        yield Goal(f"{many}: per file, against {BEFORE}", "≤ 1.3", _per_file(way), _at_most(1.3))
        yield Goal(f"{many}: memory", "< 700 MiB", _memory(many), _at_most(700), " MiB")
    for what, bound in (("1,000,000 files", 700), ("a file of 20 GB", 400)):
        for verb in ("sync", "cache"):
            work = f"memory: {verb} {what}"
            yield Goal(work, f"< {bound} MiB", _memory(work), _at_most(bound), " MiB")
    for name in ("dsv", "help"):
        yield Goal(f"start, {name} / python -c pass", "≤ 8", _ratio("start", name, "python"), _at_most(8))


GOALS = [*_goals_of_transfers(), *_goals_of_changes(), *_goals_of_size()]


# The rows of the short table, and the programs that are its columns.
SHORT = (
    "small files to S3",
    "small files from S3",
    "large files to S3",
    "large files from S3",
    "small files to a folder",
    "small files from a folder",
    "large files to a folder",
    "large files from a folder",
    "small files to S3 over 20 ms",
    "small files from S3 over 20 ms",
    "large files to S3 over 20 ms",
    "large files from S3 over 20 ms",
)
COLUMNS = ("dsv", "cp -r", "s5cmd", "restic", "dvc")


def write(book: Notebook, output: Path) -> None:
    """Write every figure into benchmarks/RESULTS.md; the short table and the plots into the page about performance."""
    results = [HEAD, _about(book), _goals(Figures(book)), _rows(book.rows)]
    (output / "benchmarks/RESULTS.md").write_text("\n\n".join(results) + "\n")
    page = output / "docs/internals/performance.md"
    plots = draw(book, page.with_suffix(""))
    text = page.read_text() if page.exists() else f"# Performance\n\n{FROM}\n{TO}\n"
    before, rest = text.split(FROM)
    body = [FROM, _about(book), _short(Figures(book), str(book.about["date"]))]
    body += [f"![{title}]({page.stem}/{path.name})" for title, path in plots]
    page.write_text(before + "\n\n".join(body) + "\n\n" + TO + rest.split(TO)[1])
    print(f"written: {page}")


def _about(book: Notebook) -> str:
    about = book.about
    versions = about["versions"]
    assert isinstance(versions, dict)
    memory = int(str(about["memory"])) / 2**30
    text = (
        f"Measured on {about['date']}, {about['cores']} cores, {memory:.0f} GiB, Linux {about['kernel']}, Python "
        f"{about['python']}; {', '.join(versions.values())}. Medians of {about['rounds']} interleaved rounds; page "
        "caches are warm, and but for the rows over 20 ms the server is on loopback, on the same cores."
    )
    return fill(text, 120)


def _goals(figures: Figures) -> str:
    lines = ["| | target | here | |", "|---|---|---|---|"]
    for goal in GOALS:
        try:
            value = goal.value(figures)
        except KeyError:
            continue
        mark = "reached" if goal.reached(value) else "**not reached**"
        lines.append(f"| {goal.what} | {goal.target} | {value:.3g}{goal.unit} | {mark} |")
    return "\n".join(lines)


def _short(figures: Figures, date: str) -> str:
    """The medians of some works in seconds, with the programs beside each other. Those of another date have a mark."""
    earlier = set[str]()
    lines = ["| seconds | " + " | ".join(COLUMNS) + " |", "|---|" + "--:|" * len(COLUMNS)]
    for work in SHORT:
        cells = []
        for program in COLUMNS:
            try:
                measured = figures.date(work, program) or date
                cells.append(f"{figures.seconds(work, program):.2f}" + ("" if measured == date else r" \*"))
                earlier |= {measured} - {date}
            except KeyError:
                cells.append("")
        lines.append(f"| {work} | " + " | ".join(cells) + " |")
    if earlier:
        lines += ["", rf"\* on {', '.join(sorted(earlier))}"]
    return "\n".join(lines)


def _rows(rows: list[Row]) -> str:
    lines = ["| work | program | date | seconds | range | processor | memory | largest process | |"]
    lines.append("|---|---|---|--:|--:|--:|--:|--:|---|")
    for row in rows:
        spread = f"{min(row.seconds):.2f}–{max(row.seconds):.2f}"
        more = ", ".join(f"{name} {median(values):,.0f}" for name, values in row.figures.items())
        lines.append(
            f"| {row.work} | {row.program} | {row.date} | {row.median:.2f} | {spread} | {median(row.cpu):.2f} s "
            f"| {_mebibytes(row.memory)} | {_mebibytes(row.largest)} | {more} |"
        )
    return "\n".join(lines)


def _mebibytes(sizes: list[int]) -> str:
    return f"{max(sizes) / 2**20:.0f} MiB"
