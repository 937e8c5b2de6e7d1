"""What only a real process shows: start-up, signals, pipes, closed descriptors."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from dsv import __version__
from tests.kit.dsv import PROGRAM, Dsv, full_pipe, made_once, write_files
from tests.waiting import PATIENCE

SLOW = """
import os, sys, time
from types import ModuleType
from dsv.cli import catalogue, main
from dsv.cli.call import Call
from dsv.cli.declare import command
import dsv.cli.app

@command("wait", examples="")
def wait(call: Call):
    "Waits."
    call.line("half")
    os.write(2, b"ready\\n")  # not by print: a signal may come while it is at work, and have it print again
    time.sleep(600)

catalogue.COMMANDS["wait"] = "Waits"
module = ModuleType("dsv.cli.commands.stop")
module.wait = wait
sys.modules[module.__name__] = module
sys.argv = ["dsv", "wait"]
sys.exit(main.main())
"""


NAMES = ("dsv", "pydantic", "typer", "typing_extensions", "inspect")


def test_version_and_help_in_a_process(dsv: Dsv) -> None:
    for option in ("--version", "-V"):
        assert dsv.process(option).out == f"dsv {__version__}\n"
    for arguments in (["--help"], ["-h"], ["help"], ["--quiet", "--help"]):
        result = dsv.process(*arguments)
        assert (result.code, result.err) == (0, "")
        assert result.out.startswith("Usage: dsv")
    bare = dsv.process()
    assert (bare.code, bare.out) == (2, "")
    assert bare.err.startswith("Usage: dsv")


@pytest.mark.parametrize("module", ["dsv.cli.app", "msgspec", "dsv.cli.terminal"])
def test_ctrl_c_while_it_starts_is_no_traceback(dsv: Dsv, module: str) -> None:
    script = (
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "sys.argv = ['dsv', 'datasets']\n"
        "from dsv.cli.main import main\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=dsv.cwd,
        env=dsv.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_help_fits_eighty_columns(dsv: Dsv) -> None:
    assert max(map(len, dsv.process("--help").out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "banned"),
    [
        (["--help"], ["typer", "rich", "botocore", "fsspec", "obstore", "blake3", "msgspec", "json"]),
        (["--version"], ["typer", "rich", "botocore", "fsspec", "obstore", "blake3", "msgspec", "json"]),
        (["sync", "--help"], ["rich", "pydantic", "botocore", "fsspec", "obstore"]),
        (
            ["config", "store"],
            ["rich", "pydantic", "botocore", "fsspec", "obstore", "dsv.stores.base", "dsv.repo"],
        ),
    ],
)
def test_what_needs_no_library_imports_none(dsv: Dsv, arguments: list[str], banned: list[str]) -> None:
    code = f"import sys; sys.argv = ['dsv', *{arguments!r}]\nfrom dsv.cli.main import main\nmain()\n"
    code += f"print([name for name in {banned!r} if name in sys.modules], file=sys.stderr)"
    shown = subprocess.run(
        [sys.executable, "-c", code],
        env=dict(dsv.environ),
        cwd=dsv.cwd,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stderr.splitlines()[-1] == "[]"


def test_typer_asks_the_parameters_of_dsv_for_their_values(dsv: Dsv) -> None:
    """Else typer has pydantic do it, which takes 80 ms to import, nine times as long as an empty Python."""
    code = (
        "import sys\n"
        "from typer.core import TyperOption\n"
        "from dsv.cli.parser import global_params\n"
        "store = next(option for option in global_params() if '--store' in option.opts)\n"
        "hooked = 'process_value' in vars(store) and hasattr(TyperOption, 'process_value')\n"
        "sys.argv = ['dsv', '--store', 's3://b', 'config', 'store']\n"
        "import dsv.cli.app\n"
        "dsv.cli.app.quick_call = lambda session: None\n"
        "from dsv.cli.main import main; main()\n"
        "sys.exit(None if hooked and 'pydantic' not in sys.modules else\n"
        "    'this typer does not call process_value of a parameter: cli/declare.py needs another hook')"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], env=dict(dsv.environ), cwd=dsv.cwd, capture_output=True, text=True
    )
    assert (shown.returncode, shown.stdout) == (0, "s3://b\n"), shown.stderr


@pytest.mark.parametrize(
    ("line", "most"),
    [
        ("status", 74),
        ("log", 92),
        ("resolve", 91),
        ("cache pets@v1", 95),
        ("cached", 155),
        ("sync", 155),
        ("pull", 158),
        ("runs", 155),
        ("doctor", 160),
        ("run pets -- true", 145),
        ("merge v1", 200),
    ],
)
def test_a_command_imports_little(pets: Dsv, line: str, most: int) -> None:
    """Modules of dsv, none of typer (see cli/quick.py), and what takes long and only some commands need."""
    pets.ok("cache", "pets@v1")
    code = (
        f"import sys; sys.argv = ['dsv', *{line.split()!r}]\n"
        "from dsv.cli.main import main; main()\n"
        f"print(*(name for name in sys.modules if name.partition('.')[0] in {NAMES}), file=sys.stderr)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], env=dict(pets.environ), cwd=pets.cwd, capture_output=True, text=True
    )
    imported = shown.stderr.splitlines()[-1].split()
    assert not {"pydantic", "typer"} & set(imported)
    assert not {"inspect", "typing_extensions"} & set(imported) or most > 100  # pyfastcdc imports the latter
    assert len(imported) <= most, imported


def test_start_is_at_most_eight_times_an_empty_python(dsv: Dsv) -> None:
    """In processor time, interleaved, and the least of each: a busy machine changes it least."""

    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    lines = {
        "pass": [sys.executable, "-c", "pass"],
        "version": [*PROGRAM, "--version"],
        "help": [*PROGRAM, "--help"],
    }
    best = dict.fromkeys(lines, float("inf"))
    for _ in range(10):
        for name, line in lines.items():
            before = spent()
            subprocess.run(line, env=dict(dsv.environ), cwd=dsv.cwd, stdout=subprocess.DEVNULL, check=True)
            best[name] = min(best[name], spent() - before)
    assert best["version"] <= 8 * best["pass"], best
    assert best["help"] <= 8 * best["pass"], best


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGINT, 130, "error: interrupted"),
        (signal.SIGTERM, 143, "error: stopped by SIGTERM"),
        (signal.SIGHUP, 129, "error: stopped by SIGHUP"),
    ],
)
def test_signals_end_it_with_their_code(dsv: Dsv, number: int, code: int, said: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SLOW],
        env=dict(dsv.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "ready\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, err.splitlines()) == (code, "", [said])


def test_a_broken_pipe_is_silent(dsv: Dsv) -> None:
    for arguments in (["--help"], ["config"], ["config", "--help"]):
        read, write = os.pipe()
        os.close(read)
        result = dsv.process(*arguments, stdout=write)
        os.close(write)
        assert (result.code, result.err) == (141, "")


def test_a_full_disk_behind_stdout_is_reported(dsv: Dsv) -> None:
    if not Path("/dev/full").exists():
        return
    for arguments in (["--help"], ["config"]):
        with Path("/dev/full").open("wb") as full:
            result = dsv.process(*arguments, stdout=full)
        assert result.code == 7
        assert "No space left" in result.err or "no space left" in result.err


def test_a_full_disk_behind_stderr_changes_no_exit_code(dsv: Dsv) -> None:
    if not Path("/dev/full").exists():
        return
    (dsv.cwd / "a").write_bytes(b"a")
    with Path("/dev/full").open("wb") as full:
        made = dsv.process("init", "pets", stderr=full)
        synced = dsv.process("sync", stderr=full)
        refused = dsv.process("ls", "nothing", "--debug", stderr=full)
    assert [result.code for result in (made, synced, refused)] == [0, 0, 3]
    assert synced.out == dsv.ok("resolve").out


def test_closed_descriptors_are_no_place_for_other_files(dsv: Dsv) -> None:
    script = f"exec {' '.join(PROGRAM)} config author Ann >&- 2>&- <&-"
    assert (
        subprocess.run(["sh", "-c", script], env=dict(dsv.environ), cwd=dsv.cwd, check=False).returncode == 7
    )
    assert (dsv.home / ".config/dsv/config.toml").read_text() == 'author = "Ann"\n'


@pytest.mark.parametrize("arguments", ["--version", "--help", "ls --help", "config", "config --json"])
def test_no_command_succeeds_whose_answer_went_nowhere(dsv: Dsv, arguments: str) -> None:
    script = f"exec {' '.join(PROGRAM)} {arguments} >&-"
    done = subprocess.run(
        ["sh", "-c", script], env=dict(dsv.environ), cwd=dsv.cwd, check=False, capture_output=True, text=True
    )
    assert done.returncode == 7
    assert done.stderr.startswith("error: stdout") and "unexpected" not in done.stderr


def test_a_closed_stdin_is_not_an_empty_one(dsv: Dsv) -> None:
    dsv.ok("init", "pets")
    (dsv.cwd / "b").write_bytes(b"b")
    dsv.ok("sync")
    for arguments in ("put - pets:a", "rm pets --from-file -"):
        script = f"exec {' '.join(PROGRAM)} {arguments} <&-"
        done = subprocess.run(
            ["sh", "-c", script],
            env=dict(dsv.environ),
            cwd=dsv.cwd,
            check=False,
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (
            2,
            "error: stdin is closed, so nothing can be read from it\n",
        )
    assert dsv.ok("ls", "pets").out == "b\n"


def test_without_a_command_and_without_stderr_it_is_misuse(dsv: Dsv) -> None:
    script = f"exec {' '.join(PROGRAM)} 2>&-"
    assert subprocess.run(["sh", "-c", script], env=dict(dsv.environ), check=False).returncode == 2


def test_a_missing_working_directory_is_reported(dsv: Dsv) -> None:
    gone = dsv.cwd / "gone"
    gone.mkdir()
    script = f"rmdir {gone}; exec {' '.join(PROGRAM)} config"
    result = subprocess.run(
        ["sh", "-c", script], env=dict(dsv.environ), cwd=gone, capture_output=True, check=False
    )
    assert result.returncode == 3
    assert b"Traceback" not in result.stderr


def test_a_locale_without_unicode_loses_no_letter(dsv: Dsv) -> None:
    environ = {**dsv.environ, "LC_ALL": "POSIX"}
    result = Dsv(dsv.home, dsv.cwd, environ).process("config", "author", "Ännchen")
    assert result.code == 0, result
    assert (dsv.home / ".config/dsv/config.toml").read_text() == 'author = "Ännchen"\n'


@pytest.fixture
@made_once
def pets(dsv: Dsv) -> Dsv:
    write_files(dsv.cwd, {"a": b"a"})
    dsv.ok("init", "pets")
    dsv.ok("sync")
    dsv.ok("tag", "v1")
    return dsv


@pytest.mark.parametrize(
    "command", [["cache", "pets@v1"], ["run", "pets@v1", "--", "echo", "done"], ["ls", "no@v1"]]
)
def test_a_stderr_that_takes_no_more_and_does_not_block(pets: Dsv, command: list[str]) -> None:
    """Programs that watch several pipes make them so; that they do not read one for a while ends nothing."""
    reading, writing, size = full_pipe()
    with open(reading, "rb", buffering=0) as reader, open(writing, "wb", buffering=0) as stderr:
        result = pets.process(*command, stderr=stderr)
        stderr.close()
        assert reader.readall() == b"x" * size
    expected = {"cache": (0, 1), "run": (0, 1), "ls": (3, 0)}[command[0]]
    assert (result.code, len(result.lines)) == expected


@pytest.mark.parametrize("arguments", [["--help"], ["ls", "pets@v1"]])
def test_a_stdout_that_is_full_and_does_not_block(pets: Dsv, arguments: list[str]) -> None:
    expected = pets.process(*arguments).out.encode()
    reading, writing, size = full_pipe()
    with open(reading, "rb", buffering=0) as reader:
        with open(writing, "wb", buffering=0) as stdout:
            process = pets.start(*arguments, stdout=stdout)
        with process:
            assert process.stderr is not None
            with suppress(subprocess.TimeoutExpired):  # time to come to it
                process.wait(timeout=1)
            assert reader.readall() == b"x" * size + expected
            assert (process.wait(timeout=PATIENCE), process.stderr.read()) == (0, b"")


def test_a_caller_that_ignores_its_children_changes_nothing(dsv: Dsv) -> None:
    """Who starts dsv with SIGCHLD ignored, as some daemons do, has the kernel forget how children ended."""
    write_files(dsv.cwd, {"a": b"1"})
    assert dsv.process("init", "data").code == 0
    assert dsv.process("sync", "-m", "one").code == 0
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        process = dsv.start("run", "data", "--engine", "process", "--", "sh", "-c", "exit 3")
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert process.communicate(timeout=PATIENCE)[0] == b""
    assert process.returncode == 3
