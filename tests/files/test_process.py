from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from dsv.files.process import Fate, Process, user_name, why_not_started


def test_this_process_runs_and_another_start_of_its_pid_does_not() -> None:
    here = Process.here()
    assert here.fate() is Fate.ALIVE
    assert replace(here, start=here.start + 1).fate() is Fate.DEAD


def test_nothing_is_known_of_a_process_of_another_kernel_or_without_a_start() -> None:
    here = Process.here()
    assert replace(here, kernel="another").fate() is Fate.UNKNOWN
    assert replace(here, kernel="").fate() is Fate.UNKNOWN
    assert replace(here, start=0).fate() is Fate.UNKNOWN


@pytest.mark.parametrize("reap", [True, False])
def test_a_process_that_ended_is_dead_before_and_after_it_is_reaped(reap: bool) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(reading, 1)
        os._exit(0)
    try:
        stat = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        process = replace(Process.here(), pid=child, start=int(stat[19]))
        assert process.fate() is Fate.ALIVE
        os.write(writing, b"x")
        os.waitid(os.P_PID, child, os.WEXITED | (0 if reap else os.WNOWAIT))
        assert process.fate() is Fate.DEAD
    finally:
        if not reap:
            os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


def test_a_user_without_a_name_is_shown_as_one() -> None:
    assert user_name(4_000_000_001) == "uid-4000000001"
    assert user_name(0) == "root"


@pytest.mark.parametrize(
    ("command", "code"), [("nosuch", 127), ("./nosuch", 127), ("plain", 126), ("true", 0)]
)
def test_a_folder_of_path_that_may_not_be_entered_hides_no_missing_command(
    tmp_path: Path, command: str, code: int
) -> None:
    closed, folder = tmp_path / "closed", tmp_path / "open"
    folder.mkdir()
    (folder / "plain").write_text("")
    closed.mkdir(0o000)
    environ = {"PATH": f"{closed}:{folder}:{os.environ['PATH']}"}

    for above in (tmp_path, *tmp_path.parents[:-2]):
        above.chmod(above.stat().st_mode | 0o055)
    child = os.fork()
    if child == 0:
        os.environ.update(environ)
        os.chdir(tmp_path)
        if os.geteuid() == 0:
            os.setresuid(65534, 65534, 65534)
        told = 0
        try:
            os.waitpid(os.posix_spawnp(command, [command], environ), 0)
        except OSError as error:
            told, _ = why_not_started(command, error.errno or 0, environ)
        os._exit(told)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code
