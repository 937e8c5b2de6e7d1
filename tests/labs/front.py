"""What stands before an S3 server for the pods of a cluster: TLS with the authority of a site.

The server itself listens on loopback alone, and pods have other addresses.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tests.labs.kubernetes import Kubernetes
from tests.labs.machine import call
from tests.labs.s3_server import S3Server


@dataclass
class Front:
    """address: a URL for pods, and for this host. authority: the file of the certificate that it is to be trusted by.

    sent: bytes that went to others than this host, encrypted.
    """

    address: str
    authority: Path
    sent: int = field(default=0)


@contextmanager
def tls_front(cluster: Kubernetes, server: S3Server, folder: Path) -> Iterator[Front]:
    """Serve an S3 server by TLS at the address by which pods reach this host."""
    _make_certificate(folder, cluster.host)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "front.crt", folder / "front.key")
    behind = urlsplit(server.endpoint)
    assert behind.hostname is not None and behind.port is not None
    with socket.create_server((cluster.host, 0)) as listener:
        front = Front(f"https://{cluster.host}:{listener.getsockname()[1]}", folder / "site.crt")
        lock = threading.Lock()

        def serve(raw: socket.socket, peer: str) -> None:
            there = (behind.hostname or "", behind.port or 0)
            with (
                suppress(OSError),
                context.wrap_socket(raw, server_side=True) as client,
                socket.create_connection(there) as source,
            ):
                threading.Thread(target=_pass_on, args=(client, source), daemon=True).start()
                for size in _pass_on_counted(source, client):
                    if peer != cluster.host:
                        with lock:
                            front.sent += size

        def accept() -> None:
            with suppress(OSError):
                while True:
                    raw, peer = listener.accept()
                    threading.Thread(target=serve, args=(raw, peer[0]), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield front
        listener.shutdown(socket.SHUT_RDWR)


def _make_certificate(folder: Path, address: str) -> None:
    """An authority, and what it has signed."""
    log = folder / "front.log"
    new = ["openssl", "req", "-newkey", "rsa:2048", "-nodes"]
    authority = ["-x509", "-subj", "/CN=site", "-days", "30", "-out", f"{folder}/site.crt"]
    call([*new, *authority, "-keyout", f"{folder}/site.key"], log=log)
    request = ["-subj", "/CN=front", "-keyout", f"{folder}/front.key", "-out", f"{folder}/front.csr"]
    call([*new, *request], log=log)
    (folder / "front.names").write_text(f"subjectAltName=IP:{address}")
    signed = ["-in", f"{folder}/front.csr", "-CA", f"{folder}/site.crt", "-CAkey", f"{folder}/site.key"]
    more = ["-CAcreateserial", "-days", "30", "-extfile", f"{folder}/front.names"]
    call(["openssl", "x509", "-req", *signed, *more, "-out", f"{folder}/front.crt"], log=log)


def _pass_on(source: socket.socket, to: socket.socket) -> None:
    for _ in _pass_on_counted(source, to):
        pass


def _pass_on_counted(source: socket.socket, to: socket.socket) -> Iterator[int]:
    """Until one side ends; reports the size of each piece."""
    with suppress(OSError):
        while piece := source.recv(1 << 16):
            to.sendall(piece)
            yield len(piece)
    with suppress(OSError):
        to.shutdown(socket.SHUT_RDWR)
