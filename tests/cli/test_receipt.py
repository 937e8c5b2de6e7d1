"""`--receipt`: one line that names what `--into` made, for make and the like."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.cli.detached import here
from tests.cli.test_run_output import newest
from tests.kit.dsv import Dsv

__all__ = ["here"]

_OLD = 1_700_000_000


def run(dsv: Dsv, into: str, script: str, receipt: str = "r.txt", *options: str, code: int = 0) -> str:
    argv = ("run", "pets@v1", "--into", into, "--receipt", receipt, *options)
    done = dsv.process(*argv, "--", "sh", "-c", script)
    assert done.code == code, done
    return done.err


def aged(path: Path) -> str:
    os.utime(path, (_OLD, _OLD))
    return path.read_text()


def test_a_receipt_is_the_full_id_of_what_into_made_and_a_target(here: Dsv) -> None:
    file = here.cwd / "r.txt"
    run(here, "models", 'echo 1 > "$DSV_OUT/m"')
    first = newest(here)["output"]["into"]["commit"]
    assert re.fullmatch(r"[0-9a-f]{64}", first) and aged(file) == f"models@{first}\n"
    run(here, "models", 'echo 1 > "$DSV_OUT/m"')
    assert file.stat().st_mtime == _OLD, "an equal result keeps the time"
    file.chmod(0o640)
    run(here, "models", 'echo 2 > "$DSV_OUT/m"')
    assert file.stat().st_mode & 0o777 == 0o640
    second = newest(here)["output"]["into"]["commit"]
    assert file.read_text() == f"models@{second}\n" and second != first and file.stat().st_mtime != _OLD
    here.ok("put", "r.txt", "models:r.txt", "-m", "the branch moves on")
    job = ("sh", "-c", 'cat "$DSV_DATA/m" "$DSV_DATA_OLD/m" > "$DSV_OUT/both"')
    argv = ("run", file.read_text().rstrip("\n"), "--data", f"old=models@{first}", "--into", "both:at/1")
    assert here.process(*argv, "--receipt", "r 2.txt", "--", *job).code == 0
    line = (here.cwd / "r 2.txt").read_text()
    assert line == f"both@{here.ok('resolve', 'both').out.strip()}:at/1\n"
    assert here.ok("cat", line.rstrip("\n") + "/both").out == "2\n1\n"


def test_no_receipt_without_its_branch_and_then_not_exit_code_0(here: Dsv) -> None:
    """A Makefile would go on, with the result of an earlier run."""
    file = here.cwd / "r.txt"
    run(here, "models", 'echo 1 > "$DSV_OUT/m"; exit 3', code=3)
    said = run(here, "models", "true", code=4)
    assert "error: models@main stays as it is: the output of run" in said and "is empty" in said
    assert f"hint: to put the output there: dsv runs {newest(here)['run']} --into models@main" in said
    assert not file.exists()
    (here.cwd / "sub").mkdir()
    said = run(here, "models", f'echo 1 > "$DSV_OUT/m"; rm -r {here.cwd}/sub', "sub/r", code=4)
    made = newest(here)["output"]["into"]["commit"]
    assert "error: sub/r can't be written: No such file or directory" in said
    assert f"hint: echo models@{made} > FILE" in said


def test_resolve_pins_a_source(here: Dsv) -> None:
    for _ in range(2):
        commit = here.ok("resolve", "pets@v1", "--receipt", "raw.txt").out.strip()
        assert aged(here.cwd / "raw.txt") == f"pets@{commit}\n"
    here.ok("resolve", "pets@v1", "--receipt", "raw.txt")
    assert (here.cwd / "raw.txt").stat().st_mtime == _OLD
    assert here("resolve", "pets@v9", "--receipt", "no.txt").code == 3 and not (here.cwd / "no.txt").exists()
    assert here("resolve", "pets", "--receipt", "no/no.txt").code == 3


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--receipt", "r.txt"), 2, "--into DATASET --receipt FILE"),
        (("-p", "a=1,2", "--sweep", "--receipt", "r.txt"), 2, "--into DATASET --receipt FILE"),
        (("--into", "m", "--receipt", "r.txt", "--detach"), 2, "does not wait"),
        (("--into", "m", "--receipt", "notes.md"), 2, "notes.md is not a receipt"),
        (("--into", "m", "--receipt", "pipe"), 2, "pipe is not a receipt"),
        (("--into", "m", "--receipt", "."), 2, "is not a receipt"),
        (("--into", "m", "--receipt", "no/r.txt"), 125, "no/r.txt"),
        (("--into", "m:a\nb", "--receipt", "r.txt"), 2, "line break"),
    ],
)
def test_what_no_receipt_can_be_is_refused_first(
    here: Dsv, options: tuple[str, ...], code: int, said: str
) -> None:
    (here.cwd / "notes.md").write_text("my notes\n")
    os.mkfifo(here.cwd / "pipe")
    done = here.process("run", "pets@v1", *options, "--", "touch", str(here.cwd / "ran"))
    assert (done.code, said in done.err) == (code, True), done
    assert not (here.cwd / "ran").exists() and (here.cwd / "notes.md").read_text() == "my notes\n"


def test_a_link_and_a_lock_file_of_several_lines_are_receipts(here: Dsv) -> None:
    """`dsv lock` writes one line for each target; an empty file is what `mktemp` makes."""
    (here.cwd / "several").write_text(f"a@{'0' * 64}\nb@{'1' * 64}:x y\n")
    (here.cwd / "empty").touch()
    (here.cwd / "link").symlink_to("empty")
    for name in ("several", "link"):
        run(here, "models", 'echo 1 > "$DSV_OUT/m"', name)
    assert (here.cwd / "link").is_symlink()
    assert (here.cwd / "several").read_text() == (here.cwd / "empty").read_text()
    assert (
        json.loads(here.ok("resolve", "models", "--json").out)["commit"] in (here.cwd / "empty").read_text()
    )


def test_a_receipt_that_is_a_loop_of_links_is_refused_before_the_job(here: Dsv) -> None:
    (here.cwd / "loop").symlink_to("loop")
    said = run(here, "models", "touch ran", "loop", code=125)
    assert "loop" in said and not (here.cwd / "ran").exists()
    refused = here("resolve", "pets", "--receipt", "loop")
    assert refused.code not in (0, 70) and "loop" in refused.err
