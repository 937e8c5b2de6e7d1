"""Command lines that are read without typer, compared with what typer reads."""

from __future__ import annotations

import io
import shlex
from collections.abc import Iterator
from itertools import cycle, takewhile
from typing import Any

import msgspec
import pytest

from dsv.cli.call import Call, CommandLine
from dsv.cli.catalogue import COMMANDS, GLOBAL_OPTIONS
from dsv.cli.declare import Parameter, global_options, load
from dsv.cli.output import CommandOutput
from dsv.cli.parser import invoke
from dsv.cli.quick import quick_call
from dsv.cli.terminal import Surroundings
from dsv.errors import UsageError

VALUES = ("3", "2h", "pets@v1:a b", "", "-", "--", "-x", "--json", "K=V", "\u202ea\n", "\udcff", "none")


def session_of(words: list[str]) -> CommandLine:
    around = Surroundings({}, io.BytesIO(), io.StringIO(), False, False)
    return CommandLine(around, CommandOutput(around.stdout), arguments=tuple(words))


def seen(call: Call) -> tuple[Any, ...]:
    session = call.session
    flags = msgspec.structs.asdict(session.flags)
    return call.command.name, session.command, dict(call.params), call.typed, call.words, flags


def by_typer(words: list[str], patch: pytest.MonkeyPatch) -> tuple[Any, ...] | None:
    """What the command gets from typer; None if typer refuses the line, or shows help."""
    calls: list[Call] = []
    with patch.context() as each:
        each.setattr(Call, "run", lambda call: calls.append(call))
        try:
            invoke(words, session_of(words))
        except UsageError:
            return None
    return seen(calls[0]) if calls else None


def lines_with(option: Parameter, others: list[str]) -> Iterator[list[str]]:
    """The option in each form, with a different value each."""
    short, long, values = option.opts[0], option.opts[-1], cycle(VALUES)
    forms = [[long], [short], [f"{long}={next(values)}"]]
    if not option.is_flag:
        forms += [[long, next(values)], [short, next(values)], [short + next(values)]]
        forms += [[long, value] for value in VALUES] + [[f"{long}={next(values)}"] for _ in range(3)]
    for number, form in enumerate(forms):
        yield ([*others, *form], [*form, *others], [*form, *form, *others], [*others, "--", *form])[
            number % 4
        ]


@pytest.mark.parametrize("name", COMMANDS)
def test_typer_reads_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = load(name)
    fewest = [
        f"a{at}" for at, each in enumerate(command.parameters) if not each.names and each.default is ...
    ]
    lines = [[*words] for count in range(5) for words in (["a", "b", "-", "ü"][:count],)]
    options = [each for each in (*command.parameters, *global_options()) if each.names]
    lines += [line for option in options for line in lines_with(option, fewest)]
    read = 0
    for line in lines:
        words = [name, *line]
        call = quick_call(session_of(words))
        if call is not None:
            read += 1
            assert seen(call) == by_typer(words, monkeypatch), shlex.join(words)
    assert read > 12 or name == "bench"  # whose argument has a choice, which typer checks


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_need_no_typer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """None but those with a value that is checked, or a short option with its value."""
    for line, _ in load(name).examples:
        words = shlex.split(line[line.index("dsv ") :].replace(")", " "))[1:]
        words = list(takewhile(lambda word: word not in (">", "|", "||", "&&"), words))
        call = quick_call(session_of(words))
        assert call is None or seen(call) == by_typer(words, monkeypatch), line
        assert call is not None or name in ("bench", "demo", "import"), line


def test_global_options_before_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (
        ["--store", "s3://b", "-C", "x", "--json", "ls", "pets"],
        ["--store=s3://b", "ls", "--store", "s3://c", "pets"],
        ["-q", "--", "ls", "pets"],
        ["--progress", "none", "--cache", "", "status"],
        ["status", "--cache", "x"],
        ["-qh", "status"],
        ["help", "ls"],
        ["lss", "pets"],
        ["--version", "ls"],
    ):
        call = quick_call(session_of(words))
        assert call is None or seen(call) == by_typer(words, monkeypatch), words
    quick = quick_call(session_of(["--store=s3://b", "-q", "ls", "pets"]))
    assert quick is not None and (quick.flags.store, quick.flags.quiet) == ("s3://b", True)
    assert len(GLOBAL_OPTIONS) == len(global_options())
