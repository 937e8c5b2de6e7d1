"""What the last word of an unfinished command line is: the name of a command, an option, or a value of some kind."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Option = tuple[tuple[str, ...], str, str]
"""The spellings of an option, the kind of its value (empty for a flag), and its line of help."""


class Described(NamedTuple):
    """arguments: the kind of each argument. repeats: whether the last of them takes several words. words: whether it
    takes a program's words behind `--`."""

    options: tuple[Option, ...]
    help: str = ""
    arguments: tuple[str, ...] = ()
    repeats: bool = False
    words: bool = False


def _described() -> dict[str, Described]:
    with open(os.path.join(os.path.dirname(__file__), "commands.json"), "rb") as file:
        return {name: Described(**row) for name, row in json.load(file).items()}


COMMANDS = _described()
"""Every command; dsv's own options are those of the one without a name."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """kind: `command`, `option`, or what a value is, as in described.py. word: what is typed of it so far.

    before: what stands before the value in the same word, such as `--cache=`. command: the command's name, if it is
    known. flags: values of the global options that were typed.
    """

    kind: str
    word: str
    before: str = ""
    command: str = ""
    flags: Mapping[str, str] | None = None


def wanted(words: Sequence[str]) -> Wanted:
    """words: what stands behind `dsv`; the last one is to be completed and may be empty."""
    flags: dict[str, str] = {}
    command, position, expecting = "", 0, None
    for word in words[:-1]:
        if expecting is not None:
            flags[expecting[0]] = word
            expecting = None
        elif word == "--" and command and COMMANDS[command].words:
            return Wanted("program", words[-1], command=command, flags=flags)
        elif word.startswith("-") and len(word) > 1:
            name, equals, value = word.partition("=")
            kind = _value_of(command, name)
            if kind and equals:
                flags[name] = value
            elif kind:
                expecting = (name, kind)
        elif not command:
            if word not in COMMANDS or not word:
                return Wanted("", words[-1])
            command = word
        else:
            position += 1
    last = words[-1]
    if expecting is not None:
        return Wanted(expecting[1], last, command=command, flags=flags)
    if last.startswith("-"):
        name, equals, value = last.partition("=")
        kind = _value_of(command, name) if equals else ""
        if kind:
            return Wanted(kind, value, f"{name}=", command, flags)
        return Wanted("option", last, command=command, flags=flags)
    if not command:
        return Wanted("command", last, flags=flags)
    return Wanted(_argument(command, position), last, command=command, flags=flags)


def options(command: str) -> list[tuple[str, str]]:
    """Every option of a command (or of dsv itself) and what it does."""
    return [(name, text) for names, _, text in _options(command) for name in names]


def _options(command: str) -> list[Option]:
    return [*(COMMANDS[command].options if command else ()), *COMMANDS[""].options]


def _value_of(command: str, option: str) -> str:
    """The kind of an option's value; empty for a flag, and for an option that there is not."""
    return next((kind for names, kind, _ in _options(command) if option in names), "")


def _argument(command: str, position: int) -> str:
    kinds = COMMANDS[command].arguments
    if position < len(kinds):
        return kinds[position]
    return kinds[-1] if kinds and COMMANDS[command].repeats else ""
