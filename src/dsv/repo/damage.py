"""What is wrong with the objects of a store, told so that somebody can act on it: which one, where, what mends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dsv.errors import IntegrityError, NotFound
from dsv.model import keys
from dsv.model.ids import CommitId, Id
from dsv.model.location import Location, ObjectKind
from dsv.model.wire import RECORD_MAX
from dsv.store.base import Store

T = TypeVar("T")

NOT_OURS = "no dsv writes that: ask who else writes to the store; dsv log DATASET shows other commits"
REUPLOAD = "dsv sync --reupload in a workspace that has the files"
ONE_WINS_AGAIN = (
    "nobody should write there until the server honours If-None-Match again; then dsv pull and dsv sync"
)


def put_back(key: str) -> str:
    """The hint for a key whose bytes are gone or wrong: nothing is ever overwritten, so an old copy is right."""
    return f"put {key} back from a copy of the store, then run the same command again"


def damaged(kind: ObjectKind, object_id: Id, where: Location) -> IntegrityError:
    """What lies at `where` is not this object."""
    return IntegrityError(
        f"{kind.name.lower()} {object_id} in pack {where.pack} at {where.offset} is damaged",
        subject=str(object_id),
        hint=f"{put_back(keys.pack_key(where.pack))}; or {REUPLOAD}",
    )


def unreadable(
    kind: ObjectKind, object_id: Id, where: Location, url: str, error: NotFound | IntegrityError
) -> IntegrityError:
    """The object could not be had from where an index says that it lies. `error` is how that failed."""
    hint = put_back(keys.pack_key(where.pack))
    if isinstance(error, NotFound):
        message = f"pack {where.pack} of {url} is gone, with {kind.name.lower()} {object_id}"
        hint = f"{hint}; or {REUPLOAD}"
    elif error.subject == str(object_id):
        return error
    else:
        message = f"{kind.name.lower()} {object_id} cannot be read: {error.message}"
    return IntegrityError(message, subject=str(object_id), hint=hint)


def unlisted(kind: ObjectKind, object_id: Id, url: str) -> IntegrityError:
    return IntegrityError(
        f"{kind.name.lower()} {object_id} is referenced, but in no index of {url}",
        subject=str(object_id),
        hint=f"put the missing keys below index/ back from a copy of the store; or {REUPLOAD}",
    )


def missing_commit(commit_id: CommitId, url: str) -> IntegrityError:
    """A ref, another commit or a workspace names it, and the store does not have it."""
    return IntegrityError(
        f"commit {commit_id} is named, but not in {url}",
        subject=str(commit_id),
        hint=f"{put_back(keys.commit_key(commit_id))}; or dsv sync in a workspace that has its files",
    )


def damaged_commit(commit_id: CommitId, url: str) -> IntegrityError:
    return IntegrityError(
        f"commit {commit_id} in {url} is damaged",
        subject=str(commit_id),
        hint=put_back(keys.commit_key(commit_id)),
    )


def read_record(decode: Callable[[bytes], T], store: Store, key: str, limit: int = RECORD_MAX) -> T:
    """The record under a key, of which no more than `limit` bytes are read.

    Raises `NotFound`, `IntegrityError` that names the key, `Unsupported`.
    """
    data = store.get(key, limit)
    try:
        return decode(data)
    except IntegrityError as error:
        raise IntegrityError(
            f"{error.message} ({key} in {store.url})", subject=key, hint=put_back(key)
        ) from None


def decoded(decode: Callable[[bytes], T], data: bytes, what: str, object_id: Id) -> T:
    """The value in bytes that are those of `object_id`. Raises `IntegrityError` that names it, `Unsupported`."""
    try:
        return decode(data)
    except IntegrityError as error:
        raise IntegrityError(
            f"{error.message} ({what} {object_id})", subject=str(object_id), hint=NOT_OURS
        ) from None
