"""dsv clone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsv.api.clone import clone as clone_dataset
from dsv.cli.call import Call
from dsv.cli.declare import command
from dsv.cli.output import CACHED_KEYS, from_caches
from dsv.cli.targets import Names
from dsv.errors import UsageError
from dsv.model.names import Target
from dsv.model.units import format_bytes, format_count


@command(
    "clone",
    examples=[
        ("dsv clone chest-xray --store s3://lake/dsv", "into the folder chest-xray"),
        ("dsv clone team-a/lungs@relabel work", "another branch, into the folder work"),
    ],
    result={
        "workspace": "the new workspace's folder",
        "dataset": "the dataset",
        "branch": "the branch that it follows",
        "commit": "its base; null for a dataset without a commit",
        "files": "how many files",
        "bytes": "their size",
        **CACHED_KEYS,
    },
)
def clone(
    call: Call,
    target: Annotated[str, typer.Argument(metavar="DATASET[@REV]")],
    folder: Annotated[str | None, typer.Argument(metavar="[DIR]")] = None,
    names: Names = None,
) -> None:
    """Fetch a dataset into a new workspace.

    DIR is named like the dataset where it is left out; it has to be absent or empty. The workspace follows the
    branch that REV names, else main. Interrupted, the same command goes on. Files that a cache on this machine has are
    copied from there, and checked on the way.
    """
    if folder == "":
        raise UsageError("DIR is empty", hint="dsv clone DATASET DIR")
    wanted = Target.parse(target)
    if wanted.path is not None:
        raise UsageError(
            f"dsv clone takes whole datasets, and {target} names a path",
            subject=target,
            hint=f"dsv cache {target} has that part as files, read-only",
        )
    call.flags.names = names
    with call.context() as context:
        made = clone_dataset(context, wanted, None if folder is None else Path(folder))
    if call.json:
        call.document(
            {
                "workspace": str(made.root),
                "dataset": str(made.dataset),
                "branch": str(made.branch),
                "commit": None if made.commit is None else str(made.commit),
                "files": made.files,
                "bytes": made.bytes,
                "cached_files": made.cached_files,
                "cached_bytes": made.cached_bytes,
            }
        )
        return
    where = f"{made.root} follows {made.dataset}@{made.branch}"
    if made.commit is None:
        call.line(f"{where}, which has no commit yet")
    else:
        size = f"{format_count(made.files, 'file')}, {format_bytes(made.bytes)}"
        size += from_caches(made.cached_files, made.cached_bytes)
        call.line(f"{where} at {str(made.commit)[:12]}: {size}")
