"""Export: write files of a commit to a folder, a tar, shards, a URL or a stream."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import IO, TYPE_CHECKING

from dsv.api.context import Context
from dsv.errors import IntegrityError, UsageError
from dsv.exchange.export import Exported, Selection, write_out
from dsv.exchange.export_folder import TagFolders, export_path
from dsv.repo.expiry import explained
from dsv.repo.repository import Repository
from dsv.repo.tree.reader import TreeReader
from dsv.stores.options import StoreOptions
from dsv.values.names import Target

if TYPE_CHECKING:
    from dsv.exchange.shards import ShardOptions


def export(
    context: Context,
    target: Target,
    to: str,
    *,
    out: IO[bytes] | None = None,
    force: bool = False,
    options: StoreOptions | None = None,
    skip_damaged: bool = False,
    strict: bool = False,
    shards: ShardOptions = (None, None),
    cards: Collection[str] = (),
    tags: TagFolders | None = None,
) -> Exported:
    """Write a tar or shards if the path or URL has such a name, else the target's file or folder.

    A path appears only when complete. At a URL, correct files are not written again. out: write to it
    instead: one file's content, else a tar with names relative to the target's path. skip_damaged: leave out
    unreadable files, and name them in the result; else raise `IntegrityError`. strict: raise `Conflict` if files
    of the target were erased; else write the rest. force: replace files at the URL that dsv did not write.
    options: how to reach an s3:// URL; None: like the store. shards, cards, tags: as their classes say.

    Raises `Conflict`, with nothing written, if something that dsv did not write is in the way, a folder is at
    a file's path or vice versa, or another export writes to the URL; `Unsupported` for missing packages, read-only
    servers, and names of files that no shard can have.
    """
    as_shards = out is None and "%" in to and _are_shards(to)
    if skip_damaged if as_shards else shards != (None, None):
        why = "--skip-damaged is not for shards" if as_shards else "--shard-size and --shuffle are for shards"
        raise UsageError(why, subject=to, hint="dsv export TARGET 'DIR/NAME-%05d.tar'")
    if cards:
        from dsv.exchange.cards import check_kinds, export_with_cards

        check_kinds(cards)
    at_url = _url_export(context, to, options, force=force) if out is None and "://" in to else None
    with context.repository(target, mirrors=True) as repository:
        resolved = context.resolve(repository, target)
        commit = resolved.commit
        context.note_read(resolved.dataset, commit, repository.objects.commit(commit))
        if as_shards and not cards:
            from dsv.exchange.shards import Shards

            tree = TreeReader(repository.objects, commit)
            return Shards(tree, target, shards, strict=strict).write(Path(to), context.progress)
        selection = Selection(repository.objects, commit, target, skip_damaged=skip_damaged, strict=strict)
        if cards:
            if at_url or out or skip_damaged or selection.is_one_file or selection.becomes_tar(to):
                why = "cards are for whole folders of this machine"
                raise UsageError(why, subject="--card", hint="dsv export TARGET DIR --card croissant,hf")
            opener = context.opener()
            return export_with_cards(selection, resolved.dataset, target, to, cards, opener)
        if at_url is not None:
            return _unless_expired(repository, at_url(selection, str(repository.id)))
        if out is not None:
            write_out(selection, out)
        elif tags is not None:
            tags.write(selection, Path(to))
        else:
            export_path(selection, to, context.opener())
        return _unless_expired(repository, selection.exported())


def _are_shards(to: str) -> bool:
    from dsv.exchange.shards import names_shards

    return names_shards(to)


def _url_export(
    context: Context, url: str, options: StoreOptions | None, *, force: bool
) -> Callable[[Selection, str], Exported]:
    """Open the URL. Return what writes a selection of the store with an id there."""
    from dsv.exchange.export_url import UrlExport
    from dsv.exchange.remote import open_place

    place = open_place(url, options or context.store_options(context.settings.store()))

    def write(selection: Selection, store: str) -> Exported:
        notes = context.metadata / "stores" / store / "exports"
        at_url = UrlExport(place, url, notes, context.progress, force=force)
        return at_url.tar(selection) if selection.becomes_tar(url) else at_url.files(selection)

    return write


def _unless_expired(repository: Repository, done: Exported) -> Exported:
    """Return the result, unless its damage is that the commit is expired: removed content is not damage."""
    if done.damaged:
        error = IntegrityError(done.damaged[0].text)
        found = explained(repository, error)
        if found is not error:
            raise found
    return done
