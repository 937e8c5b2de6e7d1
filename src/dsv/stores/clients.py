"""Building clients for s3://, gs:// and az:// from a URL and the options.

All are obstore's, except for S3 in a process that was forked from one that has used obstore: its threads do not exist
there. boto3 has no threads of its own. It takes more processor time per byte, so it is used only there.
"""

from __future__ import annotations

import re
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar
from urllib.parse import urlsplit

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from dsv.errors import Denied, Unsupported, UsageError
from dsv.stores.base import Bytes, PutResult, check_key
from dsv.stores.credentials import aws_access, boto_client, is_reached_directly
from dsv.stores.object_errors import login_hint
from dsv.stores.objects import ObjectStore, lost_threads
from dsv.stores.options import read_certificates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    from obstore.store import ClientConfig
    from obstore.store import ObjectStore as Client

    from dsv.stores.base import StoreBackend
    from dsv.stores.options import StoreOptions


_NO_RETRIES: Final[Any] = {"max_retries": 0}
_KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_BUCKET: Final = re.compile(r"[\w.$-]+\Z", re.ASCII)
_ENDPOINT: Final = re.compile(
    r"https?://(?:[\w.-]+|\[[\da-f:.]+\])(?::(\d{1,9}))?(?:/[!-~]*)?\Z", re.ASCII | re.I
)


def open_s3(url: str, options: StoreOptions) -> StoreBackend:
    """Open s3://bucket/prefix, at AWS or at any endpoint."""
    bucket, prefix = _parts(url)
    if lost_threads():
        return ForkedS3(url, bucket, prefix, options)
    access = aws_access(url, options)
    # Everything is given, because the client would read from the environment what is not.
    endpoint = server = access.endpoint or f"https://s3.{access.region}.amazonaws.com"
    if by_host := access.endpoint is None and "." not in bucket:
        endpoint = f"https://{bucket}.s3.{access.region}.amazonaws.com"
    config: Any = {
        "region": access.region,
        "skip_signature": options.anonymous,
        # One plain DELETE each: not every S3 has the bulk call.
        "disable_bulk_delete": True,
        "endpoint": endpoint.rstrip("/"),
        "aws_endpoint_url_s3": endpoint.rstrip("/"),
        "virtual_hosted_style_request": by_host,
    }
    keys = options.access_key, options.secret_key, options.session_token
    static: Any = dict(zip(("access_key_id", "secret_access_key", "token"), keys, strict=True))
    _check(url, server, AWS_REGION=access.region, **dict(zip(_KEYS, keys, strict=True)))
    provider: Any = None if options.anonymous else access.provider or (lambda: {**static, "expires_at": None})
    client: Any = partial(S3Store, bucket, config=config, credential_provider=provider)
    return _store(url, server.rstrip("/"), prefix, client, options)


def open_gcs(url: str, options: StoreOptions) -> ObjectStore:
    """Open gs://bucket/prefix, with Google's application-default credentials."""
    bucket, prefix = _parts(url)
    endpoint = (options.endpoint or options.gcs_endpoint or "https://storage.googleapis.com").rstrip("/")
    _check(url, endpoint, CLOUDSDK_AUTH_ACCESS_TOKEN=options.google_token)
    config: dict[str, Any] = {"base_url": endpoint, "skip_signature": options.anonymous}
    if options.service_account:
        config["application_credentials"] = options.service_account
    if options.google_token:
        config["bearer_token"] = options.google_token

    client = partial(GCSStore, bucket, config=config)  # type: ignore[arg-type]
    return _store(url, endpoint, prefix, client, options)


