"""What the completing of a record on a node has in common for all engines: the command, and the output in the store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from msgspec import structs

from dsv.api.context import Context
from dsv.api.run_trees import KeptOutput
from dsv.repo.repository import Repository
from dsv.run.node_order import NodeOrder
from dsv.run.record import RunId, RunOutput

ARGV: Final = "argv"
"""The file with the command as it was typed, each word ended by a NUL byte."""
_MAX_ARGV: Final = 8 << 20


@contextmanager
def output_kept(
    context: Context, order: NodeOrder, folder: Path
) -> Iterator[Callable[[Repository], RunOutput | None]]:
    """What commits the output, if the run asks for that. gc keeps it until the record names it, which is to be written
    within this."""
    if order.author is not None:
        writer = structs.replace(context.writer, author=order.author)
        context = replace(context, writer=writer)
    kept = KeptOutput(context, offline=False)

    def keep(repository: Repository) -> RunOutput | None:
        if not order.keep_output:
            return None
        return kept.keep(lambda: repository, order.dataset, folder, RunId.parse(order.run))

    try:
        yield keep
    finally:
        kept.close()


def read_argv(folder: Path) -> tuple[str, ...] | None:
    """None if it can't be read: then only the record tells the command."""
    try:
        with (folder / ARGV).open("rb") as file:
            data = file.read(_MAX_ARGV + 1)
    except OSError:
        return None
    if len(data) > _MAX_ARGV or not data.endswith(b"\0"):
        return None
    return tuple(os.fsdecode(each) for each in data[:-1].split(b"\0"))
