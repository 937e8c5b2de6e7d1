"""Endpoints, credentials, proxies and certificates: where each comes from, and what is said when it is wrong."""

from __future__ import annotations

import datetime
import ipaddress
import json
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import replace
from obstore.auth.boto3 import Boto3CredentialProvider
from rich.pretty import pretty_repr

from dsv.errors import Denied, DsvError, NotFound, Unreachable, UsageError
from dsv.stores.credentials import aws_access, boto_client, is_reached_directly
from dsv.stores.open import SCHEMES, open_raw, open_store
from dsv.stores.options import StoreOptions
from dsv.stores.retry import Retrying
from tests.stores.opened import Opened
from tests.stores.wire import Wire, answer, s3_error, serving
from tests.waiting import PATIENCE

KEYS = {"AWS_ACCESS_KEY_ID": "from-the-environment", "AWS_SECRET_ACCESS_KEY": "secret"}
FOUND = answer("200 OK", b"found")


def settings(**variables: str) -> StoreOptions:
    return StoreOptions.from_environment(variables)


def signed_by(wire: Wire, number: int = -1) -> str:
    """The access key that a request was signed with."""
    return wire.asked[number].partition("Credential=")[2].partition("/")[0]


def signed_for(wire: Wire) -> str:
    """The region that a request was signed for."""
    return wire.asked[-1].partition("Credential=")[2].split("/")[2]


@pytest.fixture
def aws(home: Path) -> Path:
    """The user's ~/.aws, as boto3 reads it."""
    folder = home / ".aws"
    folder.mkdir()
    return folder


def test_keys_and_endpoint_from_the_environment() -> None:
    with serving(FOUND) as wire:
        options = settings(**KEYS, AWS_ENDPOINT_URL=wire.endpoint, AWS_REGION="eu-north-1")
        assert open_raw("s3://bucket/p", options).get("k") == b"found"
    assert wire.asked[0].startswith("GET /bucket/p/k HTTP/1.1")
    assert (signed_by(wire), signed_for(wire)) == ("from-the-environment", "eu-north-1")


def test_a_session_token_is_sent() -> None:
    with serving(FOUND) as wire:
        options = settings(**KEYS, AWS_SESSION_TOKEN="the-token", AWS_ENDPOINT_URL=wire.endpoint)
        open_raw("s3://bucket/p", options).get("k")
    assert "x-amz-security-token: the-token" in wire.asked[0].lower()


def test_the_endpoint_for_s3_alone_comes_first() -> None:
    with serving(FOUND) as wire:
        options = settings(**KEYS, AWS_ENDPOINT_URL="http://127.0.0.1:1", AWS_ENDPOINT_URL_S3=wire.endpoint)
        assert open_raw("s3://bucket/p", options).get("k") == b"found"


def test_an_endpoint_that_was_asked_for_beats_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even what the client library would read by itself."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with serving(FOUND) as wire:
        options = StoreOptions(endpoint=wire.endpoint, access_key="a", secret_key="b", region="x")
        assert open_raw("s3://bucket/p", options).get("k") == b"found"


def test_a_profile_gives_keys_region_and_endpoint(aws: Path) -> None:
    with serving(FOUND) as wire:
        (aws / "config").write_text(f"[profile lab]\nregion = lab-1\nendpoint_url = {wire.endpoint}\n")
        (aws / "credentials").write_text("[lab]\naws_access_key_id = of-lab\naws_secret_access_key = s\n")
        assert open_raw("s3://bucket/p", settings(AWS_PROFILE="lab")).get("k") == b"found"
    assert (signed_by(wire), signed_for(wire)) == ("of-lab", "lab-1")


