"""Writing files of a commit to this machine, to a stream, or to a URL."""

from __future__ import annotations

from typing import IO

from dsv.api.context import Context
from dsv.api.mirrors import reading
from dsv.exchange.export import Exported, Selection, refuse_shards, write_tar
from dsv.exchange.export import export_path as write_path
from dsv.exchange.export_url import UrlExport
from dsv.exchange.remote import open_place
from dsv.store.options import StoreOptions
from dsv.values.names import Target


def export_stream(context: Context, target: Target, out: IO[bytes]) -> Exported:
    """Write a tar of the files at and below the target's path, with names from there."""
    with reading(context, target) as repository:
        selection = Selection(repository.objects, context.resolve(repository, target).commit, target)
        write_tar(selection, out)
        return selection.exported()


def export_path(context: Context, target: Target, to: str) -> Exported:
    """Write a tar if the path is named so, else the one file or the folder that the target is.

    It appears when it is whole. Raises `Conflict` if something is in the way, and `Unsupported` for a name of shards.
    """
    refuse_shards(to)
    with reading(context, target) as repository:
        selection = Selection(repository.objects, context.resolve(repository, target).commit, target)
        write_path(selection, to)
        return selection.exported()


def export_url(
    context: Context, target: Target, url: str, *, force: bool = False, options: StoreOptions | None = None
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
    with reading(context, target) as repository:
        selection = Selection(repository.objects, context.resolve(repository, target).commit, target)
        notes = context.metadata / "stores" / str(repository.id) / "exports"
        export = UrlExport(place, url, notes, context.progress, force=force)
        return export.tar(selection) if selection.becomes_tar(url) else export.files(selection)
