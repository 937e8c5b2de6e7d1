"""What was measured, as it goes into the JSON file."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import cast

from benchmarks.measure import Cost


@dataclass(slots=True)
class Row:
    """One program at one piece of work: a list per figure, one value per round."""

    work: str
    program: str
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    largest: list[int] = field(default_factory=list)
    figures: dict[str, list[float]] = field(default_factory=dict)
    date: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass(slots=True)
class Notebook:
    """Rows in the order they were begun, and what there is to know about the machine and the programs."""

    path: Path
    about: dict[str, object] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    begun: set[tuple[str, str]] = field(default_factory=set)

    @classmethod
    def new(cls, path: Path, versions: Mapping[str, str], rounds: int) -> Notebook:
        """One that keeps what an earlier run measured, but for what its programs measure again."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        about: dict[str, object] = {
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "kernel": platform.release(),
            "cores": len(os.sched_getaffinity(0)),
            "memory": memory,
            "python": platform.python_version(),
            "versions": dict(versions),
            "rounds": rounds,
        }
        if not path.exists():
            return cls(path, about)
        earlier = cls.load(path)
        about["versions"] = {**cast("dict[str, str]", earlier.about["versions"]), **versions}
        for row in earlier.rows:
            row.date = row.date or str(earlier.about["date"])
        return cls(path, about, earlier.rows)

    @classmethod
    def load(cls, path: Path) -> Notebook:
        kept = json.loads(path.read_text())
        return cls(path, kept["about"], [Row(**row) for row in kept["rows"]])

    def row(self, work: str, program: str) -> Row:
        """The row of that name, a new one if there is none."""
        for row in self.rows:
            if (row.work, row.program) == (work, program):
                return row
        self.rows.append(Row(work, program))
        return self.rows[-1]

    def add(self, work: str, program: str, cost: Cost, **figures: float) -> None:
        """Note one round's cost, print it and save everything so far."""
        if (work, program) not in self.begun:
            self.begun.add((work, program))
            self.rows = [row for row in self.rows if (row.work, row.program) != (work, program)]
        row = self.row(work, program)
        row.date = str(self.about["date"])
        row.seconds.append(cost.seconds)
        row.cpu.append(cost.cpu)
        row.memory.append(cost.memory)
        row.largest.append(cost.largest)
        for name, value in figures.items():
            row.figures.setdefault(name, []).append(value)
        extra = "".join(f"  {name} {value:,.0f}" for name, value in figures.items())
        extra += f"  {cost.memory >> 20} MiB, {cost.largest >> 20} in one process"
        print(f"  {work:<44} {program:<8} {cost.seconds:8.2f} s  {cost.cpu:7.2f} cpu{extra}", flush=True)
        self.save()

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        document = {"about": self.about, "rows": [asdict(row) for row in self.rows]}
        self.path.write_text(json.dumps(document, indent=1) + "\n")
