"""runs, where a record can't be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.runner import Dsv, write_files


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
    ("content", "code", "why"), [(None, 9, "by a newer dsv"), (b"{}", 5, "is no record")]
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
