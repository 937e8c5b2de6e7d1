"""Copies of metadata in a folder that users with different umasks share."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dsv.repo.objects.metadata import MetadataCache
from dsv.repo.tracking import Answers
from dsv.values.names import DatasetName


def test_folders_have_the_rights_of_the_one_above_whoever_makes_them_at_once(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with ThreadPoolExecutor(8) as pool:
            for number in range(60):
                shared = tmp_path / str(number)
                shared.mkdir()
                shared.chmod(0o2775)
                cache = MetadataCache(shared / "stores/1/objects")
                list(pool.map(lambda kind, put=cache.put: put(kind, "00ff", b"x"), "abcdefgh"))
                modes = {stat.S_IMODE(path.stat().st_mode) for path in shared.rglob("*") if path.is_dir()}
                assert modes == {0o2775}
                assert len(list(shared.rglob("00ff"))) > 0
                assert list(shared.rglob(".*")) == []
    finally:
        os.umask(before)


def test_all_of_a_group_read_the_tracking_files_that_one_of_them_wrote(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o2775)
    answers = Answers()
    answers.list_datasets([DatasetName.parse("scans")])
    before = os.umask(0o077)
    try:
        answers.write_all(tmp_path / "shared", "", 0)
    finally:
        os.umask(before)
    tracking = tmp_path / "shared/tracking"
    assert stat.S_IMODE(tracking.stat().st_mode) == 0o2775
    assert stat.S_IMODE((tracking / "scans.json").stat().st_mode) == 0o664
