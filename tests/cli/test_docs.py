"""The documentation says what the program does."""

from __future__ import annotations

import pkgutil
import re
import runpy
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.core import TyperOption

import dsv.cli.commands
from dsv.cli.call import CommandLine
from dsv.cli.catalogue import COMMANDS, HIDDEN, SECTIONS
from dsv.cli.declare import SIBLINGS, Command, load
from dsv.cli.output import CommandOutput
from dsv.cli.parser import global_params, parser_of, root
from dsv.cli.terminal import of_process


@pytest.fixture(params=list(COMMANDS))
def command(request: pytest.FixtureRequest) -> Command:
    return load(request.param)


def test_the_reference_has_every_command() -> None:
    page = runpy.run_path(str(Path(__file__).parents[2] / "docs/commands.py"))["reference"]()
    assert set(re.findall(r"^## dsv (\S+)$", page, re.MULTILINE)) == set(COMMANDS)


def _typed() -> Iterator[tuple[str, str, set[str]]]:
    """(page, command, long options) of each call of dsv that a page shows."""
    root = Path(__file__).parents[2]
    for page in (root / "README.md", root / "CHANGELOG.md", *(root / "docs").rglob("*.md")):
        for call in re.split(r"(?<![\w/.-])dsv (?=[a-z])", page.read_text("utf-8"))[1:]:
            words = re.split(r"[`|#\n;&]| -- ", call)[0]
            yield (
                page.name,
                re.split(r"[^a-z-]", words)[0],
                set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", words)),
            )


def test_the_pages_show_only_options_that_their_commands_have() -> None:
    shared = {option for param in global_params() for option in param.opts} | {"--help"}
    known = {name: shared.union(*(param.opts for param in load(name).parameters)) for name in COMMANDS}
    typed = [(page, name, options) for page, name, options in _typed() if name in known]
    assert len(typed) > 500
    assert [
        (page, name, options - known[name]) for page, name, options in typed if options - known[name]
    ] == []


def test_every_module_is_a_command_and_every_command_a_module() -> None:
    modules = {module.name for module in pkgutil.iter_modules(dsv.cli.commands.__path__)}
    assert modules | set(SIBLINGS) == set(COMMANDS)
    assert set(SIBLINGS.values()) < modules


def test_the_line_in_the_list_is_the_first_of_its_help(command: Command) -> None:
    assert command.name is not None
    assert command.body.__doc__ is not None
    first = command.body.__doc__.strip().partition("\n\n")[0]
    assert " ".join(first.split()) == COMMANDS[command.name] + "."


def test_every_command_has_an_example_that_it_accepts(command: Command) -> None:
    assert command.examples
    for line, _ in command.examples:
        words = _words(line)
        assert command.name in words, line
        arguments = words[words.index(str(command.name)) + 1 :]
        with CommandOutput(of_process().stdout) as out:
            session = CommandLine(of_process(), out)
            parser_of(command).make_context("dsv", arguments, obj=session)


def test_every_option_is_explained(command: Command) -> None:
    for param in (*parser_of(command).params, *global_params()):
        if isinstance(param, TyperOption):
            assert param.help, param.name


def test_help_fits_the_window(command: Command) -> None:
    context = typer.Context(
        parser_of(command), info_name=f"dsv {command.name}", terminal_width=80, max_content_width=80
    )
    text = parser_of(command).get_help(context)
    told = text.partition("\nExamples:")[0]
    assert max(map(len, told.splitlines())) <= 80


def test_what_returns_a_result_documents_its_keys(command: Command) -> None:
    assert command.result or command.name in ("cat", "demo", "logs", "node", "with")
    for key in command.result.dotted():
        assert re.fullmatch(r"[a-z_]+(\.[a-z_]+)*", key)


def test_the_meanings_of_keys_are_of_keys_that_there_are() -> None:
    known = tomllib.loads((Path(__file__).parents[2] / "docs/json.toml").read_text("utf-8"))
    keys = {name: set(load(name).result.dotted()) for name in COMMANDS}
    keys["shared"] = set().union(*keys.values())
    assert {name: set(texts) - keys[name] for name, texts in known.items() if set(texts) - keys[name]} == {}


def test_the_list_names_every_section_and_command_but_the_hidden_ones() -> None:
    shown = root().get_help(typer.Context(root()))
    for section, commands in SECTIONS.items():
        assert f"\n{section}:\n" in shown
        for name, line in commands.items():
            listed = re.search(rf"^  {name} +{re.escape(line)}$", shown, re.MULTILINE)
            assert (listed is None) == (name in HIDDEN)


def _words(line: str) -> list[str]:
    """The words of the dsv call in an example: what surrounds it in the shell is cut off."""
    inner = re.search(r"dsv [^|)]*", line)
    assert inner is not None, line
    return shlex.split(inner[0])
