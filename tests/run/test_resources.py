"""What a run on this machine may use, how often it is tried, and what its record says of its end."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import replace
from pathlib import Path
from signal import SIGTERM

import pytest

from dsv.errors import LaunchError, UsageError
from dsv.run.engines.attach import Signals
from dsv.run.engines.machine import Gpu, Machine
from dsv.run.part import EndCause
from dsv.run.record import RunRecord, RunState
from dsv.run.resources import ALL_GPUS
from tests.engines.fake_docker import FakeDocker
from tests.run.shop import Shop
from tests.waiting import until


def shell(shop: Shop, script: str, **more: object) -> RunRecord:
    return shop.run("sh", "-c", script, **more).record


def test_an_ordinary_end(shop: Shop) -> None:
    record = shell(shop, "exit 3")
    part = record.parts[0]
    assert (record.end, record.exit_code, record.cancelled_by) == (EndCause.EXITED, 3, None)
    assert record.parts == (replace(part, node=0, attempt=1, host="gpu-7", exit_code=3, exit_signal=None),)
    assert part.started_ms == record.started_ms and part.ended_ms == record.ended_ms


def test_a_job_that_a_signal_ended_says_which(shop: Shop) -> None:
    record = shell(shop, "kill -SEGV $$")
    assert (record.end, record.exit_code, record.parts[0].exit_signal) == (EndCause.EXITED, 139, "SIGSEGV")


@pytest.mark.parametrize(("at_term", "code"), [("exit 5", 5), ("exit 0", 124)])
def test_a_job_that_takes_too_long_is_ended(shop: Shop, at_term: str, code: int) -> None:
    """It may end in its own way; that a success of its own is none is said by the exit code of timeout."""
    ready = shop.home / "ready"
    for seconds in (1, 10, 100):  # until the job gets as far as its trap
        script = f"trap '{at_term}' TERM; touch {ready}; while :; do sleep 0.1; done"
        record = shell(shop, script, time_seconds=seconds)
        if ready.exists():
            break
    assert (record.state, record.end, record.exit_code) == (RunState.ENDED, EndCause.TIME_LIMIT, code)
    assert record.time_seconds == seconds
    assert any("its time limit is reached" in said for said in shop.notes.said)


def test_a_job_that_ignores_its_time_limit_is_killed(shop: Shop) -> None:
    ready = shop.home / "ready"
    for seconds in (1, 10, 100):  # until the job gets as far as its trap
        script = f"trap '' TERM; touch {ready}; while :; do sleep 0.1; done"
        record = shop.launch(shop.request("sh", "-c", script, time_seconds=seconds), grace=0.2).record
        if ready.exists():
            break
    assert (record.end, record.exit_code, record.parts[0].exit_signal) == (
        EndCause.TIME_LIMIT, 137, "SIGKILL",
    )  # fmt: skip


def test_a_job_beyond_its_memory_is_ended(shop: Shop) -> None:
    script = "import time; held = bytearray(300 << 20); time.sleep(600)"
    result = shop.run(sys.executable, "-c", script, memory_bytes=100 << 20)
    record = result.record
    assert (record.end, record.exit_code, record.memory_bytes) == (EndCause.OUT_OF_MEMORY, 137, 100 << 20)
    assert "more than 105 MB of memory" in (record.error or "")


def test_a_job_within_its_memory_is_not_killed(shop: Shop) -> None:
    record = shell(shop, "sleep 1", memory_bytes=100 << 20)
    assert (record.end, record.exit_code) == (EndCause.EXITED, 0)


def test_a_job_is_kept_to_its_cpus(shop: Shop) -> None:
    code = "import os; print(len(os.sched_getaffinity(0)))"
    shop.run(sys.executable, "-c", code, cpus=1.0)
    assert shop.stdout == "1\n"


def test_a_failed_job_is_started_again(shop: Shop) -> None:
    script = 'echo "attempt $DSV_ATTEMPT"; test "$DSV_ATTEMPT" = 3 || exit "$DSV_ATTEMPT"'
    record = shell(shop, script, retries=5)
    assert shop.stdout == "attempt 1\nattempt 2\nattempt 3\n"
    assert (record.exit_code, record.end, record.retries) == (0, EndCause.EXITED, 5)
    assert [(part.attempt, part.exit_code) for part in record.parts] == [(1, 1), (2, 2), (3, 0)]
    assert [part.started_ms for part in record.parts] == sorted(part.started_ms or 0 for part in record.parts)
    assert record.started_ms == record.parts[0].started_ms
    assert any("attempt 1 ended with exit code 1" in said for said in shop.notes.said)


def test_retries_end(shop: Shop) -> None:
    record = shell(shop, "echo again; exit 9", retries=2)
    assert (record.exit_code, len(record.parts), shop.stdout) == (9, 3, "again\n" * 3)


def test_the_log_has_all_attempts(shop: Shop) -> None:
    shell(shop, "echo from $DSV_ATTEMPT; exit 1", retries=1)
    log = shop.runs.log(shop.runs.listing(None)[0])
    assert log == b"from 1\nfrom 2\n"


@pytest.mark.parametrize(
    "command", [("no-such-command",), ("sh", "-c", "trap 'exit 1' TERM; sleep 600 & wait")]
)
def test_what_would_fail_again_is_not_tried_again(shop: Shop, command: tuple[str, ...]) -> None:
    """A command that can't begin, and a time limit."""
    record = shop.run(*command, retries=3, time_seconds=1).record
    assert len(record.parts) == 1
    assert record.end in (EndCause.NOT_STARTED, EndCause.TIME_LIMIT)


