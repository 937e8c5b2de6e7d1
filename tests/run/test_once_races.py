"""Sixteen processes on two hosts that want one result at the same moment, and some that are killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from dsv.format import keys
from dsv.run.once_claims import Hit, KeyClaims, look
from dsv.run.record_store import RunStore
from tests.exhaustive import is_full
from tests.labs.s3_server import S3Server
from tests.run.once_racers import EACH, HOSTS, STEPS, judge_of, key_of, opened

ROUNDS = int(os.environ.get("ONCE_ROUNDS", "25" if is_full() else "3"))
"""With kills, and as many without."""


@pytest.fixture(params=["folder", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "folder":
        (tmp_path / "store").mkdir()
        return str(tmp_path / "store")
    server: S3Server = request.getfixturevalue("moto_s3")
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    return f"s3://{server.bucket()}/lab"


def race(url: str, folder: Path, rounds: int, kills: str) -> dict[int, dict[str, list[str]]]:
    """Return, by key and by what processes did there, the runs, or the changes before which they were killed."""
    command = [
        sys.executable,
        "-m",
        "tests.run.once_racers",
        url,
        str(folder),
        "0",
        str(rounds),
        kills,
    ]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said: dict[int, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for line in (folder / "log").read_text().splitlines():
        what, number, run = line.split()
        said[int(number)][what].append(run)
    return said


@pytest.mark.timeout(600)
def test_one_result_counts_for_each_key_and_without_kills_its_job_ran_once(url: str, tmp_path: Path) -> None:
    said = race(url, tmp_path, ROUNDS, "-")
    store = opened(url)
    assert sorted(said) == list(range(ROUNDS))
    for number, did in said.items():
        (made,) = did["made"]
        assert did["job"] == [made]
        assert did["hit"] == [made] * (len(HOSTS) * EACH - 1)
        assert len(list(store.list(keys.once_prefix(key_of(number))))) == 1
    assert list(store.list(keys.BEATS_PREFIX)) == []


@pytest.mark.timeout(600)
def test_of_killed_processes_others_take_over_and_one_result_counts(url: str, tmp_path: Path) -> None:
    said = race(url, tmp_path, ROUNDS, "1")
    store = opened(url)
    assert sorted(said) == list(range(ROUNDS))
    killed = [int(step) for did in said.values() for step in did["killed"]]
    assert ROUNDS < 25 or (len(killed) > ROUNDS and set(killed) == set(range(1, STEPS + 1)))
    for number, did in said.items():
        assert len(did["made"]) + len(did["hit"]) + len(did["killed"]) == len(HOSTS) * EACH
        listed = [keys.parse_once_key(item.key) for item in store.list(keys.once_prefix(key_of(number)))]
        numbers = sorted(claim[1] for claim in listed if claim is not None)
        assert numbers == list(range(len(numbers)))  # each was used once
        claim, verdict = look(KeyClaims(store, key_of(number)), judge_of(RunStore(store)))
        assert claim is not None and claim.by is not None and isinstance(verdict, Hit)
        assert verdict.record.run == claim.by.run and claim.by.run in did["job"]
