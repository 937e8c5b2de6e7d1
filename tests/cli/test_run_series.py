"""`metrics.jsonl` of a job: `dsv runs ID`, `--plot` and `--watch`, Python, and the machines of a cluster."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from subprocess import Popen

import pytest

from dsv import store
from dsv.cli.plot import plot
from dsv.errors import IntegrityError
from dsv.format.keys import METRICS_PREFIX, beat_key, run_key
from dsv.run.node_order import MEASURING
from dsv.run.record import SERIES, RunState
from dsv.run.series import PIECE, Curves, pieces_of, series_of
from dsv.stores.directory import DirectoryStore
from dsv.values.secrets import Masker
from tests.cli.test_node_left import PETS, RUN, Left, either
from tests.cli.test_site import site
from tests.kit.dsv import Dsv
from tests.waiting import until

assert either  # a fixture
PATCHED = "import sys, dsv.run.series as series; series.PAUSE = 0.05; from dsv.cli import main; sys.exit(main.main())"
LINES = [{"step": step, "loss": math.exp(-step / 30), "val": {"acc": step / 100}} for step in range(100)]
JOB = f"""
import json, os
with open(os.environ["DSV_OUT"] + "/metrics.jsonl", "w") as file:
    for line in {LINES!r}:
        file.write(json.dumps(line) + chr(10))
    file.write('{{"step": 100, "bad": NaN}}')
