"""The code of a run, as a commit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from dsv.api.context import Context
from dsv.api.run_trees import commit_sources
from dsv.errors import Unsupported, UsageError
from dsv.files.descent import Descent
from dsv.files.errors import about
from dsv.format.tree import Entry, Kind
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.run.record import CODE_OF_A_RUN, TREE_AUTHOR
from dsv.transfer.save import NewContent, Saved, save_file
from dsv.transfer.stable_read import Problem, refusal
from dsv.transfer.upload import ContentHasher
from dsv.values.ids import CommitId
from dsv.values.names import BranchName, DatasetName
from dsv.values.paths import link_escapes, show
from dsv.values.progress import NoProgress, Progress
from dsv.values.units import format_bytes
from dsv.workspace.scan.ignore import NAME
from dsv.workspace.scan.scanner import walk

LARGEST: Final = 200_000_000
"""Bytes of code. Anything larger is probably a checkpoint or an environment, included by mistake."""


GITIGNORE: Final = ".gitignore"


CODE_BRANCH: Final = BranchName("code")
"""The branch in the commit's fields. No such branch exists."""


def commit_code(
    context: Context, repository: Repository, dataset: DatasetName, folder: Path, *, force: bool = False
) -> tuple[CommitId, Session]:
    """Commit the folder, except what `.gitignore` and `.dsvignore` exclude, and return the commit's id.

    The session is open, so that gc keeps the commit; the caller closes it when a record names the commit. The same code
    gives the same commit for every user and time. force: allow more than `LARGEST`. Raises `UsageError` if too large or
    empty, `Unsupported` for files that no commit can hold, and the store's errors.
    """
    found = _code_sources(folder, context.progress, force)
    _, commit_id, session = commit_sources(
        context,
        repository,
        found,
        lambda problems: _refuse(problems, folder),
        dataset=dataset,
        branch=CODE_BRANCH,
        author=TREE_AUTHOR,
        time_ms=0,
        message=CODE_OF_A_RUN,
    )
    return commit_id, session


def code_entries(folder: Path, *, force: bool = False) -> list[Entry]:
    """Return the entries of the commit that `commit_code` makes, by hashing alone. Raises as that does."""
    sources, hasher = _code_sources(folder, NoProgress(), force), ContentHasher()
    with about(folder), Descent(sources[0][1].root or folder) as descent:
        for source in (source for _, source in sources if source.is_file):
            saved = save_file(hasher, descent, source.path)
            _refuse([saved] if isinstance(saved, Problem) else [], folder)
            source.stored = saved.stored if isinstance(saved, Saved) else None
    return [entry for path, source in sources if (entry := source.entry(path)) is not None]


def _code_sources(folder: Path, progress: Progress, force: bool) -> list[tuple[bytes, NewContent]]:
    """Return the files of the code, in tree order, by their paths in the folder. The .gitignore files of the git work
    tree around it apply.
    """
    real = folder.resolve()
    top = next((above for above in (real, *real.parents) if (above / ".git").exists()), real)
    start = b"" if top == real else os.fsencode(real.relative_to(top))
    sources, scan = walk(top, start, (GITIGNORE, NAME))
    scan.note_left_out(progress)
    cut = len(start) + 1 if start else 0
    found = [(path[cut:], source) for path, source in sources]
    _refuse(scan.problems, folder)
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
    size = sum(source.size for _, source in found)
    if size > LARGEST and not force:
        raise UsageError(
            f"the code in {folder} has {format_bytes(size)}, and without --force {format_bytes(LARGEST)} is the limit",
            subject=str(folder),
            hint=f"name what is not code in {NAME} or {GITIGNORE}, or take it all the same by --force",
        )
    return found


def _refuse(problems: list[Problem], folder: Path) -> None:
    if problems:
        error = refusal(problems, str(folder))
        error.hint = error.hint if error.retryable else f"name them in {NAME}"
        raise error
