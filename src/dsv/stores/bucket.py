"""The meaning of a bucket's own settings for a store in it, and the old versions of packs that it keeps.

This uses AWS's calls, which Ceph, MinIO and StorageGRID have too. Settings that a server does not report, or
reports only to administrators, are ignored. boto3 is imported only to create a store or to erase contents.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from dsv.errors import Denied, IntegrityError, Unreachable
from dsv.format import keys
from dsv.format.pack import FOOTER_SIZE, PackTable, parse_footer, parse_table
from dsv.stores.credentials import boto_client
from dsv.stores.options import StoreOptions

_T = TypeVar("_T")
_SECONDS: Final = 10
# Storage classes from which an object must be restored, for hours, before it can be read.
_OFFLINE: Final = {"GLACIER", "DEEP_ARCHIVE"}
_NOT_SET: Final = {
    "NoSuchReplicationConfiguration",
    "ReplicationConfigurationNotFoundError",
    "ObjectLockConfigurationNotFoundError",
    "NoSuchObjectLockConfiguration",
}
"""Answers for a setting that was not set."""
_UNKNOWN: Final = {"NotImplemented", "MethodNotAllowed", "InvalidRequest"}
"""Answers of servers that do not have the setting."""


class BucketSettings(msgspec.Struct, frozen=True):
    """The settings as boto3 returns them; empty if unknown."""

    lifecycle: Sequence[Mapping[str, Any]] = ()
    """Rules."""
    versioning: str = ""
    """`Enabled`, `Suspended` or empty."""
    kms_key: str = ""
    """The key that encrypts new objects."""
    public: bool = False
    """The policy gives every user access."""
    locked: bool = False
    """Objects can't be deleted for some time."""


def bucket_warnings(url: str, options: StoreOptions) -> tuple[str, ...]:
    """Return a sentence for each setting of the bucket of `s3://bucket/prefix` that its users should know.

    Never raises for an answer of the server: other tests have proved that the store works.
    """
    split = urlsplit(url)
    return warnings_for(split.netloc, split.path.strip("/"), read_settings(url, options))


def warnings_for(bucket: str, prefix: str, settings: BucketSettings) -> tuple[str, ...]:
    """Return what these settings mean for a store under `prefix`, worst first. Pure."""
    rules = [rule for rule in settings.lifecycle if _applies(rule, prefix)]
    found = [text for rule in rules for text in _rule_warnings(rule, bucket)]
    if settings.public:
        found.append(f"the policy of bucket {bucket} lets anybody in, so anybody may read every dataset")
    if settings.locked:
        found.append(f"bucket {bucket} keeps each object for a fixed time, so removed data still uses space")
    elif settings.versioning == "Enabled" and not any(
        rule.get("NoncurrentVersionExpiration") for rule in rules
    ):
        found.append(
            f"bucket {bucket} keeps old versions of objects permanently, so removed data still uses space"
        )
    if settings.kms_key:
        found.append(
            f"bucket {bucket} is encrypted with the KMS key {settings.kms_key}: everybody who reads the store needs "
            "kms:Decrypt, everybody who writes to it kms:GenerateDataKey as well"
        )
    return tuple(found)


def read_settings(url: str, options: StoreOptions) -> BucketSettings:
    """Ask the server once for each setting, for at most some seconds."""
    bucket = urlsplit(url).netloc
    client = boto_client(url, options, connect_timeout=_SECONDS, read_timeout=_SECONDS, attempts=2)
    lifecycle = _answer(client.get_bucket_lifecycle_configuration, bucket)
    versioning = _answer(client.get_bucket_versioning, bucket)
    encryption = _answer(client.get_bucket_encryption, bucket)
    policy = _answer(client.get_bucket_policy_status, bucket)
    lock = _answer(client.get_object_lock_configuration, bucket)
    rules = encryption.get("ServerSideEncryptionConfiguration", {}).get("Rules", [])
    defaults = [rule.get("ApplyServerSideEncryptionByDefault", {}) for rule in rules]
    kms = [one for one in defaults if str(one.get("SSEAlgorithm", "")).startswith("aws:kms")]
    return BucketSettings(
        lifecycle=lifecycle.get("Rules", []),
        versioning=versioning.get("Status", ""),
        kms_key=str(kms[0].get("KMSMasterKeyID", "aws/s3")) if kms else "",
        public=policy.get("PolicyStatus", {}).get("IsPublic") is True
        and names_anybody(_answer(client.get_bucket_policy, bucket).get("Policy")),
        locked=bool(lock.get("ObjectLockConfiguration", {}).get("Rule")),
    )


