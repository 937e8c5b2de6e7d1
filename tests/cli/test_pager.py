"""A pager for long output, in a real pseudo-terminal: less, and commands that stand in for it."""

from __future__ import annotations

import fcntl
import os
import pty
import shutil
import signal
import struct
import termios
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dsv.cli.call import PAGED
from tests.kit.dsv import Dsv, write_files
from tests.waiting import PATIENCE, until

ROWS, COLUMNS = 10, 80
LINES = [f"line {number}" for number in range(20_000)]
PROMPT = b":\x1b[K"  # of less
needs_less = pytest.mark.skipif(shutil.which("less") is None, reason="less is not installed")


class Screen:
    """A command in a terminal of its own, which a test reads from and types into."""

    def __init__(self, dsv: Dsv, *arguments: str, **environ: str) -> None:
        self._ours, self._its = pty.openpty()
        fcntl.ioctl(self._its, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        os.set_blocking(self._ours, False)
        self.settings = termios.tcgetattr(self._its)
        self._seen = b""
        person = dsv.at(dsv.cwd, **{"TERM": "xterm", **environ})
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), self._its)
        self.process = person.start(
            *arguments,
            **streams,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    @property
    def seen(self) -> bytes:
        with suppress(BlockingIOError):
            while data := os.read(self._ours, 1 << 16):
                self._seen += data
        return self._seen

    def sees(self, what: bytes) -> None:
        until(lambda: what in self.seen, f"{what!r} on the screen")

    def types(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def ends(self) -> tuple[int, str]:
        """Its exit code, and all that was on the screen."""
        until(lambda: (self.seen, self.process.poll())[1] is not None, "the end")
        assert termios.tcgetattr(self._its) == self.settings
        return self.process.wait(), self.seen.decode().replace("\r\n", "\n")

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)
        os.close(self._ours)
        os.close(self._its)


Open = Callable[..., Screen]


@pytest.fixture
def screen(pets: Dsv) -> Iterator[Open]:
    opened: list[Screen] = []

    def opens(*arguments: str, **environ: str) -> Screen:
        opened.append(Screen(pets, *arguments, **environ))
        return opened[-1]

    yield opens
    for each in opened:
        each.close()


@pytest.fixture
def long(pets: Dsv) -> tuple[str, ...]:
    """The words of a command with more output than a pipe holds, and the exit code 1."""
    write_files(pets.cwd, {"a.txt": "\n".join(LINES).encode()})
    pets.ok("sync")
    return "diff", "@v2", "@main", "--text", "--exit-code"


@needs_less
def test_less_shows_a_page_in_colour_and_the_exit_code_is_kept(screen: Open, long: tuple[str, ...]) -> None:
    shown = screen(*long)
    shown.sees(PROMPT)
    assert b"\x1b[32m+line 1\x1b" in shown.seen and b"line 19999" not in shown.seen
    shown.types(b"\x03")  # which is for less, and may drop what is typed with it
    until(lambda: (shown.types(b"G"), b"line 19999" in shown.seen)[1], "the last page")
    shown.types(b"q")
    code, text = shown.ends()
    assert code == 1
    assert "pets@" in text.splitlines()[-1], "notes come after the pages, which would hide them"


@needs_less
def test_what_fits_is_not_paged(screen: Open) -> None:
    code, text = screen("show", "--name-only").ends()
    assert code == 0 and "a.txt" in text


@needs_less
def test_a_signal_ends_it_after_the_pager_has_given_the_terminal_back(screen: Open) -> None:
    shown = screen("show", LESS="R")
    shown.sees(PROMPT)
    shown.process.send_signal(signal.SIGTERM)
    shown.types(b"q")
    assert shown.ends()[0] == 143


def test_a_pager_may_end_before_it_has_read_everything(screen: Open, long: tuple[str, ...]) -> None:
    code, text = screen(*long, DSV_PAGER="head -n 2").ends()
    assert code == 1
    assert "+line 0\x1b" not in text and len(text.splitlines()) == 3 and "Traceback" not in text


@pytest.mark.parametrize("line", ["not-there", "not-there --option", "/"])
def test_without_the_pager_everything_is_printed(screen: Open, long: tuple[str, ...], line: str) -> None:
    code, text = screen(*long, DSV_PAGER=line).ends()
    assert code == 1
    assert "line 19999" in text


MARK = "echo PAGED; cat"


@pytest.mark.parametrize(
    ("arguments", "environ", "paged"),
    [
        (["log"], {"PAGER": MARK}, True),
        (["log"], {"PAGER": "cat", "DSV_PAGER": MARK}, True),
        (["log"], {"PAGER": MARK, "DSV_PAGER": ""}, False),
        (["log"], {"PAGER": "cat"}, False),
        (["log"], {"PAGER": MARK, "TERM": "dumb"}, False),
        (["diff", "@v1", "@v2"], {"PAGER": MARK}, True),
        (["show"], {"PAGER": MARK}, True),
        (["runs", "--csv"], {"PAGER": MARK}, True),
        (["runs"], {"PAGER": MARK}, False),  # there are none, so nothing is printed
        (["log", "--no-pager"], {"PAGER": MARK}, False),
        (["--no-pager", "log"], {"PAGER": MARK}, False),
        (["log", "--json"], {"PAGER": MARK}, False),
        (["log", "@nope"], {"PAGER": MARK}, False),
        (["status"], {"PAGER": MARK}, False),
    ],
)
def test_which_output_is_paged(
    screen: Open, arguments: list[str], environ: dict[str, str], paged: bool
) -> None:
    _, text = screen(*arguments, **environ).ends()
    assert ("PAGED" in text) is paged, text


def test_a_pipe_has_no_pager(pets: Dsv, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    done = pets.at(pets.cwd, PAGER=f"touch {mark}; cat").process("log")
    assert done.out.startswith("commit ") and not mark.exists()
    assert "log" in PAGED
