"""`--once`: a run whose result is there already is not run again."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import FILES
from tests.cli.detached import await_file, here, shown
from tests.kit.dsv import Dsv, Result, assert_documented, write_files
from tests.privileges import modes_count
from tests.waiting import until

__all__ = ["here"]

SAYS = 'echo ran >> ran; echo made > "$DSV_OUT/made"; echo "{\\"acc\\": 0.5}" > "$DSV_OUT/metrics.json"'


def once(dsv: Dsv, *options: str, script: str = SAYS, target: str = "pets@v1", code: int = 0) -> Result:
    done = dsv.process("run", target, "--once", *options, "--", "sh", "-c", script)
    assert done.code == code, done
    return done


def times(dsv: Dsv) -> int:
    """How often the job has run."""
    ran = dsv.cwd / "ran"
    return len(ran.read_text().split()) if ran.exists() else 0


def runs(dsv: Dsv, *options: str) -> list[Any]:
    """The records, newest first."""
    items: list[Any] = dsv.ok("runs", "--json", *options).json["items"]
    return items


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_an_equal_run_is_not_run_again(here: Dsv) -> None:
    once(here)
    (first,) = runs(here)
    done = once(here)
    assert times(here) == 1 and runs(here, "--hits") == [first], "it leaves no record"
    assert f"same as run {first['run']} ({first['user']}@{first['host']}, " in done.err and done.out == ""
    assert "what its command imports is not in its key" in done.err
    assert first["output"]["tree"] is not None and first["output"]["files"] == 2, "without params.json"
    once(here, script=SAYS + "; true")
    assert times(here) == 2


def test_a_hit_serves_the_folder_of_out(here: Dsv) -> None:
    """Into an existing folder too: the first run wrote there."""
    script = f'{SAYS}; mkdir "$DSV_OUT/bin"; cp /bin/true "$DSV_OUT/bin/do"; ln -s made "$DSV_OUT/best"'
    once(here, "--out", "out", "-p", "lr=0.1", script=script)
    out = here.cwd / "out"
    first = content(out)
    assert set(first) == {"made", "metrics.json", "params.json", "best"}
    stamps = {name: (out / name).stat().st_mtime_ns for name in first}
    once(here, "--out", "out", "-p", "lr=0.1", script=script)
    assert {name: (out / name).stat().st_mtime_ns for name in first} == stamps, "nothing was written"
    write_files(out, {"made": b"broken", "mine": b"mine"})
    (out / "best").unlink()
    (out / "best").symlink_to("mine")
    (out / "bin/do").chmod(0o644)
    once(here, "--out", "out", "-p", "lr=0.1", script=script)
    assert content(out) == first | {"mine": b"mine"} and (out / "best").readlink() == Path("made")
    assert (out / "bin/do").stat().st_mode & 0o777 == 0o755
    once(here, "--out", "new/er", "-p", "lr=0.1", script=script)
    assert content(here.cwd / "new/er") == first and times(here) == 1
    (here.cwd / "other/made").mkdir(parents=True)
    refused = once(here, "--out", "other", "-p", "lr=0.1", script=script, code=4)
    assert "other/made' already exists, and is not this output" in refused.err
    assert not list((here.cwd / "other").glob(".*")), "no draft stays"


def test_a_hit_serves_into_and_the_receipt(here: Dsv) -> None:
    once(here, "--into", "models", "--receipt", "made.txt")
    (first,) = runs(here)
    receipt = here.cwd / "made.txt"
    stamp = receipt.stat().st_mtime_ns
    done = once(here, "--into", "models", "--receipt", "made.txt")
    assert "models@main was already the output" in done.err and receipt.stat().st_mtime_ns == stamp
    receipt.unlink()
    once(here, "--into", "others:a", "--receipt", "made.txt")
    assert set(here.ok("ls", "others").lines) == {"a/made", "a/metrics.json"}
    commit = here.ok("resolve", "others").out.strip()
    assert receipt.read_text() == f"others@{commit}:a\n" and times(here) == 1
    assert (
        here.ok("log", "others", "--json")
        .json["items"][0]["message"]
        .startswith(f"output of run pets/{first['run']}")
    )
    refused = once(here, "--into", "others@main~1", code=2)
    assert "is not a branch" in refused.err


def test_a_hit_for_programs(here: Dsv) -> None:
    once(here, "--json-file", "first.json")
    first = json.loads((here.cwd / "first.json").read_text())
    assert first["hit"] is False and first["run"] == runs(here)[0]["run"]
    once(here, "--json-file", "hit.json", "--out", "out")
    hit = json.loads((here.cwd / "hit.json").read_text())
    assert_documented("run", hit, without="sweep")
    assert hit["hit"] is True and hit["run"] == first["run"] and hit["metrics"] == {"acc": 0.5}
    assert (hit["exit_code"], hit["out"], hit["output"]["root"]) == (
        0, str(here.cwd / "out"), first["output"]["root"]
    )  # fmt: skip
    once(here, "--json-file", "hit.json")
    assert json.loads((here.cwd / "hit.json").read_text())["out"] is None, "nothing is fetched for nothing"
    detached = once(here, "--detach")
    assert detached.out.strip() == first["run"] and "same as run" in detached.err
    document = json.loads(once(here, "--detach", "--json").out)
    assert document == {"schema": 1, "run": first["run"], "out": None, "hit": True}
    assert times(here) == 1 and len(runs(here, "--hits")) == 1
    other = json.loads(once(here, "--detach", "--json", script=SAYS + ";:").out)
    assert other["hit"] is False and here("wait", other["run"]).code == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--once", "--offline"), "--offline"),
        (("--key", "x"), "--key is for --once"),
        (("--fresh",), "--fresh is for --once"),
        (("--receipt", "x"), "--receipt"),
    ],
)
def test_options_that_have_no_effect_are_refused(here: Dsv, options: tuple[str, ...], said: str) -> None:
    refused = here("run", "pets@v1", *options, "--", "true")
    assert refused.code == 2 and said in refused.err and "hint" in refused.err


def test_a_hit_with_other_commits_leaves_a_record(here: Dsv) -> None:
    """The same files in another commit: one run, and lineage knows both commits."""
    once(here, "--into", "models")
    (first,) = runs(here)
    work = here.at(here.home.parent / "work")
    write_files(work.cwd, {"a.txt": b"alpha\n"})
    work.ok("sync")
    second = here.ok("resolve", "pets").out.strip()
    assert second != first["commit"]
    once(here, "--into", "models", target="pets")
    assert times(here) == 1 and runs(here) == [first], "hidden"
    hit, shown_first = runs(here, "--hits")
    assert shown_first == first and hit["once"]["hit_of"] == f"pets/{first['run']}"
    assert (hit["commit"], hit["state"], hit["exit_code"], hit["metrics"]) == (
        second,
        "ended",
        0,
        {"acc": 0.5},
    )
    assert hit["once"]["key"] == first["once"]["key"] and hit["output"]["tree"] is None
    assert hit["output"]["root"] == first["output"]["root"] and hit["output"]["into"]["new"] is False
    assert [line.split()[-2] for line in here.ok("runs", "--hits").lines[1:]] == ["hit", "ok"]
    assert here.ok("runs", "--limit", "1", "--json").json["items"] == [first]
    of = here.ok("runs", "--of", "models", "--json", "--hits").json["items"]
    assert [item["run"] for item in of] == [hit["run"], first["run"]]
    nodes = here.ok("lineage", "models", "--json").json
    assert {node["commit"] for node in nodes["nodes"] if node["dataset"] == "pets" and node["kind"] == "commit"} == {
        first["commit"], second
    }  # fmt: skip
    down = here.ok("lineage", "pets", "--down", "--json").json["nodes"]
    assert {node["dataset"] for node in down if node["kind"] == "commit"} == {"pets", "models"}
    here.ok("runs", hit["run"], "--out", "copy")
    assert (here.cwd / "copy/made").read_text() == "made\n"
    here.ok("runs", hit["run"], "--into", "others")
    assert "made" in here.ok("ls", "others").lines


def test_failures_are_not_remembered(here: Dsv) -> None:
    failing = 'echo ran >> ran; [ -e fixed ] && echo made > "$DSV_OUT/made"'
    once(here, script=failing, code=1)
    once(here, script=failing, code=1)
    assert times(here) == 2
    (here.cwd / "fixed").touch()
    once(here, script=failing)
    once(here, script=failing)
    assert times(here) == 3
    lacking = 'echo ran >> ran; mkfifo "$DSV_OUT/pipe"'
    once(here, script=lacking)
    once(here, script=lacking)
    assert times(here) == 5, "what no commit holds is missing from the output"


def test_fresh_runs_anyway_and_compares(here: Dsv) -> None:
    script = 'echo ran >> ran; cat state > "$DSV_OUT/state"; echo same > "$DSV_OUT/same"'
    write_files(here.cwd, {"state": b"1"})
    assert "compar" not in once(here, "--fresh", script=script).err
    first = runs(here)[0]["run"]
    assert f"its output is the same as that of run {first}" in once(here, "--fresh", script=script).err
    second = runs(here)[0]["run"]
    write_files(here.cwd, {"state": b"2"})
    said = once(here, "--fresh", script=script).err
    assert f"its output differs from that of run {second}: 'state'\n" in said
    third = runs(here)[0]["run"]
    assert f"same as run {third} " in once(here, script=script).err and times(here) == 3, "the newest counts"


def test_a_result_that_is_gone_is_computed_anew(here: Dsv) -> None:
    once(here)
    here.ok("runs", "--delete", runs(here)[0]["run"], "--yes")
    once(here)
    assert times(here) == 2, "without its record"
    kept = ("run", "pets@v1", "--keep-output", "--", "sh", "-c", 'echo x > "$DSV_OUT/x"')
    assert here.process(*kept).code == 0
    here.ok("expire", "pets", "--outputs", "--keep-last", "1", "--author", "Ann Lee")
    assert "has an output that has expired" in dry(here)["why"]
    once(here, "--out", "out")
    assert times(here) == 3 and (here.cwd / "out/made").exists()
    once(here)
    assert times(here) == 3, "the new one counts"


def test_an_erased_output_is_never_served(here: Dsv) -> None:
    once(here, "--into", "models")
    here.ok(
        "erase", "models:made", "--reason", "withdrawn", "--yes", "--shared", "erase", "--author", "Ann Lee"
    )
    assert "of which 'made' was erased" in dry(here)["why"]
    once(here, "--out", "out", script=SAYS)
    assert times(here) == 2


def test_the_result_of_a_deleted_dataset_is_computed_anew(here: Dsv) -> None:
    """The same files in another dataset have the same key."""
    twin = Dsv.of(here.home, here.home / "twin", **here.environ)
    write_files(twin.cwd, FILES)
    twin.ok("init", "twins")
    twin.ok("sync")
    once(here)
    once(here, target="twins")
    assert times(here) == 1
    here.ok("datasets", "--delete", "pets", "--yes", "--author", "Ann Lee")
    once(here, "--out", "out", target="twins")
    assert times(here) == 2 and (here.cwd / "out/made").read_text() == "made\n"
    once(here, target="twins")
    assert times(here) == 2


def test_a_renamed_dataset_hits(here: Dsv) -> None:
    once(here)
    first = runs(here)[0]["run"]
    here.ok("datasets", "--rename", "pets", "animals", "--author", "Ann Lee")
    done = once(here, "--out", "out", target="animals@v1")
    assert f"same as run {first} " in done.err and times(here) == 1
    assert (here.cwd / "out/made").read_text() == "made\n"


def test_another_user_hits(here: Dsv) -> None:
    once(here)
    (first,) = runs(here)
    bob = Dsv.of(here.home.parent / "bob", DSV_STORE=here.ok("config", "store").out.split()[0])
    done = once(bob, "--out", "out", "-q", "--json-file", "hit.json")
    hit = json.loads((bob.cwd / "hit.json").read_text())
    assert hit["run"] == first["run"] and (bob.cwd / "out/made").read_text() == "made\n" and times(bob) == 0
    assert done.err == ""


def test_a_store_that_may_only_be_read(here: Dsv) -> None:
    once(here)
    store = Path(here.ok("config", "store").out.split()[0])
    folders = [store, *(path for path in store.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        with modes_count():
            hit = here("run", "pets@v1", "--once", "--out", "out", "--", "sh", "-c", SAYS)
            asked = here("run", "pets@v1", "--once", "--dry-run", "--json", "--", "sh", "-c", SAYS)
            other = here("run", "pets@v1", "--once", "--", "sh", "-c", SAYS + ";:")
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert hit.code == 0 and "same as run" in hit.err and (here.cwd / "out/made").exists()
    assert asked.json["once"]["hit"] == runs(here)[-1]["run"]
    assert other.code == 0 and times(here) == 2, other
    assert "this run is nobody's result, so it may be repeated" in other.err
    here.process("run", "pets@v1", "--", "true")  # sends what waits
    assert [item["once"] is not None for item in runs(here)] == [False, False, True]


def test_a_damaged_output_is_an_error_of_its_own(here: Dsv) -> None:
    once(here, script='echo ran >> ran; head -c 300000 /dev/urandom > "$DSV_OUT/big"')
    store = Path(here.ok("config", "store").out.split()[0])
    for pack in (store / "packs").rglob("*"):
        if pack.is_file() and pack.stat().st_size > 200_000:
            data = bytearray(pack.read_bytes())
            data[150_000] ^= 1
            pack.chmod(0o644)
            pack.write_bytes(data)
    done = once(
        here, "--out", "out", script='echo ran >> ran; head -c 300000 /dev/urandom > "$DSV_OUT/big"', code=5
    )
    assert "--fresh" in done.err and times(here) == 1 and not list((here.cwd / "out").glob("big"))
    once(here, "--fresh", script='echo ran >> ran; head -c 300000 /dev/urandom > "$DSV_OUT/big"')
    assert times(here) == 2


def test_an_extended_grid_runs_only_what_is_new(here: Dsv) -> None:
    def sweep(values: str, *options: str) -> Result:
        words = ("run", "pets@v1", "--once", "-p", f"n={values}", "--sweep", *options)
        done = here.process(*words, "--", "sh", "-c", SAYS)
        assert done.code == 0, done
        return done

    sweep("1,2", "--name", "grid")
    before = {item["params"]["n"]: item for item in runs(here)}
    assert times(here) == 2
    done = sweep("1,2,3", "--name", "wider", "--out", "outs")
    assert times(here) == 3
    hits = {item["params"]["n"]: item for item in here.ok("runs", "wider", "--json").json["items"]}
    assert {n: item["once"]["hit_of"] for n, item in hits.items()} == {
        1: f"pets/{before[1]['run']}", 2: f"pets/{before[2]['run']}", 3: None
    }  # fmt: skip
    assert f"1/3 n=1: run {hits[1]['run']} is the same as {before[1]['run']}, acc=0.5" in done.err
    assert f"{hits[1]['run']} begun" not in done.err and f"{hits[3]['run']} begun" in done.err
    assert done.out.count(" hit") == 3, "two, and their sum"
    assert sorted(path.parent.name for path in (here.cwd / "outs").glob("*/made")) == ["1", "2", "3"]
    listed = [item["run"] for item in runs(here)]
    assert {hits[1]["run"], hits[2]["run"]} <= set(listed), "those of a sweep are shown"
    dry_run = here.ok(
        "run", "pets@v1", "--once", "-p", "n=3,4", "--sweep", "-n", "--json", "--", "sh", "-c", SAYS
    )
    assert [item["once"]["hit"] for item in dry_run.json["items"]] == [hits[3]["run"], None]


def test_a_repeated_run_may_be_a_hit(here: Dsv) -> None:
    once(here, "-p", "n=1")
    first = runs(here)[0]["run"]
    again = here.process("run", "--again", first, "--once")
    assert again.code == 0 and f"same as run {first} " in again.err and times(here) == 1
    assert here.process("run", "--again", first).code == 0
    assert times(here) == 2 and runs(here)[0]["once"] is None
    third = here.process("run", "--again", first, "--once", "--fresh", "--retries", "2")
    assert third.code == 2, "a repeated run keeps its retries"


def test_retries_are_not_in_the_key(here: Dsv) -> None:
    flaky = 'echo ran >> ran; [ $(wc -l < ran) -gt 1 ] || exit 1; echo made > "$DSV_OUT/made"'
    once(here, "--retries", "2", script=flaky)
    once(here, script=flaky)
    assert times(here) == 2, "the second attempt is the result"


def test_a_dry_run_says_whether_it_is_a_hit(here: Dsv) -> None:
    assert dry(here)["why"] == "no run has claimed it" and dry(here)["nearest"] is None
    once(here, "-p", "size=64")
    (first,) = runs(here)
    hit = dry(here, "-p", "size=64")
    assert hit == {
        "key": first["once"]["key"], "hit": first["run"], "why": None, "nearest": None,
        "not_in_key": ["what its command imports is not in its key: --code DIR or an image would put that there"],
    }  # fmt: skip
    other = dry(here, "-p", "size=96")
    assert other["hit"] is None and other["nearest"] == {
        "run": first["run"], "differs": ["params.size 64 -> 96"],
    }  # fmt: skip
    said = here("run", "pets@v1", "--once", "-n", "-p", "size=96", "--", "sh", "-c", SAYS)
    assert "it would run: no run has claimed it" in said.err
    assert f"the nearest run is {first['run']}: params.size 64 -> 96" in said.err
    once(here, script="exit 3", code=3)
    failed = runs(here)[0]["run"]
    assert dry(here, script="exit 3")["why"] == f"run {failed} has failed (exit code 3)"
    here.ok("runs", "--delete", first["run"], "--yes")
    assert first["run"] in dry(here, "-p", "size=64")["why"]
    assert times(here) == 1


def test_equal_runs_wait_for_the_one_under_way(here: Dsv) -> None:
    waits = 'echo ran >> ran; until [ -e go ]; do sleep 0.05; done; echo made > "$DSV_OUT/made"'
    detached = once(here, "--detach", script=waits).out.strip()
    await_file(here, "ran")
    until(lambda: shown(here, detached)["sent"], "the start in the store")
    assert f"run {detached} is under way" in dry(here, script=waits)["why"]
    second = once(here, "--detach", "--out", "second", script=waits).out.strip()
    assert second != detached, "a detached one has its own id"
    words = ("run", "pets@v1", "--once", "--out", "third", "--", "sh", "-c", waits)
    with here.start(*words) as third:
        assert third.stderr is not None
        line = third.stderr.readline().decode()
        assert f"waits for run {detached} " in line
        (here.cwd / "go").touch()
        said = third.stderr.read().decode()
    assert third.returncode == 0 and f"same as run {detached} " in said
    assert here("wait", second).code == 0 and times(here) == 1
    assert (here.cwd / "second/made").exists() and (here.cwd / "third/made").exists()
    record = shown(here, second)
    assert record["once"]["hit_of"] == f"pets/{detached}" and record["state"] == "ended"
    assert [item["run"] for item in runs(here)] == [detached]


def test_interrupting_a_waiting_run_leaves_the_other(here: Dsv) -> None:
    waits = 'echo ran >> ran; until [ -e go ]; do sleep 0.05; done; echo made > "$DSV_OUT/made"'
    detached = once(here, "--detach", script=waits).out.strip()
    await_file(here, "ran")
    with here.start("run", "pets@v1", "--once", "--", "sh", "-c", waits) as waiting:
        assert waiting.stderr is not None
        assert "waits for run" in waiting.stderr.readline().decode()
        waiting.send_signal(signal.SIGINT)
        waiting.stderr.read()
    assert waiting.returncode == 130
    (here.cwd / "go").touch()
    assert here("wait", detached).code == 0 and times(here) == 1


WAITS = 'echo ran >> ran; until [ -e go ]; do sleep 0.05; done; echo made > "$DSV_OUT/made"'


def test_inputs_that_are_erased_while_a_run_waits_are_noticed(here: Dsv) -> None:
    detached = once(here, "--detach", script=WAITS).out.strip()
    await_file(here, "ran")
    with here.start("run", "pets@v1", "--once", "--", "sh", "-c", WAITS) as waiting:
        assert waiting.stderr is not None and "waits for run" in waiting.stderr.readline().decode()
        here.ok("erase", "pets@v1:a.txt", "--reason", "withdrawn", "--yes", "--author", "Ann Lee")
        (here.cwd / "go").touch()
        said = waiting.stderr.read().decode()
    assert waiting.returncode == 0 and "same as" not in said and times(here) == 2, said
    assert here("wait", detached).code == 0
    second, first = runs(here)
    assert first["once"]["erased"] == [] and len(second["once"]["erased"]) == 1
    once(here, script=WAITS)
    assert times(here) == 2 and dry(here, script=WAITS)["hit"] == second["run"]


def test_a_store_that_fails_while_a_run_waits_starts_no_second_one(here: Dsv) -> None:
    detached = once(here, "--detach", script=WAITS).out.strip()
    await_file(here, "ran")
    store = Path(here.ok("config", "store").out.split()[0])
    with here.start("run", "pets@v1", "--once", "--", "sh", "-c", WAITS) as waiting:
        assert waiting.stderr is not None and "waits for run" in waiting.stderr.readline().decode()
        shutil.copytree(store, store.with_name("away"))
        shutil.rmtree(store)
        said = waiting.stderr.read().decode()
    store.with_name("away").rename(store)
    assert waiting.returncode == 125 and "error: " in said, said
    (here.cwd / "go").touch()
    assert here("wait", detached).code == 0 and times(here) == 1


def test_the_record_of_a_hit_has_the_state_of_the_code(here: Dsv, tmp_path: Path) -> None:
    code = tmp_path / "code"
    write_files(code, {"job.sh": b"echo ran >> $1/ran; echo made > $DSV_OUT/made\n"})
    for words in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -qm first"):
        subprocess.run(["git", "-C", str(code), *words.split()], check=True)
    words = ("--once", "--code", str(code), "--", "sh", "job.sh", str(here.cwd))
    assert here.process("run", "pets@v1", *words).code == 0
    work = here.at(here.home.parent / "work")
    write_files(work.cwd, {"a.txt": b"alpha\n"})
    work.ok("sync")
    subprocess.run(["git", "-C", str(code), "rm", "-q", "--cached", "job.sh"], check=True)
    hit = here.process("run", "pets", *words)
    assert hit.code == 0 and "same as run" in hit.err and times(here) == 1, hit
    second, first = runs(here, "--hits")
    assert first["code"]["commit"] == second["code"]["commit"] and len(first["code"]["commit"]) == 40
    assert (first["code"]["dirty"], second["code"]["dirty"]) == (False, True)
    assert first["code"]["root"] == second["code"]["root"] and second["code"]["tree"] is None


def test_what_lay_in_out_before_is_no_part_of_a_result(here: Dsv) -> None:
    write_files(here.cwd / "out", {"old": b"old"})
    said = once(here, "--out", "out").err
    assert "is nobody's result" in said and "out is not empty" in said and runs(here)[0]["once"] is None
    once(here, "--out", "new")
    assert times(here) == 2 and not (here.cwd / "new/old").exists()
    once(here, "--out", "out")
    assert times(here) == 2, "a hit fills it all the same"


def test_a_run_that_can_be_no_result_says_so_at_its_end(here: Dsv) -> None:
    lacking = once(here, script='mkfifo "$DSV_OUT/pipe"')
    assert (
        "this run is nobody's result, so it may be repeated: it has an output that the store lacks"
        in lacking.err
    )
    dsv = f"{sys.executable} -m dsv.cli.main"
    more = once(here, target="pets@v1:train", script=f"{dsv} cat $DSV_DATASET@$DSV_COMMIT:a.txt")
    assert more.out == "alpha\n" and "nobody's result, so it may be repeated: it has read pets@" in more.err
    assert len(runs(here)[0]["read"]) == 1
    made = once(here, script=f"echo x > x; {dsv} put x pets:x --author 'Ann Lee'")
    assert "it may be repeated: it has made pets@" in made.err, made
    assert "nobody" not in once(here).err and "nobody" not in once(here, script="exit 1", code=1).err


def test_a_damaged_record_or_claim_is_a_miss(here: Dsv) -> None:
    once(here)
    store = Path(here.ok("config", "store").out.split()[0])
    (record,) = store.glob("runs/pets/*/record")
    record.chmod(0o644)
    record.write_text("{")
    assert "that can't be read" in dry(here)["why"]
    once(here)
    once(here)
    assert times(here) == 2
    claim = min(store.glob("once/*/*"))
    claim.chmod(0o644)
    claim.write_bytes(b"{" * 100_000)
    assert dry(here)["why"] == "its claim can't be read"
    once(here, "--fresh")
    once(here)
    assert times(here) == 3


def test_pools_are_not_in_the_key(here: Dsv) -> None:
    for pool in ("a", "b"):
        here.ok("config", f"pools.{pool}.engine", "process")
    once(here, "--on", "a,b")
    once(here, "--on", "b")
    once(here)
    assert times(here) == 1 and runs(here)[0]["pool"] == "a"


def dry(dsv: Dsv, *options: str, script: str = SAYS, target: str = "pets@v1") -> Any:
    done = dsv("run", target, "--once", "--dry-run", "--json", *options, "--", "sh", "-c", script)
    assert done.code == 0, done
    return done.json["once"]
