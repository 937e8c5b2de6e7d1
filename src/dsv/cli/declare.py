"""Declaration of a command: a function for typer, its examples, and the keys of its JSON.

@command("resolve", examples="dsv resolve xrays@v1  # the id of a tag", result="commit")
def resolve(call: Call, target: str = argument("[TARGET]", "")) -> None: ...

The metavar of an argument appears in the usage line. The function returns the exit code.
"""

from __future__ import annotations

import gc
import inspect
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand, TyperOption
from typer.main import get_command

from dsv.cli.call import Call, CommandLine, name_of
from dsv.cli.catalogue import GLOBAL_OPTIONS, look_alikes, with_headings
from dsv.cli.output import Keys
from dsv.errors import UsageError
from dsv.values.json import LONG_MAX, check_length, is_text
from dsv.values.units import parse_duration, parse_size

Body = Callable[..., int | None]
COMMAND = "-- CMD..."
PATHS = "[-- PATH...]"
"""Words after `--` in a usage line."""


class Command(TyperCommand):
    """A command that knows its examples and the JSON it prints, and takes the global options."""

    context_class = Call
    examples: tuple[tuple[str, str], ...] = ()
    """Command lines, each with what it does in a few words."""
    result = Keys()
    nulls = False
    """Keys of `result` without a value are null, and not left out."""
    takes_words: str | None = None
    """The name, in the help, of the words after `--` that typer does not parse."""
    unused: frozenset[str] = frozenset()
    """Global options that have no effect: refused after the command's name."""

    # typer does not export the classes of these parameters, so the signatures can't name them.

    def get_params(self, ctx: Any) -> list[Any]:
        used = [option for option in global_options() if self.unused.isdisjoint(option.opts)]
        return [*self.params, *used]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if self.takes_words and "--" in args:
            at = args.index("--")
            assert isinstance(ctx, Call)
            ctx.words = tuple(args[at + 1 :])
            args = args[:at]
        elif self.takes_words:
            self._check_words(ctx, args)
        return super().parse_args(ctx, args)

    def _check_words(self, ctx: Any, args: list[str]) -> None:
        """Raises `UsageError` if a command follows the arguments without a `--`."""
        if ctx.resilient_parsing:
            return
        ctx.ignore_unknown_options = True
        try:
            values, words, _ = self.make_parser(ctx).parse_args(list(args))
        except typer.TyperException:  # the actual parsing reports it
            return
        finally:
            ctx.ignore_unknown_options = False
        taken = [values.get(str(param.name)) for param in self.params if isinstance(param, TyperArgument)]
        expected = [
            word for word in (*taken, *words[:1]) if isinstance(word, str) and not word.startswith("-")
        ]
        if words and len(expected) == len(taken) + 1:
            at = -1
            for word in expected:
                at = args.index(word, at + 1)
            raise UsageError(
                "put -- before the command" if self.takes_words == COMMAND else "put -- before paths",
                subject=words[0],
                hint=f"dsv {ctx.info_name} {shlex.join(args[:at])} -- {shlex.join(args[at:])}",
            )

    def invoke(self, ctx: Any) -> int | None:
        assert isinstance(ctx, Call)
        if not gc.isenabled():  # see `main`
            gc.freeze()
            gc.enable()
        self._refuse_empty(ctx)
        try:
            ctx.enter()
            code: int | None = super().invoke(ctx)
        except UsageError as error:
            about = list(self._about(ctx, error.subject)) if error.subject else []
            only = about[0] if len(about) == 1 else None
            named = with_option(error, only) if isinstance(only, TyperOption) else error
            if named is error:
                raise
            raise named from error
        return code

    def _about(self, ctx: Call, subject: str) -> Iterator[TyperOption | TyperArgument]:
        """Yield the parameters that were typed as `subject`, or as the end of that path. A part of
        NAME=TARGET or of a list with commas counts too."""
        values: list[tuple[Any, object]] = [
            (param, ctx.params[param.name]) for param in self.params if param.name in ctx.typed()
        ]
        values += [(option, getattr(ctx.flags, option.name, None)) for option in global_options()]
        for param, value in values:
            words = [
                word
                for word in (value if isinstance(value, list | tuple) else [value])
                if isinstance(word, str)
            ]
            parts = {part for word in words for part in (word, *word.partition("="), *word.split(","))}
            if subject in parts or any(part and subject.endswith(f"/{part}") for part in parts):
                yield param

    def _refuse_empty(self, ctx: Call) -> None:
        """Raises `UsageError` for an empty word: usually a variable that is not set."""
        for param in self.params:
            value = ctx.params[param.name] if param.name in ctx.typed() else None
            words = value if isinstance(value, list | tuple) else [value]
            if param.name != "message" and any(isinstance(word, str) and not word.strip() for word in words):
                named = name_of(param)
                hint = f"is a variable unset? dsv {self.name} --help"
                raise UsageError(f"{named} is empty", subject=named, hint=hint)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        names = [param.metavar or param.name for param in self.params if isinstance(param, TyperArgument)]
        return ["[OPTIONS]", *names, *([self.takes_words] if self.takes_words else [])]

    def option_rows(self, ctx: Any) -> dict[str, list[tuple[str, str]]]:
        """Return the command's own options by heading, as help shows them: names, and meaning."""
        rows: dict[str, list[tuple[str, str]]] = {}
        for option in [param for param in self.params if isinstance(param, TyperOption)]:
            if (row := option.get_help_record(ctx)) is not None:
                repeated = " May be repeated." * option.multiple
                rows.setdefault(option.rich_help_panel or "Options", []).append((row[0], row[1] + repeated))
        return rows

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for heading, rows in self.option_rows(ctx).items():
            with formatter.section(heading):
                formatter.write_dl(rows)
        but = f" (all but {' '.join(sorted(self.unused))})" if self.unused else ""
        formatter.write(f"\nGlobal options{but}: dsv --help\n")
        if alike := look_alikes(str(self.name)):
            with formatter.section("Not to be confused with"):
                formatter.write_dl([(f"dsv {name}", line) for name, line in alike.items()])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, unwrapped, so that they can be copied."""
        formatter.write("\nExamples:\n")
        for line, meaning in self.examples:
            formatter.write(f"  {line}\n")
            if meaning:
                formatter.write(f"      {meaning}\n")


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
    for, annotated as typer reads them. nulls: keys without a value are null. words: what the help calls the
    words after `--`, which are in `call.words`. unused: global options without effect, such as `--cache`.
    """

    def declare(body: Body) -> Command:
        _as_annotations(body, options or {})
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(name, cls=Command, add_help_option=False)(body)
        made = get_command(app)
        assert isinstance(made, Command)
        bypass_pydantic(made.params, body)
        rows = (line.strip().partition("  # ") for line in examples.strip().splitlines())
        made.examples = tuple((typed, meaning) for typed, _, meaning in rows)
        made.result, made.takes_words = Keys.parse(result), words
        made.nulls, made.unused = nulls, frozenset(unused)
        return made

    return declare


