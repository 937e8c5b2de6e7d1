"""dsv init."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from dsv.api.clone import init as init_workspace
from dsv.api.settings import BUILT_IN
from dsv.cli.call import Call
from dsv.cli.declare import argument, command, option
from dsv.cli.options import Author, Names
from dsv.errors import UsageError
from dsv.values.names import DatasetName


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
    single_writer: bool = option("--single-writer", "Accept a store without put-if-absent."),
    names: Names = None,
    author: Author = None,
) -> None:
    """Bind this folder to a new dataset.

    By default the dataset is named after the folder. A store that does not exist yet is created, after a test that
    exactly one of several writers of a key wins. With --names, a bucket that fails the test can hold the data, while
    the names (branches, tags) are in a folder or another bucket. No file is read yet; 'dsv sync' does that.
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
        is_open = Path(made.store).stat().st_mode & 0o077
        seen = "and others may read it" if is_open else "so only you can see it"
        call.say(f"this store is in your home folder, {seen}. To share the data, choose another store first:")
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
