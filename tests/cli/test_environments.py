"""Broken environments: each gets its result, or a sentence that says what is wrong, and never exit code 70."""

from __future__ import annotations

import errno
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dsv.cli.failure import of_error
from dsv.errors import LaunchError, Unreachable
from tests.kit.dsv import PROGRAM, Dsv, Result, made_once
from tests.waiting import PATIENCE

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
NAME = "tr\u00e4in.txt"


@pytest.fixture
@made_once
def pets(dsv: Dsv) -> Dsv:
    """A workspace below a folder whose name is not ASCII, with one commit in a store of such a name."""
    folder = dsv.cwd / "gr\u00fcn"
    folder.mkdir()
    (folder / NAME).write_bytes(b"1\n")
    here = dsv.at(folder, DSV_STORE=str(dsv.home / "st\u00f6re"))
    here.ok("init", "pets")
    here.ok("sync", "-m", "one")
    return here


def limited(dsv: Dsv, kind: int, limit: int, *arguments: str) -> Result:
    """The command in a process that may have no more than so much of something."""
    shell = f"exec {' '.join(PROGRAM)} {' '.join(arguments)}"
    done = subprocess.run(
        ["sh", "-c", shell],
        cwd=dsv.cwd,
        env=dict(dsv.environ),
        capture_output=True,
        timeout=PATIENCE,
        check=False,
        preexec_fn=lambda: resource.setrlimit(kind, (limit, limit)),
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.mark.parametrize("locale", [ASCII, {**ASCII, "LC_ALL": "POSIX"}])
def test_names_that_are_not_ascii_work_in_a_locale_that_is(pets: Dsv, locale: dict[str, str]) -> None:
    here = pets.at(pets.cwd, **locale)
    (pets.cwd / "\u00e4").write_bytes(b"2\n")
    assert here.process("status").out == "added     \u00e4\n"
    assert here.process("sync", "\u00e4", "-m", "gr\u00fcn").code == 0
    assert "    gr\u00fcn\n" in here.process("log").out
    assert here.process("cat", f":{NAME}").out == "1\n"
    cached = here.process("cache", "@main", "--cache", str(pets.home / "c\u00e4che"), "--jobs", "2")
    assert (Path(cached.out.strip()) / NAME).read_bytes() == b"1\n", cached
    clone = pets.home / "cl\u00f6ne"
    assert here.process("clone", "pets", str(clone)).code == 0
    assert (clone / "\u00e4").read_bytes() == b"2\n"
    ran = here.process(
        "run",
        "@main",
        "-p",
        "n=\u00fc",
        "--engine",
        "process",
        "--",
        "sh",
        "-c",
        "ls $DSV_DATA; echo $LC_ALL",
    )
    assert ran.out.splitlines() == [NAME, "\u00e4", locale["LC_ALL"]], ran
    assert here.process("config", "author", "J\u00fcrgen").code == 0
    assert pets.ok("config", "author").out == "J\u00fcrgen\n"
    missing = here.process("-C", "n\u00f6pe", "status")
    assert "there is no folder n\u00f6pe" in missing.err


def test_a_working_folder_that_is_gone_is_named(pets: Dsv) -> None:
    gone = pets.home / "gone"
    for command in ("status", "sync", "ls pets", "config", "clone pets", "cached", "init new"):
        gone.mkdir()
        shell = f"rmdir {gone}; exec {' '.join(PROGRAM)} {command}"
        environ = {**pets.environ, "PWD": str(gone)}
        done = subprocess.run(["sh", "-c", shell], cwd=gone, env=environ, capture_output=True, check=False)
        assert done.returncode == 3, done
        assert f"error: the working folder {gone} is gone\nhint: cd " in done.stderr.decode()


def test_c_leads_out_of_a_working_folder_that_is_gone(pets: Dsv) -> None:
    gone = pets.home / "gone"
    gone.mkdir()
    shell = f"rmdir {gone}; exec {' '.join(PROGRAM)} -C {pets.cwd} status"
    subprocess.run(["sh", "-c", shell], cwd=gone, env=dict(pets.environ), check=True)


def test_too_little_memory_is_said(pets: Dsv) -> None:
    """With less, Python 3.11 may run in a circle while it raises a MemoryError, or never start a thread."""
    for command in (["ls"], ["sync", "-m", "x"], ["clone", "pets", "../clone"]):
        done = limited(pets, resource.RLIMIT_AS, 120_000 << 10, *command)
        assert done.code in (0, 7), done
        assert done.code == 0 or "hint: ulimit -v " in done.err, done


AT_THE_LIMIT = """
import os, resource, sys
from contextlib import suppress
from dsv.cli.failure import failure_text, of_error
size = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE") + (64 << 20)
resource.setrlimit(resource.RLIMIT_AS, (size, size))
taken = []
with suppress(MemoryError):
    while sys.argv[1] == "reached":
        taken.append(bytes(1 << 20))
del taken
failure = of_error(SystemError("error return without exception set"))
print(failure.exit_code, failure_text(failure))
"""


@pytest.mark.parametrize(("limit", "code"), [("reached", 7), ("far away", 70)])
def test_an_error_of_python_at_the_limit_of_memory_is_one_of_memory(limit: str, code: int) -> None:
    """Some versions of Python raise a SystemError where a frame finds no memory."""
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_LIMIT, limit], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(f"{code} error: dsv "), done
    assert "SystemError: error return without exception set" in done.stdout
    assert ("hint: ulimit -v " in done.stdout) == (code == 7)


