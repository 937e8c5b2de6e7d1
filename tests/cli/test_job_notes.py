"""What a job reads and makes with dsv gets into the record of its run, and its commits name the run."""

from __future__ import annotations

import json
import os
import sys
import tracemalloc
from pathlib import Path

import pytest

from dsv.format.keys import run_key
from dsv.repo.job_notes import FOLDER, JobNotes, NotedCommit, Notes, parse_notes, read_notes
from dsv.stores.memory import MemoryStore
from dsv.values.ids import CommitId, NodeId
from dsv.values.names import DatasetName
from tests.kit.dsv import Dsv

RAW = DatasetName.parse("team/raw")
RUN = "20261120-132145-1f2e3d4c"
ONE, TWO = (NotedCommit(RAW, CommitId.hash(text), NodeId.hash(text)) for text in (b"1", b"2"))
IN_JOB = """
import dsv, os, subprocess, sys
run = lambda *words: subprocess.run([sys.executable, "-m", "dsv.cli.main", *words], check=True)
with dsv.open("labels").open("l") as file:
    file.read()
run("cat", "labels:l")
run("cat", os.environ["DSV_DATASET"] + ":README")
open("z", "w").write("z")
run("put", "--create", "z", "made:", "-m", "from the job")
run("cat", "made:z")
"""


def notes(folder: Path, environ: dict[str, str] | None = None) -> JobNotes:
    given = {"DSV_DATASET": "team/raw", "DSV_RUN": RUN, "DSV_NOTES": str(folder / FOLDER / RUN)}
    found = JobNotes.of(given | (environ or {}))
    assert found is not None
    return found


def test_notes_come_back_once_each(tmp_path: Path) -> None:
    job = notes(tmp_path)
    for _ in range(3):
        job.note("read", ONE)
    job.note("made", TWO)
    if (child := os.fork()) == 0:
        job.note("read", TWO)
        os._exit(0)
    os.waitpid(child, 0)
    assert len(list((tmp_path / FOLDER / RUN).iterdir())) == 2
    found = read_notes(tmp_path, RUN)
    assert (set(found.read), found.made, found.problem) == ({ONE, TWO}, (TWO,), None)
    assert read_notes(tmp_path, "20261120-132145-00000000") == Notes()


def test_outside_of_a_job_nothing_is_noted(tmp_path: Path) -> None:
    assert JobNotes.of({"DSV_DATASET": "raw"}) is None
    assert JobNotes.of({"DSV_DATASET": "raw", "DSV_RUN": "../x"}) is None
    assert JobNotes.of({"DSV_DATASET": "no name?", "DSV_RUN": RUN}) is None
    without = notes(tmp_path, {"DSV_NOTES": ""})
    without.note("read", NotedCommit(RAW, CommitId.hash(b"3"), NodeId.hash(b"3")))
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_that_outlives_the_output_makes_no_folder(tmp_path: Path) -> None:
    notes(tmp_path / "gone").note("read", NotedCommit(RAW, CommitId.hash(b"5"), NodeId.hash(b"5")))
    assert list(tmp_path.iterdir()) == []


def test_whatever_a_job_leaves_does_no_harm(tmp_path: Path) -> None:
    job = notes(tmp_path)
    job.note("read", NotedCommit(RAW, CommitId.hash(b"4"), NodeId.hash(b"4")))
    folder = tmp_path / FOLDER / RUN
    (folder / "x").write_bytes(b'\xff\n[1]\n{"how": "stolen"}\nnull\n')
    os.mkfifo(folder / "pipe")
    found = read_notes(tmp_path, RUN)
    assert [each.commit for each in found.read] == [CommitId.hash(b"4")]
    assert found.problem == "a line of its notes can't be read"
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert read_notes(tmp_path, RUN) == Notes(problem="the folder of its notes is a symlink")


def test_a_record_takes_a_bounded_number() -> None:
    lines = [
        json.dumps({"how": "read", "dataset": "a", "commit": f"{number:064x}", "root": f"{number:064x}"})
        for number in range(1, 1003)
    ]
    found = parse_notes("\n".join(lines).encode())
    assert len(found.read) == 1000
    assert found.problem == "it read or made more than 1,000 commits"


def test_much_that_a_job_left_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER / RUN
    folder.mkdir(parents=True)
    (folder / "large").write_bytes(b" " * (4 << 20) + b"\n")
    assert read_notes(tmp_path, RUN).problem == "it left more notes than a record takes"
    (folder / "large").write_bytes(b"{}\n" * (1 << 20))
    for number in range(200):
        (folder / f"m{number}").hardlink_to(folder / "large")
    tracemalloc.start()
    assert read_notes(tmp_path, RUN).problem is not None
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 200 << 20  # each of the files has 3 MiB


def test_a_run_is_over_once_the_store_has_its_record(tmp_path: Path) -> None:
    store, job = MemoryStore(), notes(tmp_path)
    store.put_if_absent(run_key(RAW, RUN, "start"), b"x")
    assert not job.is_over(store)
    store.put_if_absent(run_key(RAW, RUN, "record"), b"x")
    assert notes(tmp_path).is_over(store)


@pytest.fixture
def lab(pets: Dsv) -> Dsv:
    (pets.cwd.parent / "l").write_text("label")
    pets.at(pets.cwd.parent).ok("put", "--create", "l", "labels:", "-m", "labels")
    return pets


def test_a_job_that_reads_and_commits_is_in_the_record(lab: Dsv, tmp_path: Path) -> None:
    work = tmp_path / "elsewhere"
    work.mkdir()
    (lab.cwd / "README").write_text("read me")
    lab.ok("sync", "-m", "readme")
    here = lab.at(work)
    here.process("run", "pets", "--keep-output", "--", sys.executable, "-c", IN_JOB)
    (run,) = here.ok("runs", "--json").json["items"]
    assert run["notes_error"] is None
    assert [each["dataset"] for each in run["read"]] == ["labels"]
    assert [each["dataset"] for each in run["made"]] == ["made"]
    (commit,) = here.ok("log", "made", "--json").json["items"]
    assert commit["commit"] == run["made"][0]["commit"]
    assert commit["message"] == f"from the job\n\nMade-by-run: pets/{run['run']}"
    assert [path for path in Path(run["out"]).rglob("*") if ".dsv-notes" in path.parts] == []
    shown = here.ok("ls", f"pets@{run['output']['tree']}").out
    assert "params.json" in shown
    assert ".dsv-notes" not in shown


def test_a_commit_made_after_the_end_does_not_name_the_run(lab: Dsv) -> None:
    lab.ok("run", "pets", "--", "true")
    (run,) = lab.ok("runs", "--json").json["items"]
    later = lab.at(lab.cwd.parent, DSV_RUN=run["run"], DSV_DATASET="pets")
    (lab.cwd.parent / "l").write_text("another")
    done = later.ok("put", "l", "labels:", "-m", "after")
    assert f"DSV_RUN names run pets/{run['run']}, which has ended: the commit does not name it" in done.err
    assert later.ok("log", "labels", "--json").json["items"][0]["message"] == "after"
