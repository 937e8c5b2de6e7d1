"""The keys of a store, all of which are built and parsed here.

Parsers return None for any other key: a listing may have keys that dsv did not write.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Literal, TypeVar

from dsv.errors import UsageError
from dsv.values.ids import CommitId, ErasedId, ErasureId, Id, IndexId, NodeId, PackId, SessionId, StoreId
from dsv.values.names import BranchName, DatasetName, TagName

README_KEY = "README.txt"
FORMAT_PREFIX = "format/"
PACK_PREFIX = "packs/"
INDEX_PREFIX = "index/"
COMMIT_PREFIX = "commits/"
LOCATOR_PREFIX = "locators/"
REFS_PREFIX = "refs/"
SESSIONS_PREFIX = "sessions/"
GC_PREFIX = "gc/"
RUNS_PREFIX = "runs/"
LINEAGE_PREFIX = "lineage/"
ONCE_PREFIX = "once/"
BEATS_PREFIX = "beats/"
METRICS_PREFIX = "metrics/"
PROBE_PREFIX = "probe/"
ERASURE_PREFIX = "erased/"
DAMAGE_PREFIX = f"{GC_PREFIX}damage-"
VERIFIED_PREFIX = f"{GC_PREFIX}verified-"

_NEED_A_WINNER = (FORMAT_PREFIX, REFS_PREFIX, SESSIONS_PREFIX, GC_PREFIX, ONCE_PREFIX)
_FIRST_STAYS = (*_NEED_A_WINNER, RUNS_PREFIX)

_TOP_SEQ = 0xFFFF_FFFF_FFFF_FFFF
LAST_MOVE = _TOP_SEQ
"""The largest number of a move of a branch."""
TAG_COPY = "-copy"
"""Behind the key of a tag's record: the key of its second copy."""
EXPIRY_JOINED = "-joined"  # behind the key of an entry: the key of a copy of it and of entries before it
_RULE = "0-rule-"
_FILTER = "-filter"
_MERGE = "merge-"
_SEQ = re.compile(r"[0-9a-f]{16}", re.ASCII)
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_BRANCH = re.compile(r"refs/([^/]+)/branches/([^/]+)/([0-9a-f]{16})", re.ASCII)
_BRANCH_RULE = re.compile(rf"refs/([^/]+)/branches/([^/]+)/{_RULE}([0-9a-f]{{16}})", re.ASCII)
_TAG = re.compile(rf"refs/([^/]+)/tags/([^/]+)/(value|value{TAG_COPY}|deleted)", re.ASCII)
_EXPIRY = re.compile(r"refs/([^/]+)/expired/([0-9a-f]{16})", re.ASCII)
_ONCE = re.compile(r"once/([0-9a-f]{64})/([0-9a-f]{16})", re.ASCII)
_BEAT = re.compile(rf"[a-z]+/([^/]+)/({_RUN_ID.pattern})/([0-9a-f]{{16}})", re.ASCII)
_GC = re.compile(r"gc/([0-9a-f]{16})/(condemned|decision|done)", re.ASCII)
I = TypeVar("I", bound=Id)  # noqa: E741
N = TypeVar("N", DatasetName, BranchName, TagName)
T = TypeVar("T")


def _up(seq: int) -> str:
    if not 0 <= seq <= _TOP_SEQ:
        raise ValueError(f"{seq} does not fit a sequence number")
    return f"{seq:016x}"


def _parse_up(text: str) -> int | None:
    return int(text, 16) if _SEQ.fullmatch(text) else None


def _parse_id(kind: type[I], text: str) -> I | None:
    try:
        return kind.parse(text)
    except UsageError:
        return None


@lru_cache(maxsize=256)  # the rows of a listing repeat a few names
def _parse_name(kind: type[N], text: str) -> N | None:
    try:
        return kind.from_component(text)
    except UsageError:
        return None


def _parse_ref(form: re.Pattern[str], kind: type[N], key: str) -> tuple[DatasetName, N, str] | None:
    """Return the dataset, the branch or tag, and the rest of the key."""
    found = form.fullmatch(key)
    if found is None:
        return None
    dataset, name = _parse_name(DatasetName, found[1]), _parse_name(kind, found[2])
    return None if dataset is None or name is None else (dataset, name, found[3])


