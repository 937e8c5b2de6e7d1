"""`--into`: the output of a run as the content of a branch; and outputs that expire without their records."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from tests.cli.detached import here
from tests.cli.test_run_output import newest
from tests.exhaustive import some
from tests.killing import run_killed
from tests.kit.dsv import Dsv, assert_documented

__all__ = ["here"]

MODEL = 'echo weights > "$DSV_OUT/model"'


def run(dsv: Dsv, into: str, script: str = MODEL, *options: str, code: int = 0) -> Any:
    """The record's output, which is for this branch, and what dsv said."""
    done = dsv.process("run", "pets@v1", "--into", into, *options, "--", "sh", "-c", script)
    assert done.code == code, done
    return newest(dsv)["output"] | {"said": done.err, "run": newest(dsv)["run"]}


def files(dsv: Dsv, target: str) -> set[str]:
    return set(dsv.ok("ls", target).lines)


def commits(dsv: Dsv, target: str) -> list[str]:
    return [item["commit"] for item in dsv.ok("log", target, "--json").json["items"]]


def test_the_branch_has_exactly_the_output(here: Dsv) -> None:
    first = run(
        here, "models", f'{MODEL}; echo x > "$DSV_OUT/old"; ln -s model "$DSV_OUT/best"', "-p", "lr=0.1"
    )
    assert "new dataset models" in first["said"]
    assert files(here, "models") == {"model", "old", "best"}, "params.json is the same for all, and stays out"
    (commit,) = commits(here, "models")
    assert first["into"] == {
        "dataset": "models", "branch": "main", "commit": commit, "root": first["root"], "path": None,
        "new": True, "error": None,
    }  # fmt: skip
    assert f"models@main is now the output: {commit[:12]}" in first["said"] and first["error"] is None
    second = run(
        here, "models", "mkdir $DSV_OUT/old $DSV_OUT/best; echo y > $DSV_OUT/old/file", "-p", "lr=0.2"
    )
    assert files(here, "models") == {"old/file", "best"}, "without --allow-removals"
    assert commits(here, "models") == [second["into"]["commit"], commit]
    third = run(here, "models", "echo z > $DSV_OUT/best; echo z > $DSV_OUT/old")
    assert files(here, "models") == {"old", "best"} and third["into"]["root"] == third["root"]


def test_an_equal_output_makes_no_new_commit(here: Dsv) -> None:
    secret = ("-p", "api_token=hunter2hunter2")
    first, second = run(here, "models", MODEL, "-p", "lr=0.1", *secret), run(here, "models", MODEL, *secret)
    assert second["into"] == first["into"] | {"new": False} and second["tree"] != first["tree"]
    assert f"models@main was already the output: {first['into']['commit'][:12]}" in second["said"]
    assert len(commits(here, "models")) == 1
    run(here, "models", f'{MODEL}; echo mine > "$DSV_OUT/params.json"', *secret)
    assert here.ok("cat", "models:params.json").out == "mine\n", "this one is the job's own"
    run(here, "models", f'{MODEL}; chmod +x "$DSV_OUT/model"')
    last = run(here, "models", MODEL)
    assert last["into"]["new"] and last["into"]["root"] == first["root"], "also the mode is the output's"


def test_a_path_and_a_new_branch(here: Dsv) -> None:
    run(here, "models", f'{MODEL}; echo x > "$DSV_OUT/kept"')
    made = run(here, "models:a/b/", 'mkdir "$DSV_OUT/c"; echo 1 > "$DSV_OUT/c/one"')
    assert made["into"]["path"] == "a/b" and files(here, "models") == {"kept", "model", "a/b/c/one"}
    run(here, "models:a/b", 'echo 2 > "$DSV_OUT/two"')
    assert files(here, "models") == {"kept", "model", "a/b/two"}
    other = run(here, "models@exp", 'echo 2 > "$DSV_OUT/two"')
    assert "new branch models@exp" in other["said"] and files(here, "models@exp") == {"two"}
    assert commits(here, "models@exp") == [other["into"]["commit"]], "without a parent"


def test_a_new_dataset_may_begin_with_another_branch(here: Dsv) -> None:
    made = run(here, "models@production", MODEL)
    assert "new dataset models" in made["said"]
    assert files(here, "models@production") == {"model"}
    branches = {
        each["branch"]: each["commit"]
        for each in here.ok("branch", "--list", "models", "--json").json["items"]
    }
    assert branches == {"main": None, "production": made["into"]["commit"]}
    again = run(here, "models@production", MODEL)
    assert (again["into"]["commit"], again["into"]["new"]) == (made["into"]["commit"], False)


