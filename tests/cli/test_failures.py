"""Every failure: its exit code, one sentence and a hint, or one JSON document; and an empty stdout."""

from __future__ import annotations

import errno
import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import dsv.errors
from dsv.cli.call import Call
from dsv.cli.declare import Command, command
from dsv.cli.failure import of_error
from dsv.errors import Conflict, DsvError, Unreachable
from tests.kit.dsv import Dsv

Add = Callable[[Command], None]


def failing(error: BaseException) -> Command:
    @command("fail", examples="")
    def fail(call: Call) -> None:
        """Says something, then fails."""
        call.line("half a result")
        raise error

    return fail


def test_one_sentence_and_a_hint_and_nothing_on_stdout(dsv: Dsv, add_command: Add) -> None:
    add_command(failing(Conflict("main has moved", subject="main", hint="dsv pull")))
    result = dsv("fail")
    assert (result.code, result.out, result.err) == (4, "", "error: main has moved\nhint: dsv pull\n")


@pytest.mark.parametrize("arguments", [["fail", "--json"], ["--json", "fail"]])
def test_with_json_the_failure_is_the_document(dsv: Dsv, add_command: Add, arguments: list[str]) -> None:
    add_command(failing(Unreachable("s3://b did not answer", subject="s3://b")))
    result = dsv(*arguments)
    assert (result.code, result.err) == (6, "")
    assert result.json == {
        "schema": 1,
        "error": {
            "kind": "unreachable",
            "exit": 6,
            "message": "s3://b did not answer",
            "object": "s3://b",
            "hint": None,
            "retryable": True,
        },
    }


def test_usage_errors_are_documents_too_wherever_json_stands(dsv: Dsv) -> None:
    for arguments in (["--json", "synk"], ["config", "--wrong", "--json"]):
        result = dsv(*arguments)
        assert (result.code, result.json["error"]["kind"]) == (2, "usage")


def test_the_unexpected_is_70_without_a_traceback(dsv: Dsv, add_command: Add) -> None:
    add_command(failing(KeyError("segment")))
    result = dsv("fail")
    assert (result.code, result.out) == (70, "")
    assert result.err == (
        "error: dsv failed with an unexpected KeyError: 'segment'\n"
        "hint: run it again with --debug, and report what it prints\n"
    )


def test_a_panic_in_rust_is_70_too(dsv: Dsv, add_command: Add) -> None:
    """Its class derives from BaseException."""
    add_command(failing(type("PanicException", (BaseException,), {})("called `Result::unwrap()`")))
    result = dsv("fail")
    assert (result.code, result.out) == (70, "")
    assert result.err.startswith(
        "error: dsv failed with an unexpected PanicException: called `Result::unwrap()`"
    )


def test_debug_shows_the_traceback_before_the_sentence(dsv: Dsv, add_command: Add) -> None:
    add_command(failing(Conflict("main has moved", hint="dsv pull")))
    result = dsv("fail", "--debug")
    assert result.err.startswith("Traceback (most recent call last)")
    assert result.err.endswith("error: main has moved\nhint: dsv pull\n")


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.EACCES, 8),
        (errno.ENOSPC, 7),
        (errno.EDQUOT, 7),
        (errno.ENOENT, 3),
        (errno.ESTALE, 6),
        (errno.EIO, 6),
    ],
)
def test_what_the_system_refused_has_a_code_of_its_own(number: int, code: int) -> None:
    failure = of_error(OSError(number, "no", "/nfs/cache/x"))
    assert failure.exit_code == code
    assert "/nfs/cache/x" in failure.message


def test_a_name_has_no_power_over_the_terminal(dsv: Dsv, add_command: Add) -> None:
    add_command(failing(Conflict("a\x1b]0;owned\x07b\u202e is there", hint="rm 'a\x1bb'")))
    assert dsv("fail").err == "error: a\\x1b]0;owned\\x07b\\u202e is there\nhint: rm 'a\\x1bb'\n"


def test_interrupts(dsv: Dsv, add_command: Add) -> None:
    add_command(failing(KeyboardInterrupt()))
    result = dsv("fail")
    assert (result.code, result.err) == (130, "error: interrupted\n")


def test_every_error_of_ours_has_a_documented_exit_code() -> None:
    page = (Path(__file__).parents[2] / "docs/operations/automation.md").read_text()
    table = page.partition("## Exit codes")[2].partition("\n## ")[0]
    codes = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")]
    documented = {int(number) for code in codes for number in re.findall(r"\d+", code)}
    documented |= {125, 126, 127}
    kinds = [c for _, c in inspect.getmembers(dsv.errors, inspect.isclass) if issubclass(c, DsvError)]
    assert len(kinds) > 8
    assert {kind.exit_code for kind in kinds} <= documented


@pytest.mark.parametrize(
    "url", ["http://user:hunter2x@host/x", "s3://KEYID:hunter2x@bucket/p", "https://host/x?sig=hunter2x"]
)
def test_no_message_shows_a_password_in_a_url(dsv: Dsv, url: str) -> None:
    for arguments in (["datasets"], ["datasets", "--json"], ["datasets", "--debug"]):
        failed = dsv(*arguments, "--store", url)
        assert (
            failed.code == 2
            and "hunter2x" not in failed.out + failed.err
            and "***" in failed.out + failed.err
        )
