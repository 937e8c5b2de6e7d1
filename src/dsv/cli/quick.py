"""Reads a command line without typer, whose import takes as long as a short command.

It reads what typer would read without a message: anything else (help, a mistake, a value that is checked, flags that
are run together) is left to typer. tests/cli/test_quick.py compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dsv.cli.call import Call, CommandLine
from dsv.cli.catalogue import COMMANDS
from dsv.cli.declare import REQUIRED, Parameter, global_options, load
from dsv.errors import UsageError

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
        behind: tuple[str, ...] = ()
        if command.takes_words and "--" in words:
            at = words.index("--")
            words, behind = words[:at], tuple(words[at + 1 :])
        known = [each for each in global_options() if command.unused.isdisjoint(each.opts)]
        typed = _take(words, [*command.parameters, *known])
        for option in [each for each in typed if each in known]:
            flags[option] = typed.pop(option)
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
    return Call(session, command, params, read, behind)


def _take(words: list[str], parameters: Iterable[Parameter], to_command: bool = False) -> _Typed:
    """Take the options out of the words, or only those before the command. Raises `_LeftToTyper`."""
    known: Mapping[str, Parameter] = {name: each for each in parameters for name in each.opts}
    typed: _Typed = {}
    left: list[str] = []
    while words:
        word = words.pop(0)
        if word == "--" and not to_command:
            left += words
            break
        if word[:1] != "-" or word == "-":
            left.append(word)
            if to_command:
                left += words
                break
            continue
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        option = known.get(name)
        if option is None or option.name == "help" or not option.is_plain or (equals and option.is_flag):
            raise _LeftToTyper
        if not (equals or option.is_flag):
            if not words:
                raise _LeftToTyper
            value = words.pop(0)
        if option.is_several:
            typed.setdefault(option, []).append(value)
        else:
            typed[option] = True if option.is_flag else value
    words[:] = left
    return typed


def _arguments(words: list[str], arguments: list[Parameter]) -> _Typed:
    """Give each argument its words; one that takes several gets those between the others."""
    typed: _Typed = {}
    for number, argument in enumerate(arguments, 1):
        behind = len(arguments) - number
        count = max(0, len(words) - behind) if argument.is_several else min(1, len(words))
        if not argument.is_plain and count:
            raise _LeftToTyper
        if count:
            typed[argument] = words[:count] if argument.is_several else words[0]
            del words[:count]
    if words:
        raise _LeftToTyper
    return typed
