"""runs: listed, searched, sorted, compared, and where a record can't be read."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import pytest

from tests.kit.dsv import Dsv, Result, write_files


@pytest.fixture
def pets(dsv: Dsv) -> Dsv:
    """With two runs."""
    write_files(dsv.cwd, {"a": b"a"})
    dsv.ok("init", "pets")
    dsv.ok("sync")
    for code in (0, 1):
        assert dsv.process("run", "pets", "--", "sh", "-c", f"exit {code}").code == code
    return dsv


def _change(pets: Dsv, exit_code: int, content: bytes | None = None, **change: object) -> str:
    """Another program has written the record of the run that ended so; its id."""
    records: list[Path] = list((pets.home / ".local/share/dsv/store/runs").rglob("record"))
    record = next(each for each in records if json.loads(each.read_text())["exit_code"] == exit_code)
    new = content or json.dumps(json.loads(record.read_text()) | change).encode()
    record.unlink()
    record.write_bytes(new)
    return record.parent.name


@pytest.mark.parametrize(
    ("content", "code", "why"), [(None, 9, "by a newer dsv"), (b"{}", 5, "is not a record")]
)
def test_one_record_hides_no_other(pets: Dsv, content: bytes | None, code: int, why: str) -> None:
    strange = _change(pets, 1, content, version=2)
    listed = pets.ok("runs")
    assert strange not in listed.out and len(listed.lines) == 2
    assert listed.err.startswith("warning: ") and why in listed.err and strange in listed.err
    items = pets.ok("runs", "--json").json["items"]
    assert [item["exit_code"] for item in items] == [0]
    assert pets("runs", strange).code == code
    assert pets("runs", items[0]["run"]).code == 0


def test_a_time_that_no_calendar_has(pets: Dsv) -> None:
    _change(pets, 1, started_ms=1 << 62, ended_ms=-(1 << 62))
    items = pets.ok("runs", "--json").json["items"]
    assert {(item["started"][:4], item["ended"][:4]) for item in items} >= {("9999", "1000")}
    assert len(pets.ok("runs").lines) == 3


def test_a_run_of_another_machine_is_listed_with_the_name_of_the_machine(pets: Dsv) -> None:
    """Only that machine can say that the run was cut off."""
    elsewhere = _change(pets, 1, state="running", ended_ms=None, host="gpu7")
    listed = pets.ok("runs")
    (row,) = [line for line in listed.lines if elsewhere in line]
    assert row.endswith("running on gpu7")
    (item,) = [item for item in pets.ok("runs", "--json").json["items"] if item["run"] == elsewhere]
    assert (item["state"], item["host"]) == ("running", "gpu7")


def test_in_another_store_the_runs_on_all_datasets_are_listed(pets: Dsv) -> None:
    """As outside of a workspace, whose dataset is one of its own store."""
    there = pets.at(pets.home / "dogs", DSV_STORE=str(pets.home / "other"))
    write_files(there.cwd, {"b": b"b"})
    there.ok("init", "dogs")
    there.ok("sync")
    there.process("run", "dogs", "--", "true")
    items = pets.ok("runs", "--store", str(pets.home / "other"), "--json").json["items"]
    assert [item["dataset"] for item in items] == ["dogs"]


def test_a_parameter_may_have_an_empty_value(pets: Dsv) -> None:
    pets.process("run", "pets", "-p", "note=", "--", "true")
    title, *rows = pets.ok("runs").lines
    assert title.split()[-1] == "note"
    assert sorted(row.split()[-1] for row in rows) == ["-", "-", "ok"], (
        "in any order: all began in a second or two"
    )
    assert "note" in pets("runs", terminal=True, width=100).out


def train(dsv: Dsv) -> Dsv:
    """Three runs on v1.0 with a parameter n and metrics that follow from it; the one with n=3 failed."""
    write_files(dsv.cwd, {"a": b"a"})
    dsv.ok("init", "pets")
    dsv.ok("sync")
    dsv.ok("tag", "v1.0")
    script = (
        'n=$(echo "$DSV_PARAMS" | tr -dc 0-9); echo "{\\"acc\\": 0.12345678$n, \\"val\\": {\\"loss\\": $n}}" '
        '> "$DSV_OUT/metrics.json"; [ $n != 3 ]'
    )
    for n in (2, 3, 1):
        dsv.process("run", "pets@v1.0", "-p", f"n={n}", "--name", f"base{n}", "--", "sh", "-c", script)
    return dsv


@pytest.fixture(scope="module")
def trained(dsv_of_the_file: Dsv) -> Dsv:
    """For tests that only read."""
    return train(dsv_of_the_file)


def _names(result: Result) -> list[str]:
    return [item["name"] for item in result.json["items"]]


def test_runs_are_sorted_and_filtered(trained: Dsv) -> None:
    def names(*arguments: str) -> list[str]:
        return _names(trained.ok("runs", "--json", *arguments))

    assert names("--sort", "metrics.acc") == ["base3", "base2", "base1"]
    assert names("--sort", "+metrics.acc") == ["base1", "base2", "base3"]
    assert names("--sort", "metrics.val.loss") == ["base1", "base2", "base3"]
    assert names("--sort", "-metrics.val.loss") == ["base3", "base2", "base1"]
    assert names("--sort", "params.n", "--reverse", "-n", "2") == ["base3", "base2"]
    assert names("--filter", "params.n>1", "--filter", "exit_code=0") == ["base2"]
    assert names("--filter", "params.n <= 2", "--sort", "name") == ["base1", "base2"]
    assert names("--filter", "name~se3") == names("--filter", "exit_code!=0") == ["base3"]
    assert names("--filter", "metrics.acc=null") == [] and len(names("--filter", "metrics.acc!=null")) == 3
    assert names("--filter", 'name="base1"', "--filter", "state=ended") == ["base1"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--filter", "metrics.nope>1"], 3, "no run has metrics.nope"),
        (["--sort", "metrics.ac"], 3, "these runs have metrics.acc"),
        (["--sort", "metrics.f1"], 3, "these runs have metrics.acc, metrics.val.loss"),
        (["--filter", "exit_code=0", "--sort", "params.zz"], 3, "these runs have params.n"),
        (["--filter", "acc>1"], 2, "did you mean metrics.acc?"),
        (["--filter", "acc"], 2, "invalid filter"),
        (["--dataset", "nope"], 3, "there is no dataset nope"),
        (["--csv", "--json"], 2, "can't be used together"),
        (["base1", "--sort", "name"], 2, "for lists"),
        (["base1", "--compare"], 2, "can't be compared"),
        (["base1", "base2", "--log"], 2, "--log needs one run"),
    ],
)
def test_a_question_that_can_t_be_answered_is_refused(
    trained: Dsv, arguments: list[str], code: int, said: str
) -> None:
    refused = trained("runs", *arguments)
    assert refused.code == code and said in refused.err + refused.out


def test_a_list_that_is_cut_says_so(trained: Dsv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsv.cli.commands.runs.SHOWN", 2)
    cut = trained.ok("runs")
    assert "only 2 runs are shown; --limit N shows N" in cut.err and len(cut.lines) == 3
    for whole in (("-n", "2"), ("-n", "3"), ("base1", "base2"), ("--json",), ("--filter", "params.n>1")):
        assert "are shown" not in trained.ok("runs", *whole).err
    newest = trained.ok("runs", "--json").json["items"][0]["run"]
    (stored,) = trained.home.rglob(f"runs/*/{newest}/record")
    whole_record = stored.read_bytes()
    stored.unlink()  # it is read-only
    stored.write_bytes(b"damaged")
    shutil.rmtree(trained.home / ".local/state/dsv/remembered-runs")  # else it is not read again
    of_the_rest = trained.ok("runs")
    assert "not shown" in of_the_rest.err and "only 2 runs are shown" in of_the_rest.err
    stored.write_bytes(whole_record)
    monkeypatch.setattr("dsv.cli.commands.runs.SHOWN", 3)
    all_of_them = trained.ok("runs")
    assert "are shown" not in all_of_them.err and len(all_of_them.lines) == 4


def test_a_run_is_found_by_any_unique_part_of_its_id_and_by_its_name(dsv: Dsv) -> None:
    trained = train(dsv)
    items = trained.ok("runs", "--json").json["items"]
    first = next(item for item in items if item["name"] == "base1")
    for text in (first["run"], first["run"][-8:], first["run"][-7:], first["run"][-8:-2], first["name"]):
        assert trained.ok("runs", text, "--json").json["items"] == [{**first, "series": {}}]
    assert trained.process("run", "--again", first["name"], "-q").code == 0
    short, many = trained("runs", first["run"][-3:]), trained("runs", first["run"][:4])
    assert short.code == 3 and "is too short" in short.err
    assert (
        many.code == 2 and "means 4 runs" in many.err and first["run"][:4] in many.err.partition("hint:")[2]
    )
    assert trained("runs", "nothing").code == 3
    same_name = [trained.process("run", "pets", "--name", "twin", "--", "true").code for _ in range(2)]
    assert same_name == [0, 0] and "twin means 2 runs" in trained("runs", "twin").err
    assert "hint: name one by its id, such as 2" in trained("stop", "twin").err


def test_no_digit_is_cut_in_a_narrow_window(trained: Dsv) -> None:
    wide = re.sub(r"\x1b[^m]*m", "", trained("runs", terminal=True, width=80).out)
    assert "0.123457" in wide and all(len(line) <= 80 for line in wide.splitlines())
    shown = trained("runs", "--sort", "metrics.val.loss", terminal=True, width=70)
    text = re.sub(r"\x1b[^m]*m", "", shown.out)
    assert all(len(line) <= 70 for line in text.splitlines()) and "…" not in text
    assert text.splitlines()[0].split() == ["RUN", "NAME", "DATA", "TOOK", "RESULT", "n", "val.loss"]
    assert "Hidden columns: acc (see --csv)" in shown.err
    rows = [line.split() for line in text.splitlines()[1:]]
    assert [row[1] for row in rows] == ["base1", "base2", "base3"] and rows[2][6:8] == ["failed", "(1)"]
    assert {row[2] for row in rows} == {"pets@v1.0"} and all(len(row[0]) == 8 for row in rows)
    stacked = trained("runs", terminal=True, width=40).out
    assert "0.123457" in stacked


def test_columns_that_most_runs_lack_make_room_for_metrics(dsv: Dsv) -> None:
    write_files(dsv.cwd, {"a": b"a"})
    dsv.ok("init", "chest-xray")
    dsv.ok("sync")
    script = 'echo "{\\"acc\\": 0.123}" > "$DSV_OUT/metrics.json"'
    for more in ((), (), ("-p", "a_long_name=1", "-p", "another_long_name=2")):
        assert dsv.process("run", "chest-xray", "-p", "n=1", *more, "--", "sh", "-c", script).code == 0
    shown = dsv("runs", terminal=True, width=80)
    head = re.sub(r"\x1b[^m]*m", "", shown.out).splitlines()[0].split()
    assert head[-1] == "acc" and "n" in head
    assert "Hidden columns: another_long_name (see --csv)" in shown.err


def test_of_many_hidden_columns_a_few_are_named(pets: Dsv) -> None:
    job = (
        'seq 900 | sed "s/.*/\\"a_name_of_a_metric_&\\": &,/; 1s/^/{/; \\$s/,$/}/" > "$DSV_OUT/metrics.json"'
    )
    assert pets.process("run", "pets", "--", "sh", "-c", job).code == 0
    item = pets.ok("runs", "--json").json["items"][0]
    assert len(item["metrics"]) == 900 and item["metrics_error"] is None
    told = pets("runs", terminal=True, width=100).err
    assert told.startswith("Hidden columns: a_name_of_a_metric_2, ") and len(told) < 700
    assert re.search(r"_2[0-9], and 8[0-9][0-9] more \(see --csv\)\n$", told)


@pytest.mark.usefixtures("impatient")
def test_runs_that_are_known_here_are_listed_while_the_store_is_away(pets: Dsv) -> None:
    """A run whose record waits to be sent, by its id or its end; a run that only the store knows is not listed."""
    store = pets.home / ".local/share/dsv/store"
    (only_there, _) = [item["run"] for item in pets.ok("runs", "--json").json["items"]]
    assert pets.process("run", "pets", "--offline", "--", "sh", "-c", "exit 7").code == 7
    pets.ok("config", "stores.lake.url", "s3://lake/dsv")
    pets.ok("config", "stores.lake.endpoint", "http://127.0.0.1:9")
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
    away = pets.at(pets.home, **keys, DSV_STORE="lake")
    listed = away.ok("runs", "--json")
    (item,) = listed.json["items"]
    assert (item["exit_code"], item["sent"]) == (
        7,
        False,
    ) and "only the runs that this machine knows" in listed.err
    assert re.search(r"^exit_code +7$", away.ok("runs", item["run"][-8:]).out, re.MULTILINE)
    waited = away("wait", item["run"][-8:])
    assert (waited.code, waited.out) == (7, f"{item['run']} 7\n") and "not reachable" in waited.err
    for words in (
        ("runs", only_there),
        ("wait", only_there),
        ("runs", "--csv"),
        ("runs", item["run"], "--log"),
    ):
        refused = away(*words)
        assert (refused.code, refused.out) == (6, ""), words
    assert store.is_dir()


def test_runs_are_compared(trained: Dsv) -> None:
    lines = [line.split() for line in trained.ok("runs", "--compare", "base1", "base3").lines]
    assert lines[:4] == [
        ["KEY", "base1", "base3"], ["params.n", "1", "3"], ["metrics.acc", "0.123457", "0.123457*"],
        ["metrics.val.loss", "1*", "3"],
    ]  # fmt: skip
    assert ["exit_code", "0", "1"] in lines and not any(line[0] in ("commit", "command") for line in lines)
    compared = trained.ok("runs", "--compare", "base1", "base3", "--json").json["compare"]
    assert compared["differences"][0] == {"key": "params.n", "values": [1, 3]} and len(compared["runs"]) == 2
    assert trained.ok("runs", "--compare", "base1", "base3", "--csv").lines[1] == "params.n,1,3"


def test_of_many_runs_each_is_a_row_and_the_best_of_a_metric_has_a_star(sweep: Dsv) -> None:
    shown = sweep.ok("runs", "--compare", "lr1", "lr2", "lr3", "lr4")
    assert [line.split()[:7] for line in shown.lines] == [
        ["RUN", "lr", "acc", "loss", "bytes", "exit_code", shown.lines[0].split()[6]],
        ["lr1", "1", "0.1", "4", "1.00", "kB*", "0"],
        ["lr2", "2", "0.2", "3", "2.00", "kB", "0"],
        ["lr3", "3", "0.3*", "2*", "3.00", "kB", "1"],
        ["lr4", "4", "-", "-", "-", "0", shown.lines[4].split()[6]],
    ]
    narrow = sweep("runs", "--compare", "lr1", "lr2", "lr3", "lr4", terminal=True, width=30)
    assert "\x1b[1;32m0.3*\x1b[0m" in narrow.out and "Hidden columns: " in narrow.err


def test_a_long_name_of_a_parameter_does_not_break_the_table(pets: Dsv) -> None:
    name = "model_encoder_attention_dropout_probability"
    assert pets.process("run", "pets", "-p", f"{name}=1", "--", "true").code == 0
    on_screen, text = pets("runs", terminal=True, width=90).out, pets.ok("runs").out
    assert "RUN" in on_screen.splitlines()[0] and f"  {name[:23]}…" in on_screen and f"  {name}\n" in text


def test_colours_tell_results_as_the_words_do(sweep: Dsv) -> None:
    shown = sweep("runs", terminal=True, width=120).out
    assert "\x1b[32mok\x1b[0m" in shown and "\x1b[31mfailed (1)\x1b[0m" in shown
    assert "\x1b[1;32m0.3*\x1b[0m" in shown
    assert "*" not in sweep.ok("runs").out, "programs may read it"
    assert "\x1b" not in sweep.at(sweep.cwd, NO_COLOR="1")("runs", terminal=True).out


@pytest.fixture
def sweep(pets: Dsv) -> Dsv:
    """With four runs of one parameter and three metrics, which the last does not have."""
    job = """
        n=$(echo $DSV_PARAMS | tr -cd 0-9)
        [ $n = 4 ] || echo "{\\"acc\\": 0.$n, \\"loss\\": $((5 - n)), \\"bytes\\": ${n}000}" > $DSV_OUT/metrics.json
        [ $n != 3 ]
    """
    for n in range(1, 5):
        pets.process("run", "pets", "--name", f"lr{n}", "-p", f"lr={n}", "--", "sh", "-c", job)
    return pets


def test_a_comparison_of_runs_says_bytes_for_people_and_what_to_type_for_the_data(pets: Dsv) -> None:
    write_files(pets.cwd, {"b": b"b"})
    pets.ok("sync")
    assert pets.process("run", "pets", "--memory", "1G", "--name", "new", "--", "true").code == 0
    old = pets.ok("runs", "--json", "--filter", "exit_code=1").json["items"][0]
    new = pets.ok("runs", "new", "--json").json["items"][0]
    _change(pets, 1, memory_bytes=2_000_000_000)
    compared = pets.ok("runs", "--compare", old["run"], "new")
    assert ["memory_bytes", "2.00", "GB", "1.00", "GB"] in [line.split() for line in compared.lines]
    words = f"diff pets@{old['commit'][:12]} pets@{new['commit'][:12]}"
    assert f"dsv {words}" in compared.err and "b" in pets.ok(*words.split()).out
    _change(pets, 1, commit=new["commit"])
    assert "dsv diff" not in pets.ok("runs", "--compare", old["run"], "new").err


def test_a_wide_terminal_shows_when_runs_started(pets: Dsv) -> None:
    wide, narrow = (pets("runs", terminal=True, width=width) for width in (120, 80))
    head, *rows = re.sub(r"\x1b[^m]*m", "", wide.out).splitlines()
    assert head.split() == ["RUN", "DATA", "STARTED", "TOOK", "RESULT"]
    assert len(rows) == 2 and all(
        re.search(r"  20\d\d-\d\d-\d\d \d\d:\d\d[+-]\d\d:\d\d  ", row) for row in rows
    )
    assert "STARTED" not in narrow.out and "STARTED" not in pets.ok("runs").out


def test_runs_of_one_second_are_in_the_order_of_their_start(pets: Dsv) -> None:
    """Although the rest of an id is random; also where a list is cut within that second."""
    runs = pets.home / ".local/share/dsv/store/runs/pets"
    (old, *others) = runs.iterdir()
    record = json.loads((old / "record").read_text())
    for one in (old, *others):
        shutil.rmtree(one)
    begun = {"00000001": 900, "ffffffff": 100, "7f000000": 500, "7f000001": 500}
    for end, ms in begun.items():
        run = f"20261120-132145-{end}"
        (runs / run).mkdir()
        (runs / run / "record").write_text(
            json.dumps(record | {"run": run, "started_ms": 1_795_000_000_000 + ms})
        )
    order = ["00000001", "7f000001", "7f000000", "ffffffff"]
    for limit in (1, 2, 3, 4, 9):
        items = pets.ok("runs", "--json", "-n", str(limit)).json["items"]
        assert [item["run"][-8:] for item in items] == order[:limit]
    assert [line.split()[0][-8:] for line in pets.ok("runs").lines[1:]] == order


def test_runs_as_csv(trained: Dsv) -> None:
    rows = list(csv.DictReader(trained.ok("runs", "--csv", "--sort", "params.n").lines))
    assert [(row["name"], row["params.n"], row["metrics.acc"]) for row in rows] == [
        (f"base{n}", str(n), f"0.12345678{n}") for n in (1, 2, 3)
    ]
    assert rows[2]["exit_code"] == "1" and rows[0]["target"] == "pets@v1.0" and rows[0]["took_seconds"]
