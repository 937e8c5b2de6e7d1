"""What dsv import says of servers that refuse, or that are not there."""

from __future__ import annotations

import http.server
import importlib.util
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.kit.dsv import Dsv, Result
from tests.kit.web import web_server

pytest.importorskip("fsspec")


@pytest.mark.parametrize(
    ("status", "code", "said", "hint"),
    [
        (401, 8, "the server answered 401 Unauthorized", "USER:PASSWORD@ before the host"),
        (403, 8, "the server answered 403 Forbidden", "USER:PASSWORD@ before the host"),
        (404, 3, "there is nothing at http://127.0.0.1", "check the URL"),
        (503, 6, "the server answered 503 Service Unavailable", "later"),
    ],
)
def test_the_answer_of_a_web_server_or_of_the_hub_is_reported(
    pets: Dsv, status: int, code: int, said: str, hint: str
) -> None:
    with refusing(status) as address:
        check_told(pets.process("import", f"{address}/a.csv", "pets:"), code, said, hint)
        if importlib.util.find_spec("huggingface_hub") is None:
            return
        hub = pets.at(pets.cwd, HF_ENDPOINT=address, HF_HUB_DISABLE_XET="1")
        on_hub = "there is nothing at hf://datasets/team/pets" if status == 404 else said
        helps = "later" if status == 503 else "hf auth login"
        check_told(hub.process("import", "hf://datasets/team/pets", "pets:"), code, on_hub, helps)


@pytest.mark.parametrize(
    ("url", "code", "said", "hint"),
    [
        ("http://127.0.0.1:{closed}/x", 6, "connection refused", "check the host and the port"),
        ("sftp://127.0.0.1:{closed}/x", 6, "connection refused", "check the host and the port"),
        ("hf://datasets/team/pets", 6, "connection refused", "HF_ENDPOINT"),
        ("s3://bucket/x", 6, "connection refused", "--source-endpoint"),
        ("http://nowhere.invalid/x", 6, "unknown host", "the network of this machine"),
        ("sftp://nowhere.invalid/x", 6, "unknown host", "the network of this machine"),
        ("sftp://127.0.0.1:{web}/x", 6, "does not speak SSH", "check the port"),
        ("https://127.0.0.1:{web}/x", 6, "does not use TLS", "http://"),
        ("sftp:///x", 2, "has no host name", "sftp://USER@HOST/PATH"),
        ("https:///x", 2, "has no host name", "https://HOST/PATH"),
        ("http://127.0.0.1:no/x", 3, "there is nothing at http://127.0.0.1:no/x", "check the URL"),
        ("sftp://127.0.0.1:no/x", 2, "Port could not be cast", "dsv import --help"),
        ("http://[::1/x", 2, "http://[::1/x has no host name", "https://HOST/PATH"),
        ("sftp://[::1]:22/x", 2, "sftp://[::1]:22/x has no host name", "sftp://USER@HOST/PATH"),
        ("sftp://[zz]/x", 2, "sftp://[zz]/x has no host name", "sftp://USER@HOST/PATH"),
        ("s3://[::1/x", 2, "is not a URL", "dsv import --help"),
        ("memory://[::1/x", 3, "there is no file at memory://[::1/x", "check the URL"),
        ("s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/a/x", 6, "unknown host", "--source-endpoint"),
        ("hf://datasets/pets", 2, "is not a valid URL", "hf://datasets/OWNER/NAME"),
        ("foo://x/y", 2, "is not a URL that dsv can read", "dsv import --help"),
    ],
)
def test_the_reason_why_a_server_is_not_reached_is_reported(
    pets: Dsv, url: str, code: int, said: str, hint: str
) -> None:
    for protocol, package in (("sftp:", "paramiko"), ("hf:", "huggingface_hub"), ("s3:", "s3fs")):
        if url.startswith(protocol):
            pytest.importorskip(package, reason=f"needs {package}")
    with socket.socket() as closed, refusing(404) as web:
        closed.bind(("127.0.0.1", 0))  # and never listens
        port = closed.getsockname()[1]
        person = pets.at(
            pets.cwd,
            HF_ENDPOINT=f"http://127.0.0.1:{port}",
            AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}",
            AWS_ACCESS_KEY_ID="a",
            AWS_SECRET_ACCESS_KEY="b",
        )
        address = url.format(closed=port, web=web.rpartition(":")[2])
        check_told(person.process("import", address, "pets:"), code, said, hint)


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [("http://[zz]/x", 2, "has no host name"), ("http://[::1/x", 9, "can't be referred to")],
)
def test_no_file_at_a_url_with_an_ipv6_address_is_referred_to(
    pets: Dsv, url: str, code: int, said: str
) -> None:
    done = pets("import", url, "pets:", "--reference")
    assert done.code == code and f"{url} {said}" in done.err, done


def check_told(done: Result, code: int, said: str, hint: str) -> None:
    """One sentence and one hint, and nothing of what the libraries say."""
    assert done.code == code and said in done.err and "Errno" not in done.err, done
    lines = done.err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["error", "hint"] and hint in lines[1], done


@contextmanager
def refusing(status: int) -> Iterator[str]:
    """The address of a web server that answers so."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with web_server(Handler) as port:
        yield f"http://127.0.0.1:{port}"
