"""Global options before and after the command's name, typos, and what the command gets of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dsv.cli.call import Call
from dsv.cli.declare import Command, argument, command, option
from dsv.cli.parser import OTHER_NAMES
from tests.kit.dsv import Dsv

Add = Callable[[Command], None]


@command("echo", examples="dsv echo hi")
def echo(
    call: Call,
    words: list[str] | None = argument("[WORDS]..."),
    times: int = option("--times N", "How often.", default=1),
) -> int | None:
    """Says what it was given."""
    call.line(f"store={call.flags.store} json={call.json} quiet={call.quiet} cwd={Path.cwd().name}")
    for _ in range(times):
        call.line(" ".join(words or ()))
    return 1 if words == ["differ"] else None


@pytest.mark.parametrize(
    "arguments",
    [
        ["--store", "s3://b", "--quiet", "echo", "hi"],
        ["echo", "--store", "s3://b", "hi", "-q"],
        ["--store=s3://other", "echo", "hi", "--quiet", "--store=s3://b"],
    ],
)
def test_global_options_stand_anywhere_and_the_last_counts(
    dsv: Dsv, add_command: Add, arguments: list[str]
) -> None:
    add_command(echo)
    result = dsv(*arguments)
    assert result.lines == ["store=s3://b json=False quiet=True cwd=work", "hi"]


def test_behind_two_dashes_nothing_is_an_option(dsv: Dsv, add_command: Add) -> None:
    add_command(echo)
    assert dsv("echo", "--", "--json", "-q").lines[-1] == "--json -q"
    failed = dsv("echo", "--times", "x", "--", "--json")
    assert failed.out == ""
    assert failed.code == 2


def test_c_is_where_relative_paths_begin(dsv: Dsv, add_command: Add) -> None:
    add_command(echo)
    (dsv.cwd / "below").mkdir()
    assert dsv("-C", "below", "echo").lines[0].endswith("cwd=below")
    missing = dsv("echo", "-C", "nowhere")
    assert (missing.code, missing.out) == (3, "")
    assert "error: there is no folder nowhere" in missing.err
    assert dsv("echo", "-C", "").code == 2


def test_the_exit_code_is_what_the_command_returns_and_its_output_stays(dsv: Dsv, add_command: Add) -> None:
    add_command(echo)
    result = dsv("echo", "differ")
    assert result.code == 1
    assert result.lines[-1] == "differ"


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["synk"], "there is no command synk", "dsv sync"),
        (["push"], "there is no command push", "dsv sync"),
        (["lgo"], "there is no command lgo", "dsv log"),
        (["plot"], "there is no command plot", OTHER_NAMES["plot"]),
        (["fetch"], "there is no command fetch", OTHER_NAMES["fetch"]),
        (["flop"], "there is no command flop", "dsv --help"),
        (["xyzzy"], "there is no command xyzzy", "dsv --help"),
        (["--stroe", "x", "echo"], "dsv has no option --stroe", "dsv --store"),
        (["echo", "--mites"], "dsv echo has no option --mites", "dsv echo --help"),
        (["echo", "--time"], "dsv echo has no option --time", "dsv echo --times"),
        (["echo", "--qiet"], "dsv echo has no option --qiet", "dsv echo --quiet"),
        (["echo", "--times"], "option '--times' requires an argument", "dsv echo --help"),
        (["cat"], "dsv cat needs TARGET", "dsv cat --help"),
        (["ls", "a", "b"], "got unexpected extra argument (b)", "dsv ls --help"),
        (
            ["demo", "--engine", "qemu"],
            "invalid value for '--engine': 'qemu' is not one of 'docker', 'podman', 'process'",
            "dsv demo --help",
        ),
    ],
)
def test_typos_get_a_suggestion(
    dsv: Dsv, add_command: Add, arguments: list[str], message: str, hint: str
) -> None:
    add_command(echo)
    result = dsv(*arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err == f"error: {message}\nhint: {hint}\n"


def test_no_command_at_all_is_a_usage_error(dsv: Dsv) -> None:
    assert dsv("--quiet").code == 2


@pytest.mark.parametrize(
    "arguments", [["echo", "--help"], ["echo", "-h"], ["help", "echo"], ["--json", "echo", "-h"]]
)
def test_help_of_a_command_has_its_examples(dsv: Dsv, add_command: Add, arguments: list[str]) -> None:
    add_command(echo)
    result = dsv.ok(*arguments)
    assert result.out.startswith("Usage: dsv echo [OPTIONS] [WORDS]...\n")
    assert "Examples:\n  dsv echo hi\n" in result.out


def test_an_unknown_progress_is_a_usage_error(dsv: Dsv, add_command: Add) -> None:
    @command("work", examples="")
    def work(call: Call) -> None:
        """Works."""
        with call.progress():
            pass

    add_command(work)
    assert dsv("work", "--progress", "jsn").code == 2
    assert dsv("work", "--progress=json").code == 0
