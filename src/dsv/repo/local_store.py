"""What is here of a store that is not asked: commits by their local copies, and nothing else.

What has no copy is never said to be absent, as the store may have it: that is `Unreachable`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsv.errors import Unreachable
from dsv.format import keys
from dsv.format.envelope import RECORD_MAX
from dsv.repo.objects.metadata import MetadataCache
from dsv.store.base import LARGEST, Bytes, Item, Put, absent
from dsv.values.ids import CommitId


class LocalStore:
    """A store that answers from local copies of commits. Segments and nodes are read from theirs by `Objects`."""

    ordered_listing = True
    conditional = True

    def __init__(self, url: str, metadata: MetadataCache) -> None:
        self.url = url
        self._metadata = metadata

    def get(self, key: str, limit: int = LARGEST) -> bytes:
        commit = keys.parse_commit_key(key)
        data = None if commit is None else self._metadata.get("commit", str(commit), RECORD_MAX)
        if data is not None and CommitId.hash(data) == commit:
            return data  # a damaged one is as good as none: the store's may be whole
        if keys.parse_locator_key(key) is not None:
            raise absent(self.url, key)  # it would only tell where in packs to read
        raise self._no_copy(f"there is no copy here of {key}")

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        raise self._no_copy(f"there is no copy here of what {key} has at byte {start}")

    def put_if_absent(self, key: str, data: Bytes) -> Put:
        raise self._no_copy("nothing can be stored")

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[Item]:
        if not prefix.startswith(keys.COMMIT_PREFIX):
            raise self._no_copy(f"nothing tells whether it has {prefix}")
        found = sorted(keys.COMMIT_PREFIX + name for name in self._metadata.names("commit"))
        fitting = [key for key in found if key.startswith(prefix) and key > (start_after or "")]
        if not fitting:
            raise self._no_copy(f"there is no copy here of {prefix}…")
        return iter([Item(key, 0) for key in fitting])

    def folders(self, prefix: str) -> Sequence[str]:
        raise self._no_copy(f"nothing tells whether it has {prefix}")

    def modified(self, key: str) -> float:
        raise self._no_copy(f"nothing tells when {key} was made")

    def delete(self, key: str) -> None:
        raise self._no_copy("nothing can be deleted")

    def free_bytes(self) -> int | None:
        return None

    def close(self) -> None:
        pass

    def _no_copy(self, what: str) -> Unreachable:
        return Unreachable(
            f"{self.url} is not asked, and {what}",
            subject=self.url,
            hint="leave out --offline to ask the store",
        )
