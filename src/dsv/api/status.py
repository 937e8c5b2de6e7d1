"""What a sync would do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from dsv.api.context import Context
from dsv.api.paths import check_paths
from dsv.api.removals import check_removals
from dsv.errors import Conflict, Denied, NoRoom, Unreachable
from dsv.fs.lock import Lock
from dsv.model.entry import Entry
from dsv.model.ids import CommitId
from dsv.repo.trees import TreeReader
from dsv.worktree.examine import examine
from dsv.worktree.problem import Problem
from dsv.worktree.scanning import take_survey
from dsv.worktree.state import State
from dsv.worktree.status import Differences
from dsv.worktree.survey import Survey
from dsv.worktree.workspace import BRIEF, Workspace


@dataclass(frozen=True, slots=True)
class Status:
    """How a workspace differs from its base.

    problems: what a sync would refuse to store. clashes: pairs of new names that are one where case or
    Unicode is folded. suspicious: why a sync would want `--allow-removals`; None if it would not.
    """

    workspace: Workspace
    base: CommitId | None
    differences: Differences
    problems: tuple[Problem, ...]
    clashes: tuple[tuple[bytes, bytes], ...]
    suspicious: str | None = None

    @property
    def is_clean(self) -> bool:
        """Whether a sync would find nothing to do, and nothing to complain about."""
        return not self.differences and not self.problems


def status(context: Context, paths: tuple[bytes, ...] = ()) -> Status:
    """Compares the workspace (or these paths of it) with its base.

    The store is asked only for what is not kept locally, so mostly it may be away. Whether the branch has
    moved is for `pull` and `sync` to say. Files are read only where their stats alone can't tell.
    """
    workspace = context.workspace()
    base = workspace.base()
    state = State.load(workspace.state_folder)
    survey = take_survey(workspace.root, state, base, paths)
    with ExitStack() as opened:
        tree = _Base(context, workspace, base, opened)
        check_paths(workspace.root, tree.reader, paths)
        if not survey.exact:
            survey.align(tree.entries())
        context.progress.start(None, None)
        differences, unread = examine(survey, tree.entry, context.progress)
        context.progress.finish()
        suspicious = tree.suspicion(survey) if survey.missing else None
    _save(workspace, state)
    problems = tuple(survey.problems + unread)
    return Status(workspace, base, differences, problems, tuple(survey.clashes), suspicious)


class _Base:
    """The base's tree, read when it is first asked for; `opened` closes the store behind it."""

    def __init__(
        self, context: Context, workspace: Workspace, base: CommitId | None, opened: ExitStack
    ) -> None:
        self._context = context
        self._workspace = workspace
        self._base = base
        self._opened = opened
        self._reader: TreeReader | None = None

    def entries(self) -> Iterator[Entry]:
        tree = self.reader()
        return iter(()) if tree is None else (entry for entry, _ in tree.below(b""))

    def entry(self, path: bytes) -> Entry | None:
        tree = self.reader()
        found = None if tree is None else tree.entry(path)
        return None if found is None else found[0]

    def suspicion(self, survey: Survey) -> str | None:
        try:
            check_removals(survey, self.reader(), allowed=False)
        except Conflict as refused:
            return refused.message
        return None

    def reader(self) -> TreeReader | None:
        if self._reader is None and self._base is not None:
            repository = self._opened.enter_context(self._context.bound_repository(self._workspace))
            self._reader = TreeReader(repository.objects, self._base)
        return self._reader


def _save(workspace: Workspace, state: State) -> None:
    """Keeps what was learned, unless somebody else is at work here, or it may not be written."""
    if not state.has_news:
        return
    with suppress(Denied, NoRoom, Unreachable):
        lock = workspace.try_lock(BRIEF)
        if isinstance(lock, Lock):
            with lock:
                if state.is_newest:
                    state.save()
