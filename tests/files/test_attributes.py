from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dsv.files import attributes
from dsv.files.attributes import earliest_stamp, refresh, server_time


def test_the_time_is_that_of_a_change_in_the_folder(tmp_path: Path) -> None:
    os.utime(tmp_path, (1, 1))
    before = time.time() - 1  # file systems stamp by the clock of the last tick
    assert before <= server_time(tmp_path) <= time.time()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("clock", [1, 10**10], ids=["slow", "fast"])
def test_the_time_is_not_that_of_the_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: int
) -> None:
    """A client that was delegated a file dates it by its own clock."""
    real = os.fstat

    def date_and_stat(descriptor: int) -> os.stat_result:
        os.utime(descriptor, (clock, clock))
        return real(descriptor)

    monkeypatch.setattr(attributes.os, "fstat", date_and_stat)
    before = time.time() - 1
    assert before <= server_time(tmp_path) <= time.time()
    earliest = earliest_stamp(tmp_path) / 1e9
    assert earliest == 1 if clock == 1 else before <= earliest <= time.time()


@pytest.mark.parametrize("how", ["statx", "stat"])
def test_an_mtime_is_read_of_a_path_and_of_a_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "stat":
        monkeypatch.setattr(attributes, "_statx", lambda: None)
    os.utime(tmp_path, ns=(0, 1_234_567_890_500_000_000))
    assert refresh(tmp_path) == 1_234_567_890_500_000_000
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        assert refresh(descriptor) == 1_234_567_890_500_000_000
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("how", ["statx", "stat"])
def test_a_missing_path_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    if how == "stat":
        monkeypatch.setattr(attributes, "_statx", lambda: None)
    with pytest.raises(FileNotFoundError):
        refresh(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError):
        server_time(tmp_path / "nothing")
