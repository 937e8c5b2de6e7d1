"""`--once` against what people do: older files, damaged records, secrets, jobs that read more than they were given."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.cli.detached import here
from tests.cli.test_run_once import SAYS, dry, once, runs, times
from tests.kit.dsv import Dsv, write_files
from tests.waiting import until

__all__ = ["here"]

DSV = f"{sys.executable} -m dsv.cli.main"


def store_of(here: Dsv) -> Path:
    return Path(here.ok("config", "store").out.split()[0])


def changed(here: Dsv, name: str, content: bytes) -> None:
    """Commit another content of a file to pets@main."""
    work = here.at(here.home.parent / "work")
    write_files(work.cwd, {name: content})
    work.ok("sync")


def counting(command: str) -> str:
    return f"echo ran >> ran; {command}"


# --- what is in a result


def test_what_lay_in_out_before_is_no_part_of_a_result(here: Dsv) -> None:
    """Neither what a person left there, nor what a former version of the job has made."""
    write_files(here.cwd / "mine", {"old": b"old"})
    script = counting('echo new > "$DSV_OUT/new"')
    once(here, "--out", "mine", script=script)
    assert (here.cwd / "mine/old").read_bytes() == b"old"
    once(here, "--out", "other", script=script)
    assert {path.name for path in (here.cwd / "other").iterdir()} == {"new", "params.json"}
    once(here, "--out", "other", script=counting('echo newer > "$DSV_OUT/newer"'))
    once(here, "--out", "last", script=counting('echo newer > "$DSV_OUT/newer"'))
    assert {path.name for path in (here.cwd / "last").iterdir()} == {"newer", "params.json"}


def test_odd_names_links_and_empty_folders_come_back_in_a_hit(here: Dsv) -> None:
    script = counting(
        'cd "$DSV_OUT"; printf x > "a\nb"; printf y > ".hidden"; mkdir empty " "; ln -s "a\nb" l; printf z > " /é"'
    )
    once(here, "--out", "first", script=script)
    once(here, "--out", "second", script=script)
    assert times(here) == 1

    def listed(name: str) -> set[tuple[str, bytes | None]]:
        paths = [path for path in (here.cwd / name).rglob("*") if not path.is_symlink()]
        links = [path for path in (here.cwd / name).rglob("*") if path.is_symlink()]
        top = here.cwd / name
        return {
            (str(path.relative_to(top)), path.read_bytes() if path.is_file() else None) for path in paths
        } | {(str(path.relative_to(top)), os.fsencode(path.readlink())) for path in links}

    assert listed("first") == listed("second") and ("l", b"a\nb") in listed("second")


def test_an_output_with_what_no_commit_holds_is_nobodys_result(here: Dsv) -> None:
    script = counting('ln -s /etc/passwd "$DSV_OUT/l"; echo 1 > "$DSV_OUT/1"')
    once(here, script=script)
    once(here, script=script)
    assert times(here) == 2
    assert "has an output that the store lacks a part of: 'l'" in dry(here, script=script)["why"]


# --- records and claims that can't be read


def test_a_damaged_record_is_a_miss(here: Dsv) -> None:
    """The next run claims the key anew: the damage of one record does not end the remembering."""
    once(here)
    (first,) = runs(here)
    record = store_of(here) / "runs/pets" / first["run"] / "record"
    record.chmod(0o644)
    record.write_bytes(b"{")
    asked = dry(here)
    assert asked["hit"] is None and first["run"] in asked["why"]
    once(here)
    assert times(here) == 2
    once(here)
    assert times(here) == 2, "the second one is the result"


def test_fresh_mends_a_key_whose_record_is_damaged(here: Dsv) -> None:
    once(here)
    record = store_of(here) / "runs/pets" / runs(here)[0]["run"] / "record"
    record.chmod(0o644)
    record.write_bytes(b"{")
    once(here, "--fresh")
    once(here)
    assert times(here) == 2


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"dataset": "a@b", "run": "x", "host": "h", "user": "u"}', b" " * 70_000]
)
def test_a_claim_that_is_no_claim_is_a_miss(here: Dsv, content: bytes) -> None:
    once(here)
    (claim,) = (path for path in (store_of(here) / "once").rglob("*") if path.is_file())
    claim.chmod(0o644)
    claim.write_bytes(content)
    assert dry(here)["hit"] is None
    once(here)
    once(here)
    assert times(here) == 2


# --- the key


def test_what_only_looks_like_a_value_of_e_stays_in_the_key(here: Dsv) -> None:
    """A record hides each value that was given with `-e`, wherever it occurs; the key only secrets."""
    script = counting('echo "$0" > "$DSV_OUT/model"')
    for model in ("resnet50", "resnet18"):
        other = here.at(here.cwd, MODEL=model)
        job = ("sh", "-c", script, model)
        assert other.process("run", "pets@v1", "--once", "-e", "MODEL", "--out", model, "--", *job).code == 0
        assert (here.cwd / model / "model").read_text() == f"{model}\n"
    for model in ("trainset", "validset"):
        values = ("-e", "A=trainset", "-e", "B=validset", "--out", model)
        assert here.process("run", "pets@v1", "--once", *values, "--", "sh", "-c", script, model).code == 0
        assert (here.cwd / model / "model").read_text() == f"{model}\n"
    assert times(here) == 4


def test_what_a_key_hides_is_said(here: Dsv) -> None:
    """`--key token=1` and `--key token=2` would be one key: refused, as a file that is a secret, or at least said."""
    asked = here("run", "pets@v1", "--once", "-n", "--json", "--key", "token=hunter2", "--", "true")
    assert "hunter2" not in asked.out + asked.err
    assert asked.code == 2 or any(
        "key" in line and "hides" in line for line in asked.json["once"]["not_in_key"]
    )


def test_files_of_secrets_do_not_count(here: Dsv) -> None:
    """A passphrase of several words, and a file of variables: a digest of them would give them away."""
    write_files(
        here.cwd, {"password.txt": b"correct horse\n", ".env": b"LEVEL=1\nexport DB_PASSWORD=hunter2\n"}
    )
    done = here.process("run", "pets@v1", "--once", "--", "sh", "-c", SAYS, "password.txt", ".env")
    assert done.code == 0 and runs(here)[0]["once"]["files"] == {}


def test_an_empty_value_is_a_value(here: Dsv) -> None:
    script = counting('echo "[$K]" > "$DSV_OUT/k"')
    outs = {
        "empty": (here, ("-e", "K=")),
        "passed": (here.at(here.cwd, K="5"), ("-e", "K")),
        "given": (here, ("-e", "K=5")),
        "none": (here, ()),
    }
    for name, (who, options) in outs.items():
        once(who, *options, "--out", name, script=script)
    assert times(here) == 4
    assert [(here.cwd / name / "k").read_text() for name in outs] == ["[]\n", "[5]\n", "[5]\n", "[]\n"]


@pytest.mark.parametrize("what", ["fifo", "folder", "pipe", "secret.key", "gone/"])
def test_what_can_be_no_key_is_refused_before_anything_runs(here: Dsv, what: str) -> None:
    os.mkfifo(here.cwd / "fifo")
    (here.cwd / "folder").mkdir()
    write_files(here.cwd, {"secret.key": b"-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\n"})
    read, write = os.pipe()
    os.close(write)
    given = f"/proc/{os.getpid()}/fd/{read}" if what == "pipe" else what
    done = here.process("run", "pets@v1", "--once", "--key", given, "--", "sh", "-c", SAYS)
    os.close(read)
    if what == "gone/":
        assert done.code == 0 and runs(here)[0]["once"]["keys"] == {"gone/": None}, "a text like any other"
        return
    assert done.code == 2 and "--key" in done.err and "hint: --key TEXT, or --key FILE" in done.err
    assert times(here) == 0 and not (store_of(here) / "once").exists()


def test_words_that_name_devices_and_pipes_neither_hang_nor_count(here: Dsv) -> None:
    os.mkfifo(here.cwd / "fifo")
    words = ("fifo", "/dev/zero", "/dev/null", "/proc", ".", "/", "", "\udcff", "x" * 300)
    done = here.process("run", "pets@v1", "--once", "--", "sh", "-c", SAYS, *words)
    assert done.code == 0 and runs(here)[0]["once"]["files"] == {}
    again = here.process("run", "pets@v1", "--once", "--", "sh", "-c", SAYS, *words)
    assert "same as run" in again.err and times(here) == 1


# --- what the job reads


def test_reading_what_no_option_names_makes_a_run_nobodys_result(here: Dsv) -> None:
    script = counting(f'{DSV} cat pets:a.txt > "$DSV_OUT/a"')
    once(here, script=script)  # pets@main, and the target is pets@v1
    (first,) = runs(here)
    assert [item["dataset"] for item in first["read"]] == ["pets"]
    asked = dry(here, script=script)
    assert asked["hit"] is None and f"run {first['run']} has read pets@" in asked["why"]
    once(here, script=script)
    assert times(here) == 2
    declared = counting(f'{DSV} cat "$DSV_DATASET@$DSV_COMMIT:a.txt" > "$DSV_OUT/a"')
    once(here, script=declared)
    once(here, script=declared)
    assert times(here) == 3


def test_reading_more_than_the_declared_part_makes_a_run_nobodys_result(here: Dsv) -> None:
    """The key has only the part: another commit with the same part would get what was read beside it."""
    script = counting(f'{DSV} cat "$DSV_DATASET@$DSV_COMMIT:a.txt" > "$DSV_OUT/a"')
    once(here, "--out", "first", script=script, target="pets@v1:train")
    once(here, "--out", "second", script=script, target="pets@v2:train")
    assert (here.cwd / "first/a").read_text() == "alpha\n"
    assert (here.cwd / "second/a").read_text() == "beta\n" and times(here) == 2


def test_without_the_notes_of_the_job_it_is_nobodys_result(here: Dsv) -> None:
    script = counting(
        'echo 1 > "$DSV_OUT/1"; rm -rf "$DSV_NOTES"; mkdir -p "${DSV_NOTES%/*}"; ln -s . "$DSV_NOTES"'
    )
    once(here, script=script)
    (first,) = runs(here)
    assert first["notes_error"] is not None
    once(here, script=script)
    assert times(here) == 2


# --- what becomes of inputs and outputs


def test_gc_keeps_results_and_they_still_hit(here: Dsv) -> None:
    once(here)
    here.ok("gc", "--yes", "--author", "Ann Lee")
    once(here, "--out", "out")
    assert times(here) == 1 and (here.cwd / "out/made").read_text() == "made\n"


def test_after_the_erasure_of_an_input_the_result_is_computed_anew(here: Dsv) -> None:
    script = counting('cat "$DSV_DATA"/*.txt > "$DSV_OUT/all"')
    once(here, "--out", "before", script=script)
    assert (here.cwd / "before/all").read_text() == "alpha\n"
    here.ok(
        "erase", "pets@v1:a.txt", "--reason", "withdrawn", "--yes", "--shared", "erase", "--author", "Ann Lee"
    )
    here.process("run", "pets@v1", "--once", "--out", "after", "--", "sh", "-c", script)
    assert times(here) == 2 and "alpha" not in (here.cwd / "after/all").read_text()
    assert len(runs(here)[0]["once"]["erased"]) == 1


def test_a_continued_sweep_keeps_once_and_its_keys(here: Dsv) -> None:
    script = counting('until [ -e go ]; do sleep 0.05; done; echo $DSV_PARAMS > "$DSV_OUT/p"')
    words = ("run", "pets@v1", "--once", "--key", "k1", "-p", "n=1,2,3", "--sweep")
    (here.cwd / "go").touch()
    once(here, "--key", "k1", "-p", "n=3", script=script)
    (here.cwd / "go").unlink()
    with here.start(*words, "--", "sh", "-c", script) as driver:
        until(lambda: times(here) == 2, "the first run of the sweep")
        driver.send_signal(signal.SIGINT)
        driver.communicate()
    (here.cwd / "go").touch()
    sweep = next(item for item in runs(here) if item["params"]["n"] == 1)["sweep"]["id"]
    done = here.process("run", "--again", sweep)
    assert times(here) == 3, done
    found = {item["params"]["n"]: item for item in here.ok("runs", sweep, "--json").json["items"]}
    assert found[2]["once"]["keys"] == {"k1": None} and found[3]["once"]["hit_of"] is not None


# --- receipts


def test_a_receipt_that_is_a_loop_of_symlinks_is_refused_first(here: Dsv) -> None:
    (here.cwd / "loop").symlink_to("loop")
    done = here.process("run", "pets@v1", "--into", "m", "--receipt", "loop", "--", "sh", "-c", SAYS)
    assert done.code in (2, 125) and "loop" in done.err and times(here) == 0
    asked = here("resolve", "pets", "--receipt", "loop")
    assert asked.code not in (0, 70) and "loop" in asked.err


def test_many_writers_of_one_receipt_leave_a_whole_line_and_nothing_else(here: Dsv) -> None:
    commits = {here.ok("resolve", f"pets@{tag}").out.strip() for tag in ("v1", "v2")}
    folder = here.cwd / "receipts"
    folder.mkdir()
    started = [here.start("resolve", f"pets@v{1 + n % 2}", "--receipt", "receipts/r.txt") for n in range(6)]
    for one in started:
        one.communicate()
        assert one.returncode == 0
    (file,) = folder.iterdir()
    assert file.read_text() in {f"pets@{commit}\n" for commit in commits}


def test_a_receipt_of_a_dataset_and_a_path_with_unusual_names_is_a_target(here: Dsv) -> None:
    script = 'echo 1 > "$DSV_OUT/m"'
    for into in ("team/models:a b/é", "team/models:at@home:x"):
        once(here, "--into", into, "--receipt", "r.txt", script=script)
        line = (here.cwd / "r.txt").read_text().removesuffix("\n")
        assert here.ok("cat", f"{line}/m").out == "1\n"
        hit = once(here, "--receipt", "r.txt", "--into", into, script=script)
        assert "was already the output" in hit.err
        used = here.process("run", line, "--", "sh", "-c", 'find "$DSV_DATA/" -type f | xargs -d "\\n" cat')
        assert used.code == 0 and used.out == "1\n"


def test_a_hit_that_can_not_fill_its_folder_is_an_error_also_detached(here: Dsv) -> None:
    once(here)
    (here.cwd / "file").touch()
    (here.cwd / "out/made").mkdir(parents=True)
    for options in ((), ("--detach",), ("--detach", "--json")):
        done = once(here, *options, "--out", "out", code=4)
        assert done.out == "" or json.loads(done.out).get("error"), done
        assert (
            here.process("run", "pets@v1", "--once", *options, "--out", "file", "--", "sh", "-c", SAYS).code
            != 0
        )
    assert times(here) == 1
