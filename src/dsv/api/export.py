"""Writing files of a commit to this machine, to a stream, or to a URL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from dsv.api.context import Context, reading
from dsv.errors import IntegrityError
from dsv.exchange.export import Exported, Selection, refuse_shards, write_tar
from dsv.exchange.export import export_path as write_path
from dsv.exchange.export_url import UrlExport
from dsv.exchange.remote import open_place
from dsv.repo.expiry import explained
from dsv.repo.repository import Repository
from dsv.store.options import StoreOptions
from dsv.values.names import Target


def export_stream(
    context: Context, target: Target, out: IO[bytes], *, skip_damaged: bool = False, strict: bool = False
) -> Exported:
    """Write a tar of the files at and below the target's path, with names from there.

    skip_damaged: what can't be read is left out, and named in the result; else it raises `IntegrityError`. strict:
    raise `Conflict` if files of the target were erased from the store; else the rest is written.
    """
    with _selected(context, target, skip_damaged, strict) as (repository, selection):
        write_tar(selection, out)
        return _checked(repository, selection.exported())


def export_path(
    context: Context, target: Target, to: str, *, skip_damaged: bool = False, strict: bool = False
) -> Exported:
    """Write a tar if the path is named so, else the one file or the folder that the target is.

    skip_damaged: as of `export_stream`. It appears when it is whole. Raises `Conflict` if something is in the way, and
    `Unsupported` for a name of shards.
    """
    refuse_shards(to)
    with _selected(context, target, skip_damaged, strict) as (repository, selection):
        write_path(selection, to)
        return _checked(repository, selection.exported())


def export_url(
    context: Context,
    target: Target,
    url: str,
    *,
    force: bool = False,
    options: StoreOptions | None = None,
    skip_damaged: bool = False,
    strict: bool = False,
) -> Exported:
    """As `export_path`, at a URL. What is there already and right is not written again.

    force: files of others that are in the way are replaced.
    options: how to reach an s3:// URL; None: as the store.
    Raises `Conflict` with nothing written if there is something of others, if a folder is where a file is to be or the
    reverse, or if another export writes there, and `Unsupported` if a package is missing or the server can't be
    written to.
    """
    refuse_shards(url)
    place = open_place(url, options or context.store_options(context.settings.store()))
    with _selected(context, target, skip_damaged, strict) as (repository, selection):
        notes = context.metadata / "stores" / str(repository.id) / "exports"
        export = UrlExport(place, url, notes, context.progress, force=force)
        done = export.tar(selection) if selection.becomes_tar(url) else export.files(selection)
        return _checked(repository, done)


@contextmanager
def _selected(
    context: Context, target: Target, skip_damaged: bool, strict: bool
) -> Iterator[tuple[Repository, Selection]]:
    with reading(context, target) as repository:
        commit = context.resolve(repository, target).commit
        yield (
            repository,
            Selection(repository.objects, commit, target, skip_damaged=skip_damaged, strict=strict),
        )


def _checked(repository: Repository, done: Exported) -> Exported:
    """Return the result. Raises what says so if the commit is expired, so that what is gone is not damaged."""
    if done.damaged:
        error = IntegrityError(done.damaged[0].text)
        found = explained(repository, error)
        if found is not error:
            raise found
    return done