def test_a_job_that_somebody_ended_is_not_tried_again(shop: Shop) -> None:
    signals = Signals()
    ready = shop.home / "ready"
    request = shop.request(
        "sh", "-c", f"trap 'exit 4' TERM; touch {ready}; while :; do sleep 0.1; done", retries=3
    )

    def end_it() -> None:
        until(ready.exists, "the job's start")
        signals.send(SIGTERM)

    threading.Thread(target=end_it).start()
    record = shop.launch(request, signals=signals).record
    assert (record.end, record.cancelled_by, record.exit_code) == (EndCause.CANCELLED, "SIGTERM", 4)
    assert len(record.parts) == 1


@pytest.mark.parametrize(
    ("asked", "flag"),
    [
        ({"nodes": 2}, "--nodes"),
        ({"tpu": "v5e-8"}, "tpu"),
        ({"shm_bytes": 1 << 20}, "shm_size"),
        ({"engine_args": ("--x",)}, "engine_args"),
    ],
)
def test_what_no_machine_can_give_is_refused_before_anything_is_fetched(
    shop: Shop, asked: dict[str, object], flag: str
) -> None:
    with pytest.raises(UsageError, match=f"the process engine doesn't support {flag}") as error:
        shop.run("true", **asked)
    assert "--on" in (error.value.hint or "")
    assert shop.data.staged == []


@pytest.mark.parametrize(
    "asked", [{"memory_bytes": 1 << 60}, {"cpus": 9999.0}, {"gpus": 1, "gpu_type": "A100"}]
)
def test_more_than_the_machine_has_is_refused_before_anything_is_fetched(
    shop: Shop, asked: dict[str, object]
) -> None:
    with pytest.raises(LaunchError, match="were asked for"):
        shop.run("true", **asked)
    assert shop.data.staged == []


@pytest.mark.parametrize(
    ("wanted", "here", "visible"), [(2, 1, None), (ALL_GPUS, 0, None), (1, 0, ("0", "1"))]
)
def test_gpus_that_the_machine_lacks_are_refused_before_anything_is_fetched(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wanted: int,
    here: int,
    visible: tuple[str, ...] | None,
) -> None:
    """Also if a leftover CUDA_VISIBLE_DEVICES names some."""
    machine = replace(Machine.read({}), gpus=here, visible_gpus=visible)
    monkeypatch.setattr(Machine, "read", classmethod(lambda cls, environ: machine))
    docker = FakeDocker.make(tmp_path / "docker")
    shop = Shop(tmp_path, docker.environ)
    with pytest.raises(LaunchError, match=f"GPUs were asked for, and there are {here}"):
        shop.run("train", image="busybox", engine="docker", gpus=wanted)
    assert shop.data.staged == [] and docker.calls("create") == 0


def test_a_docker_that_does_not_answer_is_told_each_time_that_podman_is_used(tmp_path: Path) -> None:
    programs = {
        "docker": """echo '{"ServerErrors": ["permission denied"]}'""",
        "podman": """[ "$1" = info ] && echo '{"host": {}}'""",
    }
    (tmp_path / "bin").mkdir()
    for name, script in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    shop = Shop(tmp_path, {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"})
    for _ in range(2):
        shop.run("train", image="busybox")
    said = "podman is used, because docker does not answer: permission denied"
    assert [note for note in shop.notes.said if "docker" in note] == [said, said]


def test_a_process_has_whole_cpus(shop: Shop) -> None:
    with pytest.raises(UsageError, match="only to whole ones"):
        shop.run("true", cpus=0.5)


def test_gpus_of_a_type_are_those_of_that_type(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    models = (
        Gpu(0, "GPU-t", "Tesla T4"),
        Gpu(1, "GPU-a", "NVIDIA A100-SXM4-80GB"),
        Gpu(2, "GPU-b", "NVIDIA A100-SXM4-80GB"),
    )
    machine = replace(Machine.read({}), gpus=3, models=models)
    monkeypatch.setattr(Machine, "read", classmethod(lambda cls, environ: machine))
    shop.run("sh", "-c", "echo $CUDA_VISIBLE_DEVICES", gpus=2, gpu_type="a100")
    assert shop.stdout == "GPU-a,GPU-b\n"
    with pytest.raises(
        LaunchError, match="3 GPUs of the type A100 were asked for, and there are 2 for this job"
    ):
        shop.run("true", gpus=3, gpu_type="A100")


def test_a_repeated_run_asks_for_the_same(shop: Shop) -> None:
    asked = {"cpus": 1.0, "memory_bytes": 1 << 30, "time_seconds": 3600, "retries": 2}
    record = shell(shop, "true", **asked)
    stored = RunRecord.decode(record.encode(), "a record")
    spec = shop.again(stored).spec
    assert {name: getattr(spec, name) for name in asked} == asked


def test_records_of_earlier_versions_ask_for_nothing(shop: Shop) -> None:
    document = shell(shop, "true").encode()
    for name in (
        "gpu_type",
        "tpu",
        "tpu_topology",
        "cpus",
        "memory_bytes",
        "time_seconds",
        "nodes",
        "retries",
        "end",
    ):
        lines = [line for line in document.splitlines(keepends=True) if f' "{name}": ' not in line.decode()]
        document = b"".join(lines)
    record = RunRecord.decode(document, "a record")
    assert (record.nodes, record.retries, record.cpus, record.end) == (1, 0, None, None)
    assert shop.again(record).spec.nodes == 1
