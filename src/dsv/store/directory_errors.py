"""What the operating system's errors mean for a directory store."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dsv.errors import Denied, DsvError, IntegrityError, NoRoom, Unsupported
from dsv.store.base import NoAnswer

_FULL: Final = {errno.ENOSPC, errno.EDQUOT}
_DENIED: Final = {errno.EACCES, errno.EPERM, errno.EROFS}
_MISPLACED: Final = {errno.ELOOP, errno.ENOTDIR, errno.EISDIR}
NO_HARD_LINKS: Final = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
"""What link(2) answers where a file system has no hard links, or none between these folders."""


@contextmanager
def os_errors(url: str, subject: str) -> Iterator[None]:
    """Turns an OSError of the body into the store's error about `subject`, a key or the store itself."""
    try:
        yield
    except OSError as error:
        raise as_store_error(error, url, subject) from error


def as_store_error(error: OSError, url: str, subject: str) -> DsvError:
    """The error to raise instead of `error`; anything unknown counts as a store that does not answer."""
    where = url if subject == url else f"{subject} in {url}"
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return NoRoom(f"{where} could not be written: {reason}", subject=subject, hint=f"df -h {url}")
    if error.errno in _DENIED:
        return Denied(f"{where} was refused: {reason}", subject=subject, hint=f"ls -ld {url}")
    if error.errno in _MISPLACED:
        return IntegrityError(
            f"{where} is not a plain file in plain folders, and links inside a store are not followed",
            subject=subject,
        )
    if error.errno == errno.ENAMETOOLONG:
        return Unsupported(f"{where} has a name too long for this file system", subject=subject)
    return NoAnswer(f"{where} could not be reached: {reason}", subject=subject)


def root_missing(url: str) -> NoAnswer:
    """The folder is not there. A mount that is missing looks the same, so it may come back."""
    return NoAnswer(
        f"the store's folder {url} is not there",
        subject=url,
        hint=f"check that it is mounted (ls -ld {url}); where it has moved, name the new place with --store",
        maybe_done=False,
    )


def no_hard_links(url: str, error: OSError) -> Unsupported:
    """Put-if-absent needs link(2)."""
    return Unsupported(
        f"{url} lies on a file system without hard links ({error.strerror}), so it can hold no store",
        subject=url,
        hint="put the store on a local disk, NFS, or an object store (s3://bucket/prefix)",
    )
