"""Reads a command line without typer, whose import takes as long as a short command.

It reads what typer would read without a message: anything else (help, a mistake, a value that is checked, flags that
are run together) is left to typer. tests/cli/test_quick.py compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dsv.cli.call import Call, CommandLine
from dsv.cli.catalogue import COMMANDS
from dsv.cli.declare import REQUIRED, Parameter, global_options, load
from dsv.errors import UsageError

_SHOWN = ("help", "version")
_Typed = dict[Parameter, Any]
"""What was typed, by the option or argument: a list if it may be repeated."""


class _LeftToTyper(Exception):
    pass


def quick_call(session: CommandLine) -> Call | None:
    """Return the call that a command line asks for, or None if typer has to read the line."""
    words = list(session.arguments)
    try:
        flags = _take(words, global_options(), to_command=True)
        if not words or words[0] not in COMMANDS:
            return None
        command = load(words.pop(0))
        at = words.index("--") if command.takes_words and "--" in words else len(words)
        behind, words = tuple(words[at + 1 :]), words[:at]
        known = [each for each in global_options() if command.unused.isdisjoint(each.opts)]
        typed = _take(words, [*command.parameters, *known])
        flags |= {each: typed.pop(each) for each in known if each in typed}
        typed |= _arguments(words, [each for each in command.parameters if not each.names])
        read = {each.name: each.read(value) for each, value in typed.items()}
    except (_LeftToTyper, UsageError):
        return None
    params = {each.name: read.get(each.name, each.default) for each in command.parameters}
    if REQUIRED in params.values():
        return None
    session.command = command.name
    for option, value in flags.items():
        setattr(session.flags, option.name, value)
    return Call(session, command, params, read.keys(), behind)


def _take(words: list[str], parameters: Iterable[Parameter], to_command: bool = False) -> _Typed:
    """Take the options out of the words, or only those before the command. Raises `_LeftToTyper`."""
    known = {name: each for each in parameters if each.is_plain for name in each.opts}
    typed: _Typed = {}
    left: list[str] = []
    while words and not (to_command and left):
        word = words.pop(0)
        if word == "--" and not to_command:
            break
        if word[:1] != "-" or word == "-":
            left.append(word)
            continue
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        option = known.get(name)
        if option is None or option.name in _SHOWN or (equals if option.is_flag else not (equals or words)):
            raise _LeftToTyper
        value = value if equals or option.is_flag else words.pop(0)
        if option.is_several:
            typed.setdefault(option, []).append(value)
        else:
            typed[option] = option.is_flag or value
    words[:] = left + words
    return typed


def _arguments(words: list[str], arguments: list[Parameter]) -> _Typed:
    """Give each argument its words; one that takes several gets those between the others."""
    typed: _Typed = {}
    for behind, argument in zip(reversed(range(len(arguments))), arguments, strict=True):
        count = max(0, len(words) - behind) if argument.is_several else 1
        if taken := words[:count]:
            typed[argument] = taken if argument.is_several else taken[0]
            words = words[count:]
    if words or not all(argument.is_plain for argument in typed):
        raise _LeftToTyper
    return typed