@pytest.mark.parametrize(
    ("into", "code", "said"),
    [
        ("pets@v1", 2, "v1 is a tag of pets"),
        ("pets@main~1", 2, "is not a branch"),
        ("pets@0123456789ab", 2, "read as a commit id"),
        ("@exp", 2, "names no dataset"),
        ("models:../x", 2, "has a part .."),
        ("models:a/.git", 2, "git's own"),
        ("Pets", 125, "may not differ in case only"),
    ],
)
def test_a_target_that_gets_no_output_is_refused_before_anything_runs(
    here: Dsv, into: str, code: int, said: str
) -> None:
    done = here.process("run", "pets@v1", "--into", into, "--", "touch", str(here.cwd / "ran"))
    assert done.code == code and said in done.err, done
    assert not (here.cwd / "ran").exists()
    assert here("run", "pets@v1", "--offline", "--into", "models", "--", "true").code == 2
    assert here("run", "pets@v1", "-p", "a=1,2", "--sweep", "--into", "models", "--", "true").code == 2


def test_a_rule_of_the_branch_is_told_before_or_after_the_job(here: Dsv) -> None:
    run(here, "models", f'{MODEL}; for i in 1 2 3 4 5 6 7 8 9; do echo x > "$DSV_OUT/$i"; done')
    here.ok(
        "branch", "--protect", "models@main", "--max-removals", "5", "-m", "agreed", "--author", "Ann Lee"
    )
    before = commits(here, "models")
    refused = run(here, "models", code=4)
    assert refused["error"] == refused["into"]["error"] and "is protected" in refused["error"]
    assert refused["tree"] is not None and refused["into"]["commit"] is None
    assert f"dsv runs {refused['run']} --into models@main" in refused["said"]
    assert commits(here, "models") == before
    here.ok(
        "branch", "--protect", "models@main", "--only-merge", "--force", "-m", "agreed", "--author", "Ann Lee"
    )
    early = here.process("run", "pets@v1", "--into", "models", "--", "touch", str(here.cwd / "ran"))
    assert early.code == 125 and "is protected" in early.err and not (here.cwd / "ran").exists()
    here.ok("branch", "--unprotect", "models@main", "--author", "Ann Lee")
    done = here.ok("runs", refused["run"], "--into", "models@main", "--json").json
    assert_documented(
        "runs", done, without=("items", "copy", "deleted", "compare", "once", "export", "series")
    )
    assert (
        done["into"]["new"] and done["into"]["root"] == refused["root"] and files(here, "models") == {"model"}
    )
    again = here.ok("runs", refused["run"], "--into", "models").err
    assert f"models@main was already the output: {done['into']['commit'][:12]}" in again


def test_a_job_that_failed_or_wrote_nothing_changes_no_branch(here: Dsv) -> None:
    run(here, "models")
    failed = run(here, "models", f"{MODEL}; echo x > $DSV_OUT/x; exit 3", code=3)
    assert (failed["error"], failed["into"]["error"]) == (None, "the exit code was 3") and failed[
        "tree"
    ] is not None
    empty = run(here, "models", "true", code=4)
    assert "is empty" in empty["into"]["error"] and files(here, "models") == {"model"}
    here.ok("runs", failed["run"], "--into", "models@broken")
    assert files(here, "models@broken") == {"model", "x"}, "somebody wants it all the same"


def test_runs_into_takes_any_kept_output(here: Dsv) -> None:
    job = ("--", "sh", "-c", MODEL)
    assert here.process("run", "pets@v1", "--keep-output", *job).code == 0
    kept = newest(here)
    here.ok("runs", kept["run"], "--into", "others:sub")
    assert files(here, "others") == {"sub/model", "sub/params.json"}, "exactly what the store has of it"
    assert here.process("run", "pets@v1", *job).code == 0
    refused = here("runs", newest(here)["run"], "--into", "others")
    assert refused.code == 3 and "is not in the store" in refused.err
    assert here("runs", kept["run"], "--into", "pets@v1").code == 2
    assert here("runs", kept["run"], "--into", "others", "--log").code == 2
    job = ("sh", "-c", f"echo x; until [ -e {here.cwd}/go ]; do sleep 0.1; done")
    run_id = here.process("run", "--detach", "pets@v1", "--", *job).out.strip()
    assert here("runs", run_id, "--into", "others").code == 4
    (here.cwd / "go").touch()
    here.ok("wait", run_id)


def test_lineage_knows_what_was_put_at_a_path_after_the_run(here: Dsv) -> None:
    (here.cwd / "notes").write_text("by hand")
    here.ok("put", "--create", "notes", "models:", "-m", "notes")
    kept = here.process("run", "pets@v1", "--keep-output", "--", "sh", "-c", MODEL)
    assert kept.code == 0, kept
    made = newest(here)["run"]
    here.ok("runs", made, "--into", "models:v1/best")
    for target, name in (("models", "part"), ("models:v1", "part"), ("models:v1/best/model", "output")):
        edges = here.ok("lineage", target, "--json").json["edges"]
        assert (f"pets/{made}", name) in {(edge["from"], edge["name"]) for edge in edges}, target
    (commit,) = (item for item in here.ok("log", "models", "--json").json["items"] if item["parents"])
    here.ok("put", "notes", "models:notes2", "-m", commit["message"].replace("best", "better"))
    found = here.ok("lineage", "models", "--json").json
    assert {edge["name"] for edge in found["edges"] if edge["to"] == found["start"]} == {"history"}


