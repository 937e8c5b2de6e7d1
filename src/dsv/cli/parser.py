"""typer reads the declarations of commands: for help, completion, and command lines with a mistake."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

from dsv import __version__
from dsv.cli.call import Call, CommandLine
from dsv.cli.catalogue import COMMANDS, look_alikes, root_help, with_headings
from dsv.cli.declare import COMMAND, Command, Parameter, global_options, load, with_option
from dsv.errors import UsageError

_WORDS = f"{__name__}.words"


class Parser(TyperCommand):
    """A command that takes the global options too."""

    declared: Command

    # typer does not export the classes of these parameters, so the signatures can't name them.

    def get_params(self, ctx: Any) -> list[Any]:
        unused = {*self.declared.unused, "--version"}
        return [*self.params, *(param for param in global_params() if unused.isdisjoint(param.opts))]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if self.declared.takes_words and "--" in args:
            at = args.index("--")
            ctx.meta[_WORDS] = tuple(args[at + 1 :])
            args = args[:at]
        elif self.declared.takes_words:
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
                "put -- before the command"
                if self.declared.takes_words == COMMAND
                else "put -- before paths",
                subject=words[0],
                hint=f"dsv {ctx.info_name} {shlex.join(args[:at])} -- {shlex.join(args[at:])}",
            )

    def invoke(self, ctx: Any) -> int | None:
        session = ctx.find_object(CommandLine)
        sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
        typed = {name for name, source in sources.items() if source.name == "COMMANDLINE"}
        words = ctx.meta.get(_WORDS, ())
        return Call(session, self.declared, ctx.params, typed, words).run()

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        names = [param.metavar or param.name for param in self.params if isinstance(param, TyperArgument)]
        return ["[OPTIONS]", *names, *([self.declared.takes_words] if self.declared.takes_words else [])]

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
        but = f" (all but {' '.join(sorted(self.declared.unused))})" if self.declared.unused else ""
        formatter.write(f"\nGlobal options{but}: dsv --help\n")
        if alike := look_alikes(str(self.name)):
            with formatter.section("Not to be confused with"):
                formatter.write_dl([(f"dsv {name}", line) for name, line in alike.items()])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, unwrapped, so that they can be copied."""
        formatter.write("\nExamples:\n")
        for line, meaning in self.declared.examples:
            formatter.write(f"  {line}\n")
            if meaning:
                formatter.write(f"      {meaning}\n")


@cache
def parser_of(command: Command) -> Parser:
    """Return what typer makes of a declaration."""
    made = _made(command.parameters, name=command.name, cls=Parser, help=command.body.__doc__)
    assert isinstance(made, Parser)
    made.declared = command
    return made


@cache
def global_params() -> tuple[Any, ...]:
    """Return what typer makes of the global options."""
    return tuple(_made(global_options()).params)


def _made(parameters: Sequence[Parameter], **command: Any) -> Any:
    def function() -> None:
        """Is never called."""

    kinds = {each.name: Annotated[each.kind, _info(each)] for each in parameters}
    defaults = {each.name: {"default": each.default, "annotation": kinds[each.name]} for each in parameters}
    signature = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, **more) for name, more in defaults.items()
    ]
    function.__annotations__ = kinds
    function.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(add_help_option=False, **command)(function)
    made = get_command(app)
    for param, parameter in zip(made.params, parameters, strict=True):
        if parameter.is_plain:
            param.process_value = partial(_process_value, param, parameter, param.process_value)  # type: ignore
    return made


def _info(parameter: Parameter) -> Any:
    more = parameter.more
    if not parameter.names:
        return typer.Argument(metavar=parameter.metavar, **more)
    if parameter in global_options():
        more = {"callback": _remember, "expose_value": False, "is_eager": True}
    return typer.Option(..., *parameter.names, metavar=parameter.metavar, help=parameter.help, **more)