def test_a_profile_that_is_asked_for_beats_keys_of_the_environment(
    aws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    (aws / "credentials").write_text("[lab]\naws_access_key_id = of-lab\naws_secret_access_key = s\n")
    with serving(FOUND) as wire:
        options = settings(**KEYS, AWS_REGION="x").overridden(endpoint=wire.endpoint, profile="lab")
        open_raw("s3://bucket/p", options).get("k")
        open_raw("s3://bucket/p", settings(**KEYS).overridden(endpoint=wire.endpoint)).get("k")
    assert [signed_by(wire, number) for number in (0, 1)] == ["of-lab", "from-the-environment"]


def test_a_profiles_endpoint_for_s3(aws: Path) -> None:
    with serving(FOUND) as wire:
        (aws / "config").write_text(
            "[default]\nendpoint_url = http://127.0.0.1:1\nservices = here\n"
            f"[services here]\ns3 =\n  endpoint_url = {wire.endpoint}\n"
        )
        assert open_raw("s3://bucket/p", settings(**KEYS)).get("k") == b"found"


def test_no_credentials_at_all(home: Path) -> None:
    with pytest.raises(Denied, match="no credentials for s3://bucket/p") as caught:
        open_store("s3://bucket/p", settings())
    assert caught.value.hint and "aws configure" in caught.value.hint


def test_a_profile_that_is_not_there(aws: Path) -> None:
    with pytest.raises(Denied, match="nosuch") as caught:
        open_store("s3://bucket/p", settings(AWS_PROFILE="nosuch"))
    assert caught.value.exit_code == 8


def test_anonymous_requests_are_not_signed(home: Path) -> None:
    with serving(FOUND) as wire:
        open_raw("s3://bucket/p", StoreOptions(endpoint=wire.endpoint, anonymous=True)).get("k")
    assert "authorization" not in wire.asked[0].lower()


def credential_process(aws: Path, name: str, lifetime: int) -> Path:
    """A profile whose keys a program gives; each call counts one further, and they last `lifetime` seconds."""
    counter, program = aws / "count", aws / "give"
    until = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=lifetime)).isoformat()
    given = {"Version": 1, "SecretAccessKey": "s", "SessionToken": "t", "Expiration": until}
    program.write_text(
        f"#!{sys.executable}\nimport json, pathlib\np = pathlib.Path({str(counter)!r})\n"
        "n = int(p.read_text()) + 1 if p.exists() else 1\np.write_text(str(n))\n"
        f"print(json.dumps({{**json.loads({json.dumps(given)!r}), 'AccessKeyId': f'key-{{n}}'}}))\n"
    )
    program.chmod(0o755)
    (aws / "config").write_text(f"[profile {name}]\ncredential_process = {program}\nregion = us-east-1\n")
    return program


def test_credentials_that_are_about_to_expire_are_renewed(aws: Path) -> None:
    """Keys with five minutes left are not handed out again, and no key is kept without asking for long."""
    credential_process(aws, "short", 300)
    provider = aws_access("s3://bucket/p", settings(AWS_PROFILE="short")).provider
    assert isinstance(provider, Boto3CredentialProvider)
    given = [provider() for _ in range(2)]
    assert given[0]["access_key_id"] != given[1]["access_key_id"]
    ends = given[1]["expires_at"]
    assert ends is not None
    # The client asks again five minutes before this.
    assert ends - datetime.datetime.now(datetime.UTC) < datetime.timedelta(minutes=7)


def test_credentials_are_not_fetched_for_every_request(aws: Path) -> None:
    credential_process(aws, "long", 36_000)
    with serving(FOUND) as wire:
        store = open_raw("s3://bucket/p", settings(AWS_PROFILE="long", AWS_ENDPOINT_URL=wire.endpoint))
        for _ in range(5):
            store.get("k")
    assert {signed_by(wire, number) for number in range(5)} == {"key-1"}


def test_credentials_that_cannot_be_renewed(aws: Path) -> None:
    """They expire half way: denied, with what the chain said."""
    program = credential_process(aws, "ends", 1)
    with serving(FOUND) as wire:
        store = open_store("s3://bucket/p", settings(AWS_PROFILE="ends", AWS_ENDPOINT_URL=wire.endpoint))
        program.write_text("#!/bin/sh\necho the login has ended >&2\nexit 1\n")
        time.sleep(1.1)
        with pytest.raises(Denied, match="the login has ended") as caught:
            store.get("k")
    assert caught.value.hint


def test_expired_credentials_name_the_way_to_renew_them() -> None:
    with serving(s3_error("403 Forbidden", "ExpiredToken")) as wire:
        store = open_store("s3://bucket/p", settings(**KEYS, AWS_ENDPOINT_URL=wire.endpoint))
        with pytest.raises(Denied, match="expired") as caught:
            store.put_if_absent("k", b"x")
    assert caught.value.hint and "aws sso login" in caught.value.hint
    assert len(wire.asked) == 1


def test_a_proxy_is_used_and_left_out_where_it_should_be() -> None:
    with serving(FOUND) as proxy, serving(answer("200 OK", b"direct")) as wire:
        variables = {**KEYS, "AWS_ENDPOINT_URL": "http://far-away.invalid", "http_proxy": proxy.endpoint}
        assert open_raw("s3://bucket/p", settings(**variables)).get("k") == b"found"
        assert proxy.asked[0].startswith("GET http://far-away.invalid/bucket/p/k HTTP/1.1")
        variables |= {"AWS_ENDPOINT_URL": wire.endpoint, "NO_PROXY": "localhost,127.0.0.1"}
        assert open_raw("s3://bucket/p", settings(**variables)).get("k") == b"direct"


