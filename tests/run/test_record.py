"""Records as bytes, and that no secret is in them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv.errors import IntegrityError, Unsupported, UsageError
from dsv.run.listing import RunView
from dsv.run.record import (
    MAX_RECORD,
    CodeState,
    GpuUse,
    JobUsage,
    LogInfo,
    RunData,
    RunId,
    RunOutput,
    RunRecord,
    RunState,
)
from dsv.run.record_store import RunStore
from dsv.stores.memory import MemoryStore
from dsv.values.ids import CommitId
from dsv.values.json import check_json, parse_json
from dsv.values.names import DatasetName
from tests.run.shop import Shop

DATASET = DatasetName.parse("team/scans")
RECORD = RunRecord(
    run=RunId.parse("20261120-132145-1f2e3d4c"), dataset=DATASET, commit=CommitId(b"c" * 32), target="team/scans@v1",
    data=(
        RunData("", DATASET, CommitId(b"c" * 32), None, 5, 6),
        RunData("masks", DATASET, CommitId(b"d" * 32), "x", 1, 2),
    ),
    state=RunState.ENDED, engine="docker", params={"lr": 0.1, "deep": {"x": [1, None, True]}}, out="/o",
    host="h", user="u", started_ms=1, ended_ms=2, exit_code=0, code=CodeState("/c", "a" * 40, True),
    log=LogInfo(3, 2), usage=JobUsage(1, 2.5, (GpuUse("A100", 50.0, 9),)), metrics={"acc": 1},
    again_of=RunId.parse("20261120-132145-00000000"),
)  # fmt: skip

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
TEXT = st.text() | st.binary(max_size=9).map(lambda raw: raw.decode("utf-8", "surrogateescape"))


@given(st.dictionaries(TEXT, JSON, max_size=5), st.lists(TEXT, max_size=5), TEXT)
def test_a_record_comes_back_as_it_was(params: dict[str, object], command: list[str], out: str) -> None:
    record = replace(RECORD, params=params, command=tuple(command), out=out)
    data = record.encode()
    back = RunRecord.decode(data, "key")
    assert back == record
    assert back.encode() == data
    assert (
        type(back.run) is RunId
        and type(back.commit) is CommitId
        and type(back.data[1].dataset) is DatasetName
    )


def test_a_run_is_shown_in_a_line() -> None:
    record = replace(
        RECORD, started_ms=1_795_937_696_000, ended_ms=1_795_937_881_000, metrics={"acc": 0.9, "x": ["y"]}
    )
    shown = "<run 20261120-132145-1f2e3d4c of team/scans@v1: {}, begun 2026-11-29T07:34:56Z, acc=0.9>"
    assert repr(RunView(record, True)) == shown.format("exit 0 after 3m 5s")
    under_way = replace(record, state=RunState.RUNNING, ended_ms=None, exit_code=None)
    assert repr(RunView(under_way, True)) == shown.format("running")


def test_a_record_keeps_its_commits_alive() -> None:
    assert RECORD.commits == ((DATASET, CommitId(b"c" * 32)), (DATASET, CommitId(b"d" * 32)))
    kept = replace(RECORD, output=RunOutput("ee" * 32, 1, 2, ("x: why",)))
    assert kept.commits == (*RECORD.commits, (DATASET, CommitId(b"\xee" * 32)))
    assert RunRecord.decode(kept.encode(), "k") == kept


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "something"}, {"version": 0}, {"version": "1"}, {"commit": "abc"}, {"commit": None}, {"run": "../x"},
        {"dataset": "a//b"}, {"state": "happy"}, {"params": []}, {"exit_code": "0"}, {"data": [{"name": ""}]},
        {"command": "sh"}, {"started_ms": 1.5},
        {"output": {"tree": "main"}}, {"code": {"path": "/c", "tree": "../x"}}, {"output": {"bytes": 1 << 63}},
    ],
)  # fmt: skip
def test_what_is_no_record(change: dict[str, object]) -> None:
    document = json.loads(RECORD.encode()) | change
    with pytest.raises(IntegrityError, match="the-key"):
        RunRecord.decode(json.dumps(document).encode(), "the-key")


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b" " * (MAX_RECORD + 1), b'{"kind": "dsv run"}']
)
def test_bytes_that_are_no_record(data: bytes) -> None:
    with pytest.raises(IntegrityError):
        RunRecord.decode(data, "the-key")


@pytest.mark.parametrize(
    "change",
    [
        {"started_ms": 1 << 63},
        {"started_ms": -(10**400)},
        {"ended_ms": 10**400},
        {"stage_bytes": 10**400},
        {"exit_code": 10**400},
        {"log": {"bytes": 10**400, "kept_bytes": 1}},
    ],
)
def test_numbers_that_no_run_has(change: dict[str, object]) -> None:
    document = json.loads(RECORD.encode()) | change
    with pytest.raises(IntegrityError, match="is not a record of a run: Expected `int`"):
        RunRecord.decode(json.dumps(document).encode(), "key")


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"NaN", b"Infinity", b"1" * 1001, b"1" * 5000])
def test_numbers_that_json_can_not_carry_on(number: bytes) -> None:
    data = RECORD.encode()
    assert data.count(b'"acc": 1') == 1
    with pytest.raises(IntegrityError, match="is not JSON"):
        RunRecord.decode(data.replace(b'"acc": 1', b'"acc": ' + number), "key")


def test_a_number_with_too_many_digits_in_the_metrics() -> None:
    with pytest.raises(ValueError, match="a number in it has 5000 digits"):
        parse_json('{"a": %s}' % ("1" * 5000))


def test_a_newer_record() -> None:
    document = json.loads(RECORD.encode())
    assert RunRecord.decode(json.dumps({**document, "invented": 1}).encode(), "key") == RECORD
    with pytest.raises(Unsupported):
        RunRecord.decode(json.dumps({**document, "version": 2, "commit": 5}).encode(), "key")


def test_a_record_under_another_key_is_found_out() -> None:
    store = MemoryStore("x")
    runs = RunStore(store)
    other = RunId.parse("20261120-132145-ffffffff")
    runs.write(DATASET, other, "record", RECORD.encode())
    with pytest.raises(IntegrityError, match="another run"):
        runs.read(runs.listing(DATASET)[0])


def test_what_else_lies_among_runs_is_ignored() -> None:
    store = MemoryStore("x")
    for key in ("runs/scans/notes/readme", "runs/stray", "runs/a%zz/20261120-132145-ffffffff/record"):
        store.put_if_absent(key, b"x")
    assert RunStore(store).listing() == []


def test_ids_of_runs_sort_by_time() -> None:
    ids = [RunId.make(second * 1000, bytes(4)) for second in (0, 59, 3600, 10**9, 2 * 10**9)]
    assert sorted(ids) == ids
    assert RunId.make(1_795_180_905_123, b"\x1f\x2e\x3d\x4c") == "20261120-132145-1f2e3d4c"
    for wrong in ("", "20261120", "20261120-132145-1f2e3d4", "../../etc/passwd", "20261120-132145-1F2E3D4C"):
        with pytest.raises(UsageError):
            RunId.parse(wrong)


def test_json_of_a_job() -> None:
    assert parse_json('{"a": [NaN, Infinity, -Infinity, 1e400]}') == {
        "a": ["NaN", "Infinity", "-Infinity", "Infinity"]
    }
    for wrong in ("{", "[" * 100_000, "[" * 70 + "]" * 70, "9" * 10_000):
        with pytest.raises(ValueError):
            parse_json(wrong)
    for value in ({1: 2}, object(), {"a": b"x"}):
        with pytest.raises(ValueError):
            check_json(value)


def test_no_secret_gets_in(tmp_path: Path) -> None:
    """Given in every way there is."""
    hidden = [
        "pw-argument",
        "pw-assigned",
        "pw-by-env",
        "pw-printed",
        "pw-in-shell",
        "pw-of-caller",
        "pw-wandb",
        "pw-short1",
    ]
    shop = Shop(tmp_path)
    shop.environ["MY_API_KEY"] = "pw-of-caller"
    script = (
        "export DB_PASSWORD=pw-in-shell; echo $PRINTED; env | grep MY_API_KEY; echo $BY_ENV > $DSV_OUT/x; "
        'echo "{\\"who\\": \\"$BY_ENV\\"}" > $DSV_OUT/metrics.json'
    )
    result = shop.run(
        "sh", "-c", script, "sh", "--token", "pw-argument", "--secret=pw-assigned", "pw-by-env",
        "--wandb-key", "pw-wandb", "-ppw-short1", env={"BY_ENV": "pw-by-env", "PRINTED": "pw-printed"},
        params={"lr": 0.1, "note": "plain", "key": "pw-of-caller"},
    )  # fmt: skip
    assert result.out is not None and (result.out / "x").read_text() == "pw-by-env\n"
    assert "pw-printed" in shop.stdout and "pw-of-caller" in shop.stdout
    everything = shop.everything()
    for secret in hidden:
        assert secret.encode() not in everything, secret
    assert result.record.params == {"lr": 0.1, "note": "plain", "key": "***"}
    assert result.record.env == ("BY_ENV", "PRINTED")
    assert result.record.metrics == {"who": "***"}
    assert json.loads((result.out / "params.json").read_text())["key"] == "pw-of-caller"


def test_what_is_hidden_in_the_command_is_hidden_in_all_of_the_record(tmp_path: Path) -> None:
    """A job that prints its arguments, writes them to its metrics, and says them when it fails."""
    script = """
