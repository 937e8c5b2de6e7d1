"""dsv cached: its text, its JSON, its exit codes."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from dsv.cache.claims import PinRecord
from dsv.cli.declare import load
from tests.cli.conftest import FILES
from tests.kit.dsv import PROGRAM, Dsv, Result, assert_documented, write_files
from tests.strace import needs_strace


def test_cached_is_a_dashboard(pets: Dsv) -> None:
    empty = pets.ok("cached")
    assert len(empty.lines) == 1
    pets.ok("cache", "pets@v1", "--hold", "1h")
    pets.ok("cache", "pets@v2:train")
    pets.ok("hold", "pets@v1", "-m", "the paper")
    report = pets.ok("cached", "--json").json
    assert_documented("cached", report, without="checked.")
    by_name = {tuple(item["names"]): item for item in report["items"]}
    assert by_name[("v1",)]["pins"][0]["why"] == "the paper"
    assert by_name[("v2",)]["selection"] == ["train"]
    assert report["room"]["unused_for"] == 86400
    room = report["room"]
    files = [path for path in (Path(report["cache"]) / ".dsv/stores").rglob("*") if path.is_file()]
    assert room["metadata_bytes"] == sum(path.stat().st_blocks * 512 for path in files) > 0
    assert room["used_bytes"] > room["metadata_bytes"]
    pets.ok("evict", "pets@v2:train")
    text = pets.ok("cached").out
    assert "of it metadata)" in text
    pets.ok("cache", "pets@v2:train")
    text = pets.ok("cached").out
    assert "  held by " in text
    assert ": the paper\n" in text
    assert "  only train\n" in text
    assert "limits: unused for 1d" in text


@pytest.mark.parametrize("columns", [60, 120])
def test_cached_fits_the_window(pets: Dsv, columns: int) -> None:
    pets.ok("cache", "pets@v1")
    shown = pets("cached", terminal=True, width=columns).out.partition("\n\n")[0]
    assert max(map(len, shown.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines())) <= columns


def test_a_check_reads_again_and_repairs(pets: Dsv) -> None:
    path = Path(pets.ok("cache", "pets@v1").lines[0])
    assert pets.ok("cached", "--check").out == f"{path}: 4 files, 9 B, as committed\n"
    (path / "a.txt").chmod(0o644)
    (path / "a.txt").write_bytes(b"gamma\n")
    wrong = pets("cached", "--check", "--no-repair", "pets@v1")
    assert (wrong.code, wrong.out) == (5, "")
    assert "a.txt" in wrong.err and "hint: dsv cached --check pets@" in wrong.err
    report = pets.ok("cached", "--check", "--json").json
    item = report["checked"][0]
    assert item["repaired"] == 1
    assert item["wrong"][0]["path"] == "a.txt"
    assert set(item) == set(load("cached").result["checked"])
    assert (path / "a.txt").read_bytes() == b"alpha\n"
    assert pets("cached", "pets@v1").code == 2
    (path / "alien").touch()
    (path / "a.txt").chmod(0o644)
    (path / "a.txt").write_bytes(b"gamma\n")
    polluted = pets("cached", "--check")
    assert (polluted.code, polluted.out) == (5, "")
    assert "repaired 1 of 1 wrong file; 1 file never committed: 'alien'" in polluted.err
    assert f"hint: dsv cached --check --repair pets@{path.name[:12]} " in polluted.err
    assert pets("cached", "--check", "--no-repair", "--json").code == 5
    assert "removed 1 file never committed: 'alien'" in pets.ok("cached", "--check", "--repair").out
    assert not (path / "alien").exists()
    assert "as committed" in pets.ok("cached", "--check").out


def test_a_file_that_the_disk_cannot_read_is_replaced(pets: Dsv, tmp_path: Path) -> None:
    """The rest is read, too, and a commit that shares the file gets the new one."""
    needs_strace()
    first, second = (Path(line) for line in pets.ok("cache", "pets@v1", "pets@v2").lines)
    broken = [path / "train/1.png" for path in (first, second)]
    assert broken[0].samefile(broken[1])
    before = broken[0].stat().st_ino
    at_fault = [part for path in broken for part in ("-P", str(path))]
    upset = ["strace", "-f", "-o", str(tmp_path / "strace"), *at_fault, "-e", "inject=read,pread64:error=EIO"]

    def check(*options: str) -> Result:
        line = [*upset, *PROGRAM, "cached", "--check", "--json", *options]
        done = subprocess.run(
            line, env=dict(pets.environ), cwd=pets.cwd, capture_output=True, check=False, text=True
        )
        return Result(done.returncode, done.stdout, done.stderr)

    found = check("--no-repair")
    assert found.code == 5
    unreadable = "1 of 4 files: 'train/1.png' (can't be read: Input/output error)"
    assert found.json["error"]["message"].count(unreadable) == 2
    assert broken[0].stat().st_ino == before
    mended = check()
    assert mended.code == 0
    assert [item["repaired"] for item in mended.json["checked"]] == [1, 1]
    assert mended.json["checked"][0]["wrong"] == [
        {"path": "train/1.png", "problem": "can't be read: Input/output error", "links": 1}
    ]
    assert broken[0].samefile(broken[1])
    assert broken[0].stat().st_ino != before
    assert broken[0].read_bytes() == FILES["train/1.png"]
    assert pets.ok("cached", "--check").out.count("as committed") == 2


def test_small_files_take_at_least_a_block_each(dsv: Dsv) -> None:
    write_files(dsv.cwd, {f"{number}": b"x" for number in range(200)})
    dsv.ok("init", "small")
    dsv.ok("sync", "-q")
    folder = Path(dsv.ok("cache", "small").lines[0])
    taken = sum(path.stat().st_blocks * 512 for path in folder.iterdir())
    room = dsv.ok("cached", "--json").json["items"][0]["own_bytes"]
    assert taken <= room <= taken + 8192


def test_times_are_printed_in_the_time_zone_of_the_process(
    pets: Dsv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        pin = PinRecord(id="a", user="ann", since=0.0, until=1_764_400_000.0)
        assert pin.describe() == "held by ann until 2025-11-29 16:06+09:00"
    finally:
        monkeypatch.undo()
        time.tzset()