def option(written: str, help: str, default: Any = None, **more: Any) -> Any:  # noqa: A002 (typer's word)
    """Declare an option as the help shows it: its names and its metavar, as in `-n --limit N`.

    Without a default, a flag is False, a text empty, and anything else None. The metavar of a number (N, TIME
    or SIZE) determines how it is parsed; TEXT has to be UTF-8.
    """
    names = [word for word in written.split() if word.startswith("-")]
    metavar = " ".join(word for word in written.split() if not word.startswith("-")) or None
    made = typer.Option(..., *names, metavar=metavar, help=help, **more)
    made.preset = default
    return made


def argument(metavar: str, default: Any = None, **more: Any) -> Any:
    """Declare an argument by its metavar in the usage line. It is required unless that is in brackets."""
    made = typer.Argument(metavar=metavar, **more)
    made.preset = default if metavar.startswith("[") else inspect.Parameter.empty
    return made


def _as_annotations(body: Body, more: Mapping[str, Any]) -> None:
    """Have typer read `full: bool = option(…)` as `full: Annotated[bool, option(…)] = False`.
    more: shared parameters of that form for the body's `**options`, after its first two parameters."""
    signature = inspect.signature(body, eval_str=True)
    parameters = []
    for each in signature.parameters.values():
        if hasattr(made := each.default, "preset"):
            kinds = get_args(each.annotation) or (each.annotation,)
            if made.parser is None and (int in kinds or made.metavar == "TEXT"):
                made.parser = _PARSERS.get(made.metavar)
            preset = _EMPTY.get(each.annotation) if made.preset is None else made.preset
            kind: Any = Annotated[each.annotation, made]
            each = each.replace(default=preset, annotation=kind)
            body.__annotations__[each.name] = kind
        if each.kind is not each.VAR_KEYWORD:
            parameters.append(each.replace(kind=each.KEYWORD_ONLY))
    parameters[2:2] = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=_EMPTY.get(get_args(kind)[0]), annotation=kind
        )
        for name, kind in more.items()
    ]
    body.__annotations__ |= more
    body.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]


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


