"""What docker and podman must do beyond what every engine does."""

from __future__ import annotations

import json
import os
import signal
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from dsv.errors import UsageError
from dsv.run.engines.base import JobStatus
from dsv.run.engines.containers.container import ContainerRun, has_begun, lives
from dsv.run.engines.containers.engine import ContainerEngine
from dsv.run.engines.output import JobOutput
from dsv.run.part import EndCause
from dsv.run.record import RunState
from tests.engines.conformance import EngineConformance
from tests.engines.durable import READY_THEN_WAIT
from tests.engines.harness import Bench, Running
from tests.waiting import until


class ContainerConformance(EngineConformance):
    """bench.engine is a `ContainerEngine`."""

    def sampled(self, running: Running) -> int:
        attached = running.handle._begun
        return attached._sampler.peak_memory_bytes or 0 if isinstance(attached, ContainerRun) else 0

    def call(self, bench: Bench, *arguments: str) -> str:
        assert isinstance(bench.engine, ContainerEngine)
        done = bench.engine.call(*arguments)
        assert done is not None and done.returncode == 0, done
        return done.stdout.decode()

    def test_nothing_is_left_behind(self, bench: Bench) -> None:
        job = bench.shell("exit 1")
        bench.run(job)
        missing = bench.job("no-such-command")
        bench.run(missing)
        for run in (job.run, missing.run):
            assert self.call(bench, "ps", "--all", "--quiet", "--filter", f"label=dsv.run={run}") == ""

    def test_a_command_that_cannot_be_started_was_never_launched(self, bench: Bench) -> None:
        """Else it would be tried again."""
        data = bench.mount("/data")
        (data.source / "file").write_text("no program")
        for command, code in (("no-such-command", 127), ("/data/file", 126), ("/data/file/none", 127)):
            ended = bench.run(bench.job(command, mounts=(data,))).outcome
            assert (ended.exit_code, ended.launched, ended.cause) == (code, False, EndCause.NOT_STARTED)
            assert command in (ended.reason or "")

    def test_an_image_that_is_not_there_is_125(self, bench: Bench) -> None:
        done = bench.run(bench.job("sh", image="127.0.0.1:1/no/such:image"))
        assert (done.code, done.outcome.launched) == (125, False)
        assert done.outcome.reason and "127.0.0.1:1" in done.outcome.reason
        assert done.outcome.cause is EndCause.IMAGE_NOT_PULLED

    def test_a_mount_that_is_not_there_is_125(self, bench: Bench) -> None:
        gone = bench.mount("/data")
        gone.source.rmdir()
        done = bench.run(bench.shell("exit 0", mounts=(gone,)))
        assert (done.code, done.outcome.launched) == (125, False)
        assert done.outcome.cause is EndCause.NOT_STARTED
        assert not gone.source.exists()

    @pytest.mark.parametrize("image", ["--privileged", "-v/:/host", "", "a b", "a\nb"])
    def test_an_image_name_that_looks_like_an_option_is_refused(self, bench: Bench, image: str) -> None:
        with pytest.raises(UsageError):
            bench.engine.plan(replace(bench.job("sh"), image=image), bench.facts)

    def test_a_name_in_use_is_125_and_its_owner_lives_on(self, bench: Bench) -> None:
        out, env = self.out(bench)
        job = bench.shell(f"trap 'exit 9' TERM; {READY_THEN_WAIT}", mounts=(out,), env=env)
        running = bench.start(job)
        self.ready(out)
        second = bench.start(bench.shell("exit 0", name=job.name))
        second.signals.send(signal.SIGTERM)
        second.signals.send(signal.SIGTERM)
        assert not second.wait().launched
        done = bench.run(bench.shell("exit 0", name=job.name))
        assert (done.code, done.outcome.launched) == (125, False)
        assert job.name in (done.outcome.reason or "")
        assert running.handle.ended is None
        running.signals.send(signal.SIGTERM)
        assert running.wait().exit_code == 9

    def test_what_is_mounted_read_only_cannot_be_written(self, bench: Bench) -> None:
        data = bench.mount("/data")
        (data.source / "old").touch(0o666)
        done = bench.run(bench.shell("echo x > /data/new; echo x > /data/old; rm /data/old", mounts=(data,)))
        assert done.stderr.count(b"ead-only file system") == 3
        assert [(each.name, each.stat().st_size) for each in data.source.iterdir()] == [("old", 0)]

    def test_files_belong_to_a_caller_who_is_not_root(self, bench: Bench) -> None:
        if os.geteuid() != 0:
            pytest.skip("needs root, to be somebody else")
        out, env = self.out(bench)
        os.chown(out.source, 12345, 23456)
        machine = replace(bench.facts.machine, uid=12345, gid=23456, groups=(34567,), user="ada")
        bench.facts = replace(bench.facts, machine=machine)
        script = 'echo x > "$OUT/file"; id -G; echo "$HOME $USER"; touch "$HOME/y"'
        done = bench.run(bench.shell(script, mounts=(out,), env=env))
        assert (done.code, done.stdout) == (0, b"23456 34567\n/tmp ada\n")
        status = (out.source / "file").stat()
        assert (status.st_uid, status.st_gid) == (12345, 23456)

    def test_shared_memory_is_half_of_the_machines_or_as_asked(self, bench: Bench) -> None:
        half = bench.facts.machine.memory_bytes // 2
        for asked, given in ((None, half), (64 << 20, 64 << 20)):
            done = bench.run(bench.shell("df -k /dev/shm | tail -n 1", shm_bytes=asked))
            kib = int(done.stdout.split()[1])
            assert abs(kib * 1024 - given) <= 4096

    def test_a_container_beyond_its_memory_is_ended(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        done = bench.run(bench.shell("exec tail -c 200000000 /dev/zero", memory_bytes=32 << 20))
        assert done.outcome.cause is EndCause.OUT_OF_MEMORY
        assert "out of memory" in (done.outcome.reason or "")
        assert not [
            *(tmp_path / "here").iterdir()
        ]  # older versions of conmon make a file where they are started

    @pytest.mark.parametrize("code", [0, 3])
    def test_a_job_that_outlives_a_child_beyond_its_memory_ends_as_it_wants(
        self, bench: Bench, code: int
    ) -> None:
        script = f"tail -c 200000000 /dev/zero; test $? = 137 && exit {code}"
        ended = bench.run(bench.shell(script, memory_bytes=32 << 20)).outcome
        assert (ended.exit_code, ended.cause) == (code, EndCause.EXITED)
        assert code or ended.reason is None

    def test_a_container_within_its_limits_is_not_killed(self, bench: Bench) -> None:
        done = bench.run(bench.shell("df -k /dev/shm | tail -n 1", memory_bytes=64 << 20, cpus=0.5))
        assert (done.code, done.outcome.cause) == (0, EndCause.EXITED)
        assert int(done.stdout.split()[1]) == (32 << 20) >> 10

    def test_the_image_is_known_afterwards(self, bench: Bench) -> None:
        assert bench.image is not None
        image = bench.run(bench.shell("exit 0")).outcome.image
        assert image is not None and image.id.startswith("sha256:") and image.digest is None
        assert bench.engine.find_image(bench.image) == image
        assert bench.engine.find_image(image.id) == image
        assert bench.engine.find_image("127.0.0.1:1/no/such:image") is None
        assert bench.engine.find_image("--help") is None

    def test_what_is_planned_is_what_is_run(self, bench: Bench) -> None:
        """A program of the engine's name, first in PATH, writes down what it was called with."""
        assert isinstance(bench.engine, ContainerEngine)
        shim = bench.folder / "shim" / bench.engine.name
        shim.parent.mkdir()
        calls = bench.folder / "calls"
        shim.write_text(
            "#!/bin/sh\n"
            f"export PATH='{bench.engine.environ['PATH']}'\n"
            f'if [ "$1" = create ]; then for a; do printf "%s\\0" "$a" >> {calls}; done; fi\n'
            f'exec {bench.engine.name} "$@"\n'
        )
        shim.chmod(0o755)
        bench.engine.environ = {
            **bench.engine.environ,
            "PATH": f"{shim.parent}:{bench.engine.environ['PATH']}",
        }
        data = bench.mount("/data", name="a, b")
        job = bench.shell("exit 0", "a b", "--c", mounts=(data,), env={"A": "b c"})
        planned = bench.plan(job).argv
        assert bench.run(job).code == 0
        assert planned[:2] == (bench.engine.name, "run")
        assert tuple(calls.read_text().split("\0")[:-1]) == ("create", *planned[2:])

    def test_values_are_in_no_file_that_others_can_read(self, bench: Bench) -> None:
        out, env = self.out(bench)
        job = bench.shell(READY_THEN_WAIT, mounts=(out,), env={**env, "HOME": "/hunter2"})
        running = bench.start(job)
        self.ready(out)
        assert list(job.scratch.iterdir()) == []  # what the engine has read is removed
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal() and folder.name != str(os.getpid()):
                assert b"/hunter2" not in _command_line(folder)
        running.signals.send(signal.SIGTERM)
        running.wait()

    def test_a_job_that_is_ended_while_its_image_is_fetched(self, bench: Bench) -> None:
        """A registry that accepts and never answers."""
        import socket

        with socket.socket() as registry:
            registry.bind(("127.0.0.1", 0))
            registry.listen()
            running = bench.start(
                bench.job("sh", image=f"127.0.0.1:{registry.getsockname()[1]}/slow:1"), grace=2.0
            )
            connection, _ = registry.accept()
            running.signals.send(signal.SIGINT)
            outcome = running.wait()
            connection.close()
        assert (outcome.exit_code, outcome.launched) == (130, False)

    @pytest.mark.parametrize("ends", ["before", "after"])
    def test_output_is_whole_if_the_program_that_delivers_it_dies(self, bench: Bench, ends: str) -> None:
        """As when a daemon is restarted and leaves containers alive. Nothing is lost, and nothing comes twice."""
        out, env = self.out(bench)
        script = (
            'i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo "out $i"; echo "err $i" >&2; '
            '[ $i = 100 ] && echo ready > "$OUT/ready" && until [ -e "$OUT/go" ]; do sleep 0.1; done; '
            "done; printf end; exit 9"
        )
        job = bench.shell(script, mounts=(out,), env=env)
        reader, writer = os.pipe()
        running = bench.start(job, stdout=writer)
        self.ready(out)
        handle = running.handle._begun
        assert isinstance(handle, ContainerRun) and handle._program is not None
        until(lambda: has_begun(handle._engine.inspect(handle._id) or {}), "the engine's note of the begin")
        if ends == "after":
            handle._program.kill()
            handle._program.wait()
            (out.source / "go").touch()
        else:
            handle._program.send_signal(signal.SIGSTOP)
            (out.source / "go").touch()
            until(
                lambda: (found := handle._engine.inspect(handle._id)) and not lives(found),
                "the container's end",
            )
            handle._program.kill()
        ended = running.wait()
        assert (ended.exit_code, ended.reason) == (9, None)
        os.close(writer)
        with os.fdopen(reader, "rb") as file:
            assert file.read() == b"".join(b"out %d\n" % number for number in range(1, 301)) + b"end"
        assert self.call(bench, "ps", "--all", "--quiet", "--filter", f"label=dsv.run={job.run}") == ""

    def test_the_exit_code_of_a_job_that_is_over_can_be_read(self, bench: Bench) -> None:
        """To whoever asks, if the process that would have removed it is gone."""
        engine = bench.engine
        job = engine.submit(
            bench.plan(bench.shell("echo said; exit 7")), JobOutput(None, None), threading.Event()
        )
        ref = job.ref
        assert engine.status(ref) == JobStatus(RunState.SUBMITTED)
        self.call(bench, "start", ref.id)
        until(lambda: engine.status(ref) == JobStatus(RunState.ENDED, 7), "the end of the job")
        with self.another(bench).logs(ref, follow=True) or nullcontext() as log:
            assert log is not None and b"".join(log) == b"said\n"
        assert engine.cancel(ref, 0) == JobStatus(RunState.ENDED, 7)
        with engine.logs(ref, follow=False) or nullcontext() as log:
            assert log is not None and b"".join(log) == b"said\n"
        engine.forget(ref)
        job.abandon()
        assert engine.status(ref) == JobStatus(RunState.CUT_OFF)

    def test_an_answer_and_none_are_two_things(self, bench: Bench) -> None:
        assert isinstance(bench.engine, ContainerEngine)
        assert bench.engine.inspect("0123456789ab") == {}

    def test_without_an_init_process(self, bench: Bench) -> None:
        bench.facts = replace(bench.facts, init=())
        data = bench.mount("/data")
        (data.source / "file").write_text("no program")
        for job, code in (
            (bench.job("no-such-command"), 127),
            (bench.job("/data/file", mounts=(data,)), 126),
            (bench.shell("exit 3"), 3),
        ):
            assert bench.plan(job).notes
            assert bench.run(job).code == code

    def test_labels_name_the_run(self, bench: Bench) -> None:
        out, env = self.out(bench)
        job = bench.shell(READY_THEN_WAIT, mounts=(out,), env=env)
        running = bench.start(job)
        self.ready(out)
        names = json.loads(self.call(bench, "container", "inspect", job.name))[0]["Config"]["Labels"]
        assert names["dsv.run"] == job.run
        running.signals.send(signal.SIGTERM)
        running.wait()


def _command_line(folder: Path) -> bytes:
    try:
        return (folder / "cmdline").read_bytes()
    except OSError:
        return b""
