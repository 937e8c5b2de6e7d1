"""Parts of run records that wait for a store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsv.model.ids import StoreId
from dsv.model.names import DatasetName
from dsv.model.run import LOG, START, RunId
from dsv.repo.run_spool import Spool

STORE = StoreId(b"s" * 16)
DATASET = DatasetName.parse("team/scans")
RUN = RunId.parse("20261120-132145-1f2e3d4c")


def test_what_is_kept_is_on_the_disk_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file before it gets its name, its folder after, and the parent of every folder that was made."""
    events: list[str] = []
    real_sync, real_rename = os.fsync, os.rename

    def fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        events.append("the file" if path.is_file() else str(path.relative_to(tmp_path)))
        real_sync(descriptor)

    def rename(*names: str, **more: object) -> None:
        events.append("its name")
        real_rename(*names, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", rename)
    spool = Spool(tmp_path / "state/dsv/runs", STORE)
    place = f"state/dsv/runs/{STORE}"
    for folders in (["state/dsv", "state", "."], []):
        events.clear()
        path = spool.keep(DATASET, RUN, START if folders else LOG, b"data")
        assert path.read_bytes() == b"data"
        names = [f"{place}/{DATASET.component}", place, "state/dsv/runs", *folders]
        assert events == ["the file", "its name", *names]
