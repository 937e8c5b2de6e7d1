"""Reaching into a store by other means than the store, so that its errors can't cancel each other out."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dsv.stores.memory import MemoryStore


class Outside(Protocol):
    """The same objects by another way in."""

    def put(self, key: str, data: bytes) -> None: ...

    def get(self, key: str) -> bytes | None: ...

    def keys(self) -> set[str]: ...


@dataclass(frozen=True, slots=True)
class OutsideDirectory:
    """Plain files below a folder; those that lie in dot folders are the store's own."""

    root: Path

    def put(self, key: str, data: bytes) -> None:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def get(self, key: str) -> bytes | None:
        path = self.root / key
        return path.read_bytes() if path.is_file() else None

    def keys(self) -> set[str]:
        found = set()
        for folder, _, names in os.walk(self.root):
            base = Path(folder).relative_to(self.root)
            if not base.parts or not base.parts[0].startswith("."):
                found |= {str(base / name) for name in names}
        return found


@dataclass(frozen=True, slots=True)
class OutsideMemory:
    """The dict inside. The store keeps its keys sorted beside it."""

    store: MemoryStore

    def put(self, key: str, data: bytes) -> None:
        self.store._objects[key] = data
        self.store._keys = sorted(self.store._objects)

    def get(self, key: str) -> bytes | None:
        return self.store._objects.get(key)

    def keys(self) -> set[str]:
        return set(self.store._objects)


@dataclass(frozen=True, slots=True)
class OutsideS3:
    """boto3, which shares no code with the store's client."""

    client: Any
    bucket: str
    prefix: str

    def put(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=f"{self.prefix}/{key}", Body=data)

    def get(self, key: str) -> bytes | None:
        try:
            answer = self.client.get_object(Bucket=self.bucket, Key=f"{self.prefix}/{key}")
        except self.client.exceptions.NoSuchKey:
            return None
        return bytes(answer["Body"].read())

    def keys(self) -> set[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=f"{self.prefix}/"
        )
        rows: Iterable[Any] = (row for page in pages for row in page.get("Contents", ()))
        return {row["Key"].removeprefix(f"{self.prefix}/") for row in rows}
