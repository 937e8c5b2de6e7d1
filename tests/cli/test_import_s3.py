"""dsv import from S3: keys that no two files can have, bits that flip on the way, and listings that fail."""

from __future__ import annotations

import base64
import hashlib
import random
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from dsv.exchange.crc import Crc
from tests.kit.dsv import Dsv
from tests.labs.s3_server import S3Server
from tests.stores.servers_on_moto import SmallPages

pytest.importorskip("s3fs")
pytest.importorskip("moto.server", reason="needs moto[server]")
BIG = random.Random(9).randbytes(20 << 20)


class Server(SmallPages):
    """`damaged` is a key whose bodies have one other bit. Of each listing the first `pages` are given, and
    then `refusal`. `headers` come with each answer to a GET of an object."""

    damaged = ""
    refusal = ""
    pages = 1
    headers: tuple[tuple[str, str], ...] = ()

    def __init__(self) -> None:
        self.asked: list[str] = []
        """Each request about an object."""
        super().__init__()

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        query, path = environ.get("QUERY_STRING", ""), environ["PATH_INFO"]
        if path.count("/") > 1:
            self.asked.append(f"{environ['REQUEST_METHOD']} {path}")
        if self.refusal and "list-type=2" in query and "continuation-token" in query:
            code = "AccessDenied" if self.refusal.startswith("403") else "InternalError"
            body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
            start_response(self.refusal, [("Content-Type", "text/xml"), ("Content-Length", str(len(body)))])
            return [body]
        is_get = environ["REQUEST_METHOD"] in ("GET", "HEAD") and "=" not in query

        def begin(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            if is_get:
                ranged = "HTTP_RANGE" in environ
                headers += [one for one in self.headers if not (ranged and "checksum" in one[0])]
            return start_response(status, headers, *rest)

        body = b"".join(super()._answer(environ, begin))
        if is_get and self.damaged and path.endswith(self.damaged) and body:
            body = body[:-1] + bytes([body[-1] ^ 1])
        return [body]


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def s3(server: Server) -> S3Server:
    return S3Server(server.endpoint, "testing", "testing")


@pytest.fixture
def person(pets: Dsv, s3: S3Server) -> Dsv:
    return pets.at(pets.cwd, **s3.env)


@pytest.fixture
def put(s3: S3Server) -> Callable[..., str]:
    """Puts objects, and returns the bucket."""
    bucket, client = s3.bucket(), s3.client()

    def put(files: dict[str, bytes], **how: str) -> str:
        for key, data in files.items():
            client.put_object(Bucket=bucket, Key=key, Body=data, **how)
        return bucket

    return put


@pytest.mark.parametrize("status", ["403 Forbidden", "503 Service Unavailable", "500 Internal Server Error"])
def test_a_listing_that_fails_in_its_middle_is_no_end_of_it(
    person: Dsv, server: Server, put: Callable[..., str], status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3fs = pytest.importorskip("s3fs")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    bucket = put({f"raw/{n:03}": b"1" for n in range(150)})
    person.ok("import", f"s3://{bucket}/raw", "pets:raw")
    server.refusal = status
    how = ("--mirror", "--allow-removals", "--skip-unsupported")
    done = person("import", f"s3://{bucket}/raw", "pets:raw", *how)
    assert done.code == (8 if status.startswith("403") else 6), done
    assert len(person.ok("ls", "pets:raw").lines) == 150


def test_keys_that_differ_only_in_empty_parts_are_refused_together(
    person: Dsv, put: Callable[..., str]
) -> None:
    bucket = put({"raw/a": b"1", "raw//a": b"2", "raw/b": b"3"})
    done = person("import", f"s3://{bucket}/raw", "pets:raw", "--skip-unsupported")
    assert done.code == 9 and f"'{bucket}/raw//a' and '{bucket}/raw/a'" in done.err, done
    assert person("ls", "pets:raw").code == 3
    other = put({"deep/x//y": b"1", "deep/x/y": b"2"})
    done = person("import", f"s3://{other}/deep", "pets:raw")
    assert done.code == 9 and "'raw/x//y': it has an empty component" in done.err, done


def test_an_object_with_content_whose_key_ends_with_a_slash_is_not_left_out_in_silence(
    person: Dsv, put: Callable[..., str]
) -> None:
    bucket = put({"raw/a": b"1", "raw/folder/": b"", "raw/full/": b"content", "raw/": b""})
    done = person("import", f"s3://{bucket}/raw", "pets:raw")
    assert done.code == 9 and "'raw/full': its name ends with a slash, and it is not empty" in done.err, done
    assert "'raw/folder" not in done.err
    person.ok("import", f"s3://{bucket}/raw", "pets:raw", "--skip-unsupported")
    assert person.ok("ls", "pets:raw").lines == ["raw/a"]


@pytest.mark.parametrize("name", ["what?.csv", "a b#c.csv", "100%25.csv"])
def test_a_key_is_a_name_as_it_is(person: Dsv, put: Callable[..., str], name: str) -> None:
    bucket = put({f"raw/{name}": b"1"})
    person.ok("import", f"s3://{bucket}/raw/{name}", "pets:one/")
    person.ok("import", f"s3://{bucket}/raw", "pets:all")
    assert person.ok("ls", "pets:one").lines == [f"one/{name}"]
    assert person.ok("ls", "pets:all").lines == [f"all/{name}"]


@pytest.mark.parametrize("data", [b"small", BIG], ids=["small", "large"])
def test_a_bit_that_flips_on_the_way_is_noticed(
    person: Dsv, server: Server, put: Callable[..., str], data: bytes
) -> None:
    bucket = put({"raw/a": b"1", "raw/b": data})
    server.damaged = "raw/b"
    done = person("import", f"s3://{bucket}/raw", "pets:raw")
    assert done.code == 5 and f"s3://{bucket}/raw/b arrived damaged" in done.err and "ETag" in done.err, done
    assert person("ls", "pets:raw").code == 3
    server.damaged = ""
    person.ok("import", f"s3://{bucket}/raw", "pets:raw")
    assert person.ok("cat", "pets:raw/a").out == "1"


@pytest.mark.parametrize(
    "headers",
    [
        {"x-amz-server-side-encryption": "aws:kms"},
        {"x-amz-server-side-encryption": "aws:kms:dsse"},
        {"x-amz-server-side-encryption-customer-algorithm": "AES256"},
    ],
)
def test_an_etag_that_is_no_md5_is_not_compared(
    person: Dsv, server: Server, put: Callable[..., str], headers: dict[str, str]
) -> None:
    bucket = put({"raw/a": b"1", "raw/b": BIG})
    server.headers, server.damaged = tuple(headers.items()), "raw/b"
    person.ok("import", f"s3://{bucket}/raw", "pets:raw")


_HASHES = ["sha1", "sha256", "sha512", "md5"]
_CRCS = {"crc32": (0xEDB88320, 4), "crc32c": (0x82F63B78, 4), "crc64nvme": (0x9A6C9329AC4BC9B5, 8)}


def checksum(name: str, data: bytes) -> bytes:
    one: Any = hashlib.new(name) if name in _HASHES else Crc(*_CRCS[name])
    one.update(data)
    return bytes(one.digest())


@pytest.mark.parametrize("is_right", [True, False])
@pytest.mark.parametrize("data", [b"small", BIG], ids=["small", "large"])
@pytest.mark.parametrize("name", [*_HASHES, *_CRCS])
def test_a_checksum_of_the_whole_object_is_compared(
    person: Dsv, server: Server, put: Callable[..., str], name: str, data: bytes, is_right: bool
) -> None:
    """Where the ETag says nothing, as that of an object of several parts."""
    bucket = put({"raw/b": data})
    server.headers = (
        ("x-amz-server-side-encryption", "aws:kms"),
        (f"x-amz-checksum-{name}", base64.b64encode(checksum(name, data)).decode()),
        ("x-amz-checksum-type", "FULL_OBJECT"),
    )
    server.damaged = "" if is_right else "raw/b"
    done = person("import", f"s3://{bucket}/raw", "pets:raw")
    assert done.code == (0 if is_right else 5), done
    assert is_right or re.search(f"its checksum( {name.upper()})? is another", done.err), done


def test_a_small_object_takes_one_request(person: Dsv, put: Callable[..., str], server: Server) -> None:
    bucket = put({"raw/a": b"1", "raw/b": b"22"})
    server.asked.clear()
    person.ok("import", f"s3://{bucket}/raw", "pets:raw")
    assert sorted(server.asked) == [f"GET /{bucket}/raw/a", f"GET /{bucket}/raw/b"]


@pytest.mark.parametrize(
    ("sizes", "is_right", "code"),
    [((6, 6, 2), True, 0), ((6, 6, 2), False, 5), ((6, 5, 2), True, 0)],
    ids=["even", "damaged", "uneven"],
)
@pytest.mark.parametrize("name", ["crc32", "sha256"])
def test_the_checksum_of_the_checksums_of_parts_is_compared(
    person: Dsv, server: Server, s3: S3Server, name: str, sizes: tuple[int, ...], is_right: bool, code: int
) -> None:
    """Where all parts but the last have one size, which a server tells of the first alone. What has uneven parts
    is taken as it comes."""
    bucket, client = s3.bucket(), s3.client()
    which = {"Bucket": bucket, "Key": "raw/b"}
    upload = {**which, "UploadId": client.create_multipart_upload(**which)["UploadId"]}
    bodies, parts = [BIG[: size << 20] for size in sizes], []
    for number, body in enumerate(bodies, 1):
        etag = client.upload_part(**upload, PartNumber=number, Body=body)["ETag"]
        parts.append({"PartNumber": number, "ETag": etag})
    client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    stated = checksum(name, b"".join(checksum(name, body) for body in bodies))
    server.headers = (
        (f"x-amz-checksum-{name}", f"{base64.b64encode(stated).decode()}-{len(sizes)}"),
        ("x-amz-checksum-type", "COMPOSITE"),
    )
    server.damaged = "" if is_right else "raw/b"
    done = person("import", f"s3://{bucket}/raw", "pets:raw")
    assert done.code == code, done
    assert not code or f"its checksum {name.upper()} is another" in done.err, done


def test_the_checksums_of_parts_are_not_those_of_the_object(
    person: Dsv, server: Server, put: Callable[..., str]
) -> None:
    bucket = put({"raw/b": BIG})
    server.headers = (("x-amz-checksum-crc32", "AAAAAA==-3"), ("x-amz-checksum-type", "COMPOSITE"))
    person.ok("import", f"s3://{bucket}/raw", "pets:raw")


def test_an_object_of_several_parts_is_imported(person: Dsv, s3: S3Server, put: Callable[..., str]) -> None:
    bucket, client = put({}), s3.client()
    upload = client.create_multipart_upload(Bucket=bucket, Key="raw/b")["UploadId"]
    which = {"Bucket": bucket, "Key": "raw/b", "UploadId": upload}
    parts = [
        {"PartNumber": n, "ETag": client.upload_part(PartNumber=n, Body=BIG[: 6 << 20], **which)["ETag"]}
        for n in (1, 2)
    ]
    client.complete_multipart_upload(MultipartUpload={"Parts": parts}, **which)
    done = person.ok("import", f"s3://{bucket}/raw", "pets:raw", "--json").json
    assert done["read_bytes"] == 12 << 20
    assert person.ok("import", f"s3://{bucket}/raw", "pets:raw", "--json").json["known"] == 1
