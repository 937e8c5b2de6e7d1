"""What every engine must do, tried on the real thing. An engine joins by a subclass with a `bench` fixture."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import ClassVar

import pytest

from dsv.run.engine_list import ENGINES
from tests.engines.durable import READY_THEN_WAIT, DurableJobs
from tests.engines.harness import Bench, Running
from tests.waiting import until

WORDS = ("two words", "", "ünïcödé ☃", "--leading", "-x", "line\nbreak", "quote\"'`$HOME\\", "*", "a=b")


class EngineConformance(DurableJobs):
    """Jobs are shell scripts, so an image needs `sh` and the usual small tools."""

    name: ClassVar[str]

    def arrives(self, written: bytes) -> bytes:
        """Return the part of a job's output that arrives."""
        return written

    def test_is_the_registered_engine(self, bench: Bench) -> None:
        assert ENGINES[self.name] is type(bench.engine)
        assert bench.engine.name == self.name

    @pytest.mark.parametrize("code", [0, 1, 3, 125, 126, 127, 255])
    def test_the_exit_code_is_the_commands_own(self, bench: Bench, code: int) -> None:
        ended = bench.run(bench.shell(f"exit {code}")).outcome
        assert (ended.exit_code, ended.launched) == (code, True)

    def test_a_command_killed_by_a_signal_is_128_and_more(self, bench: Bench) -> None:
        assert bench.run(bench.shell("kill -KILL $$")).code == 128 + signal.SIGKILL

    def test_a_missing_command_is_127(self, bench: Bench) -> None:
        assert bench.run(bench.job("no-such-command")).code == 127

    def test_a_command_that_cannot_be_run_is_126(self, bench: Bench) -> None:
        data = bench.mount("/data")
        (data.source / "file").write_text("no program")
        assert bench.run(bench.job(f"{bench.engine.place(data)}/file", mounts=(data,))).code == 126

    def test_streams_stay_apart_and_the_log_has_both(self, bench: Bench) -> None:
        done = bench.run(bench.shell("echo one; echo two >&2"))
        assert (done.stdout, done.stderr) == (b"one\n", b"two\n")
        assert sorted(done.log.split()) == [b"one", b"two"]

    def test_arguments_arrive_as_they_are(self, bench: Bench) -> None:
        done = bench.run(bench.shell('for a; do printf "%s\\0" "$a"; done', *WORDS))
        assert done.stdout == self.arrives("\0".join([*WORDS, ""]).encode())

    def test_environment_values_arrive_as_they_are(self, bench: Bench) -> None:
        env = {
            "PLAIN": "a b",
            "EMPTY": "",
            "LINES": "a\nb",
            "UNICODE": "ünï",
            "EQUALS": "a=b=c",
            "QUOTES": "\"'`$X",
        }
        script = "; ".join(f'printf "%s\\0" "${name}"' for name in env)
        done = bench.run(bench.shell(script, env=env))
        assert done.stdout == self.arrives("\0".join([*env.values(), ""]).encode())

    def test_variables_of_the_engines_own_programs_reach_the_job_alone(self, bench: Bench) -> None:
        env = {"PATH": "/usr/bin:/bin:/x y", "HOME": "/nowhere", "DOCKER_HOST": "unix:///nowhere", "LD_DEBUG_X": "1",
               "XDG_RUNTIME_DIR": "/nowhere", "https_proxy": "http://127.0.0.1:1"}  # fmt: skip
        script = "; ".join(f'printf "%s\\0" "${name}"' for name in env)
        done = bench.run(bench.shell(script, env=env))
        assert done.stdout == self.arrives("\0".join([*env.values(), ""]).encode())

    def test_environment_values_are_not_in_argv(self, bench: Bench) -> None:
        env = {"TOKEN": "hunter2-hunter2", "HOME": "/hunter2-hunter2"}
        plan = bench.plan(bench.job("sh", env=env))
        assert not any("hunter2" in argument for argument in plan.argv)
        assert "hunter2" not in plan.text() + repr(plan)

    def test_no_private_file_is_left(self, bench: Bench) -> None:
        job = bench.job("sh", "-c", "exit 0", env={"HOME": "/hunter2"})
        bench.run(job)
        assert b"hunter2" not in b"".join(file.read_bytes() for file in job.scratch.iterdir())

    def test_data_with_an_unusual_path_is_found(self, bench: Bench) -> None:
        data = bench.mount("/data", name='it\'s, a:strange "path" = ☃')
        (data.source / "file").write_text("content")
        done = bench.run(
            bench.shell('cat "$DATA/file"', mounts=(data,), env={"DATA": bench.engine.place(data)})
        )
        assert done.stdout == self.arrives(b"content")

    def test_symlinks_inside_the_data_work(self, bench: Bench) -> None:
        data = bench.mount("/data")
        (data.source / "deep").mkdir()
        (data.source / "file").write_text("content")
        (data.source / "deep" / "link").symlink_to("../file")
        done = bench.run(
            bench.shell('cat "$DATA/deep/link"', mounts=(data,), env={"DATA": bench.engine.place(data)})
        )
        assert done.stdout == self.arrives(b"content")

    def test_the_working_directory(self, bench: Bench) -> None:
        code = bench.mount("/code")
        (code.source / "train.sh").write_text("echo trained")
        done = bench.run(bench.job("sh", "train.sh", mounts=(code,), workdir=bench.engine.place(code)))
        assert done.stdout == b"trained\n"

    def test_what_the_job_writes_belongs_to_the_caller(self, bench: Bench) -> None:
        out, env = self.out(bench)
        assert bench.run(bench.shell('echo x > "$OUT/file"', mounts=(out,), env=env)).code == 0
        status = (out.source / "file").stat()
        assert (status.st_uid, status.st_gid) == (os.geteuid(), os.getegid())

    def test_output_is_streamed(self, bench: Bench) -> None:
        out, env = self.out(bench)
        reader, writer = os.pipe()
        script = 'echo first; while [ ! -e "$OUT/go" ]; do sleep 0.05; done; echo second'
        running = bench.start(bench.shell(script, mounts=(out,), env=env), stdout=writer)
        assert os.read(reader, 100) == b"first\n"
        (out.source / "go").touch()
        assert running.wait().exit_code == 0
        assert os.read(reader, 100) == b"second\n"
        os.close(reader)
        os.close(writer)

    def test_much_output_arrives_whole_and_is_kept_in_part(self, bench: Bench) -> None:
        done = bench.run(
            bench.shell("echo begin; yes 0123456789abcde | head -n 2000000; echo end"), log_limit=100_000
        )
        expected = b"begin\n" + b"0123456789abcde\n" * 2_000_000 + b"end\n"
        assert (len(done.stdout), done.stdout[:22]) == (len(expected), expected[:22])
        assert done.stdout == expected
        assert len(done.log) <= 100_000
        assert done.log.startswith(b"begin\n") and done.log.endswith(b"end\n")

    def test_a_signal_is_for_the_job_to_handle(self, bench: Bench) -> None:
        out, env = self.out(bench)
        for number, code in ((signal.SIGTERM, 7), (signal.SIGINT, 8)):
            (out.source / "ready").unlink(missing_ok=True)
            running = bench.start(
                bench.shell(
                    f"trap 'exit 7' TERM; trap 'exit 8' INT; {READY_THEN_WAIT}", mounts=(out,), env=env
                )
            )
            self.ready(out)
            running.signals.send(number)
            outcome = running.wait()
            assert (outcome.exit_code, outcome.signal) == (code, number)

    def test_a_signal_that_nobody_handles_ends_the_job(self, bench: Bench) -> None:
        out, env = self.out(bench)
        running = bench.start(bench.shell(READY_THEN_WAIT, mounts=(out,), env=env))
        self.ready(out)
        running.signals.send(signal.SIGTERM)
        assert running.wait().exit_code == 128 + signal.SIGTERM

    def test_a_job_that_ignores_signals_is_ended_after_its_grace(self, bench: Bench) -> None:
        out, env = self.out(bench)
        running = bench.start(
            bench.shell(f"trap '' TERM INT; {READY_THEN_WAIT}", mounts=(out,), env=env), grace=1.5
        )
        self.ready(out)
        began = time.monotonic()
        running.signals.send(signal.SIGTERM)
        assert running.wait().exit_code == 128 + signal.SIGKILL
        assert time.monotonic() - began >= 1.5

    def test_a_second_signal_ends_the_job_at_once(self, bench: Bench) -> None:
        out, env = self.out(bench)
        running = bench.start(
            bench.shell(f"trap '' TERM INT; {READY_THEN_WAIT}", mounts=(out,), env=env), grace=300
        )
        self.ready(out)
        running.signals.send(signal.SIGINT)
        running.signals.send(signal.SIGINT)
        assert running.wait().exit_code == 128 + signal.SIGKILL

    def test_a_warning_signal_ends_nothing(self, bench: Bench) -> None:
        out, env = self.out(bench)
        script = f"trap 'touch \"$OUT/warned\"' USR1; trap 'exit 0' TERM; {READY_THEN_WAIT}"
        running = bench.start(bench.shell(script, mounts=(out,), env=env), grace=1.0)
        self.ready(out)
        running.signals.send(signal.SIGUSR1)
        until((out.source / "warned").exists, "the job's notice of the warning")
        time.sleep(1.5)
        assert running.handle.ended is None
        running.signals.send(signal.SIGTERM)
        assert running.wait().exit_code == 0

    def test_a_lost_lease_ends_the_job(self, bench: Bench) -> None:
        out, env = self.out(bench)
        running = bench.start(bench.shell(f"trap 'exit 5' TERM; {READY_THEN_WAIT}", mounts=(out,), env=env))
        self.ready(out)
        running.lost = "the lease is gone"
        outcome = running.wait()
        assert (outcome.reason, outcome.cause, outcome.exit_code) == ("the lease is gone", "lease-lost", 125)

    def test_a_terminal_that_is_stuck_keeps_no_job_from_ending(self, bench: Bench) -> None:
        out, env = self.out(bench)
        reader, writer = os.pipe()  # that nobody reads
        script = f'touch "$OUT/ready"; yes {"x" * 1000}'
        running = bench.start(bench.shell(script, mounts=(out,), env=env), stdout=writer, grace=1.0)
        self.ready(out)
        time.sleep(0.5)  # for the pipe to fill
        running.signals.send(signal.SIGTERM)
        running.wait()
        os.close(reader)
        os.close(writer)

    def test_a_reader_that_has_gone_ends_no_job(self, bench: Bench) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        running = bench.start(
            bench.shell("i=0; while [ $i -lt 2000 ]; do echo line; i=$((i+1)); done; exit 4"), stdout=writer
        )
        assert running.wait().exit_code == 4
        os.close(writer)

    def test_stdin_is_empty(self, bench: Bench) -> None:
        assert bench.run(bench.shell("cat; echo done")).stdout == b"done\n"

    def sampled(self, running: Running) -> int | None:
        """The peak of memory that dsv has seen so far; None of a job that its cluster measures."""
        return None

    def test_memory_and_processor_time_are_seen(self, bench: Bench) -> None:
        out, env = self.out(bench)
        script = "x=$(head -c 60000000 /dev/zero | tr '\\0' a); touch \"$OUT/ready\"; "
        script += 'until [ -e "$OUT/go" ]; do sleep 0.1; done; echo ${#x} >"$OUT/size"'
        running = bench.start(bench.shell(script, mounts=(out,), env=env))
        self.ready(out)
        until(lambda: (peak := self.sampled(running)) is None or peak > 50e6, "a sample")
        (out.source / "go").touch()
        usage = running.wait().usage
        assert (out.source / "size").read_text() == "60000000\n"
        assert usage is not None and usage.cpu_seconds is not None and usage.cpu_seconds > 0.01
        assert usage.peak_memory_bytes is not None and 50e6 < usage.peak_memory_bytes < 2e9

    def test_what_the_job_left_running_ends_with_it(self, bench: Bench) -> None:
        out, env = self.out(bench)
        script = '(while :; do date +%s%N > "$OUT/alive"; sleep 0.1; done) & '
        script += 'until [ -e "$OUT/alive" ]; do sleep 0.05; done; exit 6'
        assert bench.run(bench.shell(script, mounts=(out,), env=env)).code == 6

        def stopped() -> bool:  # what was killed may be about to write once more
            last = (out.source / "alive").read_text()
            time.sleep(0.6)
            return (out.source / "alive").read_text() == last

        until(stopped, "the end of what it left running")

    def test_two_jobs_at_once(self, bench: Bench) -> None:
        jobs = [bench.shell(f"sleep 0.5; exit {code}") for code in (11, 12)]
        running = [bench.start(job) for job in jobs]
        assert [each.wait().exit_code for each in running] == [11, 12]

    def test_no_thread_is_left(self, bench: Bench) -> None:
        before = set(threading.enumerate())
        bench.run(bench.shell("echo x"))

        def begun() -> list[threading.Thread]:
            return [
                each for each in threading.enumerate() if each not in before and each.name.startswith("dsv-")
            ]

        until(lambda: not begun(), "the end of its threads")
