"""What the claims folders held when they were last read, so that most of them need not be read again.

An inventory reads three files for each commit, which on a file server are six requests, and most commits have not
changed since the inventory before. `.dsv/inventory` keeps what was read then: a copy that anybody may delete at any
time. Rule E8 of docs/internals/cache-protocol.md says when it is believed.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dsv.cache import usage
from dsv.cache.claims.claims import Claims, read_claims
from dsv.cache.layout import Place
from dsv.cache.record import Filled, read_record
from dsv.cache.root import CacheRoot
from dsv.cache.usage import Extent
from dsv.fs.attributes import refresh
from dsv.fs.files import GONE, read_json

SETTLED = (
    10.0  # seconds; some file systems count whole seconds, so a younger folder may change and keep its mtime
)
WORTH_KEEPING = 64  # folders read anew; fewer cost less than writing the file does
_VERSION = 1
_LONGEST = 256 << 20  # bytes


class PlaceFacts(msgspec.Struct, frozen=True, array_like=True):
    """All that one place's claims folder says. changed: its mtime before it was read, in ns; 0 if it was missing.

    used: the last recorded use, 0 for none. room: what the commit stands for on disk.
    """

    changed: int
    claims: Claims
    record: Filled | None
    used: float
    room: Extent


class _File(msgspec.Struct, frozen=True):
    version: int
    places: dict[str, dict[str, PlaceFacts]]


_FILE = msgspec.json.Decoder(_File)


class Remembered:
    """What is known of the places from before, and what was read since. `read` is for several threads.

    now: when the reading began, by the file server's clock.
    """

    def __init__(self, root: CacheRoot, now: float, known: dict[Place, PlaceFacts]) -> None:
        self.now = now
        self._root = root
        self._known = known
        self._anew: dict[Place, PlaceFacts] = {}

    @classmethod
    def load(cls, root: CacheRoot, now: float) -> Remembered:
        """Knows nothing if the file is missing or can't be understood. Raises `OSError`."""
        file = read_json(root.inventory, _FILE, _LONGEST)
        if file is None or file.version != _VERSION:
            return cls(root, now, {})
        known = {
            Place(dataset, name): facts
            for dataset, places in file.places.items()
            for name, facts in places.items()
        }
        return cls(root, now, known)

    def read(self, place: Place) -> PlaceFacts:
        """What the place's claims folder holds now; one request if it has not changed. Raises `OSError`."""
        try:
            changed = refresh(self._root.claims(place))
        except OSError as error:
            if error.errno not in GONE:
                raise
            changed = 0
        known = self._known.get(place)
        if known is not None and known.changed == changed:
            return known
        facts = read_facts(self._root, place, changed)
        self._anew[place] = facts
        return facts

    def save(self, places: Iterable[Place]) -> None:
        """Keeps what is known of these places, if enough was read anew. Raises `OSError`."""
        settled = {place: facts for place, facts in self._anew.items() if self._is_settled(facts)}
        if len(settled) < WORTH_KEEPING:
            return
        self._known |= settled
        file = _File(_VERSION, {})
        for place in places:
            if place in self._known:
                file.places.setdefault(place.dataset, {})[place.name] = self._known[place]
        self._root.replace(self._root.inventory, msgspec.json.encode(file))

    def _is_settled(self, facts: PlaceFacts) -> bool:
        """Whether any change since then would give the folder another mtime."""
        if facts.record is None or facts.claims.unknown:
            return False
        return facts.changed < (self.now - SETTLED) * 1e9


def read_facts(root: CacheRoot, place: Place, changed: int) -> PlaceFacts:
    """`changed`: the mtime of the claims folder, asked for just now. Raises `OSError`."""
    claims = read_claims(root, place, asked=True)
    record = read_record(root, place, claims.names)
    used, room = 0.0, Extent()
    if usage.USED in claims.names:
        used = usage.last_used(root, place) or 0.0
    if record is not None:
        shares = usage.shares(root, place, record.fill, claims.names)
        room = Extent(record.own_bytes, record.own_files) + shares
    return PlaceFacts(changed, claims, record, used, room)
