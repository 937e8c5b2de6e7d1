"""Every command by name, with its line of help, which `dsv --help` shows without importing a command."""

from __future__ import annotations

from collections.abc import Mapping

SECTIONS: dict[str, dict[str, str]] = {
    "Workspaces": {
        "init": "Bind this folder to a new dataset",
        "clone": "Fetch a dataset into a new workspace",
        "pull": "Update the workspace to its branch",
        "restore": "Restore files as a commit has them",
        "switch": "Switch to another branch",
        "rollback": "Roll the branch back to an earlier commit",
        "sync": "Commit this folder and publish it",
        "status": "Show local changes, and what a sync would do",
        "sparse": "Show or change which part of the dataset a workspace has",
    },
    "Datasets": {
        "diff": "Show what differs between two commits, or in this workspace",
        "log": "Show the commits of a branch",
        "show": "Show a commit, or one file of it",
        "ls": "List the files of a commit",
        "cat": "Print one file of a commit",
        "resolve": "Print the full commit id that a target names",
        "site": "Write pages that show datasets, runs and caches in a browser",
        "lock": "Print targets with full commit ids, for a file in git",
        "datasets": "List what the store holds, or delete or rename a dataset",
        "put": "Add or replace files of a dataset, without a workspace",
        "rm": "Remove files and folders of a dataset, without a workspace",
        "mv": "Rename and move files and folders of a dataset",
        "import": "Commit files from a URL, without a copy on this machine",
        "export": "Write the files of a commit as a tar or a folder, or to a URL",
        "tag": "Create an immutable tag, or list tags",
        "branch": "List, make, rename, move, delete and protect branches",
        "merge": "Bring the changes of one branch into another",
        "cherry-pick": "Apply the changes of one commit to a branch",
        "revert": "Undo the changes of one commit on a branch",
    },
    "Store": {
        "store": "Check a store, compact its index, move or repair refs",
        "verify": "Look for damage in a store, and say what was lost",
        "du": "Show what uses space in a store",
        "copy": "Copy datasets to another store, with their history",
        "erase": "Erase the contents of files for good",
        "expire": "Let old commits of a dataset expire, or restore them",
        "gc": "Delete unreferenced data from a store",
    },
    "Cache": {
        "cache": "Make commits appear as files in the cache",
        "with": "Run a command while its data is held in the cache",
        "cached": "Show what is cached, who uses it, and the free space",
        "hold": "Keep a cached commit from eviction",
        "release": "Release holds",
        "evict": "Free cache space",
    },
    "Runs": {
        "run": "Run a command on a cached commit, in a container",
        "node": "Complete the record of a run from what its job left",
        "pools": "Show the pools that runs may go to, and what is free there",
        "runs": "Show, search, sort and compare the records of runs",
        "lineage": "Show where data comes from, and what was made of it",
        "logs": "Print what a run writes, or wrote",
        "stop": "Stop a run and wait for its end",
        "wait": "Wait until runs have ended, and exit with their exit code",
    },
    "This machine": {
        "bench": "Measure how many accelerators data can feed",
        "config": "Show settings with their origin, or set one",
        "doctor": "Check the settings, store, cache and engines in effect here",
        "completion": "Print the script that completes dsv's words in your shell",
        "demo": "Take the whole tour in a temporary folder",
    },
}

HIDDEN = ("node",)
"""Commands that dsv itself calls on the nodes of a cluster. The help does not list them."""

COMMANDS: dict[str, str] = {name: line for section in SECTIONS.values() for name, line in section.items()}

_ALIKE = (
    ("cache", "cached"),
    ("run", "runs", "logs"),
    ("log", "logs"),
    ("restore", "revert", "rollback"),
    ("verify", "doctor", "store"),
    ("evict", "expire", "gc"),
)
"""Commands that are taken for each other."""


def look_alikes(name: str) -> dict[str, str]:
    """Return the commands that this one is taken for, with their lines of help."""
    names = [other for group in _ALIKE if name in group for other in group if other != name]
    return {other: COMMANDS[other] for other in names}


MODES = ("auto", "bar", "lines", "json", "none")
"""Of --progress."""
GLOBAL_OPTIONS: tuple[tuple[str, str], ...] = (
    ("--store URL|NAME", "Store: s3://bucket/prefix, a folder, or a configured name"),
    ("--cache DIR|NAME", "Cache: a folder, or a configured name"),
    ("-C DIR", "Run as if started in DIR"),
    ("--json", "Print one JSON document on stdout, also for a failure"),
    ("--progress MODE", "Progress on stderr: auto, bar, lines, json, none"),
    ("-q, --quiet", "No notes on stderr, and progress only if asked for"),
    ("--no-pager", "Print long output at once, without a pager"),
    ("--debug", "Show the traceback of a failure"),
    ("-h, --help", "Show help, also for one command"),
    ("--version", "Show the version"),
)


def has_colour(environ: Mapping[str, str]) -> bool:
    """Return whether a terminal gets colours. As on https://no-color.org, any value that isn't empty turns them off."""
    return not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def with_headings(text: str) -> str:
    """Return a help page with bold headings."""
    import re

    return re.sub(r"^(?:Usage:|[A-Za-z].*:$)", "\x1b[1m\\g<0>\x1b[0m", text, flags=re.MULTILINE)


def _row(name: str, text: str, room: int, width: int) -> str:
    if 2 + room + len(text) <= width:
        return f"  {name:<{room}}{text}"
    import textwrap

    lines = textwrap.wrap(text, max(width - 2 - room, 12))
    return "\n".join([f"  {name:<{room}}{lines[0]}", *(" " * (2 + room) + line for line in lines[1:])])


def root_help(width: int = 80) -> str:
    """Return the text of `dsv --help`. It is written for 80 columns, and its rows wrap in fewer."""
    lines = ["Usage: dsv [OPTIONS] COMMAND [ARGS]...", ""]
    lines += ["Git-like dataset versions on any bucket or folder, cached next to the GPUs.", ""]
    room = max(map(len, COMMANDS)) + 2
    for section, commands in SECTIONS.items():
        lines.append(f"{section}:")
        lines += [_row(name, line, room, width) for name, line in commands.items() if name not in HIDDEN]
        lines.append("")
    lines.append("Options, before or after the command's name:")
    lines += [_row(option, text, 18, width) for option, text in GLOBAL_OPTIONS]
    lines += [
        "",
        "Examples:",
        "  dsv demo",
        "  cd xrays && dsv init chest-xray --store s3://lake/dsv",
        '  dsv sync -m "NIH release, 15 classes"',
        "  DATA=$(dsv cache chest-xray@v1 --hold 3d)",
        "  dsv run chest-xray@v1 --image ghcr.io/team/resnet -- python train.py",
        "",
        "'dsv COMMAND --help' has more, with examples.",
    ]
    return "\n".join(lines) + "\n"
