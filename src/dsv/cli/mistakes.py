"""What a person probably meant who mistyped a command line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dsv.cli.call import CommandLine
from dsv.cli.catalogue import COMMANDS
from dsv.cli.declare import global_options
from dsv.errors import UsageError

_HINTS = {
    ("config", "--list"): "dsv config",
    ("config", "--get"): "dsv config KEY",
    ("config", "--global"): "dsv config KEY VALUE",
    ("datasets", "--size"): "dsv datasets shows the sizes",
    ("log", "-p"): "dsv log --stat sums up what each commit changed; dsv show TARGET --name-status lists it",
    ("tag", "-d"): "dsv tag --delete NAME",
}
"""Hints for options of other tools that are spelled like no option of dsv."""


def explain(error: Any, session: CommandLine) -> UsageError:
    """Turn an error of typer into one sentence and a hint."""
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


def no_such_command(name: str) -> UsageError:
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
