"""Integrity errors and refused writes, worded for the user who has to act on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from dsv.errors import Denied, IntegrityError, NotFound
from dsv.format import keys
from dsv.format.envelope import RECORD_MAX
from dsv.format.locator import Location, ObjectKind
from dsv.stores.base import StoreBackend
from dsv.values.ids import CommitId, Id

T = TypeVar("T")

NOT_OURS = "dsv never writes this: ask who else writes to the store; dsv log DATASET shows other commits"
REUPLOAD = "dsv sync --reupload in a workspace that has the files"
ONE_WINS_AGAIN = (
    "nobody should write there until the server honours If-None-Match again; then dsv pull and dsv sync"
)


def put_back(key: str) -> str:
    """Return the hint for missing or wrong bytes. Keys are never overwritten, so any copy is right."""
    return f"put {key} back from a copy of the store, then run the same command again"


def broken(key: str, message: str) -> IntegrityError:
    """Return the error for a key whose bytes are missing or wrong."""
    return IntegrityError(message, subject=key, hint=put_back(key))


def damaged(kind: ObjectKind, object_id: Id, where: Location) -> IntegrityError:
    """Return the error for bytes at `where` that are not this object."""
    return IntegrityError(
        f"{kind.name.lower()} {object_id} in pack {where.pack} at {where.offset} is damaged",
        subject=str(object_id),
        hint=f"{put_back(keys.pack_key(where.pack))}; or {REUPLOAD}",
    )


def unreadable(
    kind: ObjectKind, object_id: Id, where: Location, url: str, error: NotFound | IntegrityError
) -> IntegrityError:
    """Return the error for an object that could not be read at the location that an index gives."""
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
    """Return the error for a commit that is named somewhere, but is not in the store."""
    return IntegrityError(
        f"commit {commit_id} is named, but not in {url}",
        subject=str(commit_id),
        hint=f"dsv verify --repair looks for a copy; or {put_back(keys.commit_key(commit_id))}; or dsv sync in a "
        "workspace that has its files",
    )


def damaged_commit(commit_id: CommitId, url: str) -> IntegrityError:
    hint = f"dsv verify --repair looks for a copy; or {put_back(keys.commit_key(commit_id))}"
    return IntegrityError(f"commit {commit_id} in {url} is damaged", subject=str(commit_id), hint=hint)


def read_record(decode: Callable[[bytes], T], store: StoreBackend, key: str, limit: int = RECORD_MAX) -> T:
    """Return the decoded record of a key.

    Raises `NotFound`, `Unsupported`, and `IntegrityError` that names the key (also if `limit` is exceeded).
    """
    data = store.get(key, limit)
    try:
        return decode(data)
    except IntegrityError as error:
        raise broken(key, f"{error.message} ({key} in {store.url})") from None


def record_or_none(decode: Callable[[bytes], T], store: StoreBackend, key: str) -> T | None:
    """Like `read_record`, but return None if the key is absent."""
    with suppress(NotFound):
        return read_record(decode, store, key)
    return None


def decoded(decode: Callable[[bytes], T], data: bytes, what: str, object_id: Id) -> T:
    """Return an object's decoded bytes. Raises `Unsupported`, and `IntegrityError` that names the object."""
    try:
        return decode(data)
    except IntegrityError as error:
        raise IntegrityError(
            f"{error.message} ({what} {object_id})", subject=str(object_id), hint=NOT_OURS
        ) from None


@contextmanager
def name_denied_write(url: str, key: str, what: str) -> Iterator[None]:
    """Reword a refused write of the key: the error names `what` the key is for."""
    try:
        yield
    except Denied as error:
        # The message names the key with the store's URL, or with the URL of the location that has the names.
        said = error.message.replace(f"{key} in ", "").replace(f"/{key}", "").replace(key, url)
        raise Denied(f"{what} was not changed: {said}", subject=what, hint=error.hint) from error


@contextmanager
def explain_denied_write(url: str) -> Iterator[None]:
    """Wrap the first write of a command: a refusal then says that the store can be read but not written."""
    try:
        yield
    except Denied as error:
        raise Denied(
            f"you can read {url} but not write to it: {error.message}",
            subject=url,
            hint=f"ask the store's administrator for the right to write; {error.hint or 'dsv config store'}",
        ) from error