def _pair(
    prefix: str, text: Callable[[T], str], parse: Callable[[str], T | None]
) -> tuple[Callable[[T], str], Callable[[str], T | None]]:
    """Return the functions that build and parse the keys with a prefix."""

    def parse_key(key: str) -> T | None:
        return parse(key[len(prefix) :]) if key.startswith(prefix) else None

    return lambda value: prefix + text(value), parse_key


def _id_pair(prefix: str, kind: type[I]) -> tuple[Callable[[I], str], Callable[[str], I | None]]:
    return _pair(prefix, lambda one: one.hex(), partial(_parse_id, kind))


def needs_winner(key: str) -> bool:
    """Return whether exactly one of several writers of this key, or of any key with this prefix, must win."""
    return key.startswith(_NEED_A_WINNER)


def first_stays(key: str) -> bool:
    """Return whether a later writer of this key may have other bytes, and the first bytes must stay.

    Every other key is random or derived from its content, so a second write has the same bytes.
    """
    return key.startswith(_FIRST_STAYS)


def pack_key(pack: PackId) -> str:
    text = pack.hex()
    return f"{PACK_PREFIX}{text[:2]}/{text}"


def parse_pack_key(key: str) -> PackId | None:
    folder, _, text = key.removeprefix(PACK_PREFIX).partition("/")
    return _parse_id(PackId, text) if key.startswith(PACK_PREFIX) and text[:2] == folder else None


index_key, parse_index_key = _id_pair(INDEX_PREFIX, IndexId)
commit_key, parse_commit_key = _id_pair(COMMIT_PREFIX, CommitId)
locator_key, parse_locator_key = _id_pair(LOCATOR_PREFIX, CommitId)
erasure_key, parse_erasure_key = _id_pair(ERASURE_PREFIX, ErasureId)
"""The record of an erasure is part of the data: a copy of the data must have it too."""
format_key, parse_format_key = _pair(FORMAT_PREFIX, _up, _parse_up)
"""The log is read from 0 until an entry is absent."""
gc_damage_key, parse_gc_damage_key = _pair(DAMAGE_PREFIX, _up, _parse_up)
"""The n-th damage mark, from 0. The last one counts."""
gc_verified_key, parse_gc_verified_key = _pair(VERIFIED_PREFIX, _up, _parse_up)
"""The n-th record of verification times, from 0. The last one counts."""


def index_filter_key(index: IndexId) -> str:
    return f"{index_key(index)}{_FILTER}"


def parse_index_filter_key(key: str) -> IndexId | None:
    return parse_index_key(key.removesuffix(_FILTER)) if key.endswith(_FILTER) else None


def index_merge_key(number: int, merge: IndexId) -> str:
    """Return the key of a merge's record, which includes all records with a smaller number."""
    return f"{INDEX_PREFIX}{_MERGE}{_up(number)}-{merge.hex()}"


def parse_index_merge_key(key: str) -> int | None:
    """Return the number of a merge. The upper half is never used, so that a next number always exists."""
    if not key.startswith(INDEX_PREFIX + _MERGE):
        return None
    number, _, merge = key.removeprefix(INDEX_PREFIX + _MERGE).partition("-")
    found = _parse_up(number) if _parse_id(IndexId, merge) is not None else None
    return found if found is not None and found < 1 << 63 else None


def maker_key(store: StoreId) -> str:
    """Return the key, in the data, of a process that makes a store in two locations, until both are made."""
    return f"{FORMAT_PREFIX}maker-{store.hex()}"


REBUILT_FOR_KEY = f"{FORMAT_PREFIX}rebuilt-for"
"""Holds the id of the store whose names are rebuilt in a location, before any name is written there."""


# --- refs


def dataset_prefix(dataset: DatasetName) -> str:
    return f"{REFS_PREFIX}{dataset.component}/"


def branches_prefix(dataset: DatasetName) -> str:
    return f"{REFS_PREFIX}{dataset.component}/branches/"


def branch_prefix(dataset: DatasetName, branch: BranchName) -> str:
    return f"{branches_prefix(dataset)}{branch.component}/"


