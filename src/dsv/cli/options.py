"""Options that several commands share, and targets and paths as a person types them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from dsv.api.context import Context
from dsv.cli.declare import argument, option, text
from dsv.errors import UsageError
from dsv.values.names import Target, clean_path
from dsv.workspace.workspace import Workspace

TargetOrBase = Annotated[str, argument("[TARGET]")]
"""A target; without one, the base of the workspace."""
Targets = Annotated[list[str] | None, argument("[TARGET]...")]
Paths = Annotated[list[str] | None, argument("[PATH]...")]

All = Annotated[bool, option("-a --all", "List every path, however many there are.")]
AllowRemovals = Annotated[bool, option("--allow-removals", "Publish even if more than half of the paths go.")]
Author = Annotated[
    str | None, option("--author WHO", "Sign as WHO, not as the configured author.", parser=text)
]
Create = Annotated[bool, option("--create", "Make the dataset if it does not exist yet.")]
Strict = Annotated[bool, option("--strict", "Refuse if files of it were erased (dsv erase).")]
DryRun = Annotated[bool, option("-n --dry-run", "Show what would change, and change nothing.")]
ExitCode = Annotated[bool, option("--exit-code", "Exit with 1 if there is a difference.")]
Force = Annotated[
    bool,
    option("--force", "Move the branch even if it is protected; the message is the reason, and is kept."),
]
"""For commands in which --force means nothing else."""
JsonLines = Annotated[bool, option("--jsonl", "One JSON object a line.")]
LockFile = Annotated[str | None, option("--lock FILE", "Take the commits of this file of 'dsv lock'.")]
Message = Annotated[str | None, option("-m --message TEXT", "Commit message.", parser=text)]
Names = Annotated[
    str | None,
    option(
        "--names LOCATION",
        "Where the store's names are kept, if not in itself: a folder, or another bucket's URL.",
    ),
]
"""For commands that bind a folder to a store."""
Offline = Annotated[bool, option("--offline", "Don't ask the store; branches are as last seen.")]
"""For commands that can do without the store."""
Receipt = Annotated[str | None, option("--receipt FILE", "Write DATASET@COMMIT there, if it differs.")]
Rehash = Annotated[bool, option("--rehash", "Read contents again, even if sizes and times are unchanged.")]
SkipUnsupported = Annotated[
    bool, option("--skip-unsupported", "Leave out what can't be stored, such as sockets.")
]
Yes = Annotated[bool, option("--yes", "Do not ask before publishing a home folder, or passwords and keys.")]


def override(force: bool, message: str | None) -> str | None:
    """Return why rules are overridden, or None. Raises `UsageError` for `--force` without a reason."""
    if not force:
        return None
    if not (message or "").strip():
        raise UsageError(
            "--force needs a reason, which is kept in the log of moves", hint="--force -m REASON"
        )
    return message


def commit_target(command: str, text: str) -> Target:
    """Parse a target that means a whole commit. Raises `UsageError` for one with a path in it."""
    target = Target.parse(text)
    if target.path is None:
        return target
    whole = Target(target.dataset, target.rev)
    raise UsageError(
        f"dsv {command} is about whole commits, and {text} names a path",
        subject=text,
        hint=f"dsv {command} {whole}".rstrip() + f"; dsv ls {text} lists that path",
    )


def one_of(**given: object) -> None:
    """Raises `UsageError` if more than one of these options was given; the keywords are their names."""
    named = [f"--{name.replace('_', '-')}" for name, value in given.items() if value]
    if len(named) > 1:
        raise UsageError(
            f"{' and '.join(named)} can't be used together", subject=named[-1], hint="give one of them"
        )


def paths_in(workspace: Workspace, typed: Sequence[str]) -> tuple[bytes, ...]:
    """Return paths relative to the workspace's root, which is the empty path itself. Raises `UsageError`."""
    paths = []
    for word in typed:
        if not word:
            raise UsageError("a path is empty", hint="dsv status")
        path = workspace.inside(Path(word))
        if path is None:
            raise UsageError(
                f"{word} is not in the workspace {workspace.root}",
                subject=word,
                hint=f"dsv -C {shlex.quote(str(workspace.root))} status",
            )
        paths.append(path)
    return tuple(paths)


def dataset_paths(
    context: Context, typed: Sequence[str], targets: Sequence[Target | None] = ()
) -> tuple[bytes, ...]:
    """Return paths of the dataset that the targets name. Raises `UsageError`. If that is the workspace's
    dataset, typed paths are relative to the working directory."""
    workspace = context.workspace_or_none() if typed else None
    named = {target.dataset for target in targets if target is not None and target.dataset is not None}
    if workspace is not None and named <= {workspace.dataset}:
        return paths_in(workspace, typed)
    return tuple(clean_path(os.fsencode(text)) for text in typed)
