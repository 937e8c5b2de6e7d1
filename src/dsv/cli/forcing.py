"""--force of the commands that move a branch: past the rule of a protected one, with a reason that is kept."""

from __future__ import annotations

from typing import Annotated

import typer

from dsv.errors import UsageError

Force = Annotated[
    bool,
    typer.Option(
        "--force", help="Move the branch even if it is protected; the message is the reason, and is kept."
    ),
]
"""The option of commands for which it means nothing else."""


def override(force: bool, message: str | None) -> str | None:
    """Why rules are overridden; None: they are not. Raises `UsageError` for `--force` without a reason."""
    if not force:
        return None
    if not (message or "").strip():
        raise UsageError(
            "--force needs a reason, which is kept in the log of moves", hint="--force -m REASON"
        )
    return message
