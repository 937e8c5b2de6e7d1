"""The identity that EKS gives to a pod, by the variables and the file that it puts there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from dsv.stores.credentials import aws_access
from dsv.stores.options import StoreOptions

ROLE = "arn:aws:iam::123456789012:role/trainer"
ANSWER = b"""\
<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult>
<Credentials><AccessKeyId>of-the-role</AccessKeyId><SecretAccessKey>secret</SecretAccessKey>
<SessionToken>session</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>
</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>
"""


@pytest.fixture
def token_service() -> Iterator[tuple[str, list[dict[str, list[str]]]]]:
    """The address of what stands for AWS STS, and what it was asked."""
    asked: list[dict[str, list[str]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode()))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(ANSWER)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


def test_a_token_file_and_a_role_become_credentials_also_for_a_store_of_another_address(
    token_service: tuple[str, list[dict[str, list[str]]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, asked = token_service
    (tmp_path / "token").write_text("of-the-service-account")
    environ = {
        "AWS_ROLE_ARN": ROLE,
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"),
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_STS": address,
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    options = StoreOptions.from_environment(environ).overridden(endpoint="https://s3.example.org")
    provider = aws_access("s3://lake/dsv", options).provider
    assert provider is not None
    found = provider()
    assert (found["access_key_id"], found.get("token")) == ("of-the-role", "session")
    assert [(each["RoleArn"], each["WebIdentityToken"]) for each in asked] == [
        ([ROLE], ["of-the-service-account"])
    ]
