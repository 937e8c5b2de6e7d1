"""dsv clone."""

from __future__ import annotations

from pathlib import Path

from dsv.api.clone import Cloned, Differing
from dsv.api.clone import clone as clone_dataset
from dsv.api.lock_files import read_lock
from dsv.cli.call import Call
from dsv.cli.declare import argument, command, option
from dsv.cli.options import LockFile, Names, one_of
from dsv.cli.output import CACHED_KEYS, from_caches, patterns_of
from dsv.errors import NotFound, UsageError
from dsv.values.names import Target
from dsv.values.units import format_bytes, format_count


@command(
    "clone",
    examples="""
        dsv clone chest-xray --store s3://lake/dsv  # into the folder chest-xray
        dsv clone team-a/lungs@relabel work  # another branch, into the folder work
        dsv clone chest-xray --only labels --only '**/*.json'  # a part of it; dsv sparse add fetches more
    """,
    result=f"workspace dataset branch commit files bytes created erased only {CACHED_KEYS}",
)
def clone(
    call: Call,
    target: str = argument("DATASET[@REV]"),
    folder: str | None = argument("[DIR]"),
    only: list[str] | None = option(
        "--only PATTERN", "Fetch what matches this; one that begins with ! leaves out."
    ),
    keep: bool = option("--keep", "Keep files in DIR that differ, as local changes."),
    force: bool = option("--force", "Overwrite files in DIR that differ."),
    lock: LockFile = None,
    names: Names = None,
) -> None:
    """Fetch a dataset into a new workspace.

    By default DIR is named after the dataset. Files in DIR that match the commit stay; any others are listed, with
    exit code 4, unless --keep or --force says what to do. The workspace follows the branch that REV names, else main;
    with --lock it starts at the commit that the file has for DATASET. If interrupted, run the same command again. Files
    that a cache on this machine has are copied from there and checked.

    With --only the workspace is sparse: it has what the patterns match, and the rest never counts as removed. Patterns
    are those of 'dsv sparse'.
    """
    wanted = Target.parse(target)
    if wanted.path is not None:
        raise UsageError(
            f"dsv clone takes whole datasets, and {target} names a path",
            subject=target,
            hint=f"dsv cache {target} has that part as files, read-only; dsv clone --only PATTERN clones a part",
        )
    if lock is not None:
        lines = read_lock(Path(lock))
        if wanted not in lines:
            raise NotFound(f"{lock} has no line for {target}", subject=target, hint=f"dsv lock {target}")
        wanted = lines[wanted]
    one_of(keep=keep, force=force)
    differing = Differing.KEEP if keep else Differing.OVERWRITE if force else Differing.REFUSE
    call.flags.names = names
    with call.context() as context:
        place = None if folder is None else Path(folder)
        made = clone_dataset(context, wanted, place, only=only or (), differing=differing)
    _show(call, made)


def _show(call: Call, made: Cloned) -> None:
    call.result(made, workspace=made.root, only=made.chosen.lines)
    where = f"{made.root} follows {made.dataset}@{made.branch}"
    if made.commit is None:
        call.line(f"{where}, which has no commit yet")
    else:
        size = f"{format_count(made.files, 'file')}, {format_bytes(made.bytes)}"
        size += from_caches(made.cached_files, made.cached_bytes)
        call.line(f"{where} at {str(made.commit)[:12]}: {size}")
    if made.erased:
        call.line(f"{format_count(made.erased, 'file')} left out, erased from the store; dsv ls shows which")
    if made.chosen.lines is not None:
        call.line(
            f"sparse: fetched {format_count(made.created, 'path')} under {patterns_of(made.chosen.lines)}"
        )
