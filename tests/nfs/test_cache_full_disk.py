"""A file server whose disk others fill while dsv does: on NFS a write is refused late, when a file is closed."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.labs.nfs_hosts import NfsHosts
from tests.nfs.crew import Crew, Times, assert_same, crew_of_its_own, listed
from tests.waiting import until

SPARE = 40 << 20  # bytes that the disk has beyond the dataset


@pytest.fixture
def small(tmp_path: Path, lake: Path, nfs_hosts: NfsHosts) -> Iterator[Crew]:
    """A file server with a disk that holds the dataset and little more; `nfs_hosts` for the reason where there can't
    be one."""
    folder = tmp_path / "small"
    export = folder / "export"
    export.mkdir(parents=True)
    image = tmp_path / "disk"
    size = sum(size for _, size, _ in listed(lake / "large").values())
    with image.open("wb") as file:
        file.truncate(size + SPARE)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-F", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, export], check=True)
    try:
        with crew_of_its_own(folder, lake, "full") as crew:
            yield crew
    finally:
        unmount(export)


def unmount(path: Path) -> None:
    """The kernel may hold it for a moment longer than the server lives that had files open there."""
    deadline = time.monotonic() + 10
    while subprocess.run(["umount", path], check=False, capture_output=True).returncode != 0:
        if time.monotonic() > deadline:
            subprocess.run(["umount", "-l", path], check=True)
            return
        time.sleep(0.2)


def test_a_disk_that_others_fill_meanwhile(small: Crew, lake: Path) -> None:
    """Exit 7 with the figures, nothing visible, no room kept; and with room again it continues to the end."""
    crew = small
    one, other = crew.up(0, 1)
    others_file = crew.lab.export / "of-others"
    for _ in range(10):  # until the machine is fast enough for others to come before the end of the fill
        tasks = [host.dsv("cache", "large@v1", "--json", times=Times(part_files=8)) for host in (one, other)]
        until(lambda: crew.files_being_filled() > 2 or all(task.done for task in tasks), "files")  # noqa: B023
        with others_file.open("wb") as file:
            left = os.statvfs(crew.lab.export)
            os.posix_fallocate(file.fileno(), 0, left.f_bavail * left.f_frsize - (1 << 20))
        answers = [task.answer() for task in tasks]
        if any(answer.status for answer in answers):
            break
        others_file.unlink()
        assert len(one.dsv("evict", "--all", "--json").answer().json["evicted"]) == 1
    for answer in answers:
        assert answer.status == 7, answer
        figures = r"[\d.]+ [kM]?B are free.* [\d.]+ [kM]?B (are needed|still to come)"
        assert re.search(figures, answer.json["error"]["message"]), answer
    assert crew.visible() == []
    assert list((crew.seen / ".dsv/room").iterdir()) == []
    others_file.unlink()
    assert one.dsv("cache", "large@v1", "--json").answer().item["files"] > 0
    assert_same(crew.seen / crew.visible()[0], lake / "large")
