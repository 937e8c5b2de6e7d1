"""A bucket on some S3 server, which the tests of a session share by prefix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.labs.s3_server import S3Server


@dataclass(frozen=True, slots=True)
class Bucket:
    """`client` is boto3's; making one takes longer than most tests."""

    server: S3Server
    name: str
    client: Any
