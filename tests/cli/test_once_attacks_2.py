"""`--once`: claims that turn out wrong, runs that are stopped or fail on the way, and what is said about it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsv.api.once_key import MadeKey
from dsv.api.run_once import _faults
from dsv.api.run_staging import RunStaging
from dsv.errors import Unreachable
from dsv.format import keys
from dsv.run import once_claims
from dsv.run.once import document, key_of
from dsv.run.record import OnceKey, RunRecord
from dsv.stores.open import open_store
from dsv.values.ids import CommitId
from tests.api.test_once_key import make
from tests.api.test_once_key import once as once_of
from tests.cli.detached import await_file, here, kill_with_reaper, shown
from tests.cli.test_once_attacks import counting, store_of
from tests.cli.test_once_together import HASTY
from tests.cli.test_run_once import SAYS, dry, once, runs, times
from tests.engines.fake_docker import FakeDocker
from tests.kit.dsv import Dsv, Result, write_files
from tests.kit.people import Person
from tests.waiting import until

__all__ = ["here"]


def here_run(here: Dsv, *options: str, script: str = SAYS) -> Result:
    """In this process, whose functions a test may replace."""
    return here("run", "pets@v1", "--once", *options, "--", "sh", "-c", script)


def claims(here: Dsv) -> list[Path]:
    return [path for path in (store_of(here) / "once").rglob("*") if path.is_file()]


def record_of(here: Dsv, run: str) -> Path:
    path = store_of(here) / "runs/pets" / run / "record"
    path.chmod(0o644)
    return path


# --- what turns out as a run begins


def test_code_that_changes_between_its_hash_and_its_commit_is_nobodys_result(
    here: Dsv, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = here.cwd / "code/value"
    write_files(here.cwd, {"code/value": b"1\n"})
    script = f'echo ran >> {here.cwd}/ran; cp value "$DSV_OUT/value"'
    commit = RunStaging.commit_code

    def changed(staging: RunStaging, folder: Path) -> CommitId | None:
        value.write_text("2\n")
        return commit(staging, folder)

    with monkeypatch.context() as patch:
        patch.setattr(RunStaging, "commit_code", changed)
        done = here_run(here, "--code", "code", script=script)
    assert done.code == 0 and "nobody's result, so it may be repeated: its code has changed" in done.err
    assert runs(here)[0]["once"] is None
    assert not list(open_store(str(store_of(here))).list(keys.BEATS_PREFIX)), "nobody waits for it"
    for number, content in ((2, "1\n"), (3, "2\n"), (3, "1\n")):
        value.write_text(content)
        once(here, "--code", "code", "--out", f"out{number}{content.strip()}", script=script)
        assert times(here) == number
        assert (here.cwd / f"out{number}{content.strip()}/value").read_text() == content


def test_a_run_that_cannot_begin_leaves_no_beats_for_which_others_would_wait(
    here: Dsv, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise Unreachable("the cache is away")

    with monkeypatch.context() as patch:
        patch.setattr(RunStaging, "stage", away)
        done = here_run(here)
    assert done.code == 125 and "the cache is away" in done.err
    assert len(claims(here)) == 1
    assert not list(open_store(str(store_of(here))).list(keys.BEATS_PREFIX))
    assert "waits for" not in once(here).err and times(here) == 1


def test_that_two_may_win_is_said_once(here: Dsv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once_claims, "names_of", lambda store: SimpleNamespace(conditional=False))
    said = "in this store, two equal runs that begin at once may both run"
    assert [said in here_run(here, script=f"exit {code}").err for code in (1, 2)] == [True, False]


# --- claims and records that say something else


def test_a_claim_of_a_run_with_another_key_is_a_miss(here: Dsv) -> None:
    once(here, script=SAYS)
    (first,) = claims(here)
    once(here, script=SAYS + ";:")
    (second,) = (path for path in claims(here) if path.parent != first.parent)
    second.chmod(0o644)
    second.write_bytes(first.read_bytes())
    assert "turned out to have another key" in dry(here, script=SAYS + ";:")["why"]
    once(here, script=SAYS + ";:")
    assert times(here) == 3


@pytest.mark.parametrize("member", ["params", "command", "once.files"])
def test_a_record_that_does_not_agree_with_its_key_is_nobodys_result(here: Dsv, member: str) -> None:
    once(here, "-p", "n=1")
    path = record_of(here, runs(here)[0]["run"])
    record: dict[str, Any] = json.loads(path.read_bytes())
    if member == "once.files":
        record["once"]["files"] = {"x": "00" * 32}
    else:
        record[member] = {"n": 2} if member == "params" else [*record[member], "x"]
    path.write_text(json.dumps(record))
    assert "has a record that does not agree with its key" in dry(here, "-p", "n=1")["why"]
    once(here, "-p", "n=1")
    assert times(here) == 2


def test_a_run_that_turned_out_to_have_another_image_is_nobodys_result(tmp_path: Path) -> None:
    """A registry may move a tag between the key and the start; a cluster may pull another one."""
    ann = Person.who_synced(tmp_path, {"a": b"1"})
    dsv = Dsv.of(ann.home, ann.workspace, DSV_CACHE=str(tmp_path / "cache"), DSV_STORE=ann.store)
    outside = dsv.at(tmp_path)
    job = ("sh", "-c", 'echo 1 > "$DSV_OUT/1"')
    assert outside.process("run", "scans", "--once", "--", *job).code == 0
    (run,) = (Path(ann.store) / "runs/scans").iterdir()
    record = RunRecord.decode((run / "record").read_bytes(), run.name)
    assert record.once is not None

    def faults(**members: Any) -> list[str]:
        with ann.context().repository() as repository:
            return list(_faults(repository, replace(record, **members)))

    def with_image(digest: str) -> OnceKey:
        once = replace(record.once or OnceKey(key=""), image=digest, system=None)
        return replace(once, key=key_of(document(replace(record, once=once), {})))

    one, other = ("sha256:" + each * 32 for each in ("d0", "d1"))
    assert faults() == []
    assert faults(once=with_image(one), image="x/y:1", image_id="i", image_digest=f"x/y@{one}") == []
    assert faults(once=with_image(one), image=f"x/y@{one}") == [], "Slurm says no more"
    assert faults(once=with_image("i"), image="x/y:1", image_id="i") == [], "of no registry"
    (said,) = faults(once=with_image(one), image="x/y:1", image_id="i", image_digest=f"x/y@{other}")
    assert said == f"has run in another image: x/y@{other}"
    (said,) = faults(once=replace(record.once, hit_of="scans/x"))
    assert "does not agree" in said


# --- a run that is stopped, and goes on after another one has taken over


@pytest.mark.timeout(300)
def test_of_a_stopped_run_and_the_one_that_took_over_the_latter_counts(here: Dsv) -> None:
    script = counting('until [ -e go ]; do sleep 0.05; done; echo $DSV_RUN > "$DSV_OUT/run"')
    words = ["run", "pets@v1", "--once", "--", "sh", "-c", script]
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        one = subprocess.Popen(
            [sys.executable, "-c", HASTY, *words], cwd=here.cwd, env=dict(here.environ), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        started.append(one)
        return one

    first = start()
    try:
        until(lambda: times(here) == 1, "the job of the first")
        first.send_signal(signal.SIGSTOP)
        second = start()
        until(lambda: times(here) == 2, "the job of the one that takes over")
        first.send_signal(signal.SIGCONT)
        (here.cwd / "go").touch()
        said = [one.communicate()[1] for one in (first, second)]
    finally:
        for one in started:
            one.kill() if one.poll() is None else None
    assert (first.returncode, second.returncode) == (0, 0), said
    assert "waits for run" in said[1]
    assert len(claims(here)) == 2
    newest = min(claims(here))  # numbers go down, so that the newest is listed first
    counts = json.loads(newest.read_text())["run"]
    assert f"run {counts} ended" in said[1]
    done = once(here, "--out", "out", script=script)
    assert f"same as run {counts} " in done.err and (here.cwd / "out/run").read_text() == f"{counts}\n"
    assert not list(open_store(str(store_of(here))).list(keys.BEATS_PREFIX)) and times(here) == 2


@pytest.mark.timeout(300)
def test_who_waits_on_the_machine_of_a_dead_supervisor_completes_its_record(here: Dsv) -> None:
    """And does not wait for ten minutes without a beat."""
    script = counting('until [ -e go ]; do sleep 0.05; done; echo 1 > "$DSV_OUT/1"')
    detached = once(here, "--detach", script=script).out.strip()
    await_file(here, "ran")
    until(lambda: shown(here, detached)["sent"], "the start in the store")
    kill_with_reaper(here, detached)
    (here.cwd / "go").touch()
    once(here, script=script)
    assert shown(here, detached)["state"] != "running"
    assert "same as run" in once(here, script=script).err and times(here) == 2


# --- what is said


def test_a_fresh_run_that_fails_is_not_compared_and_no_result(here: Dsv) -> None:
    script = counting('echo 1 > "$DSV_OUT/1"; [ ! -e fails ]')
    once(here, script=script)
    (here.cwd / "fails").touch()
    assert "its output" not in once(here, "--fresh", script=script, code=1).err
    (here.cwd / "fails").unlink()
    once(here, script=script)
    assert times(here) == 3, "the newest claim counts"


def test_the_nearest_run_is_one_with_a_result(here: Dsv) -> None:
    once(here, "-p", "size=1")
    (first,) = runs(here)
    once(here, "-p", "size=2", script="exit 3", code=3)
    once(here, "-p", "size=1", target="pets@v2")
    asked = dry(here, "-p", "size=2", script="exit 3;")
    assert asked["nearest"]["run"] in {runs(here)[0]["run"], first["run"]}
    assert {"params.size 1 -> 2"} < set(asked["nearest"]["differs"])


NOT_IN_KEY: dict[str, Callable[[Dsv], tuple[str, ...]]] = {
    "name": lambda here: ("--name", "other"),
    "cpus": lambda here: ("--cpus", "1"),
    "out": lambda here: ("--out", "elsewhere"),
    "into": lambda here: ("--into", "models"),
}


@pytest.mark.parametrize("what", NOT_IN_KEY)
def test_what_is_not_in_the_key_hits(here: Dsv, what: str) -> None:
    once(here)
    done = once(here, *NOT_IN_KEY[what](here))
    assert "same as run" in done.err and times(here) == 1


def test_the_clock_does_not_count(here: Dsv, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result from tomorrow is a result, and the newest claim counts, whatever the clocks of those who made it."""
    import time

    script = counting('cat state > "$DSV_OUT/state"')
    write_files(here.cwd, {"state": b"1"})
    ahead = time.time_ns() + 86_400_000_000_000
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: ahead)
        assert here_run(here, script=script).code == 0
    assert "same as run" in once(here, script=script).err
    write_files(here.cwd, {"state": b"2"})
    once(here, "--fresh", script=script)
    once(here, "--out", "out", script=script)
    assert (here.cwd / "out/state").read_bytes() == b"2" and times(here) == 2


