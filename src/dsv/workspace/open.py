"""Opening a workspace for a command: locked, with its repository and its branch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec.structs import replace

from dsv.errors import Conflict
from dsv.files.lock import Lock
from dsv.format.records import WriterIdentity
from dsv.repo.history import distance, standing
from dsv.repo.refs.branches import deleted
from dsv.repo.repository import Repository
from dsv.stores.open import RequestCounts
from dsv.values.progress import Progress
from dsv.values.units import format_count, format_duration
from dsv.workspace.workspace import SWITCH, Workspace, unfinished

if TYPE_CHECKING:
    from dsv.format.tree import Entry
    from dsv.repo.objects.objects import Objects
    from dsv.repo.refs.branches import Head
    from dsv.values.ids import CommitId
    from dsv.values.names import BranchName


class Loan(Protocol):
    """Copies of files, by their position in the request."""

    def has(self, at: int) -> bool: ...

    def take(self, at: int, target: int) -> bool:
        """Fill the empty file with verified content; False if that fails: the file is then empty."""

    def close(self) -> None: ...


class LocalCopies(Protocol):
    """Files on this machine that may be copied."""

    def lend(self, commit: CommitId, entries: Sequence[Entry]) -> Loan | None:
        """Return copies of these files of the commit, in tree order; None if it has none, now or later."""


_COUNTED = 50
"""Most commits that are read to count the newer ones."""


class OpenWorkspace(msgspec.Struct, frozen=True):
    """A workspace and its repository, opened by a command that changes the workspace."""

    workspace: Workspace
    repository: Repository
    lock: Lock
    writer: WriterIdentity
    """The author of commits and moves."""
    progress: Progress
    counts: Callable[[], RequestCounts] = RequestCounts
    """Return the counts of requests to the store so far."""
    copies: LocalCopies | None = None
    """Files on this machine that are used before the store is asked."""

    def following(self, branch: BranchName) -> OpenWorkspace:
        if branch == self.workspace.branch:
            return self
        return replace(self, workspace=self.workspace.follow(branch))

    def proven_base(self) -> CommitId | None:
        """Return the base, or its nearest ancestor that the store has, which then becomes the base.

        Files of the lost commits then count as local changes, so that no command takes them for safe and the
        next sync publishes them again.
        """
        base = self.workspace.base()
        found = standing(self.repository.objects, base)
        if base is not None and found != base:
            self.workspace.set_base(found)
            goes_on = "" if found is None else f", and the base is now its ancestor {_short(found)}"
            self.progress.note(
                f"the base {_short(base)} is no longer in {self.repository.store.url} (perhaps an older copy of "
                f"the store was put back): its files count as local changes{goes_on}"
            )
        return found

    def not_at_base(self, head: Head | None, base: CommitId | None, *, changed: bool = True) -> Conflict:
        """Return the error of publishing to a branch that is not at the base. changed: anything to publish."""
        workspace = self.workspace
        if head is not None and head.entry.deleted:
            gone = deleted(head)
            return Conflict(gone.message, subject=gone.subject, hint=gone.hint)
        if head is None or head.commit is None:
            name = str(workspace.branch if head is None else head.branch)
            return Conflict(
                f"{name} of {workspace.dataset} has no commit, and this workspace has one",
                subject=f"{workspace.dataset}@{name}",
                hint="dsv sync --new-branch NAME publishes what is here on another branch",
            )
        begun = unfinished(workspace.begun(), base)
        if begun and begun[-1].command == f"{SWITCH}{head.branch}":
            return Conflict(
                f"{begun[-1].command} was interrupted here",
                subject=str(workspace.root),
                hint=f"{begun[-1].finish} finishes it",
            )
        text, hint = self._where(head, head.commit, base)
        if not changed and base is not None:
            text = f"nothing differs here from {_short(base)}, so nothing was published; but {text}"
        return Conflict(text, subject=f"{workspace.dataset}@{head.branch}", hint=hint)

    def author(self, head: Head) -> str:
        """Return who moved the branch there, and how long ago."""
        seconds = (self.repository.clock() - head.entry.time_ms) / 1000
        ago = "just now" if seconds < 10 else f"{format_duration(seconds)} ago"
        return f"{head.entry.author}, {ago}"

    def _where(self, head: Head, commit: CommitId, base: CommitId | None) -> tuple[str, str]:
        """Describe the position of a branch relative to a base, with a hint."""
        objects, name = self.repository.objects, f"{head.branch} of {self.workspace.dataset}"
        last = f"last: {self.author(head)}"
        pull = "dsv pull fetches them; dsv sync --new-branch NAME publishes on another branch"
        if base is None:
            return f"{name} has commits that this workspace does not have ({last})", pull
        found = distance(objects, base, commit, _COUNTED)
        if found is not None and not found.ahead:
            if head.branch == self.workspace.branch and self.workspace.seen() == commit:
                return (
                    f"{name} is at {_short(commit)}, {format_count(found.behind, 'commit')} after this workspace's "
                    f"base {_short(base)}, and has not moved since this workspace was there",
                    f"dsv pull updates to it; dsv rollback @{_short(base)} rolls {head.branch} back to the base",
                )
            return f"{name} has {format_count(found.behind, 'newer commit')} ({last})", pull
        if found is not None and not found.behind:
            return (
                f"{name} is at {_short(commit)}, {format_count(found.ahead, 'commit')} before this workspace's base "
                f"{_short(base)} ({last})",
                "dsv sync --new-branch NAME publishes what is here on another branch",
            )
        return (
            f"{name} is at {_short(commit)}, which does not descend from the base {_short(base)} here ({last})",
            f"dsv clone {self.workspace.dataset}@{head.branch} DIR; dsv sync --new-branch NAME publishes what is here",
        )


def follows(objects: Objects, head: Head, base: CommitId | None) -> bool:
    """Return whether the next commit of a branch may have this base as its parent: the branch is there, or at
    commits that the store has lost and whose nearest ancestor is the base."""
    if head.commit == base or head.commit is None:
        return head.commit == base
    if objects.stored_commit(head.commit) is not None or objects.copied_commit(head.commit) is not None:
        return False
    return objects.local_commit(head.commit) is not None and standing(objects, head.commit) == base


def _short(commit: CommitId) -> str:
    return str(commit)[:12]
