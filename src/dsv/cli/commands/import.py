"""dsv import and export."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from dsv.api import import_export as api
from dsv.api.edits import EditRequest
from dsv.api.import_export import Imported, Revisions, import_url
from dsv.api.import_export import materialize as store_references
from dsv.cli.call import Call
from dsv.cli.commands.put import EDIT_RESULT, show_edited
from dsv.cli.declare import argument, command, option
from dsv.cli.options import (
    AllowRemovals,
    Author,
    Create,
    DryRun,
    Force,
    Message,
    SkipUnsupported,
    Strict,
    one_of,
    override,
)
from dsv.errors import IntegrityError, UsageError
from dsv.exchange.export import Exported
from dsv.values.names import Target
from dsv.values.secrets import hide_in_urls
from dsv.values.units import format_bytes, format_count


@command(
    "import",
    unused=["--cache"],
    examples="""
        dsv import s3://lab/scans scans:raw --create  # makes the dataset if it is not there yet
        dsv import s3://lab/scans scans:raw --mirror  # again: reads what is new, removes what is gone
        dsv import hf://datasets/team/pets pets:  # from Hugging Face; --history for each revision
        dsv import dvc+https://example.org/pets.git pets: --history  # data of DVC, a commit for each revision
    """,
    result=f"{EDIT_RESULT} found known read read_bytes revisions(revision commit)",
)
def import_(
    call: Call,
    url: str = argument("URL"),
    typed: str = argument("DATASET[@BRANCH][:PATH]"),
    message: Message = None,
    dry_run: DryRun = False,
    create: Create = False,
    mirror: bool = option("--mirror", "Remove what is at PATH and no longer at the URL."),
    reference: bool = option("--reference", "Leave the files where they are, and refer to them there."),
    materialize: bool = option("--materialize", "Store what DATASET refers to at the URL. The commit stays."),
    rev: list[str] | None = option("--rev REV", "Commit this revision, or each of A..B."),
    history: bool = option("--history", "Commit each revision up to the URL's."),
    dvc_remote: str | None = option("--dvc-remote NAME-OR-URL", "Another remote than DVC's default."),
    allow_removals: AllowRemovals = False,
    skip_unsupported: SkipUnsupported = False,
    profile: str | None = option("--source-profile NAME", "AWS profile for an s3:// URL."),
    endpoint: str | None = option("--source-endpoint URL", "S3 server of an s3:// URL."),
    anonymous: bool = option("--anonymous", "Read an s3:// URL without credentials."),
    author: Author = None,
    force: Force = False,
) -> None:
    """Commit what lies at a URL, without a copy on this machine.

    The files at the URL and below it are added at PATH as one commit on the branch (main), and replace what is there.
    s3:// is read with the store's endpoint and credentials unless others are named; any other URL that fsspec knows is
    read as its package does. If it is killed, the same command goes on where it was. A later import reads only files
    whose size, entity tag or time has changed.

    dvc+ before the URL or the path of a git repository reads the outputs of DVC that its newest commit, or @REV at the
    end, names, from its DVC remote. With --rev or --history each revision of it, or of a dataset of hf://, becomes a
    commit with its author, time and message. PATH has what it has. Those that were imported before are passed over.

    With --reference the files of s3://, http(s)://, hf:// or a folder are read for their ids and not stored. Later they
    are read there, and refused if they are not what they were. --materialize stores them, under the same commits.
    """
    request = EditRequest(
        message=f"import {hide_in_urls(url)}" if message is None else message,
        action="import",
        create=create,
        allow_removals=allow_removals,
        skip_unsupported=skip_unsupported,
        dry_run=dry_run,
    )
    one_of(source_profile=profile, anonymous=anonymous)
    one_of(rev=rev, history=history, message=message)
    stored = {"reference": reference, "mirror": mirror, "create": create, "dvc_remote": dvc_remote}
    reached = {"source_profile": profile, "source_endpoint": endpoint, "anonymous": anonymous}
    for name, given in (stored | reached | {"rev": rev, "history": history}).items():
        one_of(**{"materialize": materialize, name: given})
    with call.context(writes=True, author=author, override=override(force, message)) as context:
        options = context.options.overridden(endpoint=endpoint, profile=profile)
        reach = replace(options, anonymous=anonymous) if profile or endpoint or anonymous else None
        target = Target.parse(typed)
        if materialize:
            done = store_references(context, url, target, dry_run=dry_run)
        else:
            chosen = Revisions(rev or (), history, dvc_remote)
            how = {"mirror": mirror, "reference": reference}
            done = import_url(context, url, target, request, **how, options=reach, chosen=chosen)
    _show(call, url, done, dry_run=dry_run)


def _show(call: Call, url: str, done: Imported, *, dry_run: bool) -> None:
    more = {"found": done.found, "known": done.known, "read": done.read, "read_bytes": done.read_bytes}
    show_edited(call, done.edited, dry_run=dry_run, more={**more, "revisions": done.revisions})
    known = f", {done.known:,} known from before" if done.known else ""
    read = f"{done.read:,} read ({format_bytes(done.read_bytes)})"
    call.say(f"{format_count(done.found, 'file')} at {hide_in_urls(url)}: {read}{known}")


@command(
    "export",
    unused=["--cache"],
    examples="""
        dsv export chest-xray@v1 xrays.tar.gz  # one file to hand on
        dsv export chest-xray@v1:val - | ssh lab tar x -C /data  # a folder, as a tar on stdout
        dsv export chest-xray@v1 s3://partner/xrays  # into a bucket; again: what is not there yet
    """,
    result=(
        "commit to paths files bytes known written written_bytes left_out erased stays damaged(path upto "
        "entries text)"
    ),
)
def export(
    call: Call,
    typed: str = argument("TARGET"),
    to: str = argument("DIR|FILE.tar|URL|-"),
    force: bool = option("--force", "Replace files of others that are in the way at the URL."),
    profile: str | None = option("--target-profile NAME", "AWS profile for an s3:// URL."),
    endpoint: str | None = option("--target-endpoint URL", "S3 server of an s3:// URL."),
    skip_damaged: bool = option("--skip-damaged", "Leave out what can't be read, name it, and exit with 5."),
    strict: Strict = False,
) -> int:
    """Write the files of a commit as a tar or a folder, or to a URL.

    TARGET is [DATASET][@REV][:PATH]; names in the tar begin below PATH. A name that ends with .tar, .tar.gz, .tgz,
    .tar.bz2 or .tar.xz makes a tar, - a tar on stdout, and any other a folder, which must not exist. If PATH is a
    file, it is written as that file, or into a folder if that exists or its name ends with a slash. Every byte is
    checked against its id. A file or a folder appears when it is whole; for a tar on stdout see the exit code.

    A URL that fsspec knows (s3://, gs://, sftp://) is written to in the same way, many files at a time, each to appear
    when it is whole. After a kill the same command writes only what is missing. If others have files there, nothing is
    written without --force. s3:// is reached with the store's endpoint and credentials unless others are named.

    A damaged file ends the export, and nothing of it appears. With --skip-damaged all other files are written. Each
    path that is left out is named at the end, and the exit code is 5.
    """
    target = Target.parse(typed)
    is_url, own = "://" in to, profile is not None or endpoint is not None
    if not is_url and (force or own):
        raise UsageError(
            f"{to} is no URL, and --force and --target-… are for URLs", subject=to, hint="dsv export --help"
        )
    with call.context() as context:
        options = context.options.overridden(endpoint=endpoint, profile=profile) if own else None
        write = partial(
            api.export, context, target, to, force=force, skip_damaged=skip_damaged, strict=strict
        )
        if to == "-":
            call.out.stream()
            return _left_out(call, write(out=call.out))  # type: ignore[arg-type]
        done = write(options=options)
    return _show_exported(call, done, hide_in_urls(to) if is_url else to)


def _show_exported(call: Call, done: Exported, to: str) -> int:
    call.result(done, to=to)
    what = f"{to}: {format_count(done.files, 'file')}"
    if done.written is None:
        call.say(f"{what}, {format_bytes(done.bytes)}")
        return _left_out(call, done)
    known = f", {done.known:,} there already" if done.known else ""
    call.say(f"{what}: {done.written:,} written ({format_bytes(done.written_bytes or 0)}){known}")
    if done.left_out:
        call.say(
            f"{format_count(done.left_out, 'path')} left out: a URL has no symlinks and no empty folders"
        )
    if done.stays:
        call.say(f"{format_count(done.stays, 'file')} more there, which the target does not have")
    return _left_out(call, done)


def _left_out(call: Call, done: Exported) -> int:
    """Say what was erased, and name what is damaged. Return the exit code."""
    if done.erased:
        call.say(f"{format_count(done.erased, 'file')} left out, erased from the store; dsv ls shows which")
    for one in done.damaged:
        call.warn(one.text)
    if not done.damaged:
        return 0
    count = sum(one.entries or 1 for one in done.damaged)
    call.warn(f"{format_count(count, 'path')} left out, as they are damaged; dsv verify says what else is")
    return IntegrityError.exit_code
