"""Makes the golden stores: small ones with every kind of object, the same bytes every time.

    python -m tests.golden.make        writes tests/golden/store, store-named, store-nodes, store-moved,
                                       store-merged, store-external and vectors.json anew

`store-nodes` has what dsv writes into a new store: nodes have locators of their own.
`store-named` is as stores were made before that: refs, tags and commits carry the names that they were made for. Its
branches have rules, and so have those of `store-nodes`. `store-moved` has what differs in it when its names have moved
within it.
`store` is as stores were made before that. All of them stay readable for ever.
`store-external` has files that it refers to.
`store-merged` has a branch that was merged into `main`, which is protected. This version knows all of it, so it can
be written on.

The files are committed. `test_golden.py` makes them again and compares, so a change of the format shows as a
change of these files, and must not happen without a new version of what changed.
"""

from __future__ import annotations

import json
import shutil
import struct
from itertools import accumulate
from pathlib import Path

from blake3 import blake3
from msgspec.structs import replace

from dsv.format import keys
from dsv.format.index import Index, encode_filter, merge_all
from dsv.format.locator import ObjectKind
from dsv.format.recipe import build_recipe, cut_points
from dsv.format.records import (
    BranchLimits,
    BranchRule,
    Damage,
    DatasetErased,
    Erasure,
    ExpiryAction,
    ExpiryEntry,
    Feature,
    FeatureRule,
    FormatEntry,
    GcCondemned,
    GcDecision,
    GcDone,
    IndexMerge,
    MergedFile,
    RefEntry,
    SessionBeat,
    SessionClosed,
    SessionOpen,
    SessionVerdict,
    TagDeleted,
    TagValue,
    Verified,
    erased_id,
)
from dsv.format.tree import Cutter, Kind
from dsv.repo.format_log import README
from dsv.values.ids import ChunkId, CommitId, ErasureId, FileId, Id, NodeId, Nonce, SegmentId, SessionId
from dsv.values.names import MAIN, BranchName, DatasetName, TagName
from dsv.values.paths import sort_key
from tests.golden.building import StoreMaker, name_of

HERE = Path(__file__).parent
LETTERS = DatasetName.parse("demo/letters")
TIME = 1_790_000_000_000
AUTHOR = "Ada <ada@example.org>"

File = tuple[Kind, bytes]
FIRST: dict[bytes, File] = {
    b"a.txt": (Kind.FILE, b"alpha\n"),
    b"copy of a.txt": (Kind.FILE, b"alpha\n"),
    b"docs/empty": (Kind.FILE, b""),
    b"docs/run.sh": (Kind.EXECUTABLE, b"#!/bin/sh\necho ok\n"),
    b"docs/to-a": (Kind.SYMLINK, b"../a.txt"),
    b"dangling": (Kind.SYMLINK, b"docs/missing"),
    b"empty folder": (Kind.EMPTY_DIRECTORY, b""),
    "größe.txt".encode(): (Kind.FILE, "naïve — ça va\n".encode()),
    b"large.bin": (Kind.FILE, bytes(5 << 20) + b"\x01" * (3 << 20)),
    b"run.txt": (Kind.FILE, b"x" * 1000),
}
SECOND = {
    **{path: file for path, file in FIRST.items() if path != b"run.txt"},
    b"a.txt": (Kind.FILE, b"ALPHA\n"),
    b"large.bin": (Kind.FILE, bytes(5 << 20) + b"\x01" * (2 << 20)),
}
SIDE = {**FIRST, b"docs/new": (Kind.FILE, b"new\n"), b"a.txt": (Kind.EXECUTABLE, b"alpha\n")}
MERGED = {**SECOND, b"docs/new": (Kind.FILE, b"new\n"), b"a.txt": (Kind.EXECUTABLE, b"ALPHA\n")}
RELABEL = BranchName.parse("relabel")


MOVED_TO = "./names/0123456789abcdef"
STORES: dict[str, dict[str, bool]] = {
    "store": {},
    "store-named": {"named": True},
    "store-nodes": {"named": True, "node_locators": True},
}
"""What `build` is called with for each."""


