"""Declaration of a command: a function for typer, its examples, and the keys of its JSON.

@command("resolve", examples="dsv resolve xrays@v1  # the id of a tag", result="commit")
def resolve(call: Call, target: str = argument("[TARGET]", "")) -> None: ...

The metavar of an argument appears in the usage line. The function returns the exit code.
`dsv.cli.parser` has typer read these declarations. Its import takes as long as a short command, so `dsv.cli.quick`
reads command lines that need none of its messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, cached_property
from importlib import import_module
from keyword import iskeyword
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from dsv.cli.catalogue import GLOBAL_OPTIONS
from dsv.cli.output import Keys
from dsv.errors import UsageError
from dsv.values.json import LONG_MAX, check_length, is_text
from dsv.values.units import parse_duration, parse_size

Body = Callable[..., int | None]
COMMAND = "-- CMD..."
PATHS = "[-- PATH...]"
"""Words after `--` in a usage line."""
REQUIRED: Any = ...
_FILES = {
    "hold": "release",
    "ls": "cat lock resolve",
    "merge": "cherry-pick revert",
    "put": "mv rm",
    "restore": "rollback",
    "stop": "logs wait",
}
SIBLINGS = {name: file for file, names in _FILES.items() for name in names.split()}
"""Commands that are in another command's file."""


class Parameter(msgspec.Struct, eq=False, kw_only=True):
    """An option or an argument of a command."""

    names: tuple[str, ...] = ()
    """As typer takes them, such as `-n` and `--limit`; an argument has none."""
    metavar: str | None
    help: str | None = None
    default: Any
    parser: Callable[[str], Any] | None = None
    more: dict[str, Any] = {}
    """What is for typer alone."""
    name: str = ""
    """Of the function's parameter."""
    kind: Any = None

    @property
    def opts(self) -> tuple[str, ...]:
        return tuple(name.partition("/")[0] for name in self.names)

    @property
    def label(self) -> str:
        """The option or argument as a person writes it."""
        return self.opts[0] if self.names else (self.metavar or "").strip("[].")

    @property
    def is_flag(self) -> bool:
        return self.kind is bool

    @property
    def is_several(self) -> bool:
        return self.kind in _SEVERAL

    def read(self, value: Any) -> Any:
        """Return the value of typed words: a list of several. Raises `UsageError`."""
        if self.parser is None:
            return list(value) if self.is_several else value
        return [self.parser(word) for word in value] if self.is_several else self.parser(value)

    @property
    def is_plain(self) -> bool:
        """True if a word is the value, once `parser` has read it: typer has pydantic read the others."""
        return self.parser is not None or self.kind in _PLAIN


class Command(msgspec.Struct, eq=False, dict=True):
    """A command with its examples and the keys of the JSON that it prints."""

    name: str
    body: Body
    options: Mapping[str, Any]
    """The parameters that `**options` of the function stands for, by name."""
    examples: tuple[tuple[str, str], ...]
    """Command lines, each with what it does in a few words."""
    result: Keys
    nulls: bool
    """Keys of `result` without a value are null, and not left out."""
    takes_words: str | None
    """The name, in the help, of the words after `--`, which are not parsed."""
    unused: frozenset[str]
    """Global options that have no effect: refused after the command's name."""

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        hints, code = get_type_hints(self.body, include_extras=True), self.body.__code__
        names = code.co_varnames[1 : code.co_argcount]
        given = dict(zip(reversed(names), reversed(self.body.__defaults__ or ()), strict=False))
        made = [_parameter(name, hints[name], given.get(name, REQUIRED)) for name in names]
        made[1:1] = [
            _parameter(name, kind, _EMPTY.get(get_args(kind)[0])) for name, kind in self.options.items()
        ]
        return tuple(made)


def load(name: str) -> Command:
    """Return a command; its module is imported when it is asked for."""
    function = f"{name}_" if iskeyword(name) else name.replace("-", "_")
    found = getattr(import_module(f"dsv.cli.commands.{SIBLINGS.get(name, name)}"), function)
    assert isinstance(found, Command)
    return found


