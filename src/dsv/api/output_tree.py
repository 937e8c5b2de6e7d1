"""The output of a run, committed into the store as a tree of its own. No branch names it: the run's record does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from dsv.api.context import Context
from dsv.api.folder_commit import Sources, commit_sources
from dsv.api.local_files import Walk
from dsv.errors import DsvError, Interrupted, Terminated
from dsv.fs.errors import as_error
from dsv.model.names import BranchName, DatasetName
from dsv.model.paths import MAX_PATH, link_escapes, show
from dsv.model.run import RunId, RunOutput
from dsv.repo.repository import Repository, now_ms
from dsv.repo.session import Session
from dsv.worktree.scan.problem import Problem

BRANCH: Final = BranchName("output")
"""What the commit says that it was made for. There is no such branch."""
_NAMED: Final = 50
"""Paths that the record names one by one, of those that were left out."""
_RESERVED: Final = (".git", ".dsv")


class KeptOutput:
    """Commits output. `close` it when the record that names the commit is on its way."""

    def __init__(self, context: Context, offline: bool) -> None:
        self._context = context
        self._offline = offline
        self._session: Session | None = None

    def keep(
        self, repository: Callable[[], Repository], dataset: DatasetName, folder: Path, run: RunId
    ) -> RunOutput:
        """What no commit can hold is left out, and named. That nothing could be kept is told in the result: the job has
        ended, and the folder stays."""
        if self._offline:
            return RunOutput(error="a run with --offline asks no store")
        note = self._context.progress.note
        note("sending the output to the store")
        try:
            kept = self._keep(repository(), dataset, folder, run)
        except (Interrupted, Terminated):
            raise
        except DsvError as error:
            return RunOutput(error=error.message)
        except OSError as error:
            return RunOutput(error=as_error(error, folder).message)
        if kept.left_out:
            note(f"left out of the output in the store: {'; '.join(kept.left_out[:3])}")
        return kept

    def close(self) -> None:
        if self._session is not None:
            self._session.close()

    def _keep(self, repository: Repository, dataset: DatasetName, folder: Path, run: RunId) -> RunOutput:
        found, problems = _sources(folder)
        commit, commit_id, self._session = commit_sources(
            self._context,
            repository,
            found,
            problems.extend,
            dataset=dataset,
            branch=BRANCH,
            author=self._context.writer.author,
            time_ms=now_ms(),
            message=f"output of run {run}",
        )
        return RunOutput(commit_id.hex(), commit.files, commit.bytes, _told(problems))


def _sources(folder: Path) -> tuple[Sources, list[Problem]]:
    """What goes into the tree, and what can't."""
    walk = Walk(folder, ignoring=())
    found = walk.sources()
    problems = [*walk.problems, *_reserved(folder)]
    problems += [Problem(path, "its path is too long") for path, _ in found if len(path) > MAX_PATH]
    found = [each for each in found if len(each[0]) <= MAX_PATH]
    while True:
        links = {path: source.target for path, source in found if source.target is not None}
        escaping = set(link_escapes(links))
        if not escaping:
            return found, problems
        problems += [Problem(path, "it is a symlink that leads out") for path in sorted(escaping)]
        found = [each for each in found if each[0] not in escaping]


def _reserved(folder: Path) -> Iterator[Problem]:
    """Folders of git's and of dsv's own, which no tree has."""
    for place, folders, files in os.walk(folder):
        for name in [each for each in (*folders, *files) if each.lower() in _RESERVED]:
            path = os.fsencode(Path(place, name).relative_to(folder))
            yield Problem(path, "no commit holds that name")
        folders[:] = [each for each in folders if each.lower() not in _RESERVED]


def _told(problems: list[Problem]) -> tuple[str, ...]:
    told = [f"{show(each.path)}: {each.reason}" for each in problems[:_NAMED]]
    return (*told, f"and {len(problems) - _NAMED} more") if len(problems) > _NAMED else tuple(told)