def build(*, named: bool = False, node_locators: bool = False) -> dict[str, bytes]:
    """Every key of a golden store with its bytes."""
    names = {"dataset": LETTERS, "branch": MAIN} if named else {}
    made = StoreMaker(**names, node_locators=node_locators)
    first = made.commit(FIRST, (), AUTHOR, TIME, "The first letters")
    second = made.commit(SECOND, (first,), AUTHOR, TIME + 1000, "Larger letters\n\nas asked for")
    made.put(keys.README_KEY, README.encode())
    has = {"named-records": named, "node-locators": node_locators}
    _format(made, tuple(Feature(name, FeatureRule.REFUSE) for name, it_has in has.items() if it_has))
    _refs(made, first, second, named=named)
    _sessions(made, second)
    if named:
        _rules(made)
        _merge(made)
    if node_locators:
        store, erased = name_of("store").store, DatasetName.parse("demo/people")
        record = DatasetErased(_nonce("erased"), TIME + 9, LETTERS, "they asked for it")
        made.put(keys.erased_key(erased_id(store, erased)), record.encode())
        _damage(made)
        _expiry(made, first)
        _erasure(made)
        decision = GcDecision(0, (name_of("condemned 0").pack,), _nonce("decision"), TIME + 50, "golden 5")
        made.put(keys.gc_key(0, "decision"), decision.encode())
    return dict(sorted(made.keys.items()))


def build_moved() -> dict[str, bytes]:
    """Return the changes of the named store after its names have moved within it: the log, and the names' own place."""
    named = build(named=True)
    found: dict[str, bytes] = {}
    first = FormatEntry.decode(named[keys.format_key(0)])
    last = FormatEntry.decode(named[keys.format_key(2)])

    def log(number: int, entry: FormatEntry, feature: str, names: str | None, below: str = "") -> None:
        features = (*entry.features, Feature(feature, FeatureRule.REFUSE))
        later = replace(
            entry,
            nonce=_nonce(f"moved {below}{number}"),
            tool="golden 4",
            single_writer=False,
            features=tuple(sorted(features, key=lambda one: one.name)),
            names=names,
        )
        found[below + keys.format_key(number)] = later.encode()

    found |= {key: data for key, data in named.items() if key.startswith(keys.FORMAT_PREFIX)}
    log(3, last, "names-moving", MOVED_TO)
    log(4, last, "names-elsewhere", MOVED_TO)
    log(0, replace(first, features=last.features), "data-elsewhere", None, f"{MOVED_TO.removeprefix('./')}/")
    for key, data in named.items():
        if keys.needs_winner(key) and not key.startswith(keys.FORMAT_PREFIX):
            found[f"{MOVED_TO.removeprefix('./')}/{key}"] = data
    return found


def build_merged() -> dict[str, bytes]:
    """Every key of a store with a merge commit on a protected branch."""
    made = StoreMaker(dataset=LETTERS, branch=MAIN)
    first = made.commit(FIRST, (), AUTHOR, TIME, "The first letters")
    second = made.commit(SECOND, (first,), AUTHOR, TIME + 1000, "Larger letters")
    side = made.commit(SIDE, (first,), AUTHOR, TIME + 2000, "Other names", branch=RELABEL)
    merged = made.commit(MERGED, (second, side), AUTHOR, TIME + 3000, "merge relabel into main")
    made.put(keys.README_KEY, README.encode())
    named = Feature("named-records", FeatureRule.REFUSE)
    opened = FormatEntry(
        name_of("merged").store, _nonce("merged format 0"), TIME, AUTHOR, "golden 1", features=(named,)
    )
    made.put(keys.format_key(0), opened.encode())
    protection = Feature("protected-branches", FeatureRule.READ_ONLY)
    later = replace(opened, nonce=_nonce("merged format 1"), features=(named, protection))
    made.put(keys.format_key(1), later.encode())
    _moves(made, MAIN, (None, "init"), (first, "sync"), (second, "sync"), (merged, "merge"))
    _moves(made, RELABEL, (first, "create"), (side, "put"))
    rule = BranchRule.of(
        BranchLimits(only_merge=True), _nonce("merged rule"), TIME, AUTHOR, "by review", LETTERS, MAIN, 0
    )
    made.put(keys.branch_rule_key(LETTERS, MAIN, 0), rule.encode())
    return dict(sorted(made.keys.items()))


