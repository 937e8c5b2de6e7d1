"""A store that is not asked: commits are read from their local copies, and nothing else is.

What has no copy is never said to be absent, as the store may have it: that is `Unreachable`.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsv.errors import Unreachable
from dsv.format import keys
from dsv.format.envelope import RECORD_MAX
from dsv.repo.objects.metadata import MetadataCache
from dsv.store.base import LARGEST, Item, absent
from dsv.store.open import Unavailable
from dsv.values.ids import CommitId


class LocalStore(Unavailable):
    """Segments and nodes are read from their local copies by `Objects`."""

    def __init__(self, url: str, metadata: MetadataCache) -> None:
        super().__init__(url, _no_copy(url, "it"))
        self._metadata = metadata

    def failure(self, key: str) -> Unreachable:
        return _no_copy(self.url, key)

    def get(self, key: str, limit: int = LARGEST) -> bytes:
        commit = keys.parse_commit_key(key)
        data = None if commit is None else self._metadata.get("commit", str(commit), RECORD_MAX)
        if data is not None and CommitId.hash(data) == commit:
            return data  # a damaged one is as good as none: the store's may be whole
        if keys.parse_locator_key(key) is not None:
            raise absent(self.url, key)  # it would only tell where in packs to read
        raise self.failure(key)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[Item]:
        copies = self._metadata.names("commit") if prefix.startswith(keys.COMMIT_PREFIX) else []
        found = sorted(keys.COMMIT_PREFIX + name for name in copies)
        fitting = [key for key in found if key.startswith(prefix) and key > (start_after or "")]
        if not fitting:
            raise self.failure(f"{prefix}…")
        return iter([Item(key, 0) for key in fitting])


def _no_copy(url: str, key: str) -> Unreachable:
    return Unreachable(
        f"{url} is not asked, and there is no copy here of {key}",
        subject=url,
        hint="leave out --offline to ask the store",
    )
