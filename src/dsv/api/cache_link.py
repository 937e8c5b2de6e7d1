"""A symlink of a person's own that leads to a cached commit."""

from __future__ import annotations

import shlex
from pathlib import Path

from dsv.errors import Conflict, NotFound
from dsv.fs.errors import about
from dsv.fs.files import replace_link


def check_link(link: Path) -> None:
    """Whether a symlink can be made there, before anything is fetched for it. Raises `Conflict`, `NotFound`."""
    if not link.parent.is_dir():
        raise NotFound(
            f"there is no folder {link.parent} for the link",
            subject=str(link),
            hint=f"mkdir -p {shlex.quote(str(link.parent))}",
        )
    if link.exists() and not link.is_symlink():
        raise _taken(link)


def make_link(link: Path, target: Path) -> None:
    """Makes the symlink, or replaces the one that is there in one step. Raises `Conflict` for anything else there."""
    with about(link):
        try:
            replace_link(link, str(target))
        except FileExistsError:
            raise _taken(link) from None


def _taken(link: Path) -> Conflict:
    return Conflict(
        f"{link} is there and no symlink, so it stays",
        subject=str(link),
        hint=f"mv {shlex.quote(str(link))} {shlex.quote(f'{link}.old')}, or name another",
    )
