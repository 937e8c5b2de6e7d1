"""Targets as a person types them."""

from __future__ import annotations

from typing import Annotated

import typer

from dsv.errors import UsageError
from dsv.model.names import Target

Offline = Annotated[
    bool, typer.Option("--offline", help="Don't ask the store; a branch is what it was when last seen.")
]
"""The option of commands that can do without the store."""

Names = Annotated[
    str | None,
    typer.Option(
        "--names",
        metavar="PLACE",
        help="Where the store's names are kept, if not in itself: a folder, or another bucket's URL.",
    ),
]
"""The option of commands that bind a folder to a store."""


def commit_target(command: str, text: str) -> Target:
    """A target that means a commit as a whole. Raises `UsageError` for one with a path in it."""
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
    """Raises `UsageError` if more than one of these options was given; they are named by their keywords."""
    named = [f"--{name}" for name, value in given.items() if value]
    if len(named) > 1:
        raise UsageError(
            f"{' and '.join(named)} exclude each other", subject=named[-1], hint="give one of them"
        )
