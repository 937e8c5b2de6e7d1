from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dsv.errors import IntegrityError, Unsupported
from dsv.format.envelope import CHECK_SIZE, sealed
from dsv.format.locator import ObjectKind
from dsv.format.records import (
    BranchLimits,
    BranchRule,
    ChunkingParams,
    CommitRecord,
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
)
from dsv.values.ids import FileId, IndexId, StoreId
from dsv.values.names import MAIN, DatasetName
from tests.format import strategies as draw

TOTALS = st.integers(0, (1 << 39) - 1)
FEATURES = st.dictionaries(draw.texts, st.sampled_from(FeatureRule), max_size=3).map(
    lambda found: tuple(Feature(name, found[name]) for name in sorted(found))
)
RECORDS: dict[str, st.SearchStrategy[Any]] = {
    "ref": st.builds(
        RefEntry,
        st.none() | draw.commit_ids,
        st.just(False),
        draw.nonces,
        draw.millis,
        draw.texts,
        draw.texts,
    ),
    "ref deleted": st.builds(
        RefEntry, st.none(), st.just(True), draw.nonces, draw.millis, draw.texts, draw.texts
    ),
    "ref 2": st.builds(
        RefEntry,
        st.none() | draw.commit_ids,
        st.just(False),
        draw.nonces,
        draw.millis,
        draw.texts,
        draw.texts,
        draw.datasets,
        draw.branches,
        TOTALS,
    ),
    "tag 2": st.builds(
        TagValue, draw.commit_ids, draw.nonces, draw.millis, draw.texts, draw.texts, draw.datasets, draw.tags
    ),
    "tag": st.builds(TagValue, draw.commit_ids, draw.nonces, draw.millis, draw.texts, draw.texts),
    "dataset-erased": st.builds(
        DatasetErased, draw.nonces, draw.millis, st.none() | draw.datasets, draw.texts
    ),
    "tag-deleted": st.builds(TagDeleted, draw.nonces, draw.millis, draw.texts, draw.texts),
    "format": st.builds(
        FormatEntry,
        draw.ids_of(StoreId, 16),
        draw.nonces,
        draw.millis,
        draw.texts,
        draw.texts,
        draw.texts,
        st.builds(ChunkingParams, draw.texts, TOTALS, TOTALS, TOTALS, TOTALS, TOTALS),
        FEATURES,
        st.booleans(),
    ),
    "session-open": st.builds(SessionOpen, draw.nonces, draw.millis, draw.texts, draw.texts, draw.texts),
    "session-beat": st.builds(SessionBeat, draw.nonces, draw.millis),
    "session-verdict": st.builds(SessionVerdict, st.none() | draw.commit_ids, draw.nonces),
    "session-closed": st.builds(SessionClosed, draw.nonces, draw.millis),
    "gc-condemned": st.builds(
        GcCondemned,
        st.integers(0, 99),
        st.sets(draw.pack_ids, max_size=4).map(lambda p: tuple(sorted(p))),
        draw.nonces,
        draw.millis,
        draw.texts,
    ),
    "gc-decision": st.builds(
        GcDecision,
        st.integers(0, 99),
        st.sets(draw.pack_ids, max_size=4).map(lambda p: tuple(sorted(p))),
        draw.nonces,
        draw.millis,
        draw.texts,
    ),
    "gc-done": st.builds(GcDone, st.integers(0, 99), draw.nonces, draw.millis),
}
_NAMED = st.tuples(
    st.sampled_from((ObjectKind.CHUNK, ObjectKind.RECIPE, ObjectKind.SEGMENT, ObjectKind.NODE)),
    draw.chunk_ids,
)
RECORDS["damage"] = st.builds(
    Damage,
    st.sets(draw.pack_ids, max_size=4).map(lambda p: tuple(sorted(p))),
    st.sets(st.tuples(draw.pack_ids, _NAMED).map(lambda p: (p[0], *p[1])), max_size=4).map(
        lambda p: tuple(sorted(p))
    ),
    st.sets(_NAMED, max_size=4).map(lambda p: tuple(sorted(p))),
    st.booleans(),
    draw.nonces,
    draw.millis,
    draw.texts,
    draw.texts,
)
RECORDS["verified"] = st.builds(
    Verified,
    st.just(1),
    st.binary(min_size=64, max_size=64),
    st.sets(st.integers(0, 15), max_size=4).map(lambda p: tuple(sorted(p))),
    draw.nonces,
    draw.millis,
    draw.texts,
    draw.texts,
)
RECORDS["branch-rule"] = st.builds(
    BranchRule.of,
    st.none()
    | st.builds(
        BranchLimits,
        st.booleans(),
        st.sets(draw.texts.filter(bool), max_size=3).map(lambda who: tuple(sorted(who))),
        st.none() | st.integers(0, 100),
    ),
    draw.nonces,
    draw.millis,
    draw.texts,
    draw.texts,
    draw.datasets,
    draw.branches,
    TOTALS,
)
RECORDS["expiry"] = st.builds(
    ExpiryEntry,
    st.sampled_from(ExpiryAction),
    st.sets(draw.commit_ids, min_size=1, max_size=3).map(lambda found: tuple(sorted(found))),
    draw.nonces,
    draw.millis,
    draw.texts,
    draw.texts,
    draw.datasets,
    TOTALS,
)
RECORDS["erasure"] = st.builds(
    Erasure,
    st.sets(draw.chunk_ids.map(lambda one: FileId(one)), min_size=1, max_size=3).map(
        lambda f: tuple(sorted(f))
    ),
    st.sets(
        st.tuples(st.sampled_from((ObjectKind.CHUNK, ObjectKind.RECIPE)), draw.chunk_ids), max_size=4
    ).map(lambda p: tuple(sorted(p))),
    draw.nonces,
    draw.millis,
    draw.texts,
    draw.texts,
    draw.texts,
)
COMMITS = st.builds(
    lambda root, level, parents, who, when, why, files, others, size: CommitRecord(
        root, level, tuple(parents), who, when, why, files, size if files else 0, files + others
    ),
    draw.node_ids,
    st.integers(1, 8),
    st.lists(draw.commit_ids, max_size=3, unique=True),
    draw.texts,
    draw.millis,
    draw.texts,
    TOTALS,
    TOTALS,
    TOTALS,
)
RECORDS["commit"] = COMMITS
RECORDS["commit 2"] = st.builds(
    lambda commit, dataset, branch: replace(commit, dataset=dataset, branch=branch),
    COMMITS,
    draw.datasets,
    draw.branches,
)


