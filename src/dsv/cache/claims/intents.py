"""An evictor's announcement that it removes a commit, and how a taker of a lease ends it for good.

An intent is a file in the place's claims folder, and an empty folder of its own in the trash, made before
it. The one thing that removes a commit from sight is a rename of its visible folder into that trash
folder. Anyone who finds an intent and wants the commit removes the trash folder: that succeeds only while it
is empty, and from then on the rename can only fail, even one that an unplugged host sends minutes later.
So the file server decides, atomically, and nobody has to wait or to compare clocks.
"""

from __future__ import annotations

import enum
import errno
from collections.abc import Iterable
from pathlib import Path

import msgspec

from dsv.cache.claims.owners import Owner
from dsv.cache.layout import Place
from dsv.cache.root import CacheRoot
from dsv.fs.files import FULL, read_json

PREFIX = "intent-"
_GONE = (errno.ENOENT, errno.ESTALE)
_FULL = (errno.ENOTEMPTY, errno.EEXIST)


class IntentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`owner.id` names the trash folder. at: the file server's clock."""

    version: int = 1
    owner: Owner
    at: float


_INTENT = msgspec.json.Decoder(IntentRecord)


class Fired(enum.Enum):
    """What became of an evictor's rename."""

    DONE = "done"
    VOIDED = "voided"  # a taker was there
    GONE = "gone"  # another evictor was faster


class Intent(msgspec.Struct, frozen=True):
    """This process's intent on one place."""

    root: CacheRoot
    place: Place
    owner: Owner

    @classmethod
    def declare(cls, root: CacheRoot, place: Place, now: float) -> Intent:
        """Makes the trash folder, then announces it. From here on a listing of the claims shows every earlier taker.

        Raises `OSError`.
        """
        intent = cls(root, place, Owner.new())
        intent._make_folder()
        try:
            intent._tell(IntentRecord(owner=intent.owner, at=now))
        except BaseException:
            intent.withdraw()
            raise
        return intent

    @property
    def folder(self) -> Path:
        return self.root.trash / self.owner.id

    @property
    def file(self) -> Path:
        return self.root.claims(self.place) / f"{PREFIX}{self.owner.id}"

    def _make_folder(self) -> None:
        try:
            self.root.make_directory(self.folder)
        except OSError as error:
            if error.errno not in FULL:
                raise
            # The next `prepare` on a disk with room makes a new one.
            self.root.spare_folder.rename(self.folder)

    def _tell(self, record: IntentRecord) -> None:
        try:
            self.root.write_once(self.file, msgspec.json.encode(record))
        except OSError as error:
            if error.errno not in FULL:
                raise
            self.root.put_name(self.file)  # the name alone says enough

    def fire(self, source: Path) -> Fired:
        """Takes `source` out of sight, unless a taker was faster. Raises `OSError`."""
        try:
            source.rename(self.folder / source.name)
            return Fired.DONE
        except OSError as error:
            if error.errno not in _GONE:
                raise
        try:  # which of the two names is gone? The server knows, this host's memory may be old
            self.folder.rmdir()
        except OSError as error:
            if error.errno in _FULL:  # a RENAME sent again after its answer was lost
                return Fired.DONE
            if error.errno in _GONE:
                return Fired.VOIDED
            raise
        return Fired.GONE

    def withdraw(self) -> None:
        """Takes the intent back; the trash folder first, as an intent without one is void. Raises `OSError`."""
        _remove_folder(self.folder)
        self.file.unlink(missing_ok=True)


def void(root: CacheRoot, place: Place, name: str) -> bool:
    """Makes sure that the intent in this claim file can no longer fire; False if it has fired already.

    Raises `OSError`.
    """
    if not _remove_folder(root.trash / name.removeprefix(PREFIX)):
        return False
    (root.claims(place) / name).unlink(missing_ok=True)
    return True


def void_all(root: CacheRoot, place: Place, names: Iterable[str]) -> None:
    """End every intent among these names of claims. Raises `OSError`."""
    for name in names:
        if name.startswith(PREFIX):
            void(root, place, name)


def read_intent(root: CacheRoot, place: Place, name: str) -> IntentRecord | None:
    """None if it was taken back, or can't be understood. Raises `OSError`."""
    return read_json(root.claims(place) / name, _INTENT)


def _remove_folder(folder: Path) -> bool:
    """False if the folder is not empty. One that is not there was removed by its evictor or by another taker."""
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno in _FULL:
            return False
        if error.errno not in _GONE:
            raise
    return True
