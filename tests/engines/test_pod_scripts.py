"""The shell of a pod's own container, run here by the shells that images have."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from dsv.repo.job_notes import FOLDER
from dsv.run.engines.base import Ended
from dsv.run.engines.kubernetes.manifest import OWN, SIGNALS, run_script, script
from dsv.run.engines.kubernetes.pod import read_left, read_log
from dsv.run.part import EndCause
from dsv.values.secrets import Masker
from tests.exhaustive import is_full
from tests.waiting import until

SHELLS = [each for each in (("sh",), ("bash", "--posix"), ("busybox", "sh")) if shutil.which(each[0])]


@dataclass
class Pod:
    own: Path
    shell: tuple[str, ...]
    last: subprocess.Popen[bytes] | None = None

    def run(self, *command: str, leaves: bool = False, **more: str) -> tuple[int, bytes]:
        """Return the exit code, and the log of the pod. The script finds its own folder in `OWN`. It waits for two
        seconds for the copy of the output, and this for as long as a busy machine takes."""
        (self.own / "t").mkdir()
        (self.own / "t" / "signal").touch()
        text = run_script().replace(SIGNALS, f"{self.own}/t").replace(OWN, str(self.own))
        text = text.replace("/dev/termination-log", f"{self.own}/term")
        env = {"PATH": os.environ["PATH"], "DSV_COPIED": "yes", "OWN": str(self.own), **more}
        with (self.own / "shown").open("wb") as shown:
            self.last = subprocess.Popen(
                [*self.shell, "-c", text, "dsv", *(("sh", "-c", *command) if len(command) == 1 else command)],
                stdout=shown, stderr=shown, env=env, start_new_session=True,
            )  # fmt: skip
        code = self.last.wait()
        if not leaves:
            until((self.own / "copied").exists, "the copy of the output")
        return code, (self.own / "shown").read_bytes()

    def left(self) -> Ended | None:
        return read_left(self.own, node=0, attempt=1, host="n")


@pytest.fixture(params=SHELLS, ids=lambda shell: shell[0])
def pod(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pod]:
    made = Pod(tmp_path, request.param)
    yield made
    if made.last is not None:  # as a container ends with its first process
        with suppress(ProcessLookupError):
            os.killpg(made.last.pid, signal.SIGKILL)


def test_what_the_command_writes_is_shown_and_copied(pod: Pod) -> None:
    assert pod.run("echo out; echo err >&2; exit 7") == (7, b"out\nerr\n")
    log, left = read_log(pod.own), pod.left()
    assert log is not None and log.kept(Masker()).data == b"out\nerr\n"
    assert left is not None and left.seen and left.parts[0].exit_code == 7
    assert (pod.own / "argv").read_bytes().split(b"\0")[:2] == [b"sh", b"-c"]
    assert (pod.own / "term").read_text().split("\n")[0].endswith("code=7 stopped=no")


def test_the_pod_says_that_kubernetes_stopped_the_command(pod: Pod) -> None:
    assert pod.run(": >$OWN/stopped; exit 3")[0] == 3
    assert (pod.own / "term").read_text().split("\n")[0].endswith("code=3 stopped=yes")


@pytest.mark.parametrize(
    "pod", SHELLS if is_full() else SHELLS[-1:], ids=lambda shell: shell[0], indirect=True
)
def test_the_copy_of_much_output_has_its_beginning_and_its_end(pod: Pod) -> None:
    code, shown = pod.run(
        "echo FIRST; yes 0123456789012345678901234567890123456789 | head -c 41000000; echo LAST"
    )
    log = read_log(pod.own)
    assert code == 0 and len(shown) == 41_000_011 and log is not None
    kept = log.kept(Masker())
    assert kept.total == len(shown) and kept.data.startswith(b"FIRST\n0123") and kept.data.endswith(b"LAST\n")
    assert b"bytes are left out here" in kept.data
    assert sum(each.stat().st_size for each in pod.own.glob("log.*")) < 33 << 20


def test_no_output_is_lost_if_it_can_not_be_copied(pod: Pod) -> None:
    """As on a full disk."""
    (pod.own / "log.0").mkdir()
    code, shown = pod.run("yes 0123456789 | head -c 1000000; exit 5")
    assert (code, len(shown), read_log(pod.own)) == (5, 1_000_000, None)


def test_what_the_command_left_behind_is_not_waited_for(pod: Pod) -> None:
    code, _ = pod.run("echo here; sleep 1000 & exit 0", leaves=True)
    assert code == 0 and not (pod.own / "copied").exists()
    until(lambda: (log := read_log(pod.own)) and log.kept(Masker()).data == b"here\n", "the copy")
    assert (pod.own / "shown").read_bytes() == b"here\n"


@pytest.mark.parametrize(
    "script, code, end",
    [
        ("echo 'first node 0 failed first' >$OWN/verdict; exit 7", 7, (EndCause.EXITED, 7, None)),
        ("echo done >$OWN/verdict", 0, (EndCause.EXITED, 0, None)),
        (": >$OWN/end; echo 'again N' >$OWN/verdict; exec sleep 1000", 190, (EndCause.CANCELLED, 143, "N")),
        (": >$OWN/end; echo 'again N' >$OWN/verdict; exit 0", 190, (EndCause.CANCELLED, 0, "N")),
        # It ended well before the others did, and what watches over it has not seen yet that the data is not held.
        ("mkdir $OWN/why; : >$OWN/not-held; exit 0", 125, (EndCause.LEASE_LOST, 125, None)),
        (": >$OWN/not-held; exec sleep 1000", 125, (EndCause.LEASE_LOST, 125, None)),
    ],
)
def test_a_node_of_several_leaves_what_all_agreed_upon(
    pod: Pod, script: str, code: int, end: tuple[EndCause, int, str | None]
) -> None:
    assert pod.run(script, DSV_GANG_PORT="1")[0] == code
    left = pod.left()
    assert left is not None and left.seen and (left.parts[0].end, left.parts[0].exit_code) == end[:2]
    assert end[2] is None or left.parts[0].error == f"it was ended with the other nodes: {end[2]}"


@pytest.mark.parametrize("code", [126, 127])
def test_a_command_that_is_not_there_or_not_executable_was_not_started(pod: Pod, code: int) -> None:
    (pod.own / "text").touch()
    assert pod.run(f"{pod.own}/text" if code == 126 else "command-of-nobody", "--help")[0] == code
    left = pod.left()
    assert left is not None and left.seen and left.parts[0].end is EndCause.NOT_STARTED


def test_a_shell_that_does_not_find_a_command_was_started(pod: Pod) -> None:
    assert pod.run("command-of-nobody")[0] == 127
    left = pod.left()
    assert left is not None and left.parts[0].end is EndCause.EXITED


def test_the_end_of_a_killed_command_is_left_to_the_cluster(pod: Pod) -> None:
    assert pod.run("kill -KILL $$")[0] == 137
    left = pod.left()
    assert left is not None and not left.seen


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
def test_an_image_without_dsv_is_reported(shell: tuple[str, ...], tmp_path: Path) -> None:
    argv = [
        *shell,
        "-c",
        script("hold").replace(OWN, str(tmp_path)),
        "hold",
        f"{tmp_path}/out",
        "-",
        "dsv-of-nobody",
        "with",
    ]
    with subprocess.Popen(argv, start_new_session=True) as holding:
        try:
            until((tmp_path / "not-held").exists, "that it gives up")
            said = "error: the pool's image of dsv has no program dsv-of-nobody\n"
            assert (tmp_path / "problem").read_text() == said
            assert holding.poll() is None  # else the container that reports it would not begin
            holding.terminate()
            assert holding.wait() == 1
        finally:
            with suppress(ProcessLookupError):
                os.killpg(holding.pid, signal.SIGKILL)


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
def test_a_record_is_completed_once_the_command_has_ended_and_the_container_stays_until_its_end(
    shell: tuple[str, ...], tmp_path: Path
) -> None:
    """Kubernetes sees the end of the command up to a second later, and would start the container again."""
    text = script("hold").replace(OWN, str(tmp_path))
    words = ["-c", text, "hold", "-", "env"]
    close = f"sh -c 'sleep 0.5; echo \"$@\" >{tmp_path}/sent' sh"
    env = {"PATH": os.environ["PATH"], "DSV_CLOSE": close, "DSV_CLOSE_SECONDS": "20"}
    with subprocess.Popen([*shell, *words], start_new_session=True, env=env) as holding:
        try:
            until((tmp_path / "held").exists, "the data")
            (tmp_path / "ended").write_text("code=0")
            until((tmp_path / "complete.log").exists, "the beginning of the completion")
            holding.terminate()  # it is completed all the same
            assert holding.wait() == 0
            assert (tmp_path / "sent").read_text() == f"--left {tmp_path} --rank 0 --attempt 1\n"
            assert not (tmp_path / "not-held").exists()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(holding.pid, signal.SIGKILL)


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
def test_the_holder_prints_the_notes_of_the_job_and_follows_no_link(
    tmp_path: Path, shell: tuple[str, ...]
) -> None:
    notes = tmp_path / "out" / FOLDER / "run"
    notes.mkdir(parents=True)
    (tmp_path / "secret").write_text("secret\n")
    (notes / "a").write_text("one\n")
    (notes / "b").write_text("two\n")
    (notes / "c").symlink_to(tmp_path / "secret")
    (tmp_path / "out" / "metrics.json").symlink_to(tmp_path / "secret")
    (tmp_path / "out" / "metrics.jsonl").write_text("{}")
    words = ["-c", script("hold").replace(OWN, str(tmp_path)), "hold", "-", "env"]
    env = {"PATH": os.environ["PATH"], "DSV_METRICS_FILE": str(tmp_path / "out" / "metrics.json")}
    for folder, printed in (
        (notes, b"--- metrics.jsonl\n{}\n--- notes\none\ntwo\n\n--- end\n"),
        (tmp_path / "link" / "run", b"--- end\n"),
    ):
        if folder != notes:
            (tmp_path / "link").symlink_to(notes.parent)
            (tmp_path / "out" / "metrics.jsonl").unlink()
            (tmp_path / "out" / "metrics.jsonl").symlink_to(tmp_path / "secret")
        (tmp_path / "ended").touch()
        env["DSV_NOTES_FOLDER"] = str(folder)
        with (tmp_path / "shown").open("wb") as shown:
            argv = [*shell, *words]
            with subprocess.Popen(argv, start_new_session=True, env=env, stdout=shown) as holding:
                try:
                    until(
                        lambda: (tmp_path / "shown").read_bytes().endswith(b"--- end\n"),
                        "the end of its output",
                    )
                    holding.terminate()
                    holding.wait()
                finally:
                    with suppress(ProcessLookupError):
                        os.killpg(holding.pid, signal.SIGKILL)
        assert (tmp_path / "shown").read_bytes() == printed
