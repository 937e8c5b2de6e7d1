"""The caches of this machine: the one in effect, those with a name, and those that commands were told of before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from blake3 import blake3

from dsv.errors import DsvError
from dsv.fs.files import list_names, read_small, replace_file
from dsv.repo.repository import Repository
from dsv.worktree.copies import NO_COPIES, Copies

if TYPE_CHECKING:
    from dsv.api.context import Context
    from dsv.api.settings import Settings
    from dsv.model.names import DatasetName


def note_cache(settings: Settings, path: Path) -> None:
    """Remembers a cache that somebody used. It does no harm if that can't be written."""
    name = settings.state / "caches" / blake3(bytes(path)).hexdigest(length=16)
    with suppress(OSError):
        if not name.exists():
            name.parent.mkdir(parents=True, exist_ok=True)
            replace_file(name, bytes(path), sync=False)


def nearby_caches(settings: Settings) -> list[Path]:
    """Their folders, the one in effect first. Asks none of them."""
    found: list[Path] = []
    for text in (None, *settings.names("caches")):
        with suppress(DsvError):
            found.append(settings.cache(text).path)
    with suppress(OSError):
        noted = [
            read_small(settings.state / "caches" / name) for name in list_names(settings.state / "caches")
        ]
        found += [Path(path.decode("utf-8", "surrogateescape")) for path in noted if path]
    return list(dict.fromkeys(found))


@contextmanager
def lending(context: Context, repository: Repository, dataset: DatasetName) -> Iterator[Copies]:
    """What this machine's caches have of a dataset. They are asked when it is first needed, for metadata too."""
    from dsv.cache.lending.lenders import Lenders

    roots = nearby_caches(context.settings)
    if not roots:
        yield NO_COPIES
        return
    own = context.metadata_folder(repository.id)
    lenders = Lenders(roots, repository.id, dataset, own, context.progress.note)
    repository.objects.also_read(lenders.copies())
    try:
        yield lenders
    finally:
        lenders.close()
