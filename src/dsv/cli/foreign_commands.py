"""Names of commands in other tools, each with the dsv command to suggest for it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

OTHER_NAMES: dict[str, str] = {
    "add": "dsv sync commits a workspace; dsv put FILE DATASET:PATH adds files without one",
    "commit": "dsv sync",
    "push": "dsv sync",
    "upload": "dsv put FILE DATASET:PATH; dsv sync commits a workspace",
    "publish": "dsv sync",
    "checkout": "dsv switch BRANCH follows a branch; dsv restore PATH puts files back",
    "reset": "dsv restore",
    "rebase": "dsv merge BRANCH; history is never rewritten",
    "sparse-checkout": "dsv sparse add PATTERN; dsv clone DATASET --only PATTERN",
    "stash": "dsv sync --new-branch NAME publishes your changes on a branch of their own",
    "undo": "dsv restore gives up your changes; dsv revert undoes one commit; dsv rollback takes the branch back",
    "fetch": "dsv pull updates a workspace; dsv clone makes one; dsv cache makes read-only files",
    "download": "dsv clone makes a workspace; dsv cache makes read-only files; dsv export writes a tar or a folder",
    "get": "dsv clone makes a workspace; dsv cache makes read-only files; dsv export writes a tar or a folder",
    "materialize": "dsv cache",
    "history": "dsv log",
    "blame": "dsv log --follow PATH says in which commit a file got its content, and from which path it came",
    "list": "dsv ls",
    "find": "dsv ls",
    "clean": "dsv evict",
    "free": "dsv evict",
    "unhold": "dsv release",
    "pin": "dsv hold TARGET",
    "unpin": "dsv release TARGET",
    "exec": "dsv run",
    "train": "dsv run TARGET starts a command on it",
    "submit": "dsv run --detach, or dsv run --on POOL",
    "sweep": "dsv run TARGET -p lr=0.1,0.01 --sweep starts a run for each value",
    "jobs": "dsv runs",
    "plot": "dsv runs --csv prints the metrics of runs, for a program that plots them",
    "report": "dsv runs shows and compares runs; dsv runs --csv prints them for a program",
    "metrics": "dsv runs shows the metrics of runs",
    "ps": "dsv runs",
    "queue": "dsv runs shows what waits; dsv pools shows where there is room",
    "kill": "dsv stop RUN",
    "cancel": "dsv stop RUN",
    "attach": "dsv logs -f RUN shows what a run writes; dsv wait RUN ends with it",
    "tail": "dsv logs -f RUN",
    "settings": "dsv config",
    "tags": "dsv tag",
    "branches": "dsv branch",
    "reflog": "dsv log --reflog BRANCH shows every move of a branch",
    "protect": "dsv branch --protect NAME",
    "remote": "dsv config store shows the store; dsv config store URL names another",
    "login": "there is nothing to log in to: credentials are found as the AWS tools find them; dsv config",
    "logout": "dsv keeps no credentials; dsv config",
    "remove": "dsv rm removes files of a dataset; dsv evict drops a cached commit",
    "rename": "dsv mv renames files of a dataset; a dataset keeps its name",
    "move": "dsv mv",
    "cp": "dsv put copies files into a dataset; dsv cat and dsv clone copy them out of it",
    "prune": "dsv gc frees a store; dsv evict drops a cached commit",
    "fsck": "dsv verify checks a store, dsv cached --check a cache",
    "delete": "dsv datasets --delete deletes a dataset, dsv rm files, dsv tag --delete a tag",
}
"""To each name the command, or a sentence that has it."""


def misspelt(name: str, names: Iterable[str]) -> str | None:
    """Return the one of the names that was probably meant, or None.

    It is spelled much like `name`, and begins like it, or two letters have changed places.
    """
    for close in get_close_matches(name, names, 3, 0.65):
        if close[0] == name[0] or sorted(close) == sorted(name):
            return close
    return None


def hint_for(name: str) -> str | None:
    """Return the hint for a command of another tool; None if the name says nothing."""
    return OTHER_NAMES.get(name)