REACHED = ["127.0.0.1", "localhost,127.0.0.1:1, 127.0.0.1", "10.0.0.0/8, 127.0.0.0/8", "*", "x, *"]
REACHED += ["127.0.0.1:PORT", "localhost 127.0.0.1:PORT"]
OTHERS = ["elsewhere,10.0.0.0/8", "127.0.0.1:1", "*.0.1.invalid", "7.0.0.1", ""]


@pytest.mark.parametrize(
    ("no_proxy", "body"), [*((one, b"direct") for one in REACHED), *((one, b"found") for one in OTHERS)]
)
def test_both_clients_leave_a_proxy_out_where_curl_does(no_proxy: str, body: bytes) -> None:
    with serving(FOUND) as proxy, serving(answer("200 OK", b"direct")) as wire:
        variables = {**KEYS, "AWS_ENDPOINT_URL": wire.endpoint, "http_proxy": proxy.endpoint}
        for excluded in (no_proxy.replace("PORT", wire.endpoint.rpartition(":")[2]),):
            options = settings(**variables, NO_PROXY=excluded)
            assert open_raw("s3://bucket/p", options).get("k") == body
            assert read_by_boto(options) == body


@pytest.mark.parametrize(
    ("endpoint", "no_proxy", "direct"),
    [
        ("https://s3.lab.example", ".example", True),
        ("https://s3.lab.example", "*.lab.example", True),
        ("https://s3.lab.example", "LAB.example:443", True),
        ("https://s3.lab.example", "lab.example:80", False),
        ("http://s3.lab.example", "lab.example:80", True),
        ("https://s3.lab.example", "ab.example", False),
        ("http://[::1]:9", "::1", True),
        ("http://[::1]:9", "[::1]:9", True),
        ("http://[::1]:9", "[::1]:8,fe80::/10", False),
        ("http://[fe80::1]:9", "fe80::/10", True),
        ("http://10.1.2.3", "10.0.0.0/8", True),
        ("http://10.1.2.3", None, False),
    ],
)
def test_the_forms_of_no_proxy(endpoint: str, no_proxy: str | None, direct: bool) -> None:
    assert is_reached_directly(endpoint, no_proxy) is direct


NO_ENDPOINTS = [
    "localhost:9000",
    "127.0.0.1:9",
    "nonsense",
    "//x:9",
    "ftp://x",
    "unix:/x",
    "http://",
    "http:///x",
]
NO_ENDPOINTS += [
    "http://a b:9",
    "http://[::1",
    "http://127.0.0.1:99999",
    "http://\u00fc.invalid",
    "http://%zz:9",
]
NO_ENDPOINTS += ["http://127.0.0.1:9/a b", "http://*", "http://a\nb"]


@pytest.mark.parametrize("endpoint", NO_ENDPOINTS)
def test_an_endpoint_that_is_none_is_refused(endpoint: str) -> None:
    """The client would panic in Rust."""
    names = ("AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST", "AZURE_STORAGE_ENDPOINT")
    for scheme, name in zip(("s3", "gs", "az"), names, strict=True):
        variables = {
            **KEYS,
            "AZURE_STORAGE_ACCOUNT_NAME": "a",
            "AZURE_STORAGE_ACCOUNT_KEY": "ZQ==",
            name: endpoint,
        }
        with pytest.raises(UsageError, match="is no endpoint") as caught:
            open_store(f"{scheme}://bucket/p", settings(**variables))
        assert name in (caught.value.hint or "")


SENT = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION"]


def test_a_line_end_behind_a_variable_does_not_count() -> None:
    """As a secret of Kubernetes has it that was made with echo."""
    with serving(FOUND) as wire:
        variables = {
            **KEYS,
            "AWS_SESSION_TOKEN": "t",
            "AWS_REGION": "lab-1",
            "AWS_ENDPOINT_URL": wire.endpoint,
        }
        options = settings(**{name: f"{value}\n" for name, value in variables.items()})
        assert open_raw("s3://bucket/p", options).get("k") == b"found"
    assert (signed_by(wire), signed_for(wire)) == ("from-the-environment", "lab-1")


@pytest.mark.parametrize("value", ["\n", "a\nb", "a b", "\u00e9", "a\x7f"])
@pytest.mark.parametrize("name", SENT)
def test_what_no_header_can_carry_is_refused_with_its_name(name: str, value: str) -> None:
    variables = {**KEYS, "AWS_ENDPOINT_URL": "http://127.0.0.1:9", name: value}
    with pytest.raises(UsageError, match=name) as caught:
        open_store("s3://bucket/p", settings(**variables))
    assert value not in caught.value.message or value == "\n" or value == "a b"