def branch_key(dataset: DatasetName, branch: BranchName, seq: int) -> str:
    """Return the key of a branch's n-th move; the first is 0. Later moves have smaller keys."""
    return f"{branch_prefix(dataset, branch)}{_up(_TOP_SEQ - seq)}"


def branch_rule_key(dataset: DatasetName, branch: BranchName, number: int) -> str:
    """Return the key of the n-th rule of a branch. In a listing, rules precede moves, the latest first."""
    return f"{branch_prefix(dataset, branch)}{_RULE}{_up(_TOP_SEQ - number)}"


def parse_branch_rule_key(key: str) -> tuple[DatasetName, BranchName, int] | None:
    parsed = _parse_ref(_BRANCH_RULE, BranchName, key)
    return None if parsed is None else (*parsed[:2], _TOP_SEQ - int(parsed[2], 16))


def parse_branch_key(key: str) -> tuple[DatasetName, BranchName, int] | None:
    """Return which move of which branch this key is; the first is 0."""
    parsed = _parse_ref(_BRANCH, BranchName, key)
    return None if parsed is None else (*parsed[:2], _TOP_SEQ - int(parsed[2], 16))


def tags_prefix(dataset: DatasetName) -> str:
    return f"{REFS_PREFIX}{dataset.component}/tags/"


def tag_key(dataset: DatasetName, tag: TagName) -> str:
    return f"{tags_prefix(dataset)}{tag.component}/value"


def tag_deleted_key(dataset: DatasetName, tag: TagName) -> str:
    return f"{tags_prefix(dataset)}{tag.component}/deleted"


def expiry_prefix(dataset: DatasetName) -> str:
    return f"{REFS_PREFIX}{dataset.component}/expired/"


def expiry_key(dataset: DatasetName, number: int) -> str:
    """Return the key of the n-th entry of an expiry log; the first is 0. Later entries have smaller keys."""
    return f"{expiry_prefix(dataset)}{_up(_TOP_SEQ - number)}"


def parse_expiry_key(key: str) -> tuple[DatasetName, int] | None:
    found = _EXPIRY.fullmatch(key)
    dataset = _parse_name(DatasetName, found[1]) if found else None
    return (dataset, _TOP_SEQ - int(found[2], 16)) if found and dataset is not None else None


def parse_tag_key(key: str) -> tuple[DatasetName, TagName, bool] | None:
    """Return the dataset, the tag, and whether the key marks the tag as deleted."""
    parsed = _parse_ref(_TAG, TagName, key)
    return None if parsed is None else (*parsed[:2], parsed[2] == "deleted")


def erased_key(erased: ErasedId) -> str:
    """Return the key of a dataset's tombstone, below a name that no dataset can have."""
    return f"{REFS_PREFIX}{erased.hex()}/erased"


# --- sessions, gc, runs


def session_prefix(session: SessionId) -> str:
    return f"{SESSIONS_PREFIX}{session.hex()}/"


def session_key(session: SessionId, part: Literal["open", "verdict", "closed"]) -> str:
    return session_prefix(session) + part


def session_beat_key(session: SessionId, count: int) -> str:
    """Return the key of the n-th renewal; later ones have larger keys."""
    if not 0 <= count < 1 << 32:
        raise ValueError(f"a session has no renewal {count}")
    return f"{session_prefix(session)}beat-{count:08x}"


def parse_session_key(key: str) -> tuple[SessionId, str] | None:
    """Return the session and the part after it: `open`, `beat-…`, `verdict`, `closed`."""
    parts = key.split("/")
    session = _parse_id(SessionId, parts[1]) if len(parts) == 3 and parts[0] == "sessions" else None
    return None if session is None else (session, parts[2])


def gc_key(epoch: int, part: Literal["condemned", "decision", "done"]) -> str:
    return f"{GC_PREFIX}{_up(epoch)}/{part}"


def parse_gc_key(key: str) -> tuple[int, str] | None:
    """Return the epoch, and `condemned`, `decision` or `done`."""
    found = _GC.fullmatch(key)
    return (int(found[1], 16), found[2]) if found else None


def obeyed_key(erasure: ErasureId, cache: str) -> str:
    """Return the key by which a cache confirms that it obeyed an erasure. cache: 32 lower-case hex digits."""
    return f"{erasure_key(erasure)}-{cache}"


