"""What an object store's answers become: each bad one gets its own error, and good ones cost no copies."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from msgspec.structs import replace

from dsv.errors import Denied, DsvError, IntegrityError, NoRoom, NotFound, Unreachable, Unsupported
from dsv.format.keys import PACK_PREFIX
from dsv.stores.base import (
    Busy,
    CutShortError,
    NoAnswer,
    PutResult,
    StoreBackend,
    StoreMissing,
    TooLargeError,
)
from dsv.stores.clients import ForkedS3
from dsv.stores.object_errors import as_store_error
from dsv.stores.open import open_raw, open_store
from dsv.stores.options import StoreOptions
from tests.exhaustive import is_full
from tests.stores.buckets import Bucket
from tests.stores.wire import Wire, answer, s3_error, serving
from tests.waiting import PATIENCE

Call = Callable[[StoreBackend], object]
CALLS: dict[str, Call] = {
    "get": lambda store: store.get("k"),
    "get_range": lambda store: store.get_range("k", 0, 100),
    "put": lambda store: store.put_if_absent("k", b"x"),
    "list": lambda store: list(store.list("")),
    "delete": lambda store: store.delete("k"),
}


def options(endpoint: str, **more: object) -> StoreOptions:
    return StoreOptions(endpoint=endpoint, access_key="key", secret_key="secret", region="us-east-1", **more)  # type: ignore[arg-type]


def store_at(wire: Wire, **more: object) -> StoreBackend:
    return open_raw("s3://bucket/some/prefix", options(wire.endpoint, **more))


def forked_at(wire: Wire) -> StoreBackend:
    return ForkedS3("s3://bucket/some/prefix", "bucket", "some/prefix", options(wire.endpoint))


HTML = "Content-Type: text/html; charset=utf-8\r\n"
PAGE = b"<!DOCTYPE html>\n<html><meta charset=utf-8><body>log in to this network</body></html>"
ERRORS = {
    "500": (s3_error("500 Internal Server Error", "InternalError"), Busy),
    "502": (answer("502 Bad Gateway", b"<html>"), Busy),
    "503": (s3_error("503 Service Unavailable", "SlowDown"), Busy),
    "429": (answer("429 Too Many Requests"), Busy),
    "timeout": (s3_error("400 Bad Request", "RequestTimeout"), Busy),
    "denied": (s3_error("403 Forbidden", "AccessDenied"), Denied),
    "bad key": (s3_error("403 Forbidden", "InvalidAccessKeyId"), Denied),
    "bad signature": (s3_error("403 Forbidden", "SignatureDoesNotMatch"), Denied),
    "expired": (s3_error("400 Bad Request", "ExpiredToken"), Denied),
    "clock": (s3_error("403 Forbidden", "RequestTimeTooSkewed"), Unreachable),
    "archived": (s3_error("403 Forbidden", "InvalidObjectState"), Unreachable),
    "login page": (answer("403 Forbidden", PAGE, headers=HTML), Unreachable),
    "page of a proxy": (answer("404 Not Found", PAGE, headers=HTML), Unreachable),
    "region": (s3_error("400 Bad Request", "AuthorizationHeaderMalformed"), Denied),
    "401": (answer("401 Unauthorized"), Denied),
    "quota": (s3_error("403 Forbidden", "QuotaExceeded"), NoRoom),
    "full": (s3_error("507 Insufficient Storage", "XMinioStorageFull"), NoRoom),
    "no bucket": (s3_error("404 Not Found", "NoSuchBucket"), StoreMissing),
    "elsewhere": (s3_error("301 Moved Permanently", "PermanentRedirect"), StoreMissing),
    "not implemented": (s3_error("501 Not Implemented", "NotImplemented"), Unsupported),
    "nothing": (b"", NoAnswer),
    "no http": (b"SSH-2.0-OpenSSH_9.2\r\n", NoAnswer),
}


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("call", CALLS)
def test_each_bad_answer_has_its_error(name: str, call: str) -> None:
    body, expected = ERRORS[name]
    with serving(body) as wire, pytest.raises(DsvError) as caught:
        CALLS[call](store_at(wire))
    assert type(caught.value) is expected
    assert "secret" not in caught.value.message.replace(
        "wrong secret key", ""
    ) and not caught.value.message.endswith(".")
    assert "\n" not in caught.value.message and len(caught.value.message) < 300
    assert caught.value.hint or not isinstance(caught.value, Denied | StoreMissing)


@pytest.mark.parametrize("name", sorted(ERRORS.keys() - {"elsewhere"}))  # boto3 goes there by itself
def test_the_client_of_a_fork_takes_each_bad_answer_for_the_same(name: str) -> None:
    body, expected = ERRORS[name]
    for call in ("get", *(("get_range", "list") if is_full() else ())):
        with serving(body) as wire, pytest.raises(DsvError) as caught:
            CALLS[call](forked_at(wire))
        assert type(caught.value) is expected and "secret" not in caught.value.message.replace(
            "wrong secret key", ""
        )


@pytest.mark.parametrize("key", ["format/0000000000000000", "k"])
def test_a_web_page_that_is_answered_to_everything_is_no_object(key: str) -> None:
    """As a captive portal answers, with 200: neither damage nor absence. What is in a pack may be a page."""
    with serving(answer("200 OK", PAGE, headers=HTML)) as wire:
        for store in (store_at(wire), forked_at(wire)):
            for read in (lambda store: store.get(key), lambda store: store.get(key, 20)):
                with pytest.raises(Unreachable, match="not as an object store: a web page came") as caught:
                    read(store)
                assert caught.value.exit_code == 6 and type(caught.value) is Unreachable
            assert store.get(f"{PACK_PREFIX}00/x") == PAGE
    for read in (lambda store: list(store.list("")), lambda store: store.get_range(key, 0, 10)):
        with serving(answer("200 OK", PAGE, headers=HTML)) as wire, pytest.raises(Unreachable):
            read(store_at(wire))


def test_an_object_of_another_kind_that_a_server_calls_html_is_read() -> None:
    with serving(answer("200 OK", b"a record", headers=HTML)) as wire:
        assert store_at(wire).get("k") == b"a record"


def test_an_archived_object_says_that_it_has_to_be_restored() -> None:
    with (
        serving(s3_error("403 Forbidden", "InvalidObjectState")) as wire,
        pytest.raises(Unreachable) as caught,
    ):
        open_store("s3://bucket/some/prefix", options(wire.endpoint)).get("k")
    assert "k in s3://bucket/some/prefix is archived" in caught.value.message
    assert "restore-object" in (caught.value.hint or "") and len(wire.asked) == 1


def test_the_client_of_a_fork_does_not_ask_for_a_page_that_has_no_name() -> None:
    page = b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"
    with serving(answer("200 OK", page)) as wire, pytest.raises(DsvError, match="does not name it"):
        list(forked_at(wire).list(""))


@pytest.mark.parametrize(
    ("code", "said"),
    [("SignatureDoesNotMatch", "wrong secret key"), ("InvalidAccessKeyId", "no such access key")],
)
def test_a_wrong_key_is_said_of_the_store_and_not_of_an_object(code: str, said: str) -> None:
    with serving(s3_error("403 Forbidden", code)) as wire, pytest.raises(Denied) as caught:
        store = store_at(wire)
        store.get("k")
    assert caught.value.message == f"{store.url}: {said} (403 {code})" and caught.value.subject == store.url


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_error_without_text_is_a_sentence(text: str) -> None:
    found = as_store_error(OSError(text), "s3://bucket/p", "http://here", "k")
    assert type(found) is NoAnswer
    assert found.message == "http://here failed on k in s3://bucket/p: it does not say why"


@pytest.mark.parametrize("call", CALLS)
def test_a_refused_connection(call: str) -> None:
    with socket.socket() as closed, pytest.raises(NoAnswer, match="cannot be reached") as caught:
        closed.bind(("127.0.0.1", 0))  # and never listens
        CALLS[call](store_at(Wire(f"http://127.0.0.1:{closed.getsockname()[1]}", [])))
    assert not caught.value.maybe_done


def test_a_host_that_does_not_exist() -> None:
    with pytest.raises(Unreachable, match=r"no-such-host\.invalid"):
        open_store("s3://bucket/p", options("http://no-such-host.invalid")).get("k")


@pytest.mark.parametrize("call", CALLS)
def test_silence(call: str) -> None:
    with serving(None) as wire, pytest.raises(NoAnswer, match="in time") as caught:
        CALLS[call](store_at(wire, read_timeout=0.3))
    assert caught.value.maybe_done


def test_a_large_upload_has_more_time_than_a_small_request() -> None:
    """A slow line is no silent server."""
    with serving(relay=lambda request: time.sleep(0.6) or answer("200 OK")) as wire:
        store = store_at(wire, read_timeout=0.3, transfer_timeout=PATIENCE)
        assert store.put_if_absent("k", bytes(1 << 20)) is PutResult.WON
    with serving(None) as wire, pytest.raises(NoAnswer):
        store_at(wire, read_timeout=0.3, transfer_timeout=PATIENCE).put_if_absent("k", bytes(10))
    with serving(None) as wire, pytest.raises(NoAnswer):
        store_at(wire, transfer_timeout=0.3).put_if_absent("k", bytes(1 << 20))


@pytest.mark.parametrize("status", ["409 Conflict", "412 Precondition Failed", "304 Not Modified"])
def test_a_refused_condition_is_a_lost_race(status: str) -> None:
    with serving(s3_error(status, "Whatever")) as wire:
        assert store_at(wire).put_if_absent("k", b"x") is PutResult.LOST
    assert "\r\nif-none-match: *" in wire.asked[0].lower()


def test_an_absent_key_is_not_an_absent_bucket() -> None:
    for body in (s3_error("404 Not Found", "NoSuchKey"), answer("404 Not Found")):
        with serving(body) as wire, pytest.raises(NotFound) as caught:
            store_at(wire).get("k")
        assert type(caught.value) is NotFound and caught.value.subject == "k"


CUT = {
    "get": answer("200 OK", b"half of it", length=100),
    "get_range": answer(
        "206 Partial Content", b"half", headers="Content-Range: bytes 0-99/1000\r\n", length=100
    ),
    "list": answer("200 OK", b"<ListBucketResult><Contents>", length=1000),
}


@pytest.mark.parametrize("call", CUT)
def test_a_body_that_ends_too_soon(call: str) -> None:
    with serving(CUT[call]) as wire, pytest.raises(NoAnswer, match="broke off"):
        CALLS[call](store_at(wire))


def test_a_body_that_ends_too_soon_once() -> None:
    whole = answer("200 OK", b"x" * 100)
    with serving(CUT["get"], CUT["get"], whole) as wire:
        assert open_store("s3://bucket/p", options(wire.endpoint)).get("k") == b"x" * 100
    assert len(wire.asked) == 3


@pytest.mark.parametrize(("sent", "total"), [(40, 40), (60, 60)])
def test_a_range_that_is_shorter_than_asked(sent: int, total: int) -> None:
    """The object is: nothing broke, and a pack was cut short."""
    headers = f"Content-Range: bytes 0-{sent - 1}/{total}\r\n"
    body = answer("206 Partial Content", bytes(sent), headers=headers)
    with serving(body) as wire, pytest.raises(CutShortError, match=f"{sent} came"):
        store_at(wire).get_range("k", 0, 100)
    beyond = s3_error("416 Range Not Satisfiable", "InvalidRange")
    with serving(beyond) as wire, pytest.raises(CutShortError, match="0 came"):
        store_at(wire).get_range("k", 500, 100)


def test_a_server_that_ignores_the_range() -> None:
    with serving(answer("200 OK", bytes(range(200)))) as wire:
        assert store_at(wire).get_range("k", 50, 100) == bytes(range(50, 150))


def test_a_server_that_ignores_the_range_of_a_large_object() -> None:
    """The bytes after the range are not read: this body breaks off there."""
    with serving(answer("200 OK", bytes(range(200)) + bytes(1 << 20), length=6 << 30)) as wire:
        assert store_at(wire).get_range("k", 50, 100) == bytes(range(50, 150))


def test_a_body_that_is_said_to_be_too_large_is_not_read() -> None:
    body = answer("200 OK", b"x", length=6 << 30)
    with serving(body) as wire, pytest.raises(TooLargeError, match="more than the 1048576 bytes"):
        store_at(wire).get("k", 1 << 20)


def test_what_is_no_object_store_at_all() -> None:
    page = answer("200 OK", b"Welcome to the guest network")
    with serving(page) as wire, pytest.raises(Unreachable, match="not as an object store"):
        list(store_at(wire).list(""))


def test_an_unexpected_status_is_reported() -> None:
    with serving(answer("418 I'm a teapot")) as wire, pytest.raises(IntegrityError, match="418"):
        store_at(wire).get("k")


def test_only_the_prefix_is_seen(moto_bucket: Bucket) -> None:
    for key in ("one/k", "one/a/k", "one2/k", "on", "one", "other/one/k"):
        moto_bucket.client.put_object(Bucket=moto_bucket.name, Key=f"nest/{key}", Body=key.encode())
    settings = StoreOptions.from_environment(moto_bucket.server.env)
    store = open_store(f"s3://{moto_bucket.name}/nest/one", settings)
    assert [item.key for item in store.list("")] == ["a/k", "k"]
    assert open_store(f"s3://{moto_bucket.name}", settings).get("nest/one") == b"one"
    assert store.url == f"s3://{moto_bucket.name}/nest/one"


def test_a_store_that_is_not_listed_in_order(moto_bucket: Bucket) -> None:
    """Then nothing is left out on the ground of where a key should have come."""
    settings = StoreOptions.from_environment(moto_bucket.server.env)
    store = open_store(f"s3://{moto_bucket.name}/unordered", settings)
    store.ordered_listing = False
    for key in ("b/1", "a/1", "a/2", "a/10"):
        store.put_if_absent(key, b"")
    assert sorted(item.key for item in store.list("a/1")) == ["a/1", "a/10"]
    assert sorted(item.key for item in store.list("", "a/1")) == ["a/10", "a/2", "b/1"]
    assert not store.data.inner.ordered_listing  # type: ignore[attr-defined]


def test_a_fork_raises_an_error_rather_than_hangs(moto_bucket: Bucket) -> None:
    settings = StoreOptions.from_environment(moto_bucket.server.env)
    store = open_store(f"s3://{moto_bucket.name}/forked", settings)
    store.put_if_absent("k", b"x")
    child = os.fork()
    if child == 0:
        try:
            store.get("k")
        except Unsupported:
            os._exit(9)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert store.get("k") == b"x"


def test_a_fork_reads_the_same_by_another_client(moto_bucket: Bucket) -> None:
    settings = StoreOptions.from_environment(moto_bucket.server.env)
    url, name = f"s3://{moto_bucket.name}/lake", moto_bucket.name
    store = open_store(url, settings)
    content = os.urandom(1000)
    for number in range(105):
        store.put_if_absent(f"many/{number:03}/x", b"")
    store.put_if_absent("k", content)
    other = ForkedS3(url, name, "lake", settings)
    assert isinstance(other, StoreBackend)
    assert (other.get("k"), bytes(other.get_range("k", 3, 5)), bytes(other.get_range("k", 3, 0))) == (
        content, content[3:8], b"",
    )  # fmt: skip
    for prefix, after in (
        ("", None),
        ("many/", None),
        ("many/1", None),
        ("many/", "many/050/x"),
        ("none", None),
    ):
        assert list(other.list(prefix, after)) == list(store.list(prefix, after))
    assert other.folders("many/") == store.folders("many/") and other.folders("") == ["many"]
    assert other.modified("k") == store.modified("k")
    with pytest.raises(TooLargeError):
        other.get("k", 999)
    for start in (998, 1000, 5000):
        with pytest.raises(CutShortError):
            other.get_range("k", start, 5)
    for ask in (other.get, other.modified, partial(other.get_range, start=0, length=1)):
        with pytest.raises(NotFound, match="none is not in") as caught:
            ask("none")
        assert not isinstance(caught.value, StoreMissing)
    with pytest.raises(StoreMissing):
        ForkedS3("s3://no-such-bucket/x", "no-such-bucket", "x", settings).get("k")
    with pytest.raises(NoAnswer):
        away = replace(settings, s3_endpoint="http://127.0.0.1:1")
        ForkedS3(url, name, "lake", away).get("k")
    for write in (partial(other.put_if_absent, "k", b""), partial(other.delete, "k")):
        with pytest.raises(Unsupported, match="can only be read"):
            write()
    other.close()


def test_large_transfers_make_no_copies(ceph_bucket: Bucket) -> None:
    """Four threads put one buffer of 32 MiB, and read 8 MiB ranges: memory grows by no more than the ranges."""
    settings = StoreOptions.from_environment(ceph_bucket.server.env)
    store = open_store(f"s3://{ceph_bucket.name}/copies", settings)
    data = os.urandom(32 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda n: store.put_if_absent(f"k{n}", data), range(4))) == {PutResult.WON}
    put = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda n: store.get_range(f"k{n}", n << 23, 8 << 20), range(4)))
    got = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert all(part == data[n << 23 : (n + 1) << 23] for n, part in enumerate(parts))
    assert put < 32 << 10, f"{put} KiB for puts that should borrow the caller's buffer"
    assert got < 100 << 10, f"{got} KiB"


def page(*keys: str, more: str = "") -> bytes:
    """A page of a listing. more: what it says of the next page."""
    rows = "".join(
        f"<Contents><Key>some/prefix/{key}</Key><LastModified>2015-10-21T07:28:00.000Z</LastModified>"
        f'<ETag>"x"</ETag><Size>1</Size></Contents>'
        for key in keys
    )
    return answer("200 OK", f"<ListBucketResult><Name>bucket</Name>{rows}{more}</ListBucketResult>".encode())


LISTS: dict[str, Call] = {
    "list": lambda store: list(store.list("packs/")),
    "folders": lambda store: store.folders("refs/"),
}


@pytest.mark.parametrize("call", LISTS)
@pytest.mark.parametrize("opened", [store_at, forked_at])
@pytest.mark.parametrize("xml", [b"<html/>", b"<Status>maintenance</Status>"])
def test_xml_that_is_no_listing_is_no_empty_one(
    call: str, opened: Callable[[Wire], StoreBackend], xml: bytes
) -> None:
    """The server has a format log, so that its listing can't be empty."""
    with serving(answer("200 OK", xml)) as wire:
        with pytest.raises(Unreachable, match="its listings lack what is there") as caught:
            LISTS[call](opened(wire))
        assert caught.value.exit_code == 6


