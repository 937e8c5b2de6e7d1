"""A store in two places: the names in a folder, the data in a bucket of a server that can't decide who wins."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tests.kit.dsv import Dsv, write_files
from tests.labs.s3_server import S3Server
from tests.stores.proxy import Behaviour

FILES = {f"train/{number}.txt": f"{number}\n".encode() * 50 for number in range(30)}


@dataclass(frozen=True)
class World:
    """`names` is a folder, `server` the proxied bucket's, `does` what that server does."""

    root: Path
    server: S3Server
    bucket: str
    does: Behaviour

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/dsv"

    @property
    def names(self) -> Path:
        return self.root / "names"

    def person(self, name: str, *, configured: bool = True) -> Dsv:
        """With a home and a folder of their own."""
        own = self.root / name
        dsv = Dsv.of(own / "home", own / "work", DSV_CACHE=str(self.root / "cache"), **self.server.env)
        dsv.ok("config", "stores.grid.url", self.url)
        dsv.ok("config", "store", "grid")
        if configured:
            dsv.ok("config", "stores.grid.names", str(self.names))
        return dsv

    def stored(self, prefix: str = "dsv/") -> list[str]:
        """Keys in the bucket below a prefix, without it, as the server itself lists them."""
        found = (
            self.server.client().get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        )
        return [row["Key"].removeprefix(prefix) for page in found for row in page.get("Contents", [])]


def synced(dsv: Dsv, files: dict[str, bytes], *arguments: str) -> str:
    """The commit that a sync of these files makes."""
    write_files(dsv.cwd, files)
    return str(json.loads(dsv.ok("sync", "--json", *arguments).out)["commit"])
