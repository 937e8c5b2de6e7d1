"""The code and the output of a run, committed into the store as trees that no branch names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from dsv.api.context import Context
from dsv.errors import DsvError, Interrupted, Terminated, Unsupported, UsageError
from dsv.format.records import Commit
from dsv.format.tree import Kind
from dsv.fs.errors import as_error
from dsv.periodic import now_ms
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.repo.tree.write import write_tree
from dsv.run.record import CODE_OF_A_RUN, OUTPUT_OF_RUN, TREE_AUTHOR, RunId, RunOutput
from dsv.transfer.file_reader import Problem
from dsv.transfer.save import Source, save_sources
from dsv.transfer.upload import Uploader
from dsv.values.ids import CommitId
from dsv.values.names import BranchName, DatasetName
from dsv.values.paths import link_escapes, show
from dsv.values.units import format_bytes
from dsv.workspace.scan.ignore import NAME
from dsv.workspace.scan.walk import walk

Sources = Sequence[tuple[bytes, Source]]
"""The files of a commit, in tree order, by their paths there."""


def commit_sources(
    context: Context,
    repository: Repository,
    found: Sources,
    unread: Callable[[list[Problem]], None],
    *,
    dataset: DatasetName,
    branch: BranchName,
    author: str,
    time_ms: int,
    message: str,
) -> tuple[Commit, CommitId, Session]:
    """Store the contents, then the commit.

    The session is open, so that gc keeps the commit: whoever has named it in a record closes the session.

    unread: called with the files that could not be read, if there are any; if it doesn't raise, they are left out
    branch: the branch in the commit's fields
    """
    with Session.open(repository, context.writer) as session, Uploader(session) as uploader:
        problems = save_sources(uploader, [source for _, source in found], context.progress)
        if problems:
            unread(problems)
        changes = (source.change(path) for path, source in found)
        tree = write_tree(uploader, None, (change for change in changes if change is not None))
        uploader.finish()
        commit = Commit(
            root=tree.root, level=tree.level, parents=(), author=author, time_ms=time_ms, message=message,
            files=tree.files, bytes=tree.bytes, entries=tree.entries,
        )  # fmt: skip
        commit = repository.named(commit, dataset, branch)
        commit_id = session.put_commit(commit, tree.locator)
        session.declare(commit_id)
    return commit, commit_id, session


LARGEST: Final = 200_000_000
"""Bytes of code. What is larger is hardly code, but a checkpoint or an environment that nobody meant."""
GITIGNORE: Final = ".gitignore"
CODE_BRANCH: Final = BranchName("code")
"""The branch in the commit's fields. There is no such branch."""


def commit_code(
    context: Context, repository: Repository, dataset: DatasetName, folder: Path, *, force: bool = False
) -> tuple[CommitId, Session]:
    """Commit what is in the folder, less what `.gitignore` and `.dsvignore` leave out, and return the commit's id.

    The session is open, so that gc keeps the commit until a record names it: whoever has written that closes it. The
    same code gives the same commit, whoever commits it and when. force: also if it is larger than `LARGEST`. Raises
    `UsageError` for what is too large or empty, `Unsupported` for what no commit can hold, and what a store raises.
    """
    found = _code_sources(folder)
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
        branch=CODE_BRANCH,
        author=TREE_AUTHOR,
        time_ms=0,
        message=CODE_OF_A_RUN,
    )
    return commit_id, session


def _code_sources(folder: Path) -> list[tuple[bytes, Source]]:
    """Return the files of the code, in tree order, by their paths in the folder."""
    top = _work_tree(folder)
    start = b"" if top == folder else os.fsencode(folder.relative_to(top))
    sources, problems = walk(top, start, (GITIGNORE, NAME))
    cut = len(start) + 1 if start else 0
    found = [(path[cut:], source) for path, source in sources]
    _refuse(problems, folder)
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
    """Return the top of git's work tree around a folder, whose `.gitignore` counts too; else the folder itself."""
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


OUTPUT_BRANCH: Final = BranchName("output")
"""The branch in the commit's fields. There is no such branch."""
_NAMED: Final = 50
"""Paths that the record names one by one, of those that were left out."""
_RESERVED: Final = (".git", ".dsv")


def commit_output(
    context: Context,
    repository: Callable[[], Repository],
    dataset: DatasetName,
    folder: Path,
    run: RunId,
    opened: ExitStack,
) -> RunOutput:
    """Commit the output of a run, without what no commit can hold, and return the commit or the error.

    opened: gets the session that keeps the commit, to be closed when the record that names the commit is on its way
    """
    note = context.progress.note
    note("sending the output to the store")
    try:
        found, problems = _output_sources(folder)
        commit, commit_id, session = commit_sources(
            context,
            repository(),
            found,
            problems.extend,
            dataset=dataset,
            branch=OUTPUT_BRANCH,
            author=context.writer.author,
            time_ms=now_ms(),
            message=f"{OUTPUT_OF_RUN}{run}",
        )
    except (Interrupted, Terminated):
        raise
    except DsvError as error:
        return RunOutput(error=error.message)
    except OSError as error:
        return RunOutput(error=as_error(error, folder).message)
    opened.callback(session.close)
    left_out = _left_out(problems)
    if left_out:
        note(f"left out of the output in the store: {'; '.join(left_out[:3])}")
    return RunOutput(commit_id.hex(), commit.files, commit.bytes, left_out)


def _output_sources(folder: Path) -> tuple[Sources, list[Problem]]:
    """Return what goes into the tree, and what can't."""
    found, problems = walk(folder, ignoring=(), check_links=True)
    return found, [*problems, *_reserved(folder)]


def _reserved(folder: Path) -> Iterator[Problem]:
    """Yield the folders of git's and of dsv's own, which no tree has."""
    for place, folders, files in os.walk(folder):
        for name in [each for each in (*folders, *files) if each.lower() in _RESERVED]:
            path = os.fsencode(Path(place, name).relative_to(folder))
            yield Problem(path, "no commit holds that name")
        folders[:] = [each for each in folders if each.lower() not in _RESERVED]


def _left_out(problems: list[Problem]) -> tuple[str, ...]:
    told = [f"{show(each.path)}: {each.reason}" for each in problems[:_NAMED]]
    return (*told, f"and {len(problems) - _NAMED} more") if len(problems) > _NAMED else tuple(told)
