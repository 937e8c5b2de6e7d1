"""dsv export."""

from __future__ import annotations

from functools import partial

from dsv.api import export as api
from dsv.api.branches import tags
from dsv.cli.call import Call
from dsv.cli.declare import argument, command, option, whole
from dsv.cli.options import Strict
from dsv.errors import IntegrityError, NotFound, UsageError
from dsv.exchange.export import Exported
from dsv.exchange.export_folder import TagFolders
from dsv.values.names import Rev, Target
from dsv.values.units import format_bytes, format_count


@command(
    "export",
    unused=["--cache"],
    examples="""
        dsv export chest-xray@v1 xrays.tar.gz  # one file to hand on
        dsv export chest-xray@v1:val - | ssh lab tar x -C /data  # a folder, as a tar on stdout
        dsv export chest-xray@v1 'shards/x-%05d.tar' --shuffle 1  # for WebDataset, in the order of a seed
        dsv export chest-xray@v1 xrays --card croissant,hf  # a folder that mlcroissant and datasets read
        dsv export chest-xray@v1 s3://partner/xrays  # into a bucket; again: what is not there yet
        dsv export chest-xray --all-tags tags  # a folder for each tag, such as tags/v1
    """,
    result=(
        "commit to paths files bytes known written written_bytes left_out erased stays damaged(path upto "
        "entries text) shards samples items(tag commit paths files bytes erased damaged)"
    ),
)
def export(
    call: Call,
    typed: str = argument("TARGET"),
    to: str = argument("DIR|FILE.tar|NAME-%05d.tar|URL|-"),
    force: bool = option("--force", "Replace files at the URL that dsv did not write."),
    profile: str | None = option("--target-profile NAME", "AWS profile for an s3:// URL."),
    endpoint: str | None = option("--target-endpoint URL", "S3 server of an s3:// URL."),
    skip_damaged: bool = option("--skip-damaged", "Leave out what can't be read, name it, and exit with 5."),
    strict: Strict = False,
    shard_size: int | None = option("--shard-size SIZE", "The most bytes of a shard (default: 1 GB)."),
    shuffle: int | None = option("--shuffle SEED", "Mix the samples, by this number.", parser=whole(0)),
    card: str | None = option("--card KINDS", "Add croissant.json (croissant), README.md (hf), or both."),
    all_tags: bool = option("--all-tags", "Write a folder DIR/TAG for each tag of a dataset."),
) -> int:
    """Write the files of a commit as a tar or a folder, or to a URL.

    TARGET is [DATASET][@REV][:PATH]; names in the tar begin below PATH. A name that ends with .tar, .tar.gz, .tgz,
    .tar.bz2 or .tar.xz makes a tar, - a tar on stdout, and any other a folder, which must not exist. If PATH is a
    file, it is written as that file, with - to stdout, or into a folder if that exists or its name ends with a
    slash. Every byte is checked against its id. A file or a folder appears when it is whole; for stdout see the exit
    code. DIR/NAME-%05d.tar makes numbered tars of whole samples, for WebDataset. --card also adds to a folder that has
    exactly these files already.

    A URL that fsspec knows (s3://, gs://, sftp://) is written to in the same way, many files at a time, each to appear
    when it is whole. After a kill the same command writes only what is missing. If others have files there, nothing is
    written without --force. s3:// is reached with the store's endpoint and credentials unless others are named.

    A damaged file ends the export, and nothing of it appears. With --skip-damaged all other files are written. Each
    path that is left out is named at the end, and the exit code is 5.

    With --all-tags, TARGET is a dataset. Equal files become hard links, and read-only. The same command again compares
    every byte of the folders that are there, and writes those that are missing.
    """
    target = Target.parse(typed)
    if all_tags:
        return _export_tags(call, target, to, skip_damaged=skip_damaged, strict=strict)
    is_url, own = "://" in to, profile is not None or endpoint is not None
    if not is_url and (force or own):
        raise UsageError(
            f"{to} is not a URL, and --force and --target-… are for URLs",
            subject=to,
            hint="dsv export --help",
        )
    cards = {} if card is None else dict.fromkeys(card.split(","))
    with call.context() as context:
        options = context.options.overridden(endpoint=endpoint, profile=profile) if own else None
        write = partial(
            api.export, context, target, to, force=force, skip_damaged=skip_damaged, strict=strict,
            shards=(shard_size, shuffle), cards=cards
        )  # fmt: skip
        if to == "-":
            call.out.stream()
            return _left_out(call, write(out=call.out))  # type: ignore[arg-type]
        done = write(options=options)
    if is_url:
        from dsv.values.secrets import hide_in_urls  # takes a while to import

        to = hide_in_urls(to)
    return _show_exported(call, done, to)


def _export_tags(call: Call, target: Target, to: str, *, skip_damaged: bool, strict: bool) -> int:
    call.takes_only("--all-tags", "typed", "to", "all_tags", "skip_damaged", "strict")
    if target != Target(target.dataset) or "://" in to or to in ("", "-"):
        raise UsageError("--all-tags takes a DATASET", subject=to, hint="dsv export pets --all-tags DIR")
    code, items, folders = 0, [], TagFolders()
    with call.context() as context:
        for tag in tags(context, target.dataset):
            at, here = f"{to}/{tag.tag.component}", Target(tag.dataset, Rev(tag.tag))
            done = api.export(context, here, at, skip_damaged=skip_damaged, strict=strict, tags=folders)
            items.append(call.item(done, tag=tag.tag))
            call.say(f"{at}: {format_count(done.files, 'file')}, {format_bytes(done.bytes)}")
            code = _left_out(call, done) or code
    if not items:
        raise NotFound(f"{target} has no tag", subject=str(target), hint=f"dsv tag NAME {target} makes one")
    call.items(items)
    return code


def _show_exported(call: Call, done: Exported, to: str) -> int:
    call.result(done, to=to)
    what = f"{to}: {format_count(done.files, 'file')}"
    if done.shards is not None:
        what += f" in {format_count(done.samples or 0, 'sample')}, {format_count(done.shards, 'shard')}"
    if done.written is None:
        call.say(f"{what}, {format_bytes(done.bytes)}")
        return _left_out(call, done)
    known = f", {done.known:,} there already" if done.known else ""
    call.say(f"{what}: {done.written:,} written ({format_bytes(done.written_bytes or 0)}){known}")
    if done.stays:
        call.say(f"{format_count(done.stays, 'extra file')} at the destination left alone")
    return _left_out(call, done)


def _left_out(call: Call, done: Exported) -> int:
    """Report what was not written. Return the exit code."""
    if done.left_out:
        call.say(f"{format_count(done.left_out, 'path')} left out: symlinks and empty folders")
    if done.erased:
        call.say(f"{format_count(done.erased, 'file')} left out, erased from the store; dsv ls shows which")
    for one in done.damaged:
        call.warn(one.text)
    if not done.damaged:
        return 0
    count = sum(one.entries or 1 for one in done.damaged)
    call.warn(f"{format_count(count, 'path')} left out, as they are damaged; dsv verify lists all damage")
    return IntegrityError.exit_code