def _process_value(
    param: TyperOption | TyperArgument,
    parameter: Parameter,
    process: Callable[[Any, Any], Any],
    ctx: typer.Context,
    value: Any,
) -> Any:
    """Pass words to their parser, and plain text, flags and lists of text to the command unchanged.

    Typer passes every word through pydantic, whose import takes longer than most commands. Typer documents
    `process_value` as the step from words to value. If typer stopped calling it, commands would work but
    start slowly; tests/cli/test_process.py checks that it is called.
    """
    if param.required and param.value_is_missing(value):
        return process(ctx, value)  # which raises typer's own error
    if value is not None:
        try:
            value = parameter.read(value)
        except UsageError as error:
            raise (with_option(error, parameter) if parameter.names else error) from None
    return value if param.callback is None else param.callback(ctx, param, value)


def _remember(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> None:
    """Note a global option; show help or the version."""
    session = ctx.find_object(CommandLine)
    if session is None or value in (None, False):
        return
    if param.name not in ("help", "version"):
        setattr(session.flags, param.name, value)
    elif not ctx.resilient_parsing:
        text = ctx.get_help() if param.name == "help" else f"dsv {__version__}"
        session.out.line(with_headings(text) if session.around.stdout_ink.on else text)
        raise typer.Exit


class Root(TyperGroup):
    """The program: imports the module of a command when that command is asked for."""

    def get_params(self, ctx: Any) -> list[Any]:
        return list(global_params())

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Parser | None:
        return parser_of(load(cmd_name)) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name = args[0]
        if name == "help" and len(args) > 2:
            raise UsageError("dsv help takes one command", hint=f"dsv help {args[1]}")
        if name == "help" and len(args) > 1:
            name, args = args[1], [args[1], "--help"]
        if name not in COMMANDS and not ctx.resilient_parsing:
            raise _no_such_command(name)
        session = ctx.find_object(CommandLine)
        if session is not None:
            session.command = name
        return super().resolve_command(ctx, args)

    def get_help(self, ctx: Any) -> str:
        session = ctx.find_object(CommandLine)
        return root_help(80 if session is None else session.around.columns()).rstrip("\n")


def root() -> Root:
    """Return the whole program as typer sees it."""
    return Root(name="dsv", invoke_without_command=True, add_help_option=False)


def invoke(arguments: Sequence[str], session: CommandLine) -> int | None:
    """Parse and run a command line, and return its exit code."""
    try:
        with root().make_context("dsv", list(arguments), obj=session) as ctx:
            code: int | None = ctx.command.invoke(ctx)
            if not session.command:
                raise UsageError("no command was given", hint="dsv --help")
            return code
    except typer.Exit as end:
        return end.exit_code
    except typer.TyperException as error:
        raise _explain(error, session) from error


_HINTS = {
    ("config", "--list"): "dsv config",
    ("config", "--get"): "dsv config KEY",
    ("config", "--global"): "dsv config KEY VALUE",
    ("datasets", "--size"): "dsv datasets shows the sizes",
    ("log", "-p"): "dsv log --stat sums up what each commit changed; dsv show TARGET --name-status lists it",
    ("tag", "-d"): "dsv tag --delete NAME",
}
"""Hints for options of other tools that are spelled like no option of dsv."""


def _explain(error: typer.TyperException, session: CommandLine) -> UsageError:
    """Turn an error of typer into one sentence and a hint."""
    path = f"dsv {session.command}".strip()
    hint = f"{path} --help"
    subject = None
    # typer does not export the classes of its errors: an attribute that only one of them has identifies it.
    unknown, missing = getattr(error, "option_name", None), getattr(error, "param", None)
    if isinstance(unknown, str) and hasattr(error, "possibilities"):
        subject = unknown
        message = f"{path} has no option {subject}"
        if any(subject in option.opts for option in global_options() if option.name != "version"):
            message = f"{path} does not take {subject}"
        elif _HINTS.get((session.command, str(subject))):
            hint = _HINTS[session.command, str(subject)]
        elif close := _misspelt(unknown.lstrip("-"), [one.lstrip("-") for one in error.possibilities or ()]):
            hint = f"{path} --{close}"
    elif missing is not None and hasattr(error, "param_type"):
        subject = missing.metavar or missing.name
        message = f"{path} needs {subject}"
    else:
        text = error.format_message().replace("\n", " ").rstrip(". ")
        several = " " in text.rpartition("(")[2]
        text = text.replace("argument(s)", "arguments" if several else "argument").replace(
            "Value error, ", ""
        )
        message = text[:1].lower() + text[1:]
    return UsageError(message, subject=subject, hint=hint)


OTHER_NAMES: dict[str, str] = {
    "add": "dsv sync commits a workspace; dsv put FILE DATASET:PATH adds files without one",
    "commit": "dsv sync",
    "push": "dsv sync",
    "upload": "dsv put FILE DATASET:PATH; dsv sync commits a workspace",
    "checkout": "dsv switch BRANCH follows a branch; dsv restore PATH puts files back",
    "reset": "dsv restore",
    "rebase": "dsv merge BRANCH; history is never rewritten",
    "stash": "dsv sync --new-branch NAME publishes your changes on a branch of their own",
    "undo": "dsv restore gives up your changes; dsv revert undoes one commit; dsv rollback takes the branch back",
    "cancel": "dsv stop RUN",
    "fetch": "dsv pull updates a workspace; dsv clone makes one; dsv cache makes read-only files",
    "download": "dsv clone makes a workspace; dsv cache makes read-only files; dsv export writes a tar or a folder",
    "history": "dsv log",
    "blame": "dsv log --follow PATH says in which commit a file got its content, and from which path it came",
    "list": "dsv ls",
    "clean": "dsv evict",
    "pin": "dsv hold TARGET keeps it cached; dsv lock TARGET > data.lock names its commit in a file",
    "unpin": "dsv release TARGET",
    "submit": "dsv run --detach, or dsv run --on POOL",
    "sweep": "dsv run TARGET -p lr=0.1,0.01 --sweep starts a run for each value",
    "jobs": "dsv runs",
    "mount": "ratarmount dsv://DATASET@REV DIR mounts a commit (pip install 'dsv-data[mount]'); dsv cache makes files",
    "plot": "dsv runs RUN --plot METRIC draws a curve; dsv runs --csv is for a program that plots",
    "ps": "dsv runs",
    "kill": "dsv stop RUN",
    "attach": "dsv logs -f RUN shows what a run writes; dsv wait RUN ends with it",
    "tail": "dsv logs -f RUN",
    "tags": "dsv tag",
    "branches": "dsv branch",
    "reflog": "dsv log --reflog BRANCH shows every move of a branch",
    "remote": "dsv config store shows the store; dsv config store URL names another",
    "login": "there is nothing to log in to: credentials are found as the AWS tools find them; dsv config",
    "remove": "dsv rm removes files of a dataset; dsv evict drops a cached commit",
    "rename": "dsv mv renames files of a dataset; a dataset keeps its name",
    "cp": "dsv put copies files into a dataset; dsv cat and dsv clone copy them out of it",
    "prune": "dsv gc frees a store; dsv evict drops a cached commit",
    "fsck": "dsv verify checks a store, dsv cached --check a cache",
    "delete": "dsv datasets --delete deletes a dataset, dsv rm files, dsv tag --delete a tag",
}
"""The command of dsv, or a sentence with it, by the names of commands in other tools."""


def _no_such_command(name: str) -> UsageError:
    close = _misspelt(name, COMMANDS)
    hint = OTHER_NAMES.get(name) or (f"dsv {close}" if close else "dsv --help")
    return UsageError(f"there is no command {name}", subject=name, hint=hint)


def _misspelt(name: str, names: Iterable[str]) -> str | None:
    """Return the similar name that was probably meant: it has the same first letter, or the same letters."""
    from difflib import get_close_matches

    for close in get_close_matches(name, names, 3, 0.65):
        if close[0] == name[0] or sorted(close) == sorted(name):
            return close
    return None
