"""Azurite, Microsoft's emulator of Azure Blob Storage, and a way into it that shares no code with dsv."""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import subprocess
import xml.etree.ElementTree as Xml
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote

from dsv.stores.options import StoreOptions
from tests.labs.machine import free_ports, wait_until
from tests.waiting import PATIENCE

PROGRAM = "azurite-blob"
ACCOUNT = "devstoreaccount1"
# The emulator's published key: every Azurite has it.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
VERSION = "2021-08-06"


@dataclass(frozen=True, slots=True)
class Azurite:
    """A running emulator on loopback."""

    port: int

    @property
    def options(self) -> StoreOptions:
        endpoint = f"http://127.0.0.1:{self.port}/{ACCOUNT}"
        return StoreOptions(azure_endpoint=endpoint, account=ACCOUNT, account_key=KEY)

    def request(
        self, method: str, path: str, query: dict[str, str], body: bytes = b"", **more: str
    ) -> tuple[int, bytes]:
        """One request, signed with the account's key; `more` are headers, with underscores for dashes."""
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": VERSION}
        headers |= {name.replace("_", "-"): value for name, value in more.items()}
        resource = f"/{ACCOUNT}/{ACCOUNT}/{path}" + "".join(f"\n{k}:{v}" for k, v in sorted(query.items()))
        signed = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
        text = f"{method}\n\n\n{len(body) or ''}\n\n\n\n\n\n\n\n\n{signed}{resource}"
        digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        asked = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, f"/{ACCOUNT}/{path}?{asked}", body or None, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@dataclass(frozen=True, slots=True)
class OutsideAzure:
    """A container of Azurite's, by plain requests."""

    azurite: Azurite
    container: str
    prefix: str

    def put(self, key: str, data: bytes) -> None:
        status, body = self.azurite.request("PUT", self._path(key), {}, data, x_ms_blob_type="BlockBlob")
        assert status == 201, body

    def get(self, key: str) -> bytes | None:
        status, body = self.azurite.request("GET", self._path(key), {})
        assert status in (200, 404), body
        return body if status == 200 else None

    def keys(self) -> set[str]:
        query = {"comp": "list", "prefix": f"{self.prefix}/", "restype": "container"}
        status, body = self.azurite.request("GET", self.container, query)
        assert status == 200, body
        names = [node.text or "" for node in Xml.fromstring(body).iterfind("Blobs/Blob/Name")]
        return {name.removeprefix(f"{self.prefix}/") for name in names}

    def _path(self, key: str) -> str:
        return quote(f"{self.container}/{self.prefix}/{key}")


@contextmanager
def running(folder: Path) -> Iterator[Azurite]:
    """Azurite with all it holds in memory."""
    process, port = _start(folder)
    while process.poll() is not None:  # another program took the port first
        assert "EADDRINUSE" in _log(folder).read_text(), _log(folder).read_text()
        process, port = _start(folder)
    try:
        yield Azurite(port)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _start(folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Return once it listens, or has ended."""
    (port,) = free_ports(1)
    program = shutil.which(PROGRAM)
    assert program is not None
    argv = [program, "--inMemoryPersistence", "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    with _log(folder).open("wb") as log:
        process = subprocess.Popen(
            [*argv, "--silent", "--skipApiVersionCheck", "--disableTelemetry"],
            stdout=log,
            stderr=log,
            cwd=folder,
        )
    assert wait_until(
        lambda: process.poll() is not None or "successfully listens" in _log(folder).read_text(), PATIENCE
    ), _log(folder).read_text()
    return process, port


def _log(folder: Path) -> Path:
    return folder / "azurite.log"