def test_the_client_reads_nothing_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"):
        monkeypatch.setenv(name, "")
    for name in ("AWS_SESSION_TOKEN", "AWS_TOKEN", "AWS_ACCESS_KEY_ID"):
        monkeypatch.setenv(name, "of-somebody-else\n")
    static = StoreOptions(access_key="a", secret_key="b", region="lab-1")
    with serving(answer("403 Forbidden")) as proxy, pytest.raises(DsvError):
        open_raw("s3://bucket/p", replace(static, https_proxy=proxy.endpoint)).get("k")
    assert proxy.asked[0].startswith("CONNECT bucket.s3.lab-1.amazonaws.com:443 ")
    with serving(FOUND) as wire:
        assert open_raw("s3://bucket/p", replace(static, endpoint=wire.endpoint)).get("k") == b"found"
    assert signed_by(wire) == "a" and "x-amz-security-token" not in wire.asked[0].lower()


def test_a_proxy_that_is_no_address_is_no_question_of_credentials() -> None:
    variables = {**KEYS, "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "http_proxy": "http://a b:9"}
    with pytest.raises(UsageError, match="a proxy or a certificate can't be used"):
        open_store("s3://bucket/p", settings(**variables))


def read_by_boto(options: StoreOptions) -> bytes:
    client = boto_client(
        "s3://bucket/p", options, connect_timeout=PATIENCE, read_timeout=PATIENCE, attempts=1
    )
    found: bytes = client.get_object(Bucket="bucket", Key="p/k")["Body"].read()
    client.close()
    return found


def test_an_access_key_without_its_secret_is_no_key(aws: Path) -> None:
    (aws / "credentials").write_text("[default]\naws_access_key_id = of-file\naws_secret_access_key = s\n")
    with serving(FOUND) as wire:
        options = settings(AWS_ACCESS_KEY_ID="half", AWS_SESSION_TOKEN="t", AWS_ENDPOINT_URL=wire.endpoint)
        assert open_raw("s3://bucket/p", options).get("k") == read_by_boto(options) == b"found"
    assert [signed_by(wire, number) for number in (0, 1)] == ["of-file", "of-file"]
    assert not any("x-amz-security-token" in each.lower() for each in wire.asked)


def test_a_proxy_for_https_is_asked_to_connect() -> None:
    with serving(answer("403 Forbidden")) as proxy:
        variables = {**KEYS, "AWS_ENDPOINT_URL": "https://far-away.invalid", "HTTPS_PROXY": proxy.endpoint}
        with pytest.raises(DsvError):
            open_raw("s3://bucket/p", settings(**variables)).get("k")
    assert proxy.asked[0].startswith("CONNECT far-away.invalid:443 HTTP/1.1")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A private CA's certificate, ca.pem, beside a server's certificate with its key, server.pem."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder = tmp_path_factory.mktemp("authority")
    now = datetime.datetime.now(datetime.UTC)
    ca_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a private authority")])
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])

    def builder(subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        span = datetime.timedelta(days=1)
        return (
            x509.CertificateBuilder(ca_name, subject, key, x509.random_serial_number())
            .not_valid_before(now - span)
            .not_valid_after(now + span)
        )

    ca = builder(ca_name, ca_key.public_key()).add_extension(x509.BasicConstraints(True, 0), True)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    server = builder(name, server_key.public_key()).add_extension(address, False)
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(ca.sign(ca_key, hashes.SHA256()).public_bytes(pem))
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "server.pem").write_bytes(
        server_key.private_bytes(pem, *plain) + server.sign(ca_key, hashes.SHA256()).public_bytes(pem)
    )
    return folder


@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"])
def test_a_private_authority(authority: Path, variable: str) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(authority / "server.pem")
    with serving(FOUND, tls=tls) as wire:
        variables = {**KEYS, "AWS_ENDPOINT_URL": wire.endpoint}
        with pytest.raises(Unreachable, match="does not trust") as caught:
            open_raw("s3://bucket/p", settings(**variables)).get("k")
        assert caught.value.hint and "AWS_CA_BUNDLE" in caught.value.hint
        variables[variable] = str(authority / "ca.pem")
        assert open_raw("s3://bucket/p", settings(**variables)).get("k") == b"found"


def test_an_untrusted_certificate_is_not_asked_again(authority: Path) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(authority / "server.pem")
    greetings = []
    tls.sni_callback = lambda *greeting: greetings.append(greeting)  # called for each
    with serving(FOUND, tls=tls) as wire, pytest.raises(Unreachable, match="does not trust"):
        open_store("s3://bucket/p", settings(**KEYS, AWS_ENDPOINT_URL=wire.endpoint)).get("k")
    assert len(greetings) == 1


