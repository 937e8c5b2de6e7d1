"""The output of a run: committed into the store, and copied to a folder, from there or from where the job wrote it."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsv.api import run_output
from dsv.api.run_output import CopiedOutput, KeptOutput, copy_output
from dsv.errors import NoRoom, NotFound
from dsv.run.record import RunRecord
from dsv.values.progress import NoProgress
from tests.cli.detached import await_file, detach, here, shown
from tests.exhaustive import some
from tests.killing import run_killed
from tests.kit.dsv import Dsv, load, write_files

__all__ = ["here"]

JOB = (
    'cd "$DSV_OUT"; mkdir -p sub/empty; echo weights > sub/model; printf "#!/bin/sh\\n" > run.sh; chmod 755 run.sh; '
    'ln -s sub/model best; echo "{\\"acc\\": 0.5}" > metrics.json'
)
WHOLE = {"best", "metrics.json", "params.json", "run.sh", "sub", "sub/empty", "sub/model"}


@dataclass(frozen=True)
class Made:
    """Runs whose outputs are copied: folder still has its folder; of the others only the store has it."""

    dsv: Dsv
    folder: Any
    stored: Any
    odd_folder: Any
    odd_stored: Any

    def at(self, place: Path) -> Dsv:
        return self.dsv.at(place)


@pytest.fixture(scope="module")
def made(dsv_of_the_file: Dsv) -> Made:
    dsv = pets_in(dsv_of_the_file)
    odd = (
        'cd "$DSV_OUT"; echo x > good; mkfifo pipe; ln -s /etc/passwd away; ln -s away second; mkdir .git; '
        "echo x > .git/HEAD; echo x > $(printf 'b\\377d'); echo '*' > .dsvignore"
    )
    folder = run(dsv)
    stored = run(dsv, f"{JOB}; exit 3", "--keep-output", code=3)
    odd_folder, odd_stored = run(dsv, odd), run(dsv, odd, "--keep-output")
    for item in (stored, odd_stored):  # as another machine sees it
        shutil.rmtree(dsv.home / ".local/state/dsv/runs/pets" / item["run"] / "out")
    return Made(dsv, folder, stored, odd_folder, odd_stored)


def pets_in(dsv: Dsv) -> Dsv:
    here = dsv.at(dsv.cwd, DSV_CACHE=str(dsv.home / "cache"))
    write_files(here.cwd, {"a": b"a"})
    here.ok("init", "pets")
    here.ok("sync")
    here.ok("tag", "v1")
    return here


def run(dsv: Dsv, script: str = JOB, *options: str, code: int = 0) -> Any:
    done = dsv.process("run", "pets@v1", *options, "--", "sh", "-c", script)
    assert done.code == code, done
    return newest(dsv)


def newest(dsv: Dsv) -> Any:
    folders = (dsv.home / ".local/state/dsv/runs/pets").iterdir()
    return shown(dsv, max(folders, key=lambda folder: folder.stat().st_mtime_ns).name)


def paths(folder: Path) -> set[str]:
    return {str(each.relative_to(folder)) for each in folder.rglob("*")}


def check(folder: Path) -> None:
    assert paths(folder) == WHOLE
    assert (folder / "best").read_text() == "weights\n" and os.readlink(folder / "best") == "sub/model"
    assert os.access(folder / "run.sh", os.X_OK)
    assert not (folder / "sub/model").stat().st_mode & 0o111


def record_of(made: Made, item: Any) -> RunRecord:
    (path,) = (made.dsv.home / ".local/share/dsv/store/runs").glob(f"*/{item['run']}/record")
    return RunRecord.decode(path.read_bytes(), "x")


def test_an_output_is_copied_from_its_folder(made: Made, tmp_path: Path) -> None:
    item, here = made.folder, made.at(tmp_path)
    assert item["output"] is None
    done = here.ok("runs", item["run"], "--out", "results", "--json").json["copy"]
    check(tmp_path / "results")
    assert set(done) == set(load("runs").result["copy"])
    assert (done["files"], done["source"], done["left_out"], done["known"]) == (4, item["out"], [], False)
    again = here.ok("runs", item["run"], "--out", "results")
    assert "there already" in again.err
    assert list(tmp_path.iterdir()) == [tmp_path / "results"]


def test_the_output_of_a_job_that_failed_is_in_the_store_and_outlives_its_folder(
    made: Made, tmp_path: Path
) -> None:
    item, here = made.stored, made.at(tmp_path)
    kept = item["output"]
    assert (item["exit_code"], kept["files"], kept["left_out"], kept["error"]) == (3, 4, [], None)
    here.ok("runs", item["run"], "--out", "a/b")
    check(tmp_path / "a/b")
    assert kept["tree"] in here.ok("runs", item["run"]).out
    record = record_of(made, item)
    assert (record.dataset, kept["tree"]) in [(name, commit.hex()) for name, commit in record.commits]


def test_what_no_commit_can_hold_is_left_out_and_named(made: Made, tmp_path: Path) -> None:
    kept = made.odd_stored["output"]
    names = {each.partition(":")[0] for each in kept["left_out"]}
    assert names == {"'.git'", "'away'", "'pipe'", "'b\\\\xffd'"} and kept["files"] == 3
    copied = made.at(tmp_path).ok("runs", made.odd_stored["run"], "--out", "r")
    assert paths(tmp_path / "r") == {"good", "params.json", ".dsvignore", "second"}
    assert "not in the copy: 'pipe'" in copied.err


def test_a_copy_of_a_folder_has_names_that_are_no_text_and_says_what_it_lacks(
    made: Made, tmp_path: Path
) -> None:
    copied = made.at(tmp_path).ok("runs", made.odd_folder["run"], "--out", "r", "--json").json["copy"]
    assert [each.partition(":")[0] for each in copied["left_out"]] == ["'pipe'"]
    names = set(os.listdir(os.fsencode(tmp_path / "r")))
    assert names == {b"b\xffd", b"away", b"second", b"good", b".git", b".dsvignore", b"params.json"}


def test_a_copy_that_is_killed_at_any_step_is_never_visible_in_part_and_is_continued(
    made: Made, tmp_path: Path
) -> None:
    record = record_of(made, made.folder)

    def copy(to: Path) -> CopiedOutput:
        return copy_output(None, record, to, NoProgress())  # type: ignore[arg-type] (a folder needs no store)

    first = tmp_path / "first"
    first.mkdir()
    total = run_killed(lambda: copy(first / "r"), None, inside=first)
    assert total > 5
    for step in some(range(1, total + 1)):
        top = tmp_path / str(step)
        top.mkdir()
        run_killed(lambda: copy(top / "r"), step, inside=top)  # noqa: B023
        if (top / "r").exists():
            check(top / "r")
        copy(top / "r")
        check(top / "r")
        assert [each.name for each in top.iterdir()] == ["r"]


def test_what_an_interrupted_copy_left_is_not_fetched_again_and_not_trusted(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(KeptOutput, "write", _interrupted)
        assert made.at(tmp_path)("runs", made.stored["run"], "--out", "r").code == 130
    (partial,) = tmp_path.glob(f".r.{made.stored['run']}.*.part/tree")
    (partial / "sub").mkdir(parents=True)
    (partial / "sub/model").write_text("weighty\n")  # damaged, with the right size
    (partial / "run.sh").write_text("#!/bin/sh\n")
    (partial / "run.sh").chmod(0o755)
    before = (partial / "run.sh").stat().st_ino
    made.at(tmp_path).ok("runs", made.stored["run"], "--out", "r")
    check(tmp_path / "r")
    assert (tmp_path / "r/run.sh").stat().st_ino == before


def test_a_continued_copy_lacks_what_the_output_no_longer_has(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(KeptOutput, "write", _interrupted)
        assert made.at(tmp_path)("runs", made.folder["run"], "--out", "r").code == 130
    (partial,) = tmp_path.glob(".r.*.part/tree")
    write_files(partial, {"metrics.json/deep": b"x", "stranger": b"x"})
    made.at(tmp_path).ok("runs", made.folder["run"], "--out", "r")
    check(tmp_path / "r")


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_folder_with_other_data_is_refused(made: Made, tmp_path: Path) -> None:
    here, run_id = made.at(tmp_path), made.folder["run"]
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("nowhere")
    for name, changed in (("other", "sub/model"), ("more", "new"), ("empty", "")):
        if changed:
            here.ok("runs", run_id, "--out", name)
            (tmp_path / name / changed).write_text("w3ights\n")
        else:
            (tmp_path / name).mkdir()
    for name in ("file", "link", "other", "more"):
        refused = here("runs", run_id, "--out", name)
        assert refused.code == 4 and "is not this output" in refused.err
    here.ok("runs", run_id, "--out", "empty")
    check(tmp_path / "empty")
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".")]


def test_an_output_that_can_not_be_had_from_here(made: Made, tmp_path: Path) -> None:
    record = replace(record_of(made, made.folder), host="gpu7", out=str(tmp_path))
    with pytest.raises(NotFound, match="on gpu7"):  # a folder of that name here is another one
        copy_output(None, record, tmp_path / "r", NoProgress())  # type: ignore[arg-type]
    here = made.at(tmp_path)
    assert here("runs", "--out", "r").code == here("runs", record.run, "--out", "r", "--log").code == 2


def test_a_full_disk_is_reported_before_anything_is_written(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = made.at(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("dsv.api.run_output.shutil.disk_usage", lambda _: SimpleNamespace(free=3))
        refused = here("runs", made.folder["run"], "--out", "r")
    assert refused.code == NoRoom.exit_code and "df -h" in refused.err
    here.ok("runs", made.folder["run"], "--out", "r")


def test_a_running_run_has_no_output_to_copy(here: Dsv) -> None:
    going = detach(here, "touch ready; until [ -e go ]; do sleep 0.05; done")
    await_file(here, "ready")
    refused = here("runs", going, "--out", "r")
    assert refused.code == 4 and f"dsv wait {going}" in refused.err
    (here.cwd / "go").touch()
    assert here("wait", going).code == 0


def test_a_store_that_takes_no_output_costs_neither_the_exit_code_nor_the_folder(here: Dsv) -> None:
    here.ok("cache", "pets@v1")
    done = here.process("run", "pets@v1", "--offline", "--keep-output", "--", "sh", "-c", f"{JOB}; exit 4")
    assert done.code == 4 and "the output is not in the store" in done.err
    item = newest(here)
    assert item["output"]["error"] == "the store is not asked with --offline"
    here.ok("runs", item["run"], "--out", "r")
    check(here.cwd / "r")


def test_of_many_paths_that_are_left_out_the_number_is_said(here: Dsv) -> None:
    job = 'cd "$DSV_OUT"; for each in $(seq 16); do mkfifo "p$each"; done'
    done = here.process("run", "pets@v1", "--keep-output", "--", "sh", "-c", job)
    (line,) = [line for line in done.err.splitlines() if "left out of the output in the store" in line]
    assert line.endswith("; and 13 more") and line.count("'p") == 3
    assert len(newest(here)["output"]["left_out"]) == 16


def test_a_command_that_never_began_has_no_output_to_send(here: Dsv) -> None:
    done = here.process("run", "pets@v1", "--keep-output", "--", "no-such-command")
    assert done.code == 127 and "sending the output" not in done.err
    assert newest(here)["output"] is None


def test_the_copy_of_a_sparse_file_is_sparse(here: Dsv) -> None:
    item = run(here, 'truncate -s 64M "$DSV_OUT/holes"; echo x >> "$DSV_OUT/holes"')
    here.ok("runs", item["run"], "--out", "r")
    status = (here.cwd / "r/holes").stat()
    assert status.st_size == (64 << 20) + 2 and status.st_blocks * 512 < 1 << 20


def test_a_path_that_is_too_long_is_refused_and_leaves_nothing(here: Dsv) -> None:
    item = run(here)
    there = {each.name for each in here.cwd.iterdir()}
    left = 4094 - len(os.fsencode(here.cwd))
    for path in ("/".join(["d" * 200] * 21), "n" * 256, "a/" * (left // 2) + "a"):
        refused = here("runs", item["run"], "--out", path)
        assert refused.code == 9 and "too long for this file system" in refused.err, refused
        assert "hint: choose a shorter path" in refused.err
        assert {each.name for each in here.cwd.iterdir()} == there
    here.ok("runs", item["run"], "--out", "n" * 255)
    check(here.cwd / ("n" * 255))


def test_a_link_in_place_of_the_output_is_not_followed(here: Dsv) -> None:
    """But one that the caller named is."""
    (here.cwd / "behind").mkdir()
    (here.cwd / "behind" / "file").write_text("not an output")
    item = run(here, f'rm -r "$DSV_OUT" && ln -s {here.cwd}/behind "$DSV_OUT"', "--keep-output")
    assert item["output"]["tree"] is None and "by a symlink" in item["output"]["error"]
    (here.cwd.parent / "real").mkdir()
    (here.cwd.parent / "link").symlink_to("real")
    item = run(here, 'echo x > "$DSV_OUT"/file', "--keep-output", "--out", str(here.cwd.parent / "link"))
    assert (item["output"]["files"], item["output"]["error"]) == (2, None)


def test_a_missing_output_is_reported(here: Dsv) -> None:
    item = run(here, 'rm -r "$DSV_OUT"', "--keep-output")
    assert item["output"]["tree"] is None and "No such file" in item["output"]["error"]
    assert run(here, 'rm "$DSV_OUT"/*', "--keep-output")["output"]["files"] == 0


def test_a_copy_does_not_take_the_folder_away_in_which_one_is(made: Made, tmp_path: Path) -> None:
    for word in (".", str(tmp_path)):
        refused = made.at(tmp_path)("runs", made.folder["run"], "--out", word)
        assert refused.code == 2 and "is the folder that you are in" in refused.err
    assert made.at(tmp_path)("runs", made.folder["run"], "--out", "/").code == 4
    assert list(tmp_path.iterdir()) == [] and not list(tmp_path.parent.glob(".*.part"))


def test_two_machines_that_copy_to_one_place_have_a_draft_each(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one begins and ends while the first is at work."""
    to, write = tmp_path / "copy", KeptOutput.write
    copies: list[str] = []

    def at_work(self: KeptOutput, tree: Path, *rest: Any) -> None:
        write(self, tree, *rest)
        if not copies:
            copies.append(str(tree))
            monkeypatch.setattr(run_output, "this_machine", lambda: "other/1")
            made.at(tmp_path).ok("runs", made.folder["run"], "--out", "copy")
            assert to.is_dir() and tree.is_dir()

    monkeypatch.setattr(KeptOutput, "write", at_work)
    first = made.at(tmp_path).ok("runs", made.folder["run"], "--out", "copy")
    assert "there already" in first.err and copies
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_the_configured_author_signs_the_output(made: Made) -> None:
    dsv = made.dsv.at(made.dsv.cwd, DSV_AUTHOR="Ann Lee <ann@example.org>")
    item = run(dsv, JOB, "--keep-output")
    shown = dsv.ok("log", f"pets@{item['output']['tree']}", "--json").json["items"]
    assert [each["author"] for each in shown] == ["Ann Lee <ann@example.org>"]