def open_azure(url: str, options: StoreOptions) -> ObjectStore:
    """Open az://container/prefix in the storage account that the options name."""
    container, prefix = _parts(url)
    if not options.account:
        hint = "set AZURE_STORAGE_ACCOUNT_NAME"
        raise UsageError(f"{url} does not say which storage account it is in", subject=url, hint=hint)
    default = f"https://{options.account}.blob.core.windows.net"
    endpoint = options.endpoint or options.azure_endpoint or default
    _check(url, endpoint, AZURE_STORAGE_ACCOUNT_NAME=options.account)
    config: dict[str, Any] = {
        "account_name": options.account,
        "skip_signature": options.anonymous,
        "endpoint": endpoint.rstrip("/"),
    }
    if options.account_key:
        config["account_key"] = options.account_key

    client = partial(AzureStore, container, config=config)  # type: ignore[arg-type]
    return _store(url, endpoint, prefix, client, options)


def _check(url: str, endpoint: str, **sent: str | None) -> None:
    """Raises `UsageError` for an endpoint, or a variable sent in headers, that would make obstore panic."""
    found = _ENDPOINT.match(endpoint)
    if found is None or not 0 < int(found[1] or 80) < 65536:
        raise UsageError(
            f"{endpoint} is no endpoint for {url}: it is not http://HOST or https://HOST, with a port or without",
            subject=endpoint,
            hint="set AWS_ENDPOINT_URL, AZURE_STORAGE_ENDPOINT or STORAGE_EMULATOR_HOST, or endpoint of the store",
        )
    for name, value in sent.items():
        if value and not re.fullmatch("[!-~]+", value):
            raise UsageError(
                f"{name} has a space, a line end or another character that none can have",
                subject=name,
                hint=f'printf %s "${name}" | od -c shows it',
            )


