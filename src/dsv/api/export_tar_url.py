"""Writing a commit as one tar at any URL: all of it is there, or nothing."""

from __future__ import annotations

from dataclasses import replace

from dsv.api.context import Context
from dsv.api.export import COMPRESSED, Exported, exported, found_entries, write_tar
from dsv.api.remote_writes import RemoteWrites
from dsv.errors import Conflict, UsageError
from dsv.exchange.remote import open_place
from dsv.model.names import Target
from dsv.repo.trees import TreeReader
from dsv.store.options import StoreOptions

_AROUND = 4096
"""Bytes that a tar may need for a path, beside its content."""


def export_tar_url(
    context: Context, target: Target, url: str, *, force: bool = False, options: StoreOptions | None = None
) -> Exported:
    """As `export_tar`, at a URL. options: how to reach an s3:// URL; None: as the store. force: replaces what is there.

    Raises `Conflict` if something is there, and `Unsupported` if a package is missing or the server can't be written
    to.
    """
    place = open_place(url, options or context.store_options(context.settings.store()))
    folder, _, name = place.root.rpartition("/")
    if not folder:
        raise UsageError(
            f"{place.shown} names no file in a bucket or a folder",
            subject=place.shown,
            hint="such as s3://bucket/NAME.tar",
        )
    writes = RemoteWrites(replace(place, root=folder), url)
    with context.repository(target) as repository:
        commit_id = context.resolve(repository, target).commit
        tree = TreeReader(repository.objects, commit_id)
        found = found_entries(tree, target)
        with place.at_work("read"):
            place.fs.invalidate_cache()
            is_folder, is_there = place.fs.isdir(place.root), place.fs.exists(place.root)
        if is_folder or (is_there and not force):
            raise Conflict(
                f"{place.shown} is there already{', and is a folder' if is_folder else ''}",
                subject=place.shown,
                hint="name another" if is_folder else "name another; --force replaces it",
            )
        path = name.encode("utf-8", "surrogateescape")
        writes.prepare(path)
        compression = COMPRESSED.get(f".{name.rpartition('.')[2]}", "")
        most = sum(entry.size + _AROUND for _, entry, _ in found)
        with writes.writing(path, most) as out:
            write_tar(tree, found, out, compression)
        return exported(commit_id, found)
