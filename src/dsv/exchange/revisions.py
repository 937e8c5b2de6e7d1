"""Places that have revisions: git repositories with data in DVC, and datasets of the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from dsv.errors import UsageError
from dsv.exchange.import_ import FolderSource, RemoteFile, Skipped
from dsv.values.secrets import hide_in_urls

DVC = "dvc+"
HUB = "hf://datasets/"


class Revision(NamedTuple):
    """A commit of somebody else's."""

    id: str
    author: str
    time_ms: int
    message: str


class History(Protocol):
    """The revisions of one place. A context manager."""

    url: str
    """Without a revision, and without secrets."""

    def __enter__(self) -> History: ...

    def __exit__(self, *_: object) -> None: ...

    def revisions(self, names: Sequence[str], *, every: bool) -> list[Revision]:
        """Return those that are named, also by ranges `A..B`, or `every` one up to the one in the URL, oldest first.
        Without either, the one in the URL. Raises `NotFound`."""
        ...

    def source(self, revision: Revision, *, reference: bool) -> FolderSource:
        """Open what has the contents of a revision and of those before it."""
        ...

    def files(self, revision: Revision, source: FolderSource) -> tuple[list[RemoteFile], list[Skipped]]:
        """Return the files of a revision, in tree order, and what can't be read."""
        ...


def no_revisions(url: str) -> UsageError:
    """Return the error for a place that has only what lies there now, or for a dataset of the Hub with a DVC remote."""
    hub = url.startswith(HUB)
    also = "" if hub else f", and so has {HUB}OWNER/NAME"
    return UsageError(
        f"{hide_in_urls(url)} has no {'DVC remote' if hub else 'revisions'}",
        subject=hide_in_urls(url),
        hint=f"dvc+GIT-URL, a git repository with data in DVC, has some{also}",
    )