def _store(
    url: str, endpoint: str, prefix: str, client: Callable[..., Client], options: StoreOptions
) -> ObjectStore:
    common = _client_options(url, endpoint, options)
    try:
        brief: ClientConfig = {**common, "read_timeout": f"{options.read_timeout * 1000:.0f}ms"}
        quick = client(client_options=brief, retry_config=_NO_RETRIES)
        patient = client(client_options=common, retry_config=_NO_RETRIES)
    except (BaseError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        if "builder error" in reason:
            what = f"{url} cannot be opened: a proxy or a certificate can't be used"
            hint = "see HTTPS_PROXY, HTTP_PROXY and AWS_CA_BUNDLE"
            raise UsageError(what, subject=url, hint=hint) from error
        raise Denied(f"{url} cannot be opened: {reason}", subject=url, hint=login_hint(url)) from error
    return ObjectStore(url, endpoint, prefix, quick, patient)


def _client_options(url: str, endpoint: str, options: StoreOptions) -> ClientConfig:
    plain = urlsplit(endpoint).scheme == "http"
    common: ClientConfig = {
        "allow_http": plain,
        "connect_timeout": f"{options.connect_timeout * 1000:.0f}ms",
        "timeout": f"{options.transfer_timeout * 1000:.0f}ms",
        "user_agent": "dsv",
    }
    proxy = options.http_proxy if plain else options.https_proxy
    if proxy:
        common["proxy_url"] = proxy
        if options.no_proxy:
            # The client knows no ports, and no * for addresses. It also asks others, for tokens.
            direct = is_reached_directly(endpoint, options.no_proxy)
            host = f",{urlsplit(endpoint).hostname}" if direct else ""
            common["proxy_excludes"] = options.no_proxy.replace(" ", ",") + host
    if options.ca_file and not plain:
        common["root_certificate"] = read_certificates(url, Path(options.ca_file))
    return common


def _parts(url: str) -> tuple[str, str]:
    """Return bucket and prefix of a store's URL. Raises UsageError."""
    split = urlsplit(url)
    prefix = split.path.strip("/")
    try:
        if not _BUCKET.match(split.netloc) or split.query or split.fragment:
            raise ValueError(f"it should be {split.scheme}://bucket/prefix")
        if prefix:
            check_key(prefix)
    except ValueError as error:
        raise UsageError(f"{url} is not a store: {error}", subject=url) from error
    return split.netloc, prefix


_T = TypeVar("_T")

_KINDS: Final = {
    "EndpointConnectionError": "Connect",
    "ConnectTimeoutError": "Connect",
    "ReadTimeoutError": "Timeout",
}


class ForkedS3(ObjectStore):
    """One prefix of one bucket, only for reading. A fork of its process opens its own."""

    def __init__(self, url: str, bucket: str, prefix: str, options: StoreOptions) -> None:
        limits = {"connect_timeout": options.connect_timeout, "read_timeout": options.read_timeout}
        self._client = boto_client(url, options, **limits, attempts=1)
        self._bucket = bucket
        super().__init__(url, self._client.meta.endpoint_url, prefix, None, None)

    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        self._refuse()

    def delete(self, key: str) -> None:
        self._refuse()

    def close(self) -> None:
        self._client.close()

    def _check_process(self) -> None:
        """Allow every process: this client has no threads."""

    def _whole(self, path: str, limit: int) -> bytes:
        return self._read(path, limit + 1)[0]

    def _part(self, path: str, start: int, length: int) -> memoryview:
        data, is_part = self._read(path, length, Range=f"bytes={start}-{start + length - 1}")
        return memoryview(data if is_part else self._read(path, start + length)[0][start:])

    def _read(self, path: str, size: int, **wanted: str) -> tuple[bytes, bool]:
        """Return at most `size` bytes, and whether they are those of a range."""

        def read() -> tuple[bytes, bool]:
            answer = self._client.get_object(Bucket=self._bucket, Key=path, **wanted)
            with closing(answer["Body"]) as body:  # this releases the connection
                data = bytes(body.read(size))
            if str(answer.get("ContentType")).startswith("text/html"):
                self._refuse_page(path, data)
            return data, "ContentRange" in answer

        return self._asked(read)

    def _rows(self, prefix: str, after: str | None) -> Iterator[tuple[str, int]]:
        for page in self._pages(Prefix=prefix, **({} if after is None else {"StartAfter": after})):
            for row in page.get("Contents", ()):
                yield row["Key"], row["Size"]

    def _below(self, above: str) -> Sequence[str]:
        pages = self._pages(Prefix=above, Delimiter="/")
        return [row["Prefix"] for page in pages for row in page.get("CommonPrefixes", ())]

    def _time(self, path: str) -> datetime:
        head = self._asked(lambda: self._client.head_object(Bucket=self._bucket, Key=path))
        found: datetime = head["LastModified"]
        return found

    def _pages(self, **wanted: str) -> Iterator[dict[str, Any]]:
        more = True
        while more:
            page = self._asked(partial(self._client.list_objects_v2, Bucket=self._bucket, **wanted))
            yield page
            more = page.get("IsTruncated", False)
            if more and not page.get("NextContinuationToken"):
                raise BaseError("a page of a listing says that there is another one, and does not name it")
            wanted["ContinuationToken"] = page.get("NextContinuationToken", "")

    def _asked(self, ask: Callable[[], _T]) -> _T:
        """Raises obstore's error, with the facts that `object_errors` looks for."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return ask()
        except ClientError as error:
            said = error.response.get("ResponseMetadata", {})
            code = error.response.get("Error", {}).get("Code", "")
            text = f"status code: {said.get('HTTPStatusCode', 0)} <Code>{code}</Code>"
            is_page = said.get("HTTPHeaders", {}).get("content-type", "").startswith("text/html")
            if is_page and not code.strip("0123456789") and error.operation_name != "HeadObject":
                text += "<html"
            raise BaseError(text) from error
        except BotoCoreError as error:
            raise BaseError(f"{error} (kind: {_KINDS.get(type(error).__name__, 'Request')}, )") from error

    def _refuse(self) -> NoReturn:
        raise Unsupported(
            f"{self.url} can only be read in a process that was forked from one that has used an object store",
            subject=self.url,
            hint="start processes by spawn or forkserver, or before anything is read",
        )
