from __future__ import annotations

import os
from pathlib import Path

from dsv.repo.objects.metadata import MetadataCache


def test_copies_have_the_rights_of_the_folder_whatever_the_umask(tmp_path: Path) -> None:
    root = tmp_path / "shared"
    root.mkdir()
    root.chmod(0o2775)
    before = os.umask(0o077)
    try:
        MetadataCache(root / "stores" / "objects").put("segment", "abcd", b"data")
    finally:
        os.umask(before)
    assert MetadataCache(root / "stores" / "objects").get("segment", "abcd", 100) == b"data"
    for folder, names, files in os.walk(root):
        for name in names:
            assert (Path(folder) / name).stat().st_mode & 0o7777 == 0o2775
        for name in files:
            assert (Path(folder) / name).stat().st_mode & 0o777 == 0o444


def test_a_private_folder_stays_private(tmp_path: Path) -> None:
    root = tmp_path / "private"
    root.mkdir(mode=0o700)
    MetadataCache(root / "objects").put("segment", "abcd", b"data")
    assert (root / "objects/segment/ab/abcd").stat().st_mode & 0o777 == 0o400


def test_a_folder_that_can_not_be_written_costs_nothing_but_requests(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    copies = MetadataCache(tmp_path / "file" / "objects")
    copies.put("segment", "abcd", b"data")
    assert copies.get("segment", "abcd", 100) is None
    assert copies.map("segment", "abcd") is None
    copies.drop("segment", "abcd")