@pytest.mark.parametrize("name", RECORDS)
@given(data=st.data())
def test_round_trip(name: str, data: st.DataObject) -> None:
    record = data.draw(RECORDS[name])
    encoded = record.encode()
    version = 2 if name.endswith(" 2") else 1
    assert encoded.startswith(f"dsv {name.split()[0]} {version}\n".encode())
    assert type(record).decode(encoded) == record
    assert type(record).decode(memoryview(bytearray(encoded))) == record


@pytest.mark.parametrize("name", RECORDS)
@given(data=st.data())
def test_what_is_decoded_is_what_would_be_encoded(name: str, data: st.DataObject) -> None:
    record = data.draw(RECORDS[name])
    changed = data.draw(draw.mutations(record.encode()))
    try:
        decoded = type(record).decode(changed)
    except (IntegrityError, Unsupported):
        return
    assert decoded.encode() == changed


BEAT = SessionBeat.decode  # the smallest record stands for the envelope of all


def beat(fields: object, line: bytes = b"dsv session-beat 1\n") -> bytes:
    return sealed(line + msgspec.msgpack.encode(fields))


def test_the_envelope() -> None:
    assert BEAT(beat([bytes(16), 5])).time_ms == 5


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "does not begin"),
        (b"dsv session-beat 1", "does not begin"),
        (b"dsv session-beat 01\n", "does not begin"),
        (b"\x00" * 100, "does not begin"),
        (beat([bytes(16), 5], b"dsv tag 1\n"), "it is a tag"),
        (beat([bytes(16), 5], b"dsv session-beat 0\n"), "does not begin"),
        (beat([bytes(16)]), "session-beat"),
        (beat([bytes(16), 5, 6]), "session-beat"),
        (beat([bytes(15), 5]), "session-beat"),
        (beat([bytes(16), -1]), "session-beat"),
        (beat([bytes(16), 1 << 53]), "session-beat"),
        (beat([bytes(16), 5.0]), "session-beat"),
        (beat([bytes(16), "5"]), "session-beat"),
        (beat({"a": 1}), "session-beat"),
        (beat([bytes(16), 5]) + b"\0", "session-beat"),
        (beat([bytes(16), 5])[:-1], "session-beat"),
        (sealed(b"dsv session-beat 1\n" + b"\x91" * 100_000), "session-beat"),  # nested beyond any stack
        (sealed(b"dsv session-beat 1\n\xdd\xff\xff\xff\xff"), "session-beat"),  # an array of four billion
        (sealed(b"dsv session-beat 1\n\xc6\xff\xff\xff\xff"), "session-beat"),
        (
            sealed(b"dsv session-beat 1\n\x92\xc4\x10" + bytes(16) + b"\xcc\x05"),
            "canonical",
        ),  # 5 in two bytes
        (sealed(b"dsv session-beat 1\n\xdc\x00\x02\xc4\x10" + bytes(16) + b"\x05"), "canonical"),
        (beat([bytes(16), 5]) + bytes(1 << 20), "limit"),
    ],
)
def test_the_envelope_is_strict(data: bytes, message: str) -> None:
    with pytest.raises(IntegrityError, match=f"session-beat is damaged.*{message}|{message}"):
        BEAT(data)