def test_a_command_line_without_memory_to_load_says_so(dsv: Dsv) -> None:
    """The same, while the modules are loaded that report every other failure."""
    program = (
        "import sys, dsv.errors; dsv.errors.memory_ran_out = lambda: True; sys.modules['dsv.cli.app'] = None; "
        "sys.argv[1:] = ['ls']; from dsv.cli.main import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=dict(dsv.environ), capture_output=True, text=True, check=False
    )
    assert done.returncode == 7, done
    assert done.stderr.startswith("error: dsv can't start: no memory\nhint: ulimit -v "), done


@pytest.mark.parametrize("files", [6, 8, 12])  # with fewer, Python itself does not start everywhere
def test_too_few_descriptors_are_said(pets: Dsv, files: int) -> None:
    done = limited(pets, resource.RLIMIT_NOFILE, files, "ls")
    assert done.code in (0, 7), done
    assert done.code == 0 or "hint: ulimit -n " in done.err, done


@pytest.fixture
def folders(pets: Dsv) -> Dsv:
    """More folders, and files of a commit in a cache of this machine, than the next tests may open."""
    for number in range(150):
        (pets.cwd / f"f/{number}").mkdir(parents=True)
        (pets.cwd / f"f/{number}/x").write_text(str(number))
    deep = pets.cwd / "/".join("d" * 60)
    deep.mkdir(parents=True)
    (deep / "x").write_text("deep")
    pets.ok("sync", "-m", "two")
    pets.ok("cache", "@main", "--cache", str(pets.home / "cache"))
    return pets


@pytest.mark.parametrize("files", [20, 32, 48, 100])
def test_few_descriptors_are_no_damage(folders: Dsv, files: int) -> None:
    """Each command does its work with them, or says which limit it has met."""
    for command in (["verify", "--full"], ["cached", "--check", "--cache", "../../cache"],
                    ["cache", "@main", "--cache", "../other"], ["clone", "pets", "../clone"],
                    ["export", "pets", "../out"], ["touch"], ["sync", "-m", "x"]):  # fmt: skip
        if command == ["touch"]:
            (folders.cwd / "new").write_bytes(os.urandom(100))
            continue
        done = limited(folders, resource.RLIMIT_NOFILE, files, *command)
        assert done.code in (0, 7), (command, done)
        assert done.code == 0 or "hint: ulimit -n " in done.err, (command, done)
        assert "damage" not in done.err.replace("no damage", ""), (command, done)