EXTERNAL = {b"large.bin": "s3://lake/large.bin", b"run.txt": "https://example.org/run.txt"}


def build_external() -> dict[str, bytes]:
    """Every key of a store of which two files lie elsewhere."""
    made = StoreMaker(dataset=LETTERS, branch=MAIN, node_locators=True, external=EXTERNAL)
    first = made.commit(FIRST, (), AUTHOR, TIME, "The first letters")
    made.put(keys.README_KEY, README.encode())
    features = [Feature(name, FeatureRule.REFUSE) for name in ("named-records", "node-locators")]
    nonce = _nonce("external format 0")
    opened = FormatEntry(name_of("external").store, nonce, TIME, AUTHOR, "golden 7", features=tuple(features))
    made.put(keys.format_key(0), opened.encode())
    known = (Feature("external-contents", FeatureRule.READ_ONLY), *features)
    later = replace(opened, nonce=_nonce("external format 1"), features=known)
    made.put(keys.format_key(1), later.encode())
    _moves(made, MAIN, (first, "import"))
    return dict(sorted(made.keys.items()))


def _moves(made: StoreMaker, branch: BranchName, *moves: tuple[CommitId | None, str]) -> None:
    for number, (commit, action) in enumerate(moves):
        nonce = _nonce(f"merged {branch} {number}")
        entry = RefEntry(commit, False, nonce, TIME + number, AUTHOR, action, LETTERS, branch, number)
        made.put(keys.branch_key(LETTERS, branch, number), entry.encode())


def _format(made: StoreMaker, features: tuple[Feature, ...]) -> None:
    entry = FormatEntry(
        name_of("store").store, name_of("format 0").nonce, TIME, AUTHOR, "golden 1", features=features
    )
    made.put(keys.format_key(0), entry.encode())
    unknown = (Feature(f"{rule}-me", rule) for rule in (FeatureRule.IGNORE, FeatureRule.READ_ONLY))
    later = FormatEntry(
        entry.store_id,
        name_of("format 1").nonce,
        TIME,
        AUTHOR,
        "golden 2",
        features=tuple(sorted((*features, *unknown), key=lambda one: one.name)),
        single_writer=True,
    )
    made.put(keys.format_key(1), later.encode())


def _refs(made: StoreMaker, first: CommitId, second: CommitId, *, named: bool) -> None:
    def moves(branch: BranchName, *entries: tuple[CommitId | None, bool, str]) -> None:
        for number, (commit, deleted, action) in enumerate(entries):
            entry = RefEntry(commit, deleted, _nonce(f"{branch} {number}"), TIME + number, AUTHOR, action)
            if named:
                entry = replace(entry, dataset=LETTERS, branch=branch, number=number)
            made.put(keys.branch_key(LETTERS, branch, number), entry.encode())

    moves(MAIN, (None, False, "init"), (first, False, "sync"), (second, False, "sync"))
    moves(BranchName.parse("old/try"), (first, False, "sync"), (None, True, "delete"))
    for tag in ("v1", "gone"):
        value = TagValue(first, _nonce(f"tag {tag}"), TIME, AUTHOR, "worth a name")
        if named:
            value = replace(value, dataset=LETTERS, tag=TagName.parse(tag))
        made.put(keys.tag_key(LETTERS, TagName.parse(tag)), value.encode())
    deleted = TagDeleted(_nonce("tag deleted"), TIME + 5, AUTHOR, "was wrong")
    made.put(keys.tag_deleted_key(LETTERS, TagName.parse("gone")), deleted.encode())


