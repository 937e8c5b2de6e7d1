"""Before a file that counts as unchanged goes, its content must be in the store: local copies don't prove that."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from dsv.errors import Conflict, Unreachable
from dsv.model.diff import Change
from dsv.model.entry import Entry, sort_key
from dsv.model.ids import PackId
from dsv.model.paths import show
from dsv.model.units import format_count
from dsv.repo.objects import Objects
from dsv.repo.reachability import reach_content
from dsv.repo.trees import TreeReader

_SHOWN = 20


def check_copies(
    tree: TreeReader | None, changes: Iterable[Change], may_overwrite: Callable[[bytes], bool], root: Path
) -> None:
    """Raises `Conflict` if the changes would remove or overwrite a file of which the store has lost the content.

    Each pack is looked for once. Files that may be lost (`may_overwrite`) are not looked at.
    """
    going = {
        change.path: change.before
        for change in changes
        if change.before is not None and change.before.is_file and change.before.size
        and (change.after is None or change.after.file_id != change.before.file_id)
        and not may_overwrite(change.path)
    }  # fmt: skip
    if tree is None or not going:
        return
    if tree.objects.copy_of is not None:
        raise Unreachable(
            f"nothing was written, as {format_count(len(going), 'file')} in {root} would go, and without asking the "
            "store nothing tells whether it still has what they hold",
            subject=str(root),
            hint="name the paths that may go; dsv restore --offline --force gives up all of them",
        )
    needed = list(_needed(tree, going))
    packs = tree.objects.packs
    lost = packs.lost_of({pack for _, pack in needed})
    suspected = dict.fromkeys(path for path, pack in needed if pack in lost)
    only = [path for path in suspected if not _elsewhere(tree.objects, going[path])]
    if not only:
        return
    for pack_id in lost:
        packs.note(pack_id)
    lines = [show(path) for path in only[:_SHOWN]]
    if len(only) > _SHOWN:
        lines.append(f"and {len(only) - _SHOWN:,} more")
    raise Conflict(
        f"nothing was written, as the store has lost the content of {format_count(len(only), 'file')} in {root} that "
        "would go:\n  " + "\n  ".join(lines),
        subject=str(root),
        hint="dsv sync --reupload stores it again; dsv restore --force gives it up",
    )


def _needed(tree: TreeReader, going: dict[bytes, Entry]) -> Iterator[tuple[bytes, PackId]]:
    """The packs that these files' contents lie in, by the locators of their segments, which alone are read."""
    leaves = tree.leaves()
    last = [sort_key(leaf.child.last) for leaf in leaves]
    wanted = sorted({bisect.bisect_left(last, sort_key(path)) for path in going})
    chosen = [leaves[at] for at in wanted if at < len(leaves)]
    for located in tree.segments(chosen):
        for entry, where in located.entries():
            if where is not None and going.get(entry.path) == entry:
                for reached in reach_content(tree.objects, entry, where):
                    if reached.location is not None:
                        yield entry.path, reached.location.pack


def _elsewhere(objects: Objects, entry: Entry) -> bool:
    """Whether an index gives another place for all of a file's content: it may have been stored again."""
    return all(
        objects.indexes.find(kind, object_id, absent=objects.packs) is not None
        for kind, object_id, _ in reach_content(objects, entry, None)
    )
