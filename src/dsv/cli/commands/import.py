"""dsv import."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from dsv.api.edits import EditRequest
from dsv.api.imports import Imported, Revisions, import_url
from dsv.api.imports import materialize as store_references
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
    Yes,
    one_of,
    override,
)
from dsv.exchange.revisions import DVC
from dsv.run.origin import without_credentials
from dsv.values.names import Target
from dsv.values.secrets import hide_in_urls
from dsv.values.trailers import IMPORTED
from dsv.values.units import format_bytes, format_count, format_lines


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
    dvc_remote: str | None = option("--dvc-remote NAME-OR-URL", "A remote other than DVC's default."),
    allow_removals: AllowRemovals = False,
    skip_unsupported: SkipUnsupported = False,
    yes: Yes = False,
    profile: str | None = option("--source-profile NAME", "AWS profile for an s3:// URL."),
    endpoint: str | None = option("--source-endpoint URL", "S3 server of an s3:// URL."),
    anonymous: bool = option("--anonymous", "Read an s3:// URL without credentials."),
    author: Author = None,
    force: Force = False,
) -> None:
    """Commit files from a URL, without a copy on this machine.

    The files at the URL and below it are added at PATH as one commit on the branch (main), and replace what is there.
    s3:// is read with the store's endpoint and credentials unless others are named, any other URL by its fsspec
    package. If killed, the same command continues. A later import reads only files whose size, tag or time has
    changed.

    dvc+ before the URL or the path of a git repository reads the outputs of DVC that its newest commit names, or that
    of @REV at the end, from its DVC remote. With --rev or --history each revision of it, or of a dataset of hf://,
    becomes a commit with its author, time and message, and PATH has what the revision has. Known ones are skipped.

    With --reference the files of s3://, http(s)://, hf:// or a folder are read for their ids and not stored. Later they
    are read there, and refused if they are not what they were. --materialize stores them, under the same commits.
    """
    source = _whole(url) if "://" not in url else without_credentials(url) or hide_in_urls(url)
    source = source.encode("utf-8", "replace").decode()
    said = f"import {source}" if message is None else message
    request = EditRequest(
        f"{said}\n\n{IMPORTED}{source}", "import", create=create, allow_removals=allow_removals,
        skip_unsupported=skip_unsupported, dry_run=dry_run, confirm=call.confirm_published(yes),
    )  # fmt: skip
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


def _whole(url: str) -> str:
    """Return the URL with its path on this machine, if it has one, made absolute."""
    place = url.removeprefix(DVC)
    last = place.rpartition("::")[2]
    is_here = "://" not in last and (place is url or ":" not in last)  # git takes HOST:PATH
    return url[: len(url) - len(last)] + str(Path(last).absolute()) if is_here else url


def _show(call: Call, url: str, done: Imported, *, dry_run: bool) -> None:
    more = {"found": done.found, "known": done.known, "read": done.read, "read_bytes": done.read_bytes}
    show_edited(call, done.edited, dry_run=dry_run, more={**more, "revisions": done.revisions})
    if len(done.revisions) > 1:
        lines = [f"{one.revision[:12]} is {str(one.commit)[:12]}" for one in done.revisions if one.commit]
        call.say(f"{len(done.revisions):,} revisions:{format_lines(lines)}")
    known = f", {done.known:,} known from before" if done.known else ""
    read = f"{done.read:,} read ({format_bytes(done.read_bytes)})"
    call.say(f"{format_count(done.found, 'file')} at {hide_in_urls(url)}: {read}{known}")
