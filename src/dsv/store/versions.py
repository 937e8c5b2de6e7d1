"""Old versions of packs in a bucket: a bucket with versioning keeps what was deleted.

This uses AWS's calls, which Ceph, MinIO and StorageGRID have too. botocore is imported here, when somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from dsv.errors import Denied, IntegrityError, Unreachable
from dsv.format import keys
from dsv.format.pack import FOOTER_SIZE, PackTable, parse_footer, parse_table
from dsv.store.credentials import boto_client
from dsv.store.options import StoreOptions

T = TypeVar("T")
_SECONDS: Final = 10
_NOT_SET: Final = {
    "NoSuchReplicationConfiguration",
    "ReplicationConfigurationNotFoundError",
    "ObjectLockConfigurationNotFoundError",
    "NoSuchObjectLockConfiguration",
}
"""Answers that say that there is no such setting."""
_UNKNOWN: Final = {"NotImplemented", "MethodNotAllowed", "InvalidRequest"}
"""Answers of servers without the setting at all."""


class History(msgspec.Struct, frozen=True):
    """What a bucket keeps besides the objects that are there."""

    versioned: bool = False
    """It keeps versions of deleted objects, or did so for a time."""
    locked: bool = False
    """Versions can't be deleted before a time that the server knows."""
    replicas: tuple[str, ...] = ()
    """Other buckets that get a copy of each object."""
    unanswered: tuple[str, ...] = ()
    """What could not be found out, as sentences."""


class OldVersion(msgspec.Struct, frozen=True):
    """A version of a pack that is not there any more for those who read the store."""

    key: str
    """In the bucket."""
    version: str
    table: PackTable | None
    """None if it can't be read."""


class BucketVersions:
    """The versions of the packs of a store in `s3://bucket/prefix`."""

    def __init__(self, url: str, options: StoreOptions) -> None:
        split = urlsplit(url)
        self._bucket = split.netloc
        prefix = split.path.strip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._client = boto_client(url, options, connect_timeout=_SECONDS, read_timeout=_SECONDS, attempts=2)

    def history(self) -> History:
        """Ask the server for the settings of the bucket."""
        unanswered: list[str] = []
        versioning = self._setting("get_bucket_versioning", "whether old versions are kept", unanswered)
        lock = self._setting("get_object_lock_configuration", "whether objects are locked", unanswered)
        replication = self._setting("get_bucket_replication", "whether objects are replicated", unanswered)
        rules = (replication.get("ReplicationConfiguration") or {}).get("Rules") or ()
        return History(
            bool(versioning.get("Status")),
            (lock.get("ObjectLockConfiguration") or {}).get("ObjectLockEnabled") == "Enabled",
            tuple(
                sorted(
                    {
                        str(rule.get("Destination", {}).get("Bucket", "an unknown bucket"))
                        for rule in rules
                        if rule.get("Status") == "Enabled"
                    }
                )
            ),
            tuple(unanswered),
        )

    def _setting(self, name: str, what: str, unanswered: list[str]) -> dict[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer = getattr(self._client, name)(Bucket=self._bucket)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code"))
            if code not in _NOT_SET | _UNKNOWN:
                unanswered.append(f"bucket {self._bucket} does not say {what}: {code}")
            return {}
        except BotoCoreError as error:
            unanswered.append(f"bucket {self._bucket} does not say {what}: {error}")
            return {}
        return answer if isinstance(answer, dict) else {}

    def old_packs(self) -> Iterator[OldVersion]:
        """Yield every version of a pack that was deleted or replaced. Raises `Denied`, `Unreachable`."""
        pages = iter(
            self._client.get_paginator("list_object_versions").paginate(
                Bucket=self._bucket, Prefix=self._prefix + keys.PACK_PREFIX
            )
        )
        while (page := self._asked(lambda: next(pages, None))) is not None:
            for one in page.get("Versions") or ():
                key = str(one["Key"])
                pack = keys.parse_pack_key(key.removeprefix(self._prefix))
                if one.get("IsLatest") or pack is None or pack.is_external:  # the last has no contents
                    continue
                version = str(one["VersionId"])
                table = self._asked(partial(self._table, key, version, int(one["Size"])))
                yield OldVersion(key, version, table)

    def _asked(self, ask: Callable[[], T]) -> T:
        from botocore.exceptions import BotoCoreError, ClientError

        what = f"the versions in bucket {self._bucket} can't be read"
        try:
            return ask()
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code"))
            if code in ("AccessDenied", "403", "Forbidden"):
                hint = "ask for s3:ListBucketVersions and s3:GetObjectVersion"
                raise Denied(f"{what}: {code}", subject=self._bucket, hint=hint) from error
            raise Unreachable(f"{what}: {code}", subject=self._bucket) from error
        except BotoCoreError as error:
            raise Unreachable(f"{what}: {error}", subject=self._bucket) from error

    def _table(self, key: str, version: str, size: int) -> PackTable | None:
        try:
            footer = parse_footer(self._range(key, version, max(0, size - FOOTER_SIZE), size))
            data = self._range(key, version, footer.table_offset, size - FOOTER_SIZE)
            return parse_table(data, footer, size)
        except IntegrityError:
            return None

    def _range(self, key: str, version: str, start: int, end: int) -> bytes:
        answer = self._client.get_object(
            Bucket=self._bucket, Key=key, VersionId=version, Range=f"bytes={start}-{end - 1}"
        )
        data: bytes = answer["Body"].read()
        return data

    def delete(self, one: OldVersion) -> str | None:
        """Delete a version for good. Return why that was not possible."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            self._client.delete_object(Bucket=self._bucket, Key=one.key, VersionId=one.version)
        except (BotoCoreError, ClientError) as error:
            return str(error)
        return None