@pytest.mark.parametrize("call", LISTS)
def test_an_empty_listing_is_confirmed_once(call: str) -> None:
    new = lambda request: page() if b"list-type=2" in request else answer("404 Not Found")  # noqa: E731
    with serving(relay=new) as wire:
        assert not LISTS[call](store_at(wire))
        assert len(wire.asked) == 3 and wire.asked[2].startswith(
            "GET /bucket/some/prefix/format/0000000000000000"
        )
    made = lambda request: page("format/0000000000000000") if b"prefix%2Fformat" in request else page()  # noqa: E731
    with serving(relay=made) as wire:
        store = store_at(wire)
        assert [LISTS[call](store), LISTS[call](store)] == [[], []]
        assert len(wire.asked) == 3
        assert list(store_at(wire).list("refs/a/branches/main/")) == []  # each move is asked for by its key
        assert len(wire.asked) == 4


@pytest.mark.parametrize("opened", [store_at, forked_at])
def test_a_listing_that_repeats_its_pages_ends(opened: Callable[[Wire], StoreBackend]) -> None:
    more = "<IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken>"
    with (
        serving(page("packs/00/a", "packs/00/b", more=more)) as wire,
        pytest.raises(Unreachable, match="repeats some/prefix/packs/00/a"),
    ):
        list(opened(wire).list("packs/"))


def test_a_full_page_that_does_not_name_the_next_one_is_not_the_end() -> None:
    """As of a server that has only the first version of the call."""
    keys = [f"packs/00/{number:04d}" for number in range(1500)]
    behind = b"start-after=some%2Fprefix%2Fpacks%2F00%2F0999"

    def rest(request: bytes) -> bytes:
        return (
            page(*keys[1000:])
            if behind in request
            else page(*keys[:1000], more="<IsTruncated>true</IsTruncated>")
        )

    with serving(relay=rest) as wire:
        assert [item.key for item in store_at(wire).list("packs/")] == keys
        assert len(wire.asked) == 2
    first = page(*keys[:1000], more="<IsTruncated>true</IsTruncated>")
    with serving(first) as wire, pytest.raises(Unreachable, match="repeats some/prefix/packs/00/0000"):
        list(store_at(wire).list("packs/"))