def test_a_clone_beside_a_cache_and_a_fill_need_few_descriptors(folders: Dsv) -> None:
    done = limited(folders, resource.RLIMIT_NOFILE, 100, "clone", "pets", "../clone")
    assert done.code == 0 and "from a cache here: 152 files" in done.out + done.err, done
    done = limited(folders, resource.RLIMIT_NOFILE, 100, "cache", "@main", "--cache", "../other")
    assert done.code == 0, done
    done = limited(folders, resource.RLIMIT_NOFILE, 40, "status", "--exit-code")
    assert done.code == 0, done


def test_a_file_that_may_not_grow_is_said(pets: Dsv) -> None:
    for command in (["config", "author", "x"], ["cache", "@main", "--cache", "../cache"]):
        done = limited(pets, resource.RLIMIT_FSIZE, 0, *command)
        assert done.code == 7, done
        assert "hint: ulimit -f " in done.err, done


def test_a_limit_is_reported_as_a_limit_whatever_exceeded_it() -> None:
    def failed(make: Callable[[], BaseException], cause: BaseException) -> tuple[str, int]:
        try:
            raise make() from cause
        except Exception as error:  # noqa: BLE001
            failure = of_error(error)
            assert not failure.retryable
            return failure.kind, failure.exit_code

    full = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    assert failed(lambda: Unreachable("the store could not be reached"), full) == ("no-room", 7)
    assert failed(lambda: LaunchError("not started"), MemoryError()) == ("no-room", 125)
    circle = Unreachable("the cache could not be used")
    circle.__cause__ = Unreachable("again")
    circle.__cause__.__cause__ = circle
    assert of_error(circle).exit_code == 6
    assert of_error(RuntimeError("can't start new thread")).exit_code == 7
    assert of_error(ImportError("x.so: failed to map segment from shared object")).exit_code == 7
    assert of_error(RuntimeError("something else")).exit_code == 70


@pytest.mark.parametrize("place", ["a folder", "below a file", "a device"])
def test_a_config_file_that_can_keep_nothing_is_named_and_stays(dsv: Dsv, place: str) -> None:
    (dsv.home / "file").write_bytes(b"")
    (dsv.home / "folder").mkdir()
    device = dsv.home / "null"
    if place == "a device":
        try:
            os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("making a device needs root")
    path = {"a folder": dsv.home / "folder", "below a file": dsv.home / "file/x", "a device": device}[place]
    done = dsv.at(dsv.cwd, DSV_CONFIG=str(path))("config", "author", "x")
    assert done.code in (2, 3, 4, 8), done
    assert str(dsv.home) in done.err
    assert place != "a device" or device.is_char_device()


def test_a_device_that_never_ends_is_no_config_file(dsv: Dsv) -> None:
    done = dsv.at(dsv.cwd, DSV_CONFIG="/dev/zero")("status")
    assert (done.code, "/dev/zero is not valid TOML" in done.err) == (2, True), done


def test_one_setting_can_be_mended_while_another_is_broken(dsv: Dsv) -> None:
    path = dsv.home / "config.toml"
    path.write_text("store = 1\ncache = 2\n")
    here = dsv.at(dsv.cwd, DSV_CONFIG=str(path))
    done = here.ok("config", "store", "s3://b")
    assert done.out == f"store set in {path}\n"
    assert "warning: cache in" in done.err
    here.ok("config", "cache", "/nfs/gpu")
    assert here.ok("config", "store").out == "s3://b\n"


@pytest.mark.parametrize("columns", ["0", "-5", "9" * 5000, "\u00b2", ""])
def test_a_width_that_is_none_is_not_used(dsv: Dsv, columns: str) -> None:
    dsv.at(dsv.cwd, COLUMNS=columns).ok("config")


def test_help_with_every_standard_stream_closed_is_no_traceback(dsv: Dsv) -> None:
    shell = f"exec {' '.join(PROGRAM)} --help <&- >&- 2>&-"
    done = subprocess.run(["sh", "-c", shell], cwd=dsv.cwd, env=dict(dsv.environ), check=False)
    assert done.returncode == 7