def _rules(made: StoreMaker) -> None:
    """`main` had two rules and has none now, `old/try` has one; the format log says so."""
    before = FormatEntry.decode(made.keys[keys.format_key(1)])
    feature = Feature("protected-branches", FeatureRule.READ_ONLY)
    features = tuple(sorted((*before.features, feature), key=lambda one: one.name))
    later = replace(before, nonce=_nonce("format 2"), tool="golden 3", features=features)
    made.put(keys.format_key(2), later.encode())
    team = BranchLimits(only_merge=True, who=("Ada <ada@example.org>", "bob@example.org"), max_removals=5)
    logs = {MAIN: (BranchLimits(), team, None), BranchName.parse("old/try"): (BranchLimits(max_removals=0),)}
    for branch, rules in logs.items():
        for number, limits in enumerate(rules):
            nonce = _nonce(f"rule {branch} {number}")
            rule = BranchRule.of(limits, nonce, TIME + number, AUTHOR, "agreed", LETTERS, branch, number)
            made.put(keys.branch_rule_key(LETTERS, branch, number), rule.encode())


def _expiry(made: StoreMaker, commit: CommitId) -> None:
    """A commit expired and is kept again; another one, which is not there, expired and was freed."""
    before = FormatEntry.decode(made.keys[keys.format_key(2)])
    feature = Feature("expired-commits", FeatureRule.READ_ONLY)
    features = tuple(sorted((*before.features, feature), key=lambda one: one.name))
    later = replace(before, nonce=_nonce("format 3"), tool="golden 5", features=features)
    made.put(keys.format_key(3), later.encode())
    old = CommitId(name_of("expired").raw(32))
    steps: list[tuple[ExpiryAction, list[CommitId]]] = [
        (ExpiryAction.EXPIRE, [commit, old]),
        (ExpiryAction.UNDO, [commit]),
        (ExpiryAction.FREE, [old]),
    ]
    for number, (action, commits) in enumerate(steps):
        nonce, message = _nonce(f"expiry {number}"), "too old"
        named = tuple(sorted(commits))
        entry = ExpiryEntry(action, named, nonce, TIME + number, AUTHOR, message, LETTERS, number)
        made.put(keys.expiry_key(LETTERS, number), entry.encode())


def _erasure(made: StoreMaker) -> None:
    """A file of two chunks was erased that no commit has."""
    before = FormatEntry.decode(made.keys[keys.format_key(3)])
    feature = Feature("erased-contents", FeatureRule.REFUSE)
    features = tuple(sorted((*before.features, feature), key=lambda one: one.name))
    later = replace(before, nonce=_nonce("format 4"), tool="golden 6", features=features)
    made.put(keys.format_key(4), later.encode())
    named = [(ObjectKind.CHUNK, Id(name_of(f"erased chunk {at}").raw(32))) for at in range(2)]
    objects = (*sorted(named), (ObjectKind.RECIPE, Id(name_of("erased recipe").raw(32))))
    files = (FileId(name_of("erased file").raw(32)),)
    record = Erasure(files, objects, _nonce("erasure"), TIME + 60, AUTHOR, "they asked for it", "golden 6")
    made.put(keys.erasure_key(ErasureId(name_of("erasure key").raw(16))), record.encode())


def _merge(made: StoreMaker) -> None:
    """One index file has the rows of all others, which are not deleted yet; it has a filter, although it is small."""
    replaced = {one: made.keys[key] for key in made.keys if (one := keys.parse_index_key(key)) is not None}
    (encoded,) = merge_all([Index.parse(data) for _, data in sorted(replaced.items())], 1 << 18)
    merged = name_of("merged index").index
    made.put(keys.index_key(merged), encoded)
    made.put(keys.index_filter_key(merged), encode_filter(merged, Index.parse(encoded)))
    run = (MergedFile(merged, *Index.parse(encoded).bounds),)
    record = IndexMerge.of([run], replaced, TIME + 70_000, "golden 4")
    made.put(keys.index_merge_key(0, name_of("merge 0").index), record.encode())


