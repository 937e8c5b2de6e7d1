"""The steps of docs/guide/pipelines.md, as make, Snakemake and Argo start them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml
from PIL import Image

from tests.kit.dsv import Dsv
from tests.labs import snakemake as snakemake_lab
from tests.labs.machine import MissingError
from tests.waiting import PATIENCE

pytestmark = pytest.mark.real
PAGE = (Path(__file__).parents[2] / "docs/guide/pipelines.md").read_text()
FILES = dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL))
RECEIPTS = {"raw.txt", "resized.txt", "split.txt", "model.txt"}
Started: TypeAlias = "subprocess.Popen[str]"


@dataclass(frozen=True)
class Done:
    code: int
    said: str

    @property
    def ran(self) -> int:
        return len(re.findall(r"^run \S+ ended with exit code 0", self.said, re.MULTILINE))

    @property
    def hits(self) -> int:
        return len(re.findall(r"^same as run .*: not run again$", self.said, re.MULTILINE))


@dataclass(frozen=True)
class Project:
    """A folder with the files of the page, and what starts its steps."""

    dsv: Dsv
    argv: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return self.dsv.cwd

    def start(self, *more: str) -> Started:
        return subprocess.Popen(
            [*self.argv, *more], cwd=self.folder, env=dict(self.dsv.environ), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def run(self, *more: str) -> Done:
        return ended(self.start(*more))

    def receipts(self) -> dict[str, str]:
        return {name: (self.folder / name).read_text() for name in RECEIPTS if (self.folder / name).exists()}

    def forget(self) -> None:
        for name in self.receipts():
            (self.folder / name).unlink()

    def beside(self, name: str) -> Project:
        """The same files in another folder, without receipts."""
        folder = self.folder.with_name(name)
        lay_out(folder)
        return replace(self, dsv=self.dsv.at(folder))


def ended(process: Started) -> Done:
    said, _ = process.communicate(timeout=PATIENCE)
    return Done(process.returncode, said)


def lay_out(folder: Path) -> None:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture(scope="session")
def snakemake() -> str:
    try:
        return str(snakemake_lab.program())
    except MissingError as reason:
        if os.environ.get("DSV_REQUIRE_LABS") == "1":
            pytest.fail(f"{reason}, and DSV_REQUIRE_LABS=1 allows no skip")
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def make() -> str:
    if (program := shutil.which("make")) is None:
        assert "DSV_REQUIRE_LABS" not in os.environ, "make is missing"
        pytest.skip("needs Debian's make (apt-get install)")
    return program


@pytest.fixture
def raw(tmp_path: Path) -> Dsv:
    """A dataset of dark and light images, a pool, and an empty folder to work in."""
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    places = {"DSV_STORE": str(tmp_path / "store"), "DSV_CACHE": str(tmp_path / "cache"), "PATH": programs}
    dsv = Dsv.of(tmp_path / "home", tmp_path / "project", DSV_AUTHOR="Ann Lee", **places)
    for label, grey in (("dark", 40), ("light", 200)):
        for number in range(12):
            path = tmp_path / "raw" / label / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (16, 16), grey + number).save(path)
    dsv.ok("config", "pools.gpu.engine", "process")
    there = dsv.at(tmp_path / "raw")
    there.ok("init", "raw")
    there.ok("sync", "-m", "images")
    return dsv


@pytest.fixture(params=["make", "snakemake"])
def project(raw: Dsv, request: pytest.FixtureRequest) -> Project:
    lay_out(raw.cwd)
    program = request.getfixturevalue(request.param)
    return Project(raw, (program,) if request.param == "make" else (program, "--cores", "2"))


def outcome(done: Done) -> tuple[int, int, int]:
    return done.code, done.ran, done.hits


def test_no_step_runs_twice_and_without_receipts_all_are_hits(project: Project) -> None:
    first = project.run()
    assert outcome(first) == (0, 3, 0), first.said
    receipts = project.receipts()
    assert receipts.keys() == RECEIPTS
    for name, dataset in (("raw", "raw"), ("resized", "resized"), ("split", "split"), ("model", "models")):
        assert receipts[f"{name}.txt"] == f"{dataset}@{project.dsv.ok('resolve', dataset).out}"
    runs = project.dsv.ok("runs", "--json").json["items"]
    assert [run["metrics"] for run in runs] == [{"acc": 1.0}, None, None] and runs[0]["pool"] == "gpu"
    assert outcome(project.run()) == (0, 0, 0), "nothing is started"
    project.forget()
    again = project.run()
    assert outcome(again) == (0, 0, 3), again.said
    assert project.receipts() == receipts
    elsewhere = project.beside("of a colleague").run()
    assert outcome(elsewhere) == (0, 0, 3), elsewhere.said
    assert len(project.dsv.ok("runs", "--json").json["items"]) == 3


def test_raw_data_that_gives_an_equal_result_runs_one_step(project: Project) -> None:
    assert outcome(project.run()) == (0, 3, 0)
    receipts = project.receipts()
    (project.folder / "README").write_text("no image")
    project.dsv.ok("put", "README", "raw:README", "-m", "what this is")
    changed = project.run()
    hits = 2 if "--cores" in project.argv else 0  # make sees that the time of resized.txt is the old one
    assert outcome(changed) == (0, 1, hits), changed.said
    assert project.receipts() == receipts | {"raw.txt": f"raw@{project.dsv.ok('resolve', 'raw').out}"}
    project.forget()
    assert outcome(project.run()) == (0, 0, 3)


def test_a_step_that_fails_stops_the_pipeline_and_leaves_no_receipt(project: Project) -> None:
    step = project.folder / "split/split.py"
    step.write_text("raise SystemExit(3)\n")
    failed = project.run()
    assert failed.code != 0 and (failed.ran, failed.hits) == (1, 0), failed.said
    assert "ended with exit code 3" in failed.said and project.receipts().keys() == {"raw.txt", "resized.txt"}
    assert project.run().code != 0, "a failure is never remembered"
    step.write_text(FILES["split/split.py"])
    mended = project.run()
    assert outcome(mended) == (0, 2, 0), mended.said
    assert project.receipts().keys() == RECEIPTS


def test_a_result_that_its_branch_does_not_get_stops_the_pipeline(project: Project) -> None:
    """The job has succeeded, but the next step would read what an earlier one has made."""
    assert outcome(project.run()) == (0, 3, 0)
    project.dsv.ok("branch", "--protect", "split@main", "--max-removals", "0", "-m", "agreed")
    step = project.folder / "split/split.py"
    step.write_text(FILES["split/split.py"].replace("train.txt", "rest.txt"))
    before = project.receipts()["model.txt"]
    refused = project.run()
    assert refused.code != 0 and refused.ran == 1 and "is protected" in refused.said, refused.said
    assert "rest.txt" not in project.dsv.ok("ls", "split").out
    assert project.receipts().get("model.txt", before) == before


def test_two_pipelines_at_once_run_each_step_once(project: Project) -> None:
    both = [project, project.beside("of a colleague")]
    done = [ended(each) for each in [one.start() for one in both]]
    said = "\n".join(each.said for each in done)
    assert [each.code for each in done] == [0, 0], said
    assert sum(each.ran for each in done) == 3 and sum(each.hits for each in done) == 3, said
    assert both[0].receipts() == both[1].receipts() and both[0].receipts().keys() == RECEIPTS
    for dataset in ("resized", "split", "models"):
        commits = [item for item in project.dsv.ok("log", dataset, "--json").json["items"] if item["files"]]
        assert len(commits) == 1, "equal results make one commit"


def test_a_changed_step_runs_and_what_does_not_read_it_is_not_even_asked(project: Project) -> None:
    assert outcome(project.run()) == (0, 3, 0)
    step = project.folder / "train/train.py"
    step.write_text(FILES["train/train.py"] + "# better\n")
    changed = project.run()
    assert outcome(changed) == (0, 1, 0), changed.said


def test_the_steps_of_the_argo_workflow_have_the_same_keys(raw: Dsv, make: str) -> None:
    lay_out(raw.cwd)
    assert outcome(Project(raw, (make,)).run()) == (0, 3, 0)
    templates = {one["name"]: one for one in yaml.safe_load(FILES["workflow.yaml"])["spec"]["templates"]}
    made: dict[str, str] = {}
    said = ""
    for task in templates["pipeline"]["dag"]["tasks"]:
        assert set(task.get("depends", "").split(" && ")) - {""} <= made.keys()
        given = {one["name"]: filled(one["value"], made) for one in task["arguments"]["parameters"]}
        done = argo_step(raw, templates[task["template"]], given)
        assert done.returncode == 0, done.stderr
        said += done.stderr
        receipt = raw.cwd / "argo.txt"
        made[task["name"]] = receipt.read_text()
        receipt.unlink()
    assert Done(0, said).hits == 3 and made["train"] == f"models@{raw.ok('resolve', 'models').out}"


def filled(text: str, made: dict[str, str]) -> str:
    """The value of a parameter, as Argo fills it with the outputs of earlier tasks."""
    return re.sub(r"{{tasks\.(\w+)\.outputs\.parameters\.receipt}}", lambda match: made[match[1]], text)


def argo_step(dsv: Dsv, template: Any, given: dict[str, str]) -> subprocess.CompletedProcess[str]:
    container = template["container"]
    (output,) = template["outputs"]["parameters"]
    command = [word.replace(output["valueFrom"]["path"], "argo.txt") for word in container["command"]]
    names = {
        one["name"]: one["value"].strip("{}").removeprefix("inputs.parameters.") for one in container["env"]
    }
    environ = {**dsv.environ, **{name: given[parameter] for name, parameter in names.items()}}
    return subprocess.run(command, cwd=dsv.cwd, env=environ, capture_output=True, text=True, check=False)
