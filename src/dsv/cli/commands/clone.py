"""dsv init, clone and sparse."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from dsv.api.clone import Cloned, Differing
from dsv.api.clone import clone as clone_dataset
from dsv.api.clone import init as init_workspace
from dsv.api.settings import BUILT_IN
from dsv.cli.call import Call
from dsv.cli.declare import argument, command, option
from dsv.cli.options import Author, Names, one_of
from dsv.cli.output import CACHED_KEYS, from_caches, patterns_of
from dsv.errors import UsageError
from dsv.values.names import DatasetName, Target
from dsv.values.units import format_bytes, format_count


@command(
    "init",
    unused=["--cache"],
    examples="""
        cd xrays && dsv init chest-xray --store s3://lake/dsv  # a new dataset in that store
        dsv init  # named after the folder, in the store in effect ('dsv config store' shows it)
        dsv init chest-xray --store s3://grid/dsv --names /nfs/names  # in a bucket without put-if-absent
    """,
    result="dataset store workspace branch new_store warnings",
)
def init(
    call: Call,
    dataset: str | None = argument("[DATASET]"),
    single_writer: bool = option("--single-writer", "Accept a store without put-if-absent.", hidden=True),
    names: Names = None,
    author: Author = None,
) -> None:
    """Bind this folder to a new dataset.

    By default the dataset is named after the folder. A store that does not exist yet is created, after a test that of
    several writers of one key exactly one wins. With --names, a bucket that fails the test can hold the data, while the
    names (branches, tags) are in a folder or another bucket. No file is read; 'dsv sync' does that.
    """
    call.flags.names = names
    with call.context(writes=True, author=author) as context:
        name = DatasetName.parse(dataset) if dataset is not None else _name_of(context.cwd)
        made = init_workspace(context, context.cwd, name, single_writer=single_writer)
    for warning in made.warnings:
        call.warn(warning)
    call.result(made, workspace=made.root, branch="main")
    call.line(f"{made.root} is bound to the new dataset {made.dataset} in {made.store}")
    if call.settings.store().origin == BUILT_IN:
        call.say(
            "nobody else sees this store, which is in your home. To share the data, choose another store first:"
        )
        binding = shlex.quote(f"{made.root}/.dsv")
        call.say(
            f"  rm -r {binding}; dsv init {made.dataset} --store s3://BUCKET/PREFIX (or a shared folder)"
        )


def _name_of(folder: Path) -> DatasetName:
    try:
        return DatasetName.parse(folder.name)
    except UsageError as error:
        close = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name).strip("-._")
        raise UsageError(
            f"the folder's name makes no dataset name: {error.message}",
            subject=folder.name,
            hint=f"dsv init {close if len(close) > 1 else 'NAME'}",
        ) from None


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
    names: Names = None,
) -> None:
    """Fetch a dataset into a new workspace.

    By default DIR is named after the dataset. Files in DIR that are as in the commit stay; for anything else there it
    lists them with exit code 4, unless --keep or --force says what to do. The workspace follows the branch that REV
    names, else main. If interrupted, run the same command again. Files that a cache on this machine has are copied from
    there and checked.

    With --only the workspace is sparse: it has what the patterns match, and the rest never counts as removed. Patterns
    are those of 'dsv sparse'.
    """
    if folder == "":
        raise UsageError("DIR is empty", hint="dsv clone DATASET DIR")
    wanted = Target.parse(target)
    if wanted.path is not None:
        raise UsageError(
            f"dsv clone takes whole datasets, and {target} names a path",
            subject=target,
            hint=f"dsv cache {target} has that part as files, read-only; dsv clone --only PATTERN clones a part",
        )
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


ACTIONS = ("list", "add", "remove")


@command(
    "sparse",
    examples="""
        dsv sparse add val 'test/**/*.json'  # fetch a folder, and what a pattern matches; quote it
        dsv sparse remove train/raw  # free the space; the dataset keeps the files
        dsv sparse add '**'  # everything: the workspace is no longer sparse
    """,
    result="workspace sparse only created removed",
)
def sparse(
    call: Call,
    action: str = argument("list|add|remove"),
    patterns: list[str] | None = argument("[PATTERN]..."),
) -> None:
    """Show or change which part of the dataset a workspace has.

    A PATTERN begins at the top of the dataset: * matches within a name, **/ any folders, ? one character, and [a-f]
    one of these; a folder stands for all that is in it, and a path of exactly that name comes first. 'dsv clone
    --only PATTERN' makes a workspace of a part. What a workspace leaves out is never taken for removed.

    add: fetches what the patterns match too. remove: removes these files here, not from the dataset; if any of them
    was changed here, it ends with exit code 4 and the list, and nothing is removed. Interrupted, the same command
    goes on.
    """
    from dsv.api.sync import Sparse, sparse_add, sparse_remove

    words = patterns or []
    _check_patterns(action, words)
    with call.context() as context:
        if action == "list":
            done = Sparse(context.workspace())
        else:
            done = (sparse_add if action == "add" else sparse_remove)(context, words)
    lines = done.workspace.chosen.lines
    call.result(done, workspace=done.workspace.root, sparse=lines is not None, only=lines or ())
    if action == "list":
        for line in lines or ():
            call.line(line)
    if lines is None:
        call.say(f"{done.workspace.root} is not sparse: it has everything")
    elif not lines:
        call.say(f"{done.workspace.root} has no files of its dataset")
    if action == "add":
        call.line(f"fetched {format_count(done.created, 'path')}")
    elif action == "remove":
        call.line(f"removed {format_count(done.removed, 'file')} here; the dataset is unchanged")


def _check_patterns(action: str, words: Sequence[str]) -> None:
    if action not in ACTIONS:
        raise UsageError(
            f"dsv sparse has no action {action}", subject=action, hint=f"one of {', '.join(ACTIONS)}"
        )
    if action == "list" and words:
        raise UsageError(
            f"dsv sparse list takes no pattern, and {words[0]} is one",
            subject=words[0],
            hint="dsv sparse list",
        )
    if action != "list" and not words:
        raise UsageError(f"dsv sparse {action} needs a PATTERN", hint=f"dsv sparse {action} --help")
    for word in words:
        if word.startswith("!"):
            raise UsageError(
                f"{word} excludes paths, which dsv sparse remove does",
                subject=word,
                hint=f"dsv sparse remove {word[1:]}; ./{word} for a path of that name",
            )