import argparse, json, os, sys
parser = argparse.ArgumentParser()
for name in ("--token", "--db-password", "--pin-secret", "--lr"):
    parser.add_argument(name)
args = parser.parse_args()
print(args)
print("param", json.loads(os.environ["DSV_PARAMS"])["api_key"])
json.dump(vars(args), open(os.environ["DSV_OUT"] + "/metrics.json", "w"))
sys.stdout.write(args.token[:5]); sys.stdout.flush()
sys.stderr.write("between\\n"); sys.stderr.flush()
print(args.token[5:])
"""
    shop = Shop(tmp_path)
    result = shop.run(
        sys.executable, "-c", script, "--token", "swordfish-1", "--db-password=swordfish-2", "--pin-secret", "q7",
        "--lr", "0.1", params={"api_key": "swordfish-3"}, name="of-swordfish-1",
    )  # fmt: skip
    assert (
        result.exit_code == 0 and "swordfish-3" in shop.stdout and "db_password='swordfish-2'" in shop.stdout
    )
    everything = shop.everything()
    for secret in (b"swordfish", b"fish-", b"q7"):
        assert secret not in everything, secret
    assert b"lr='0.1'" in everything
    assert result.record.metrics == {"token": "***", "db_password": "***", "pin_secret": "***", "lr": "0.1"}
    assert result.record.params == {"api_key": "***"} and result.record.name == "of-***"


@pytest.mark.parametrize(
    "change",
    [
        {"gpus": "many"},
        {"sweep": {"number": 1, "of": 10**12, "axes": {"n": [1]}}},
        {"sweep": {"number": 0, "of": 1, "axes": {"n": [1]}}},
        {"sweep": {"number": 2, "of": 1, "axes": {"n": [1]}}},
        {"sweep": {"number": 1, "of": 0, "axes": {"n": []}}},
        {"sweep": {"number": 1, "of": 2, "axes": {"n": [1]}}},
    ],
)
def test_what_readers_would_stumble_over(change: dict[str, dict[str, object]]) -> None:
    document = json.loads(RECORD.encode()) | change
    if isinstance(document["sweep"], dict):
        document["sweep"]["id"] = "sweep-20261120-132145-1f2e3d4c"
    with pytest.raises(IntegrityError, match="impossible"):
        RunRecord.decode(json.dumps(document).encode(), "key")
