"""The program: finds the command, calls it, reports a failure and returns the exit code."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from keyword import iskeyword
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from dsv import __version__
from dsv.cli.call import CommandLine
from dsv.cli.catalogue import COMMANDS, root_help
from dsv.cli.declare import Command, bypass_pydantic, global_options, option
from dsv.cli.failure import READER_GONE, failure_json, failure_text, of_error, without_passwords
from dsv.cli.output import CommandOutput, ReaderGone
from dsv.cli.terminal import Surroundings, wrapped
from dsv.errors import HungUp, NoRoom, Signalled, Terminated, UsageError

INTERRUPTED = (129, 130, 143)
RESUMED = frozenset({"sync", "pull", "clone", "cache", "sparse"})
"""Commands that continue an interrupted run of themselves."""
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


class Root(TyperGroup):
    """The program: imports the module of a command when that command is asked for."""

    def get_params(self, ctx: Any) -> list[Any]:
        return [*self.params, *global_options()]

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Command | None:
        return load(cmd_name) if cmd_name in COMMANDS else None

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


def load(name: str) -> Command:
    function = f"{name}_" if iskeyword(name) else name.replace("-", "_")
    found = getattr(import_module(f"dsv.cli.commands.{SIBLINGS.get(name, name)}"), function)
    assert isinstance(found, Command)
    return found


def root() -> Root:
    """Return the whole program as typer sees it."""
    app = typer.Typer(
        name="dsv", cls=Root, invoke_without_command=True, add_completion=False, add_help_option=False
    )
    app.callback()(_before_the_command)
    made = get_command(app)
    assert isinstance(made, Root)
    bypass_pydantic(made.params, _before_the_command)
    return made


def _show_version(ctx: typer.Context, value: bool) -> None:
    session = ctx.find_object(CommandLine)
    if session is not None and value and not ctx.resilient_parsing:
        session.out.line(f"dsv {__version__}")
        raise typer.Exit


def _before_the_command(
    ctx: typer.Context,
    version: Annotated[
        bool,
        option("--version", "Show the version.", callback=_show_version, expose_value=False, is_eager=True),
    ] = False,
) -> None:
    if ctx.invoked_subcommand is None:
        raise UsageError("no command was given", hint="dsv --help")


def run(
    arguments: Sequence[str],
    around: Surroundings,
    announce: Callable[[str, Path | None, Path | None], None] | None = None,
    member: dict[str, Any] | None = None,
) -> int:
    """Run one command line. All output goes to `around`. For `announce` and `member` see `CommandLine`."""
    with CommandOutput(around.stdout) as out, _terminable():
        session = CommandLine(around, out, arguments=tuple(arguments), announce=announce, member=member)
        try:
            return _invoke(arguments, session)
        except ReaderGone:
            return READER_GONE
        # Catch everything, so that a script always gets an exit code and a sentence, also of a panic in Rust.
        except BaseException as error:  # noqa: BLE001
            return _fail(error, arguments, session)


def exit_now(code: int) -> None:
    """End the process at once if it was interrupted, without waiting for threads that are in a request."""
    sys.stderr.flush()
    if code in INTERRUPTED:
        os._exit(code)


def _invoke(arguments: Sequence[str], session: CommandLine) -> int:
    code: int | None = 0
    try:
        with root().make_context("dsv", list(arguments), obj=session) as ctx:
            code = ctx.command.invoke(ctx)
    except typer.Exit as end:
        code = end.exit_code
    if (line := session.pager) is not None:
        from dsv.cli.pager import show_in

        show_in(line, session.out, session.around.environ)
    session.out.publish()
    session.tell("".join(session.later))
    return int(code or 0)


def _fail(error: BaseException, arguments: Sequence[str], session: CommandLine) -> int:
    session.out.discard()
    session.tell("".join(session.later))
    around = session.around
    if session.flags.debug or "--debug" in _options(arguments):
        import traceback

        around.stderr.write(without_passwords("".join(traceback.format_exception(error))))
    failure = _of_typer(error, session) if isinstance(error, typer.TyperException) else of_error(error)
    if failure.exit_code in INTERRUPTED and failure.hint is None and session.command in RESUMED:
        failure.hint = "run the same command again to continue"
    with suppress(BrokenPipeError, ReaderGone):
        if session.flags.json or "--json" in _options(arguments):
            with suppress(NoRoom):  # a full stdout may be the failure
                session.out.write(failure_json(failure).encode())
                session.out.publish()
                return failure.exit_code
        text = failure_text(failure, around.stderr_ink)
        around.stderr.write(wrapped(text, around.columns()) if around.stderr_is_terminal else text)
        around.stderr.flush()
    return failure.exit_code


def _options(arguments: Sequence[str]) -> Sequence[str]:
    """Return the words before `--`: parsing may have failed before the option that asks for JSON."""
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


_HINTS = {
    ("config", "--list"): "dsv config",
    ("config", "--get"): "dsv config KEY",
    ("config", "--global"): "dsv config KEY VALUE",
    ("datasets", "--size"): "dsv datasets shows the sizes",
    ("log", "-p"): "dsv log --stat sums up what each commit changed; dsv show TARGET --name-status lists it",
    ("tag", "-d"): "dsv tag --delete NAME",
}
"""Hints for options of other tools that are spelled like no option of dsv."""


def _of_typer(error: typer.TyperException, session: CommandLine) -> UsageError:
    """Turn typer's message into one sentence and a hint."""
    path = f"dsv {session.command}".strip()
    hint = f"{path} --help"
    subject = None
    # typer does not export the classes of its errors: an attribute that only one of them has identifies it.
    unknown, missing = getattr(error, "option_name", None), getattr(error, "param", None)
    if isinstance(unknown, str) and hasattr(error, "possibilities"):
        subject = unknown
        message = f"{path} has no option {subject}"
        if any(subject in option.opts for option in global_options()):
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
    "plot": "dsv runs --csv prints the metrics of runs, for a program that plots them",
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


def reset_sigchld() -> None:
    """Reset SIGCHLD so that children can be waited for: some programs start others with it ignored."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind as Ctrl-C does; the same signal again ends the process at once."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        kind = HungUp if number == signal.SIGHUP else Terminated
        raise Signalled(kind(f"stopped by {signal.Signals(number).name}"))

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught = [
        number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN
    ]
    before = {number: signal.signal(number, stop) for number in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