def _sessions(made: StoreMaker, commit: CommitId) -> None:
    published, fenced = SessionId(name_of("session 1").raw(16)), SessionId(name_of("session 2").raw(16))
    for session in (published, fenced):
        opened = SessionOpen(_nonce(f"open {session}"), TIME, AUTHOR, "host-1", "golden 1")
        made.put(keys.session_key(session, "open"), opened.encode())
    made.put(keys.session_beat_key(published, 0), SessionBeat(_nonce("beat"), TIME + 60_000).encode())
    made.put(keys.session_key(published, "verdict"), SessionVerdict(commit, _nonce("declared")).encode())
    made.put(keys.session_key(published, "closed"), SessionClosed(_nonce("closed"), TIME + 61_000).encode())
    made.put(keys.session_key(fenced, "verdict"), SessionVerdict(None, _nonce("fenced")).encode())
    condemned = tuple(sorted(name_of(f"condemned {at}").pack for at in range(2)))
    made.put(keys.gc_key(0, "condemned"), GcCondemned(0, condemned, _nonce("gc"), TIME, "golden 1").encode())
    made.put(keys.gc_key(0, "done"), GcDone(0, _nonce("done"), TIME + 99).encode())


def _damage(made: StoreMaker) -> None:
    """A pack that is gone, and an object of another one that is damaged, and has no other place."""
    lost, other = name_of("lost pack").pack, name_of("damaged pack").pack
    chunk = ChunkId(name_of("damaged chunk").raw(32))
    found = Damage(
        (lost,),
        ((other, ObjectKind.CHUNK, chunk),),
        ((ObjectKind.CHUNK, chunk),),
        True,
        _nonce("damage"),
        TIME,
        AUTHOR,
        "golden 5",
    )
    made.put(keys.gc_damage_key(0), found.encode())
    times = struct.pack("<16I", *(0 if at % 3 else 1_795_000_000 + at for at in range(16)))
    verified = Verified(1, times, (1, 4), _nonce("verified"), TIME, AUTHOR, "golden 5")
    made.put(keys.gc_verified_key(0), verified.encode())


def _nonce(label: str) -> Nonce:
    return name_of(label).nonce


def vectors() -> dict[str, object]:
    """Return what a second writer must decide alike: where files, trees and recipes are cut, and how ids are made."""
    stream = blake3(b"dsv golden").digest(length=24 << 20)
    paths = sorted((b"set/%02d/%06d.png" % (at % 15, at) for at in range(8000)), key=sort_key)
    cutter = Cutter(0)
    ends = [at for at, path in enumerate(paths, 1) if cutter.add(path)]
    chunk_ids = blake3(b"dsv golden chunks").digest(length=32 * 150_000)
    recipes = build_recipe(chunk_ids, [1 << 20] * 150_000)
    return {
        "fastcdc": {
            "input": "the first bytes of BLAKE3's extended output for the 10 bytes 'dsv golden'",
            "bytes": len(stream),
            "cuts": list(accumulate(cut_points(stream))),
            "zeros of 9 MiB": list(accumulate(cut_points(bytes(9 << 20)))),
        },
        "segments": {
            "input": "set/%02d/%06d.png for (n % 15, n), n from 0 to 7999, in tree order",
            "ends": ends,
        },
        "recipe": {
            "input": "150000 chunk ids: BLAKE3's extended output for 'dsv golden chunks'; each chunk 1 MiB",
            "rows": [[recipe.level, len(recipe)] for _, recipe in recipes],
            "id": str(recipes[-1][0]),
        },
        "ids": {
            "file": str(FileId.hash(b"alpha\n")),
            "recipe of 'x'": str(type(recipes[0][0]).hash(b"x")),
            "segment of 'x'": str(SegmentId.hash(b"x")),
            "node of 'x'": str(NodeId.hash(b"x")),
            "commit of 'x'": str(CommitId.hash(b"x")),
        },
    }


def write(folder: Path) -> None:
    """Replaces the golden files in `folder`."""
    stores = {store: build(**features) for store, features in STORES.items()}
    stores |= {"store-moved": build_moved(), "store-merged": build_merged()}
    stores["store-external"] = build_external()
    for store, made in stores.items():
        shutil.rmtree(folder / store, ignore_errors=True)
        for key, data in made.items():
            path = folder / store / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    (folder / "vectors.json").write_text(json.dumps(vectors(), indent=1) + "\n")


if __name__ == "__main__":
    write(HERE)