@pytest.mark.parametrize("kind", [CommitRecord, RefEntry, TagValue, FormatEntry, SessionOpen, GcDecision])
def test_a_value_that_is_nested_beyond_any_stack_is_damage(kind: Any) -> None:
    count = len(kind.__struct_fields__) - kind.added
    for before in range(count):
        body = bytes([0x90 + count]) + b"\xc0" * before + b"\x91" * 100_000
        with pytest.raises(IntegrityError, match=f"{kind.kind} is damaged"):
            kind.decode(sealed(f"dsv {kind.kind} 1\n".encode() + body))


def test_a_newer_version_is_distinguished_from_damage() -> None:
    with pytest.raises(Unsupported, match="session-beat has version 2"):
        BEAT(beat(["what", "ever"], b"dsv session-beat 2\n"))
    with pytest.raises(Unsupported) as caught:
        BEAT(b"dsv session-beat 9999\nnot msgpack at all")
    assert caught.value.exit_code == 9


@pytest.mark.parametrize("name", ["", "a//b", "../x", "deadbeef"])
def test_a_record_carries_no_name_that_is_none(name: str) -> None:
    ref = [bytes(32), False, bytes(16), 0, "", "", name, "main", 0]
    tag = [bytes(32), bytes(16), 0, "", "", "set", name]
    commit = [bytes(32), 1, [], "", 0, "", 0, 0, 0, "set", name]
    for decode, line, fields in (
        (RefEntry.decode, b"dsv ref 2\n", ref),
        (TagValue.decode, b"dsv tag 2\n", tag),
        (CommitRecord.decode, b"dsv commit 2\n", commit),
    ):
        with pytest.raises(IntegrityError, match="is not a name for"):
            decode(sealed(line + msgspec.msgpack.encode(fields)))


@pytest.mark.parametrize("decode", [RefEntry.decode, TagValue.decode, CommitRecord.decode])
def test_a_third_version_is_distinguished_from_damage(decode: Any) -> None:
    kind = {RefEntry.decode: "ref", TagValue.decode: "tag", CommitRecord.decode: "commit"}[decode]
    with pytest.raises(Unsupported, match=f"{kind} has version 3, and this dsv knows version 2"):
        decode(f"dsv {kind} 3\nwhat ever".encode())


def test_text_that_is_not_utf8_is_damage() -> None:
    data = sealed(b"dsv gc-condemned 1\n\x95\x00\x90\xc4\x10" + bytes(16) + b"\x00\xa2\xff\xfe")
    with pytest.raises(IntegrityError, match="gc-condemned"):
        GcCondemned.decode(data)


