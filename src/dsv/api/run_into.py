"""The output of a run as the content of a branch, or of a folder in it."""

from __future__ import annotations

from dataclasses import replace

from msgspec.structs import replace as with_fields

from dsv.api.context import Context
from dsv.api.edited_tree import as_source, as_text
from dsv.api.edits import EditRequest, PutSources, branch_to_edit, edit_in
from dsv.errors import Conflict, DsvError, NotFound, UsageError
from dsv.format.records import RefEntry
from dsv.repo.expiry import check_not_expired
from dsv.repo.tree.reader import TreeReader
from dsv.run.record import OUTPUT_OF_RUN, IntoBranch, RunOutput, RunRecord
from dsv.values.ids import CommitId
from dsv.values.names import MAIN, Target, clean_path
from dsv.values.paths import check_path


def check_into(context: Context, target: Target) -> None:
    """Check before a run that its output can go there, as far as that can be known. Raises `UsageError` for what is
    no branch or path, and `NotFound` or `Conflict` for a branch that this user can't make or move."""
    if path := clean_path(target.path):
        try:
            check_path(path)
        except ValueError as error:
            raise UsageError(f"{target} can't get an output: {error}", subject=str(target)) from error
    with context.repository(Target(target.dataset, target.rev)) as repository:
        repository.format.check(repository.store.url, writing=True)
        _, _, head = branch_to_edit(context, repository, target, create=True, any_branch=True)
        repository.refs.check_mover(head, context.writer.author)


def move_into(context: Context, record: RunRecord) -> RunOutput:
    """Make the branch that the record of a run names exactly its output, if its command has succeeded. Return the
    output, with the result or the reason why not."""
    output = record.output
    assert output is not None and output.into is not None  # checked by the callers
    if record.exit_code != 0:
        return replace(output, into=replace(output.into, error=f"the exit code was {record.exit_code}"))
    try:
        return replace(output, into=put_output(context, record, output.into.target))
    except (DsvError, OSError) as error:
        return output.missed(str(error))


def put_output(context: Context, record: RunRecord, target: Target) -> IntoBranch:
    """Make a branch, or a folder of it, exactly the output of a run, and make what is missing for that. Raises
    `NotFound` if the store lacks the output, `Conflict` if the run has not ended or it is empty, and as `edit`.
    """
    output, run = record.output, record.run
    if not record.state.is_terminal:
        raise Conflict(f"run {run} has not ended", subject=run, hint=f"dsv wait {run}")
    if output is None or output.tree is None:
        raise NotFound(
            f"the output of run {run} is not in the store", subject=run, hint=f"dsv runs {run} --out DIR"
        )
    commit = CommitId.parse(output.tree)
    context = with_fields(context, job=None)  # the commit is this run's, not that of one around it
    with context.store() as store:
        repository = context.open_repository(store, Target(target.dataset, target.rev))
        check_not_expired(repository.refs, repository.refs.home(record.dataset), commit)
        entries = [
            (entry.path, as_source(entry, where))
            for entry, where in TreeReader(repository.objects, commit).below(b"")
            if repository.objects.erasures.of(entry) is None
        ]
        if not entries:
            raise Conflict(f"the output of run {run} is empty", subject=run)
        at = f" in {as_text(clean_path(target.path))}" if clean_path(target.path) else ""  # lineage reads it
        request = EditRequest(
            f"{OUTPUT_OF_RUN}{record.dataset}/{run}{at}", "run", create=True, any_branch=True, allow_removals=True,
            taken_from=(commit,),
        )  # fmt: skip
        dataset, branch, _ = branch_to_edit(context, repository, target, create=True, any_branch=True)
        is_new = not repository.refs.exists(dataset)
        if is_new and branch != MAIN:  # every dataset has a main, which is empty here
            entry = RefEntry.of(context.writer, repository.clock(), None, "run")
            repository.refs.move(dataset, MAIN, None, entry)
        edits = [PutSources(target.path or b"", entries, mirror=True)]
        done = edit_in(context, repository, store, target, edits, request)
        assert done.commit is not None  # it has entries
        if is_new or done.parent is None:
            context.progress.note(f"new dataset {dataset}" if is_new else f"new branch {dataset}@{branch}")
        root = repository.objects.commit(done.commit).root.hex()
    return replace(IntoBranch.due(target), commit=done.commit, root=root, new=done.any_change)