"""


def ran(dsv: Dsv) -> str:
    (dsv.cwd / "job.py").write_text(JOB)
    assert dsv.process("run", "pets", "--", sys.executable, "job.py").code == 0
    return str(dsv.ok("runs", "--json").json["items"][0]["run"])


def test_a_run_says_what_series_it_has_and_draws_them(pets: Dsv) -> None:
    run = ran(pets)
    assert "series  " in pets.ok("runs", run).out and "loss (100 points)" in pets.ok("runs", run).out
    (item,) = pets.ok("runs", run, "--json").json["items"]
    assert item["series"] == {
        "loss": {"of": 100, "last": LINES[-1]["loss"]},
        "val.acc": {"of": 100, "last": 0.99},
        "bad": {"of": 0, "last": "NaN"},
    }
    assert item["metrics"] == {"loss": LINES[-1]["loss"], "val.acc": 0.99, "bad": "NaN"}
    assert "series" not in pets.ok("runs", "--json").json["items"][0], "a list takes no request for each run"
    drawn = pets.ok("runs", run, "--plot", "val.acc")
    assert drawn.lines[0].startswith("0.99 |") and "\u28ff" >= drawn.lines[0][-1] > "\u2800"
    assert len(drawn.lines) == 17 and max(map(len, drawn.lines)) == 80
    assert "\u28ff" >= drawn.lines[-2].strip()[3] > "\u2800" and drawn.lines[-1].split() == ["0", "99"]
    document = pets.ok("runs", run, "--plot", "loss", "--json").json["series"]
    assert document["points"] == [[line["step"], line["loss"]] for line in LINES]
    assert pets.ok("runs", run, "--plot", "bad").out == ""
    missing = pets("runs", run, "--plot", "acc")
    assert missing.code == 3 and "it has loss, val.acc, bad" in missing.err
    read = store(pets.ok("config", "store").out.strip()).series(run[-8:])
    assert read["val.acc"].points == [(step, step / 100) for step in range(100)]


def test_a_run_without_series(pets: Dsv) -> None:
    assert pets.process("run", "pets", "--", "true").code == 0
    run = str(pets.ok("runs", "--json").json["items"][0]["run"])
    assert pets.ok("runs", run, "--json").json["items"][0]["series"] == {}
    missing = pets("runs", run, "--plot", "loss")
    assert missing.code == 3 and "a job appends lines to $DSV_OUT/metrics.jsonl" in missing.err
    for more in (["--json"], ["--csv"], ["--log"], ["--compare"]):
        assert pets("runs", run, "--watch", *more).code == 2


def test_a_damaged_series_does_not_hide_its_run(pets: Dsv) -> None:
    run, there = ran(pets), DirectoryStore(Path(pets.ok("config", "store").out.strip()))
    there.delete(run_key(PETS, run, SERIES))
    there.put_if_absent(run_key(PETS, run, SERIES), b"other")
    assert "metrics.val.acc" in pets.ok("runs", run).out and "series  " not in pets.ok("runs", run).out
    damaged = pets("runs", run, "--plot", "loss")
    assert damaged.code == IntegrityError.exit_code and "has no series of a run" in damaged.err


def test_watch_shows_a_run_until_it_has_ended(pets: Dsv, monkeypatch: pytest.MonkeyPatch) -> None:
    (pets.cwd / "job.py").write_text(JOB + "while not os.path.exists('go'): __import__('time').sleep(0.02)\n")
    monkeypatch.setattr("dsv.cli.commands.runs.WATCH", 0.05)
    there = DirectoryStore(Path(pets.ok("config", "store").out.strip()))
    argv = [sys.executable, "-c", PATCHED, "run", "pets", "--", sys.executable, "job.py"]
    with Popen(argv, cwd=pets.cwd, env=dict(pets.environ)) as running:
        until(lambda: list(there.list(METRICS_PREFIX)))
        seen: list[str] = []

        def pause(seconds: float) -> None:
            seen.append("")
            pages = [path.read_text("utf-8") for path in site(pets).rglob("*.html")]
            assert any(">0.99<" in text and "running" in text for text in pages)
            assert any("val.acc: from 0 (0) to 0.99 (99)" in text for text in pages)
            (pets.cwd / "go").touch()
            assert running.wait() == 0 and seconds == 0.05

        monkeypatch.setattr("dsv.cli.commands.runs.sleep", pause)
        shown = pets.ok("runs", "--watch")
    assert seen == [""] and [line.split()[0] for line in shown.lines].count("RUN") == 2
    assert f"{0.99}" in shown.lines[1] and "ok" in shown.lines[3], "with metrics while it ran"
    assert list(there.list(METRICS_PREFIX)) == [] and seen == [""]
    assert pets.ok("runs", "--watch").lines == shown.lines[2:], "it ends at once"


def test_a_plot_of_extreme_values() -> None:
    for points in (
        [(0, 1.0)],
        [(0, -1.7e308), (1, 1.7e308)],
        [(5, 2), (5, 3), (4, 2.5)],
        [(0, 0), (1 << 53, 0)],
    ):
        drawn = plot(points, 80)
        assert len(drawn) == 17 and max(map(len, drawn)) <= 80
        assert any(mark in "".join(drawn) for mark in map(chr, range(0x2801, 0x2900)))
    assert plot([(0, 0.125), (1, 0.25)], 30)[0] == " 0.25 |" + " " * 21 + "\u2860\u280a"


def test_a_job_may_write_millions_of_lines_that_are_no_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    monkeypatch.setattr("dsv.run.series._parsed", lambda line: parsed.append(line) or {})
    curves = Curves()
    curves.take(b"\n" * 10_000 + b"epoch 1\n" * 10_000 + b'  {"loss": 1}\n' + b"[1]\n\xff\n")
    assert parsed == [b'  {"loss": 1}']


def test_what_a_series_takes_of_odd_lines() -> None:
    curves = Curves()
    curves.take(b'{"step": -5, "a": 1}\n{"step": NaN, "a": Infinity}\n{"step": "x", "a": true}\n{"a"')
    curves.take(b': 1e400}\n{"a": ' + b"9" * 5_000 + b'}\n{"b":' * 3_000 + b"\n" + b"x" * 300_000)
    curves.take(b'\n{"step": 1e300, "a": 5, "\\u001b[31m": 2}\r\n{"\\ud800": 1}\n{"a": 1} {"a": 2}\n')
    series = json.loads(curves.encode(Masker()))["series"]
    assert series["a"] == {"points": [[-5, 1], [1e300, 5]], "of": 2, "last": 5} and set(series) == {
        "a",
        "\x1b[31m",
    }


def test_a_node_puts_metrics_until_its_command_ends(pets: Dsv) -> None:
    out, go = pets.home / "out", pets.home / "go"
    out.mkdir()
    there = DirectoryStore(Path(pets.ok("config", "store").out.strip()))
    script = f'test -z "${MEASURING}" || exit 9; echo \'{{"sesame-opens-it": 1}}\' >{out}/metrics.jsonl'
    wait = ["sh", "-c", f"{script}; while ! test -e {go}; do sleep 0.05; done"]
    argv = [sys.executable, "-c", PATCHED, "with", "pets", "--", *wait]
    node = pets.at(pets.cwd, **{MEASURING: f"pets/{RUN}:{out}", "DSV_JOB_SECRET_TOKEN": "sesame-opens-it"})
    with Popen(argv, cwd=pets.cwd, env=dict(node.environ)) as job:
        until(lambda: series_of(there, PETS, RUN))
        assert {name: curve.of for name, curve in series_of(there, PETS, RUN).items()} == {"***": 1}
        go.touch()
        assert job.wait() == 0
    assert len(pieces_of(there, PETS, RUN)) == 1, "whoever completes the record removes it"


def test_a_node_killed_at_any_step_leaves_the_whole_series_to_the_next(either: Left) -> None:
    either.begin()
    (either.out / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in LINES))
    curves, there = Curves(), DirectoryStore(either.store)
    curves.take(b'{"loss": 1}\n')
    for number in (3, 4):
        there.put_if_absent(beat_key(PETS, RUN, number, METRICS_PREFIX), curves.encode(Masker(), PIECE))
    for _ in either.killed_at_each_step():
        either.complete()
        assert either.record().state is RunState.ENDED and either.record().metrics == {"acc": 0.9}
        there = DirectoryStore(either.store)  # its folder is another
        assert {name: each.of for name, each in series_of(there, PETS, RUN).items()} == {
            "loss": 100,
            "val.acc": 100,
        }
        either.runs.repair_edges(lambda _: None, print)
        assert pieces_of(there, PETS, RUN) == []