@pytest.mark.parametrize(
    "record",
    [
        RefEntry(draw.CommitId(bytes(32)), True, draw.Nonce(bytes(16)), 0, "", ""),
        RefEntry(None, False, draw.Nonce(bytes(15)), 0, "", ""),
        RefEntry(None, False, draw.Nonce(bytes(16)), 0, "", "", DatasetName("set"), MAIN),
        RefEntry(None, False, draw.Nonce(bytes(16)), 0, "", "", number=3),
        TagValue(draw.CommitId(bytes(32)), draw.Nonce(bytes(16)), 0, "", "", DatasetName("set")),
        CommitRecord(draw.NodeId(bytes(32)), 1, (), "", 0, "", 0, 0, 0, DatasetName("set")),
        RefEntry(None, False, draw.Nonce(bytes(16)), -1, "", ""),
        RefEntry(None, False, draw.Nonce(bytes(16)), 0, "x" * 1025, ""),
        TagValue(draw.CommitId(bytes(32)), draw.Nonce(bytes(16)), 0, "", "x" * 65537),
        GcCondemned(0, (draw.PackId(b"b" * 16), draw.PackId(b"a" * 16)), draw.Nonce(bytes(16)), 0, ""),
        GcDecision(0, (draw.PackId(b"b" * 16), draw.PackId(b"a" * 16)), draw.Nonce(bytes(16)), 0, ""),
        CommitRecord(draw.NodeId(bytes(32)), 0, (), "", 0, "", 0, 0, 0),
        CommitRecord(draw.NodeId(bytes(32)), 1, (draw.CommitId(bytes(32)),) * 2, "", 0, "", 0, 0, 0),
        CommitRecord(draw.NodeId(bytes(32)), 1, (), "", 0, "", 2, 0, 1),
        CommitRecord(draw.NodeId(bytes(32)), 1, (), "", 0, "", 0, 7, 1),
        FormatEntry(
            StoreId(bytes(16)),
            draw.Nonce(bytes(16)),
            0,
            "",
            "",
            features=(Feature("b", FeatureRule.IGNORE), Feature("a", FeatureRule.IGNORE)),
        ),
    ],
)
def test_nothing_is_encoded_that_would_not_be_decoded(record: Any) -> None:
    with pytest.raises(ValueError):
        record.encode()


def test_a_feature_with_an_unknown_rule_is_refused() -> None:
    entry = FormatEntry(
        StoreId(bytes(16)), draw.Nonce(bytes(16)), 0, "", "", features=(Feature("x", FeatureRule.IGNORE),)
    )
    with pytest.raises(IntegrityError, match="ignorE"):
        FormatEntry.decode(sealed(entry.encode()[:-CHECK_SIZE].replace(b"ignore", b"ignorE")))


FIRST_READ = """
import importlib, sys, threading
from dsv.format import records

def read(kind, data):
    together.wait()
    kind.decode(data)

sys.setswitchinterval(1e-6)
merge, entry = map(bytes.fromhex, sys.argv[1:])
for _ in range(150):
    fresh = importlib.reload(records)
    reads = [(fresh.IndexMerge, merge), (fresh.FormatEntry, entry)]
    together = threading.Barrier(16)
    threads = [threading.Thread(target=read, args=reads[number % 2]) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_many_threads_may_be_the_first_to_read_a_record() -> None:
    """msgspec crashed the process where two threads used a class of a field for the first time."""
    merge = IndexMerge.of([(MergedFile(IndexId(bytes(16)), 0, 1),)], [], 0, "")
    entry = FormatEntry(
        StoreId(bytes(16)), draw.Nonce(bytes(16)), 0, "", "", features=(Feature("x", FeatureRule.IGNORE),)
    )
    done = subprocess.run(
        [sys.executable, "-c", FIRST_READ, merge.encode().hex(), entry.encode().hex()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_a_flipped_bit_is_found(place: int, bit: int) -> None:
    """Nothing else vouches for a ref: it has no id of its own."""
    entry = RefEntry(draw.CommitId(b"c" * 32), False, draw.Nonce(bytes(16)), 7, "Ann Lee", "sync")
    data = bytearray(entry.encode())
    data[place % len(data)] ^= 1 << bit
    with pytest.raises((IntegrityError, Unsupported)):
        RefEntry.decode(bytes(data))


def test_ids_of_a_record_have_their_types() -> None:
    entry = RefEntry(draw.CommitId(bytes(32)), False, draw.Nonce(bytes(16)), 0, "", "")
    decoded = RefEntry.decode(entry.encode())
    assert type(decoded.commit) is draw.CommitId and type(decoded.nonce) is draw.Nonce