def test_certificates_that_cannot_be_read(tmp_path: Path) -> None:
    variables = {**KEYS, "AWS_ENDPOINT_URL": "https://x.invalid", "AWS_CA_BUNDLE": str(tmp_path / "none.pem")}
    with pytest.raises(NotFound, match=r"none\.pem"):
        open_store("s3://bucket/p", settings(**variables))


NO_STORES = ["", "chest-xray", "relative/dir", "ftp://x/y", "://", "file:relative", "file://elsewhere/dir"]
NO_STORES += ["s3://", "s3:///p", "s3://b/../x", "s3://b/p?x=1", "s3://k:s@b/p", "s3://b:99/p", "s3://b/p//q"]
NO_STORES += ["s3://b/.x", "az://box/p", "s3://b b/p", "s3://b<c>/p", "gs://b`c/p", "s3://\u00e9/p"]


@pytest.mark.parametrize("url", NO_STORES)
def test_what_is_no_stores_url(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_store(url, settings(**KEYS, AWS_REGION="x"))
    assert caught.value.exit_code == 2


def test_folders_by_path_and_by_url(tmp_path: Path, opened: Opened) -> None:
    (tmp_path / "a b").mkdir()
    first = opened(open_store(str(tmp_path / "a b")))
    first.put_if_absent("k", b"x")
    for url in (f"file://{tmp_path}/a%20b", f"file://localhost{tmp_path}/a%20b"):
        again = opened(open_store(url))
        assert again.get("k") == b"x" and again.url == first.url == str(tmp_path / "a b")


def test_a_memory_store_is_shared_by_name() -> None:
    open_store("memory://shared-by-name").put_if_absent("k", b"x")
    assert open_store("memory://shared-by-name").get("k") == b"x"
    with pytest.raises(NotFound):
        open_store("memory://another-name").get("k")


def test_every_opened_store_tries_again(tmp_path: Path, opened: Opened) -> None:
    for url in (str(tmp_path), "memory://x"):
        store = open_store(url)
        assert isinstance(opened(store.data), Retrying) and store.names is store.data


def test_no_secret_shows_in_what_is_printed() -> None:
    options = settings(
        AWS_ACCESS_KEY_ID="id",
        AWS_SECRET_ACCESS_KEY="hide-me",
        AWS_SESSION_TOKEN="hide-me",
        AZURE_STORAGE_ACCOUNT_KEY="hide-me",
        CLOUDSDK_AUTH_ACCESS_TOKEN="hide-me",
    )
    for shown in (repr(options), pretty_repr(options)):
        assert "id" in shown and "hide-me" not in shown


def test_google_and_azure_without_credentials(home: Path) -> None:
    """Each says so, and how to log in."""
    with serving(answer("403 Forbidden")) as proxy:
        for url, hint in (("gs://bucket/p", "gcloud auth"), ("az://box/p", "az login")):
            options = StoreOptions(account="account", http_proxy=proxy.endpoint, https_proxy=proxy.endpoint)
            with pytest.raises(Denied) as caught:
                open_store(url, options).get("k")
            assert caught.value.hint and hint in caught.value.hint


def imported_by(program: str) -> set[str]:
    code = f"{program}\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


HEAVY = {"obstore", "boto3", "botocore", "rich", "fsspec"}


def test_nothing_heavy_is_imported_before_it_is_needed(tmp_path: Path) -> None:
    everything = (
        "import dsv.stores.base, dsv.stores.retry, dsv.stores.open, dsv.stores.probe, dsv.stores.open"
    )
    assert not imported_by(everything) & HEAVY
    assert not imported_by(f"from dsv.stores.open import open_store; open_store({str(tmp_path)!r})") & HEAVY
    keys = "StoreOptions(access_key='a', secret_key='b', region='c')"
    static = f"{everything}\nfrom dsv.stores.options import *\ndsv.stores.open.open_store('s3://bbb', {keys})"
    assert imported_by(static) & HEAVY == {"obstore"}


def test_every_scheme_can_be_opened(tmp_path: Path, opened: Opened) -> None:
    options = StoreOptions(
        access_key="a", secret_key="b", region="c", account="d", account_key="ZQ==", google_token="f"
    )
    urls = {"file": f"file://{tmp_path}", "memory": "memory://m"}
    for scheme in SCHEMES:
        assert opened(open_store(urls.get(scheme, f"{scheme}://bucket/p"), options)).url
