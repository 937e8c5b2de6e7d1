"""The code of a run, committed into the store as a small tree of its own. No branch names it: the run's record does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from dsv.api.context import Context
from dsv.api.folder_commit import commit_sources
from dsv.api.local_files import Source, Walk
from dsv.errors import Unsupported, UsageError
from dsv.model.entry import Kind
from dsv.model.ids import CommitId
from dsv.model.names import BranchName, DatasetName
from dsv.model.paths import link_escapes, show
from dsv.model.units import format_bytes
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.worktree.scan.ignore import NAME
from dsv.worktree.scan.problem import Problem

LARGEST: Final = 200_000_000
"""Bytes of code. What is larger is hardly code, but a checkpoint or an environment that nobody meant."""
GITIGNORE: Final = ".gitignore"
BRANCH: Final = BranchName("code")
"""What the commit says that it was made for. There is no such branch."""


def commit_code(
    context: Context, repository: Repository, dataset: DatasetName, folder: Path, *, force: bool = False
) -> tuple[CommitId, Session]:
    """Commits what is in the folder, less what `.gitignore` and `.dsvignore` leave out, and gives the commit's id.

    The session is open, so that gc keeps the commit until a record names it: whoever has written that closes it. The
    same code gives the same commit, whoever commits it and when. force: also if it is larger than `LARGEST`. Raises
    `UsageError` for what is too large or empty, `Unsupported` for what no commit can hold, and what a store raises.
    """
    found = _sources(folder)
    size = sum(source.size for _, source in found)
    if size > LARGEST and not force:
        raise UsageError(
            f"the code in {folder} has {format_bytes(size)}, more than the {format_bytes(LARGEST)} of any code",
            subject=str(folder),
            hint=f"name what is no code in {NAME} or {GITIGNORE}, or take it all the same by --force",
        )
    _, commit_id, session = commit_sources(
        context,
        repository,
        found,
        lambda problems: _refuse(problems, folder),
        dataset=dataset,
        branch=BRANCH,
        author="dsv",
        time_ms=0,
        message="code of a run",
    )
    return commit_id, session


def _sources(folder: Path) -> list[tuple[bytes, Source]]:
    """What is code, in tree order, by its path in the folder."""
    top = _work_tree(folder)
    start = b"" if top == folder else os.fsencode(folder.relative_to(top))
    walk = Walk(top, start, (GITIGNORE, NAME))
    cut = len(start) + 1 if start else 0
    found = [(path[cut:], source) for path, source in walk.sources()]
    _refuse(walk.problems, folder)
    links = {path: source.target for path, source in found if source.target is not None}
    escaping = link_escapes(links)
    if escaping:
        raise Unsupported(
            f"the symlink {show(escaping[0])} leads out of {folder}, so it would lead nowhere in the job",
            subject=escaping[0].decode("utf-8", "backslashreplace"),
            hint=f"name it in {NAME}, or put a copy in its place",
        )
    if not any(source.kind is not Kind.EMPTY_DIRECTORY for _, source in found):
        raise UsageError(
            f"there is no code in {folder}", subject=str(folder), hint="--code names the folder of the code"
        )
    return found


def _work_tree(folder: Path) -> Path:
    """The top of git's work tree around a folder, whose `.gitignore` counts too; else the folder itself."""
    real = folder.resolve()
    for each in (real, *real.parents):
        if (each / ".git").exists():
            return each
    return real


def _refuse(problems: list[Problem], folder: Path) -> None:
    if not problems:
        return
    first = problems[0]
    more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    raise Unsupported(
        f"{show(first.path)} in {folder} can't be committed: {first.reason}{more}",
        subject=first.path.decode("utf-8", "backslashreplace"),
        hint=f"name it in {NAME}",
    )
