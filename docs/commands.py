"""The site's page of commands, made from the commands themselves when `mkdocs` builds the site."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dsv.cli.catalogue import GLOBAL_OPTIONS, SECTIONS, look_alikes
from dsv.cli.declare import Command, load
from dsv.cli.parser import parser_of

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

HEAD = """\
# Command line reference

This page is made from the commands themselves. `dsv COMMAND --help` says the same in a terminal.
[Names, times, sizes, settings](reference/basics.md) has what all of them have in common.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add cli.md, which no folder has."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "cli.md", content=reference()))
    return files


def reference() -> str:
    """Return the whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield HEAD
    for section, commands in SECTIONS.items():
        yield f"- {section}: " + ", ".join(f"[{name}](#dsv-{name})" for name in commands)
    yield ""
    yield "## Options of every command"
    yield ""
    yield "They may stand before or after the command's name."
    yield ""
    yield from _table(
        ("option", "meaning"), [(f"`{_cell(option)}`", text) for option, text in GLOBAL_OPTIONS]
    )
    yield ""
    yield "## Exit codes"
    yield ""
    page = (Path(__file__).parent / "operations/automation.md").read_text("utf-8")
    yield page.partition("## Exit codes")[2].partition("\n## ")[0].strip()
    for commands in SECTIONS.values():
        for name in commands:
            yield ""
            yield from _command(load(name))


def _command(command: Command) -> Iterator[str]:
    parser = parser_of(command)
    context = typer.Context(parser, info_name=f"dsv {command.name}")
    yield f"## dsv {command.name}"
    yield ""
    yield f"`{context.command_path} {' '.join(parser.collect_usage_pieces(context))}`"
    yield ""
    yield inspect.cleandoc(command.body.__doc__ or "").replace("\b\n", "")
    for heading, rows in parser.option_rows(context).items():
        shown = [(f"`{_cell(option)}`", meaning) for option, meaning in rows]
        yield ""
        yield from _table(("option" if heading == "Options" else heading.lower(), "meaning"), shown)
    if others := look_alikes(str(command.name)):
        yield ""
        yield "Not to be confused with " + ", ".join(f"[{name}](#dsv-{name})" for name in others) + "."
    yield ""
    for line, meaning in command.examples:
        yield f"    {line}{'    # ' + meaning if meaning else ''}"
    if command.result:
        yield ""
        yield "JSON:"
        yield ""
        yield from _table(("key", "meaning"), [(f"`{key}`", text) for key, text in meanings(command).items()])


def meanings(command: Command) -> dict[str, str]:
    """Return the keys of a command's JSON, each with what it means. Raises `KeyError` for one that json.toml lacks."""
    known = tomllib.loads((Path(__file__).parent / "json.toml").read_text("utf-8"))
    texts = {**known["shared"], **known.get(str(command.name), {})}
    return {key: texts[key] for key in command.result.dotted()}


def _table(head: tuple[str, str], rows: object) -> Iterator[str]:
    yield f"| {head[0]} | {head[1]} |"
    yield "|---|---|"
    assert isinstance(rows, list | tuple)
    for left, right in rows:
        yield f"| {left} | {right} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