def _remember(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> None:
    session = ctx.find_object(CommandLine)
    if session is not None and value not in (None, False):
        setattr(session.flags, param.name, value)


def _show_help(ctx: typer.Context, value: bool) -> None:
    session = ctx.find_object(CommandLine)
    if session is not None and value and not ctx.resilient_parsing:
        text = ctx.get_help()
        session.out.line(with_headings(text) if session.around.stdout_ink.on else text)
        raise typer.Exit


_PARSERS = {"N": whole(1), "TIME": parse_duration, "SIZE": parse_size, "TEXT": text}
_EMPTY = {bool: False, str: ""}


@cache
def global_options() -> tuple[Any, ...]:
    """Return the global options, whose values go to the session's `Flags`."""
    kinds: dict[str, Any] = {}
    for written, meaning in GLOBAL_OPTIONS:
        names = written.replace(",", "")
        flag = names.split()[-1].startswith("-")
        long = names.partition("--")[2].partition(" ")[0].replace("-", "_")
        name = "directory" if names == "-C DIR" else long
        callback = _show_help if name == "help" else _remember
        made = option(names, meaning, expose_value=False, is_eager=True, callback=callback)
        kinds[name] = Annotated[bool, made] if flag else Annotated[str | None, made]
    del kinds["version"]  # which is no option of a command

    def body() -> None:
        """Is never called."""

    _as_annotations(body, kinds)
    app = typer.Typer(add_completion=False)
    app.command(add_help_option=False)(body)
    params = get_command(app).params
    bypass_pydantic(params, body)
    return tuple(params)


_PLAIN: tuple[Any, ...] = (str, bool, list[str])


def bypass_pydantic(params: Iterable[Any], function: Callable[..., Any]) -> None:
    """Pass words to their parser, and plain text, flags and lists of text to the command unchanged.

    Typer passes every word through pydantic, whose import takes longer than most commands. Typer documents
    `process_value` as the step from words to value. If typer stopped calling it, commands would work but
    start slowly; tests/cli/test_process.py checks that it is called.
    """
    declared = get_type_hints(function, include_extras=True)
    for param in params:
        kind, *extras = get_args(declared[param.name])
        parse = next((parser for extra in extras if (parser := getattr(extra, "parser", None))), None)
        if parse is not None or kind in _PLAIN or any(kind == plain | None for plain in _PLAIN):
            param.process_value = partial(_process_value, param, parse, param.process_value)


def _process_value(
    param: TyperOption | TyperArgument,
    parse: Callable[[str], Any] | None,
    process: Callable[[Any, Any], Any],
    ctx: typer.Context,
    value: Any,
) -> Any:
    if param.required and param.value_is_missing(value):
        return process(ctx, value)  # which raises typer's own error
    several = param.multiple or param.nargs == -1
    if value is None:
        value = () if several else None
    elif parse is not None:
        try:
            value = [parse(word) for word in value] if several else parse(value)
        except UsageError as error:
            raise (with_option(error, param) if isinstance(param, TyperOption) else error) from None
    return value if param.callback is None else param.callback(ctx, param, value)


def with_option(error: UsageError, option: TyperOption) -> UsageError:
    """Return the error with the option's name before its message, unless that names it already."""
    if any(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", error.message) for name in option.opts):
        return error
    return UsageError(f"{'/'.join(option.opts)}: {error.message}", subject=error.subject, hint=error.hint)