def command(
    name: str,
    *,
    examples: str,
    result: str = "",
    options: Mapping[str, Any] | None = None,
    nulls: bool = False,
    words: str | None = None,
    unused: Iterable[str] = (),
) -> Callable[[Body], Command]:
    """Declare a command.

    examples: lines, each with its meaning as a comment. result: the keys of its JSON document, such as
    `commit items(path size)`; docs/json.toml describes them. options: the parameters that `**options` stands
    for, as annotations. nulls: keys without a value are null. words: what the help calls the
    words after `--`, which are in `call.words`. unused: global options without effect, such as `--cache`.
    """
    rows = (line.strip().partition("  # ") for line in examples.strip().splitlines())

    def declare(body: Body) -> Command:
        made = tuple((typed, meaning) for typed, _, meaning in rows)
        keys = Keys.parse(result)
        return Command(name, body, options or {}, made, keys, nulls, words, frozenset(unused))

    return declare


def option(written: str, help: str, default: Any = None, **more: Any) -> Any:  # noqa: A002 (typer's word)
    """Declare an option as the help shows it: its names and its metavar, as in `-n --limit N`.

    Without a default, a flag is False, a text empty, and anything else None. The metavar of a number (N, TIME
    or SIZE) determines how it is parsed; TEXT has to be UTF-8.
    """
    names = tuple(word for word in written.split() if word.startswith("-"))
    metavar = " ".join(word for word in written.split() if not word.startswith("-")) or None
    parser = more.pop("parser", None)
    return Parameter(names=names, metavar=metavar, help=help, default=default, parser=parser, more=more)


def argument(metavar: str, default: Any = None, **more: Any) -> Any:
    """Declare an argument by its metavar in the usage line. It is required unless that is in brackets."""
    preset = default if metavar.startswith("[") else REQUIRED
    return Parameter(metavar=metavar, default=preset, parser=more.pop("parser", None), more=more)


def _parameter(name: str, annotation: Any, default: Any) -> Parameter:
    """Return a parameter that is declared as `full: bool = option(…)` or `full: Annotated[bool, option(…)] = False`."""
    kind, *extras = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    if not isinstance(default, Parameter):
        (declared,) = extras
        assert isinstance(declared, Parameter)
        return msgspec.structs.replace(declared, name=name, kind=kind, default=default)
    preset = _EMPTY.get(kind) if default.default is None else default.default
    parser = default.parser
    if parser is None and (int in (get_args(kind) or (kind,)) or default.metavar == "TEXT"):
        parser = _PARSERS.get(default.metavar)
    return msgspec.structs.replace(default, name=name, kind=kind, default=preset, parser=parser)


def text(value: str) -> str:
    """Check a text that is kept in a store or a file, and so has to be UTF-8, unlike names of files."""
    if not is_text(value):
        raise UsageError(f"{value!r} is not valid UTF-8", subject=value)
    check_length(value, LONG_MAX, "a text")
    return value


def whole(least: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from `least` on."""

    def number(value: str) -> int:
        try:
            parsed = int(value)
        except ValueError:
            parsed = least - 1
        if parsed < least:
            raise UsageError(f"{value!r} is not a whole number from {least} on", subject=value)
        return parsed

    return number


_PARSERS: dict[Any, Any] = {"N": whole(1), "TIME": parse_duration, "SIZE": parse_size, "TEXT": text}
_EMPTY: dict[Any, Any] = {bool: False, str: ""}
_SEVERAL: tuple[Any, ...] = (list[str], list[str] | None)
_PLAIN: tuple[Any, ...] = (str, str | None, bool, *_SEVERAL)


@cache
def global_options() -> tuple[Parameter, ...]:
    """Return the global options, whose values go to the session's `Flags`."""
    made = []
    for written, meaning in GLOBAL_OPTIONS:
        declared: Parameter = option(written.replace(",", ""), meaning)
        kind: Any = bool if declared.metavar is None else str | None
        name = declared.opts[-1].lstrip("-").replace("-", "_")
        name = "directory" if name == "C" else name
        made.append(_parameter(name, Annotated[kind, declared], _EMPTY.get(kind)))
    return tuple(made)


def with_option(error: UsageError, option: Parameter) -> UsageError:
    """Return the error with the option's name before its message, unless that names it already."""
    if any(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", error.message) for name in option.opts):
        return error
    return UsageError(f"{'/'.join(option.opts)}: {error.message}", subject=error.subject, hint=error.hint)
