"""How a test reaches an S3 server, whichever it is."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class S3Server:
    """An endpoint on loopback with keys that may do everything there."""

    endpoint: str
    access_key: str
    secret_key: str
    region: str = "us-east-1"

    @property
    def env(self) -> dict[str, str]:
        """Return the environment that makes dsv, boto3 and every other S3 program talk to this server."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
        }

    def client(self) -> Any:
        """A boto3 client, independent of dsv's own way to the store."""
        import boto3
        from botocore.config import Config

        settings = Config(
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "path"},
        )
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=self.region,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=settings,
        )

    def bucket(self) -> str:
        """The name of a new, empty bucket that nobody else uses."""
        name = f"dsv-{os.getpid()}-{next(_numbers)}-{os.urandom(3).hex()}"
        self.client().create_bucket(Bucket=name)
        return name

    def objects(self, bucket: str, prefix: str = "") -> Mapping[str, int]:
        """Key -> size of everything in the bucket, asked of the server itself."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return {item["Key"]: item["Size"] for page in pages for item in page.get("Contents", [])}

    def remove_bucket(self, bucket: str) -> None:
        """Delete the bucket with all that is in it: an in-memory server has only so much memory."""
        client = self.client()
        keys = list(self.objects(bucket))
        for first in range(0, len(keys), 500):
            batch = [{"Key": key} for key in keys[first : first + 500]]
            client.delete_objects(Bucket=bucket, Delete={"Objects": batch, "Quiet": True})
        client.delete_bucket(Bucket=bucket)
