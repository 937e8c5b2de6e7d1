"""Colour on a terminal, and nowhere else; and nothing that is said by colour alone."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import pytest

from dsv.cli.call import Call
from dsv.cli.commands import demo
from dsv.cli.declare import Command, command
from dsv.cli.failure import failure_text
from dsv.cli.terminal import PLAIN, Ink, Surroundings, wrapped
from dsv.errors import DsvError
from tests.kit.dsv import Dsv, write_files

CODES = re.compile(r"\x1b\[[\d;]*m")


@pytest.fixture
def changed(pets: Dsv) -> Dsv:
    write_files(pets.cwd, {"new": b"x", "a.txt": b"gamma\n"})
    (pets.cwd / "train/1.png").unlink()
    return pets.at(pets.cwd, COLUMNS="500")  # so that no line is broken


def test_each_way_to_differ_has_its_colour(changed: Dsv) -> None:
    lines = changed("status", terminal=True).out.splitlines()
    assert "\x1b[32madded   \x1b[0m  new" in lines
    assert "\x1b[33mchanged \x1b[0m  a.txt" in lines
    assert "\x1b[31mremoved \x1b[0m  train/1.png" in lines


def test_errors_hints_and_warnings_stand_out(changed: Dsv) -> None:
    failed = changed("ls", "nope", terminal=True)
    assert failed.code == 3
    error, hint = failed.err.splitlines()
    assert error.startswith("\x1b[1;31merror:\x1b[0m ") and "\x1b[1mnope\x1b[0m" in error
    assert hint.startswith("\x1b[36mhint:\x1b[0m ")
    write_files(changed.cwd, {"NEW": b"y"})
    assert "\x1b[1;33mwarning:\x1b[0m " in changed("status", terminal=True).err


def test_the_log_shows_branches_and_tags_in_colour(changed: Dsv) -> None:
    for arguments in (["log"], ["log", "--oneline"]):
        shown = changed(*arguments, terminal=True).out
        assert re.search(r"\x1b\[33m(commit )?[0-9a-f]{12,64}\x1b\[0m \(", shown)
        assert "\x1b[1;32mmain\x1b[0m" in shown


@pytest.mark.parametrize(
    "arguments", [["status"], ["log"], ["log", "--oneline"], ["datasets"], ["ls", "nope"]]
)
def test_the_words_are_the_same_without_colour(changed: Dsv, arguments: list[str]) -> None:
    coloured, plain = changed(*arguments, terminal=True), changed(*arguments)
    assert "\x1b" in coloured.out + coloured.err
    for one, other in ((coloured.out, plain.out), (coloured.err, plain.err)):
        assert CODES.sub("", one) == other


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
@pytest.mark.parametrize("arguments", [["status"], ["log"], ["datasets"], ["ls", "nope"], ["ls", "-l"]])
def test_who_wants_no_colour_gets_no_escape_code(
    changed: Dsv, arguments: list[str], environ: dict[str, str]
) -> None:
    shown = changed.at(changed.cwd, **environ)(*arguments, terminal=True)
    assert "\x1b" not in shown.out + shown.err


def test_headings_of_help_are_bold_and_a_page_is_the_same_without(changed: Dsv) -> None:
    shown, plain = changed("status", "--help", terminal=True).out, changed("status", "--help").out
    assert CODES.sub("", shown) == plain
    assert set(re.findall(r"\x1b\[1m(.*?)\x1b\[0m", shown)) >= {"Usage:", "Options:", "Examples:"}
    assert "\x1b" not in changed.at(changed.cwd, NO_COLOR="1")("status", "--help", terminal=True).out


def test_damage_and_the_lines_of_a_demo_stand_out(changed: Dsv, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[32m" in changed("verify", terminal=True).err
    for pack in (changed.home / ".local/share/dsv/store/packs").glob("*/*"):
        pack.unlink()
    lost = changed("verify", terminal=True)
    assert re.search(r"\x1b\[31m[0-9a-f]{12} .* has lost:\x1b\[0m\n", lost.out) and "\x1b[31m" in lost.err
    monkeypatch.setattr(demo, "TOUR", "# What is here.\nls")
    shown = changed("demo", terminal=True).out
    assert shown == "\x1b[36m# What is here.\x1b[0m\n\x1b[1m$ ls\x1b[0m\ncircle\ncross\nsquare\n"


def test_each_stream_is_judged_alone() -> None:
    around = Surroundings({}, io.BytesIO(), io.StringIO(), False, True)
    assert (around.stdout_ink, around.stderr_ink) == (Ink(False), Ink(True))


def test_an_objects_name_is_painted_once_and_has_no_power() -> None:
    failure = DsvError("a\x1b[2J is not a\x1b[2J", subject="a\x1b[2J")
    assert (
        failure_text(failure, Ink(True))
        == "\x1b[1;31merror:\x1b[0m \x1b[1ma\\x1b[2J\x1b[0m is not a\\x1b[2J\n"
    )
    assert failure_text(failure, PLAIN) == failure_text(failure)


@pytest.mark.parametrize(
    ("environ", "terminal", "drawn"), [({}, True, True), ({"TERM": "dumb"}, True, False), ({}, False, False)]
)
def test_a_bar_is_drawn_only_where_it_can_be_drawn_over(
    dsv: Dsv, add_command: Callable[[Command], None], environ: dict[str, str], terminal: bool, drawn: bool
) -> None:
    seen: list[str] = []

    @command("work", examples="")
    def work(call: Call) -> None:
        """Works."""
        with call.progress() as meter:
            seen.append(type(meter).__name__)

    add_command(work)
    assert dsv.at(dsv.cwd, **environ)("work", terminal=terminal).code == 0
    assert seen == ["Bar" if drawn else "Lines"]


def test_long_notes_break_between_words_and_commands_stay_whole() -> None:
    text = "\x1b[33mwarning:\x1b[0m the store was not asked\nhint: dsv cache pets@v1 --hold 3d\n"
    assert wrapped(text, 20) == (
        "\x1b[33mwarning:\x1b[0m the store\nwas not asked\nhint: dsv cache     pets@v1 --hold 3d\n"
    ), "spaces fill the row of a command, which stays one line to copy"
    assert wrapped("a-word-that-is-longer-than-the-line", 10) == "a-word-that-is-longer-than-the-line"
