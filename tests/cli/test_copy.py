"""dsv copy and mirrors on the command line: text, JSON, exit codes."""

from __future__ import annotations

import shutil

from tests.kit.dsv import Dsv, assert_documented, write_files


def test_copy_and_read_from_the_copy(dsv: Dsv) -> None:
    write_files(dsv.cwd, {"a.txt": b"alpha\n", "b/c": b"gamma"})
    here, there = str(dsv.home / "lake"), str(dsv.home / "copy")
    dsv.ok("config", "stores.lake.url", here)
    dsv.ok("config", "store", "lake")
    dsv.ok("config", "stores.lake.mirrors", f"{dsv.home / 'never'},{there}")
    dsv.ok("init", "pets")
    dsv.ok("sync", "-m", "first")
    assert dsv("copy", "pets").code == 2
    assert dsv("copy", "pets", "--to", there, "--history", "0").code == 2
    assert "--to is needed" in dsv("copy", "pets").err
    made = dsv.ok("copy", "pets", "--to", there, "--create", "--json").json
    assert_documented("copy", made)
    assert made["commits"] == 1 and made["items"][0]["state"] == "copied"
    again = dsv.ok("copy", "--to", there)
    assert "up to date" in again.lines[1] and "sent 0 commits" in again.err
    dsv.ok("cat", "pets:a.txt")
    shutil.rmtree(here)
    result = dsv("cat", "pets:a.txt")
    assert (result.code, result.out) == (0, "alpha\n")
    assert f"its mirror {there} is read instead" in result.err
    assert dsv("log", "pets").code == 6  # which asks the store alone


def test_a_copy_that_went_its_own_way_is_exit_code_4(dsv: Dsv) -> None:
    there = str(dsv.home / "copy")
    write_files(dsv.cwd, {"a.txt": b"alpha\n"})
    dsv.ok("init", "pets")
    dsv.ok("sync")
    dsv.ok("copy", "--to", there, "--create")
    dsv.ok("put", "--store", there, "a.txt", "pets:theirs.txt", "-m", "theirs")
    dsv.ok("put", "a.txt", "pets:ours.txt", "-m", "ours")
    refused = dsv("copy", "pets", "--to", there)
    assert refused.code == 4 and "not in the history of" in refused.err
    hint = next(line for line in refused.err.splitlines() if "--reset" in line)
    command = hint[hint.index("dsv branch") :].split(" moves it back")[0].split()[1:]
    dsv.ok(*command)
    assert "copied" in dsv.ok("copy", "pets", "--to", there).lines[1]
    assert dsv.ok("cat", "--store", there, "pets:ours.txt").out == "alpha\n"
