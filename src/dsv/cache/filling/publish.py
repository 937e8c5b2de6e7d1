"""The end of a fill: checked as a whole, synced, renamed into its place, recorded."""

from __future__ import annotations

from dsv.cache.claims.owners import Owner
from dsv.cache.fill_state.fill_directory import FillDirectory, clear, publish, was_published
from dsv.cache.filling.write_back import WriteBack
from dsv.cache.record import Filled, record_path, write_record
from dsv.errors import IntegrityError
from dsv.fs.files import list_names
from dsv.model.paths import link_escapes, show


def complete(directory: FillDirectory, owner: Owner, write_back: WriteBack | None) -> bool:
    """Publishes a fill whose parts are all done; False if another ended it before. The caller clears up.

    Before the rename everything is on stable storage: over NFS each file was when it was closed, elsewhere on a
    remote file system with each part; on a local one `write_back` sees to it here. Raises `IntegrityError` if a
    symlink leaves the tree, `Lost`, `Conflict`, `OSError`.
    """
    _check_links(directory)
    if write_back is not None:
        write_back.finish()
    return publish(directory, _record(directory, owner))


def finalize(directory: FillDirectory) -> None:
    """Clears what is left of a fill whose tree has gone, after recording it if it was published but not recorded."""
    visible = directory.root.visible(directory.place)
    if (
        was_published(directory)
        and visible.is_dir()
        and not record_path(directory.root, directory.place, directory.fill).exists()
    ):
        write_record(directory.root, directory.place, _record(directory, Owner.new()))
    clear(directory)


def _record(directory: FillDirectory, owner: Owner) -> Filled:
    plan = directory.plan
    return Filled(
        fill=directory.fill,
        store=plan.store,
        commit=plan.commit,
        files=plan.files,
        bytes=plan.bytes,
        entries=plan.entries,
        own_files=plan.need_files,
        own_bytes=plan.need_bytes,
        selection=tuple(plan.selection),
        linked=tuple(f"{donor.dataset}/{donor.name}" for donor in plan.donors),
        host=owner.host,
        user=owner.user,
        time=directory.root.now(),
    )


def _check_links(directory: FillDirectory) -> None:
    links: dict[bytes, bytes] = {}
    for name in list_names(directory.links):
        fields = (directory.links / name).read_bytes().split(b"\0")
        links.update(zip(fields[::2], fields[1::2], strict=True))
    escaping = link_escapes(links)
    if escaping:
        raise IntegrityError(
            f"{directory.place} has a symlink that leaves the dataset: {show(escaping[0])}",
            subject=str(directory.place),
            hint="no dsv writes that: ask who else writes to the store; dsv log DATASET shows other commits",
        )
