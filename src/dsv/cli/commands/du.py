"""dsv du."""

from __future__ import annotations

from dsv.api.space import SpaceUsage, StoreUsed, usage
from dsv.cli.call import Call
from dsv.cli.declare import argument, command, option, whole
from dsv.cli.output import free_from, printable
from dsv.errors import IntegrityError
from dsv.values.units import format_bytes, format_count


@command(
    "du",
    unused=["--cache"],
    examples="""
        dsv du  # the store, and each of its datasets
        dsv du chest-xray@v1  # one commit
        dsv du chest-xray@v1..v2  # the commits that came after v1, up to v2: what they added
        dsv du --unused  # what dsv gc would free
    """,
    result=(
        "url store(total needed expired free_from outputs unused duplicates packs indexes commits names runs other) "
        "lost items(name kind commits objects stored alone shared original alone_original shared_original)"
    ),
)
def du(
    call: Call,
    targets: list[str] | None = argument("[DATASET][@REV[..REV]]..."),
    by_folder: int | None = option(
        "--by-folder DEPTH", "Show folders of one target to this depth.", parser=whole(1)
    ),
    unused: bool = option("--unused", "Show the store alone, and what gc would free."),
) -> int:
    """Show what uses space in a store.

    STORED is what lies in the store: compressed, and each content once. ALONE is the part that nothing else in the
    store has, so it would be freed if only this were removed. SHARED is the rest. ORIGINAL is STORED before it was
    compressed.

    DATASET is all of its branches, tags and runs. DATASET@BRANCH is the whole history of the branch, DATASET@TAG or
    DATASET@ID that commit, and DATASET@A..B the commits of B that A does not have. Every tree of the store is read, as
    any commit may share a content; a second call reads what is new. Memory stays below 500 MiB.
    """
    with call.context() as context:
        found = usage(context, targets or (), depth=by_folder, only_unused=unused)
    call.result(found)
    _write_usage(call, found)
    return IntegrityError.exit_code if found.lost else 0


def _write_usage(call: Call, space: SpaceUsage) -> None:
    columns = ["name", "commits>", "stored>", "alone>", "shared>", "original>"]
    rows = [
        [
            item.name,
            f"{item.commits:,}",
            *(format_bytes(size) for size in (item.stored, item.alone, item.shared, item.original)),
        ]
        for item in space.items
    ]
    if space.items and space.items[0].kind in ("folder", "trees"):
        columns[:2] = ["folder"]
        rows = [[row[0], *row[2:]] for row in rows]
    call.table(columns, rows)
    if space.store is not None:
        if rows:
            call.line("")
        _write_store(call, space.store, space.url, space.lost)
    if space.lost:
        call.warn(f"lost: {format_count(space.lost, 'object')} that commits need; dsv verify lists them")


def _write_store(call: Call, store: StoreUsed, url: str, lost: int) -> None:
    packs, expired = store.packs, store.expired
    frames = (
        packs.bytes
        - store.needed.stored
        - store.unused.stored
        - store.duplicates.stored
        - packs.unindexed_bytes
    )
    rows = [
        ("needed", store.needed.stored, f"{format_bytes(store.needed.original)} before compression"),
        ("expired", expired.alone, f"of {format_count(expired.commits, 'expired commit')} alone"),
        ("outputs", store.outputs.alone, f"of {format_count(store.outputs.commits, 'output')} of runs alone"),
        ("unused", store.unused.stored + packs.unindexed_bytes, "that no commit needs"),
        ("duplicates", store.duplicates.stored, "stored in several packs"),
        ("frames", 0 if packs.missing else frames, f"of {format_count(packs.count, 'pack')}"),
        ("indexes", store.indexes, ""),
        ("commits", store.commits, ""),
        ("names", store.names, ""),
        ("runs", store.runs, ""),
        ("other", store.other, "sessions, garbage collections, erasures, edges of lineage, the format log"),
        ("total", store.total, printable(url)),
    ]
    for name, size, note in rows:
        if size or name in ("needed", "unused", "total"):
            call.line(f"{name:<10} {format_bytes(size):>10}  {note}".rstrip())
    call.line("")
    ways = (
        (packs.free, packs.free_bytes, "at once"),
        (packs.rewritten, packs.rewritten_bytes, "by repacking what is needed"),
    )
    freed = " and ".join(
        f"{format_bytes(size)} {how} ({format_count(count, 'pack')})" for count, size, how in ways if count
    )
    none = "nothing, as data that is needed is lost" if lost else "nothing"
    call.line(f"gc would free {none if lost else freed or none}")
    if packs.joined.packs and not lost:
        call.line(f"gc would join packs: {packs.joined.text}")
    if expired.alone and store.free_from_ms is not None:
        when = free_from(store.free_from_ms)
        call.line(
            f"{format_bytes(expired.alone)} of expired commits can be freed, the first {when} (dsv gc --grace)"
        )
    if packs.partly:
        call.line(
            f"it would leave {format_bytes(packs.partly_unused_bytes)} unused in "
            f"{format_count(packs.partly, 'pack')}: mostly in use, or too much for one gc"
        )
    if packs.missing:
        call.warn(
            f"not in the store: {format_count(packs.missing, 'pack')} that an index lists; run dsv verify"
        )