def parse_obeyed_key(key: str) -> tuple[ErasureId, str] | None:
    head, _, cache = key.rpartition("-")
    erasure = parse_erasure_key(head)
    return (erasure, cache) if erasure is not None and _parse_id(StoreId, cache) is not None else None


def pack_search_prefix(digits: str) -> str:
    """Return the prefix of the packs whose ids begin with these lower-case hex digits."""
    return f"{PACK_PREFIX}{digits[:2]}/{digits}" if len(digits) > 1 else f"{PACK_PREFIX}{digits}"


def runs_prefix(dataset: DatasetName) -> str:
    return f"{RUNS_PREFIX}{dataset.component}/"


def run_key(dataset: DatasetName, run_id: str, part: str) -> str:
    """Return the key of one part of a run's record. Raises `ValueError` if `run_id` or `part` is invalid."""
    for text in (run_id, part):
        if not _RUN_ID.fullmatch(text):
            raise ValueError(f"{text!r} is not a component of a run's key")
    return f"{runs_prefix(dataset)}{run_id}/{part}"


def lineage_prefix(root: NodeId, how: Literal["made", "read"] | None = None) -> str:
    """Return the prefix of the keys of the runs that made or read a tree (None: of both)."""
    return f"{LINEAGE_PREFIX}{root.hex()}/{f'{how}/' if how else ''}"


def lineage_key(root: NodeId, how: Literal["made", "read"], dataset: DatasetName, run_id: str) -> str:
    """Return the empty key that says where to look for a run that made or read a tree. It proves nothing: the
    run's record has to agree."""
    return f"{lineage_prefix(root, how)}{dataset.component}/{run_id}"


def parse_lineage_key(key: str) -> tuple[NodeId, str, DatasetName, str] | None:
    """Return the root of the tree, `made` or `read`, the dataset and the run id."""
    parts = key.split("/")
    if len(parts) != 5 or parts[0] != "lineage" or parts[2] not in ("made", "read"):
        return None
    root, dataset = _parse_id(NodeId, parts[1]), _parse_name(DatasetName, parts[3])
    if root is None or dataset is None or _RUN_ID.fullmatch(parts[4]) is None:
        return None
    return root, parts[2], dataset, parts[4]


def parse_run_key(key: str) -> tuple[DatasetName, str, str] | None:
    """Return the dataset, the run id and the part."""
    parts = key.split("/")
    if len(parts) != 4 or parts[0] != "runs" or not all(map(_RUN_ID.fullmatch, parts[2:])):
        return None
    dataset = _parse_name(DatasetName, parts[1])
    return None if dataset is None else (dataset, parts[2], parts[3])


def once_prefix(key: str) -> str:
    """Return the prefix of the claims on the key of a run that is not repeated: 64 lower-case hex digits."""
    return f"{ONCE_PREFIX}{key}/"


def once_key(key: str, number: int) -> str:
    """Return the key of the n-th claim; the first is 0. Later ones have smaller keys."""
    return f"{once_prefix(key)}{_up(_TOP_SEQ - number)}"


def parse_once_key(key: str) -> tuple[str, int] | None:
    """Return the key that is claimed, and the number of the claim."""
    match = _ONCE.fullmatch(key)
    return (match[1], _TOP_SEQ - int(match[2], 16)) if match else None


def beats_prefix(dataset: DatasetName, run_id: str, prefix: str = BEATS_PREFIX) -> str:
    """prefix: or `METRICS_PREFIX`, whose keys have the same form"""
    return f"{prefix}{dataset.component}/{run_id}/"


def beat_key(dataset: DatasetName, run_id: str, number: int, prefix: str = BEATS_PREFIX) -> str:
    """Return the key of a run's n-th beat; the first is 0. Later ones have larger keys."""
    return f"{beats_prefix(dataset, run_id, prefix)}{_up(number)}"


def parse_beat_key(key: str, prefix: str = BEATS_PREFIX) -> tuple[DatasetName, str, int] | None:
    """Return the dataset, the run id and the number of the beat."""
    match = _BEAT.fullmatch(key) if key.startswith(prefix) else None
    dataset = _parse_name(DatasetName, match[1]) if match else None
    return (dataset, match[2], int(match[3], 16)) if match and dataset is not None else None
