"""`dsv cached` while a commit is filled, after that was broken off, and while a run uses one."""

from __future__ import annotations

import getpass
import socket
from pathlib import Path

from dsv.cache.leases import Lease
from dsv.cache.root import CachePlace, CacheRoot
from tests.cache import filler
from tests.cache.fake_source import File, World
from tests.kit.dsv import Dsv, assert_documented
from tests.waiting import until

FILES = [File(f"d/{number:03d}", 50_000, str(number)) for number in range(100)]
ALL = 100 * 50_000


def test_a_fill_is_shown_with_who_fills_and_how_far(dsv: Dsv, tmp_path: Path) -> None:
    world, root = World(tmp_path / "world"), CacheRoot(tmp_path / "cache")
    root.path.mkdir()
    person, commit = dsv.at(dsv.cwd, DSV_CACHE=str(root.path)), world.commit(FILES)
    process = filler.start(root, world.folder, commit, part_bytes=1 << 20, wait_after=50)

    def some_are_there() -> bool:
        fills = person.ok("cached", "--json").json["fills"]
        return bool(fills) and fills[0]["files_done"] > 0

    until(some_are_there)
    report = person.ok("cached", "--json").json
    assert_documented("cached", report, without="checked.")
    (fill,) = report["fills"]
    assert (fill["dataset"], fill["commit"], fill["live"]) == ("xrays", str(commit), True)
    assert (fill["files"], fill["bytes"]) == (100, ALL)
    assert 0 < fill["files_done"] < 100 and 0 < fill["bytes_done"] < ALL
    assert 0 < fill["room_left"] == report["room"]["reserved_bytes"] < ALL * 1.1
    (worker,) = fill["workers"]
    assert worker.startswith(f"{getpass.getuser()}@{socket.gethostname()}")
    text = person.ok("cached").out
    assert f"xrays@{str(commit)[:12]}: " in text and f"of 100 files, fetched by {worker}" in text
    assert " reserved, " in text
    process.kill()
    process.communicate()
    (world.folder / "go").touch()
    (broken,) = person.ok("cached", "--json").json["fills"]
    assert (broken["live"], broken["room_left"]) == (False, 0)
    assert "interrupted; the next 'dsv cache' continues it" in person.ok("cached").out
    filler.finish(filler.start(root, world.folder, commit))
    assert person.ok("cached", "--json").json["fills"] == []


def test_who_uses_a_commit_is_shown_with_host_and_run_and_until_when(dsv: Dsv, tmp_path: Path) -> None:
    world, root = World(tmp_path / "world"), CacheRoot(tmp_path / "cache")
    root.path.mkdir()
    person, commit = dsv.at(dsv.cwd, DSV_CACHE=str(root.path)), world.commit(FILES[:3])
    filler.finish(filler.start(root, world.folder, commit))
    lease = Lease.take(
        root, CachePlace("xrays", str(commit)), "run", run="20261120-132145-1f2e3d4c", job="77"
    )
    with lease:
        (shown,) = person.ok("cached", "--json").json["items"][0]["leases"]
        assert {key: shown[key] for key in ("purpose", "host", "run", "job")} == {
            "purpose": "run", "host": socket.gethostname(), "run": "20261120-132145-1f2e3d4c", "job": "77",
        }  # fmt: skip
        assert shown["until"].endswith("Z")
        line = f"  run 20261120-132145-1f2e3d4c by {shown['user']}@{shown['host']} in job 77 until "
        assert line in person.ok("cached").out
    assert person.ok("cached", "--json").json["items"][0]["leases"] == []
