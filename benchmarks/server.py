"""A fresh S3 server for each peer's turn, so that nobody meets what another one left in its memory.

Run as a program it starts one and prints how to reach it, so that it can be started in another namespace.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.labs import ceph_rgw
from tests.labs.s3_server import S3Server

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Running:
    """A server with one empty bucket."""

    s3: S3Server
    bucket: str
    folder: Path

    def requests(self) -> list[str]:
        """`GET 206 8192` for each request so far, from the server's own log: method, status, bytes sent."""
        log = (self.folder / "client.admin.ceph.log").read_text(errors="replace")
        return [_request(line) for line in log.splitlines() if " beast: " in line and '"' in line]


@contextmanager
def fresh(address: str = "127.0.0.1", inside: Sequence[str] = ()) -> Iterator[Running]:
    """Start one, in the namespace that `inside` enters; it is gone at the end."""
    folder = Path(tempfile.mkdtemp(prefix="dsv-bench-"))
    argv = [*inside, sys.executable, "-m", "benchmarks.server", str(folder), address]
    try:
        done = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        told = json.loads(done.stdout)
        yield Running(S3Server(**told["server"]), told["bucket"], folder)
    finally:
        ceph_rgw.down(folder)
        shutil.rmtree(folder)


def _request(line: str) -> str:
    _, request, rest = line.split('"', 2)
    status, size = rest.split()[:2]
    return f"{request.split()[0]} {status} {size}"


def _start(folder: Path, address: str) -> None:
    """The first requests make the server create its pools; that is nobody's turn."""
    server = ceph_rgw.up(folder, address)
    bucket, client = server.bucket(), server.client()
    for number in range(20):
        client.put_object(Bucket=bucket, Key=f"warm/{number}", Body=bytes(1 << 16))
        client.get_object(Bucket=bucket, Key=f"warm/{number}")["Body"].read()
        client.delete_object(Bucket=bucket, Key=f"warm/{number}")
    print(json.dumps({"server": asdict(server), "bucket": bucket}))


if __name__ == "__main__":
    _start(Path(sys.argv[1]), sys.argv[2])