@pytest.mark.parametrize("form", ["-e {}", "-e{}", "--env {}", "--env={}"])
def test_variables_in_engine_args_count(tmp_path: Path, form: str) -> None:
    """As those of `-e`: by their values, unless they have the name of a secret."""
    ann = Person.who_synced(tmp_path, {"a": b"1", "part/b": b"2"})
    (ann.home / "elsewhere").mkdir()
    environ = FakeDocker.make(tmp_path / "docker").environ

    def made(variable: str) -> MadeKey:
        args = tuple(form.format(variable).split())
        return make(ann, image=f"x/y@sha256:{'d0' * 32}", engine="docker", environ=environ, engine_args=args)

    one, other, secret, another = (
        made(each) for each in ("LEVEL=1", "LEVEL=2", "API_KEY=hunter2", "API_KEY=hunter3")
    )
    assert once_of(one).key != once_of(other).key
    assert once_of(secret).key == once_of(another).key, "not even a digest of it"
    assert "hunter" not in secret.record.encode().decode()


def test_keys_of_hits_and_results_are_computed_again_and_claims_say_no_more_than_who(here: Dsv) -> None:
    write_files(here.cwd, {"job.sh": b'echo 1 > "$DSV_OUT/1"\n', "code/x": b"x", "uv.lock": b"1"})
    job = ("sh", str(here.cwd / "job.sh"), "--token", "hunter2hunter2", "$int:1", "\udcff")
    given = (
        "--once",
        "--code",
        "code",
        "--key",
        "uv.lock",
        "--key",
        "gpu=A100",
        "-e",
        "API_KEY=sesame7sesame7",
    )
    for name in ("one", "two"):
        words = (*given, "-p", "n=1,9007199254740993", "-p", "lr=1.0", "--sweep", "--name", name)
        done = here.process("run", "pets@v1", *words, "--", *job)
        assert done.code == 0, done
    records = here.ok("runs", "--json", "--hits").json["items"]
    assert [item["once"]["hit_of"] is None for item in records].count(True) == 2 and len(records) == 4
    for item in records:
        assert here.ok("runs", item["run"], "--once", "--json").json["once"]["same"] is True
    assert len(claims(here)) == 2
    for claim in claims(here):
        assert set(json.loads(claim.read_text())) == {"dataset", "run", "host", "user"}
    for path in store_of(here).rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        assert b"hunter2" not in data and b"sesame7" not in data, path
