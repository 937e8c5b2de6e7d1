"""Names that are made anew after they had moved."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.kit.dsv import Dsv, plain_environment, write_files


def test_names_that_have_moved_are_made_anew_only_if_they_are_lost(tmp_path: Path) -> None:
    data, old, moved, new = (tmp_path / name for name in ("data", "old", "moved", "new"))
    home, work = tmp_path / "home", tmp_path / "work"
    for folder in (data, home, work):
        folder.mkdir()
    ann = Dsv(home, work, plain_environment(home))
    ann.ok("config", "stores.grid.url", str(data))
    ann.ok("config", "stores.grid.names", str(old))
    ann.ok("config", "store", "grid")
    ann.ok("init", "xrays")
    write_files(work, {"a.txt": b"a"})
    ann.ok("sync")
    ann.ok("store", "move-names", str(moved))
    ann.ok("config", "stores.grid.names", str(new))
    refused = ann("store", "rebuild-names")
    assert refused.code == 4, refused
    assert f"are not lost: they have moved to {moved}" in refused.err
    assert f"dsv config stores.NAME.names {moved}" in refused.err
    shutil.rmtree(moved / "refs")
    refused = ann("store", "rebuild-names")  # others may be at work there, with what is left
    assert refused.code == 4 and "first move that place away" in refused.err, refused
    moved.rename(tmp_path / "away")
    ann.ok("store", "rebuild-names")
    assert ann.ok("cat", "xrays:a.txt").out == "a"
    ann.ok("config", "stores.grid.names", str(old))
    shutil.rmtree(old)  # the data's log leads to the new place
    assert ann.ok("cat", "xrays:a.txt").out == "a"