def names_anybody(policy: object) -> bool:
    """Return whether a policy allows `*` anything, or can't be read. Ceph calls every policy public that
    names a user."""
    try:
        allowed = [one for one in json.loads(str(policy))["Statement"] if one["Effect"] == "Allow"]
        principals = [one.get("Principal") for one in allowed]
    except (ValueError, TypeError, KeyError, AttributeError):
        return True
    return any("NotPrincipal" in one for one in allowed) or any(map(_is_anybody, principals))


def _is_anybody(principal: object) -> bool:
    if isinstance(principal, Mapping):
        principal = principal.get("AWS")
    return "*" in principal if isinstance(principal, list) else principal == "*"


def _answer(
    call: Callable[..., Any], bucket: str, what: str = "", unanswered: list[str] | None = None
) -> dict[str, Any]:
    """Return nothing if the setting does not exist, is unknown to the server, or hidden from this user.

    unanswered: gets a sentence that `what` is not known, if the setting may exist.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        answer = call(Bucket=bucket)
    except (BotoCoreError, ClientError) as error:
        said = str(error.response.get("Error", {}).get("Code") if isinstance(error, ClientError) else error)
        if unanswered is not None and said not in _NOT_SET | _UNKNOWN:
            unanswered.append(f"bucket {bucket} does not say {what}: {said}")
        return {}
    return answer if isinstance(answer, dict) else {}


def _rule_warnings(rule: Mapping[str, Any], bucket: str) -> list[str]:
    name = f"lifecycle rule {rule['ID']}" if rule.get("ID") else "a lifecycle rule"
    expiration = rule.get("Expiration") or {}
    found = []
    if "Days" in expiration or "Date" in expiration:
        found.append(
            f"{name} of bucket {bucket} deletes what is in the store {_when(expiration)}: exclude the store's prefix "
            "from it, or its data will be lost"
        )
    found += [
        f"{name} of bucket {bucket} moves what is in the store to {move['StorageClass']} {_when(move)}, "
        "where dsv can't read it"
        for move in rule.get("Transitions") or ()
        if move.get("StorageClass") in _OFFLINE
    ]
    return found


def _when(action: Mapping[str, Any]) -> str:
    if "Days" in action:
        return f"after {action['Days']} days"
    date = action.get("Date")
    return f"on {date:%Y-%m-%d}" if hasattr(date, "strftime") else "on a fixed date"


def _applies(rule: Mapping[str, Any], prefix: str) -> bool:
    """Return whether the rule is on and concerns any key of the store. dsv's objects have no tags."""
    if rule.get("Status") != "Enabled":
        return False
    chosen = rule.get("Filter") or {}
    chosen = {**chosen, **(chosen.get("And") or {})}
    if chosen.get("Tag") or chosen.get("Tags"):
        return False
    theirs = str(chosen.get("Prefix") or rule.get("Prefix") or "")
    ours = f"{prefix}/" if prefix else ""
    return theirs.startswith(ours) or ours.startswith(theirs)


class History(msgspec.Struct, frozen=True):
    """The old versions that a bucket keeps besides its objects."""

    versioned: bool = False
    """It keeps versions of deleted objects, or once did."""
    locked: bool = False
    """Versions can't be deleted before a time that the server knows."""
    replicas: tuple[str, ...] = ()
    """Other buckets that get a copy of each object."""
    unanswered: tuple[str, ...] = ()
    """Facts that could not be found out, as sentences."""


class OldVersion(msgspec.Struct, frozen=True):
    """A version of a pack that readers of the store no longer see."""

    key: str
    """The key in the bucket."""
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
        client, ask = self._client, partial(_answer, bucket=self._bucket, unanswered=unanswered)
        versioning = ask(client.get_bucket_versioning, what="whether old versions are kept")
        lock = ask(client.get_object_lock_configuration, what="whether objects are locked")
        replication = ask(client.get_bucket_replication, what="whether objects are replicated")
        rules = (replication.get("ReplicationConfiguration") or {}).get("Rules") or ()
        enabled = (rule.get("Destination", {}) for rule in rules if rule.get("Status") == "Enabled")
        return History(
            bool(versioning.get("Status")),
            (lock.get("ObjectLockConfiguration") or {}).get("ObjectLockEnabled") == "Enabled",
            tuple(sorted({str(one.get("Bucket", "an unknown bucket")) for one in enabled})),
            tuple(unanswered),
        )

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
                if one.get("IsLatest") or pack is None or pack.is_external:  # external packs have no contents
                    continue
                version = str(one["VersionId"])
                table = self._asked(partial(self._table, key, version, int(one["Size"])))
                yield OldVersion(key, version, table)

    def _asked(self, ask: Callable[[], _T]) -> _T:
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
        """Delete a version permanently. Return why that was not possible; None if it was."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            self._client.delete_object(Bucket=self._bucket, Key=one.key, VersionId=one.version)
        except (BotoCoreError, ClientError) as error:
            return str(error)
        return None