def test_two_runs_into_one_branch_at_once(here: Dsv) -> None:
    """Each is the whole content of one commit, or says why it is not."""
    run(here, "models")
    meet = f"touch {here.cwd}/$0; until [ -e {here.cwd}/one ] && [ -e {here.cwd}/two ]; do sleep 0.05; done"
    job = f'{meet}; echo "$0" > "$DSV_OUT/$0"'
    argv = ("run", "pets@v1", "--into", "models", "--json-file")
    both = [here.start(*argv, f"{each}.json", "--", "sh", "-c", job, each) for each in ("one", "two")]
    for process in both:
        process.communicate()
    landed = set()
    for each, process in zip(("one", "two"), both, strict=True):
        run_id = json.loads((here.cwd / f"{each}.json").read_text())["run"]
        into = here.ok("runs", run_id, "--json").json["items"][0]["output"]["into"]
        assert process.returncode == (0 if into["error"] is None else 4)
        if into["error"] is None:
            landed.add(into["commit"])
            assert files(here, f"models@{into['commit']}") == {each}
        else:
            assert "has just changed" in into["error"]
    assert landed and landed < set(commits(here, "models"))


def test_a_run_killed_at_any_step_is_finished_from_its_record(here: Dsv) -> None:
    first = run(here, "models", 'echo old > "$DSV_OUT/old"')["run"]
    top, before = here.home / ".local", here.home / "before"
    shutil.copytree(top, before)
    argv = ("run", "pets@v1", "--engine", "process", "--into", "models", "--", "sh", "-c", MODEL)

    def work() -> None:
        here.ok(*argv)

    steps = run_killed(work, None, inside=top)
    kept = 0
    for step in some(range(1, steps + 1)):
        shutil.rmtree(top)
        shutil.copytree(before, top)
        run_killed(work, step, inside=top)
        assert files(here, "models") in ({"old"}, {"model"})
        last = here.ok("runs", "--dataset", "pets", "--json").json["items"][0]
        if last["run"] != first and last["output"]["tree"] is not None:
            kept += 1
            here.ok("runs", last["run"], "--into", "models")
            assert files(here, "models") == {"model"} and len(commits(here, "models")) == 2
    assert kept, "some were killed after the output was there"


def test_outputs_expire_without_their_records(here: Dsv) -> None:
    job = ("--", "sh", "-c", "echo only here > $DSV_OUT/m")
    assert here.process("run", "pets@v1", "--keep-output", *job).code == 0
    lone = newest(here)
    first, second = run(here, "models", "head -c 300000 /dev/urandom > $DSV_OUT/big"), run(here, "models")
    named, other = run(here, "models", "echo 3 > $DSV_OUT/m"), run(here, "models", "echo 4 > $DSV_OUT/m")
    here.ok("tag", "best", f"pets@{named['tree']}", "--author", "Ann Lee")
    used = here.ok("du", "--json").json["store"]["outputs"]
    assert used["commits"] == 4, "a tagged one is a version"
    rules = ("expire", "pets", "--outputs", "--keep-last", "1", "--author", "Ann Lee")
    plan = here.ok(*rules, "--dry-run", "--json").json["items"]
    assert {item["commit"]: item["reasons"] for item in plan if not item["expired"]} == {
        other["tree"]: ["last of output"]
    }
    assert here("expire", "pets", "--outputs").code == 2
    assert here.ok(*rules, "--older-than", "1d", "--json").json["items"][0]["expired"] is False
    expired = [item["commit"] for item in here.ok(*rules, "--json").json["items"] if item["expired"]]
    assert sorted(expired) == sorted([first["tree"], second["tree"], lone["output"]["tree"]])
    assert here.ok("du", "--json").json["store"]["outputs"]["commits"] == 1
    assert here("runs", first["run"], "--into", "models@old").code == 3, "an expired output goes to no branch"
    here.ok("expire", "pets", "--undo", "--author", "Ann Lee")
    here.ok("runs", first["run"], "--into", "models@old")
    here.ok(*rules, "--undo-for", "0s")
    here.ok("gc", "--yes", "--author", "Ann Lee")
    gone = here("runs", lone["run"], "--out", "copy")
    assert gone.code == 3 and "was expired" in gone.err, gone
    assert newest(here)["run"] == other["run"] and here.ok("cat", f"pets@{other['tree']}:m").out == "4\n"
    assert here.ok("cat", "models@main:m").out == "4\n" and files(here, "models@old") == {"big"}
    assert here.ok("runs", first["run"], "--json").json["items"][0]["output"]["tree"] == first["tree"]
    here.ok("verify")


def test_du_has_a_row_for_what_only_outputs_have(here: Dsv) -> None:
    job = ("--", "sh", "-c", "head -c 300000 /dev/urandom > $DSV_OUT/big")
    assert here.process("run", "pets@v1", "--keep-output", *job).code == 0
    used = here.ok("du", "--json").json["store"]["outputs"]
    assert (used["kind"], used["commits"]) == ("outputs", 1) and used["alone"] > 300_000
    (row,) = [line for line in here.ok("du").lines if line.startswith("outputs")]
    assert row.endswith("of 1 output of runs alone")
