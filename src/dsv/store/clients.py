"""Building obstore's clients for s3://, gs:// and az:// from a URL and the options."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from dsv.errors import Denied, UsageError
from dsv.store.base import check_key
from dsv.store.credentials import aws_access
from dsv.store.object_errors import login_hint
from dsv.store.objects import ObjectStore, lost_threads
from dsv.store.options import read_certificates

if TYPE_CHECKING:
    from collections.abc import Callable

    from obstore.store import ClientConfig
    from obstore.store import ObjectStore as Client

    from dsv.store.base import Store
    from dsv.store.credentials import ChainProvider
    from dsv.store.options import StoreOptions


_NO_RETRIES: Final[Any] = {"max_retries": 0}


def open_s3(url: str, options: StoreOptions) -> Store:
    """s3://bucket/prefix, at AWS or at any endpoint."""
    bucket, prefix = _parts(url)
    if lost_threads():
        from dsv.store.forked_s3 import ForkedS3

        return ForkedS3(url, bucket, prefix, options)
    access = aws_access(url, options)
    config: dict[str, Any] = {
        "region": access.region,
        "skip_signature": options.anonymous,
        # One plain DELETE each: not every S3 has the bulk call.
        "disable_bulk_delete": True,
    }
    if access.endpoint:
        # Both names, or a variable in the environment would win over what was asked for.
        endpoint = access.endpoint.rstrip("/")
        config |= {
            "endpoint": endpoint,
            "aws_endpoint_url_s3": endpoint,
            "virtual_hosted_style_request": False,
        }
    else:
        endpoint = f"https://s3.{access.region}.amazonaws.com"
        config["virtual_hosted_style_request"] = "." not in bucket
    if access.provider is None and not options.anonymous:
        config |= {"access_key_id": options.access_key, "secret_access_key": options.secret_key}
        if options.session_token:
            config["session_token"] = options.session_token
    provider = access.provider

    client = partial(S3Store, bucket, config=config, credential_provider=provider)  # type: ignore[arg-type]
    return _store(url, endpoint, prefix, client, options, provider)


def open_gcs(url: str, options: StoreOptions) -> ObjectStore:
    """gs://bucket/prefix, with Google's application-default credentials."""
    bucket, prefix = _parts(url)
    endpoint = (options.endpoint or options.gcs_endpoint or "https://storage.googleapis.com").rstrip("/")
    config: dict[str, Any] = {"base_url": endpoint, "skip_signature": options.anonymous}
    if options.service_account:
        config["application_credentials"] = options.service_account
    if options.google_token:
        config["bearer_token"] = options.google_token

    client = partial(GCSStore, bucket, config=config)  # type: ignore[arg-type]
    return _store(url, endpoint, prefix, client, options)


def open_azure(url: str, options: StoreOptions) -> ObjectStore:
    """az://container/prefix in the storage account that the options name."""
    container, prefix = _parts(url)
    if not options.account:
        raise UsageError(
            f"{url} does not say which storage account it is in",
            subject=url,
            hint="set AZURE_STORAGE_ACCOUNT_NAME",
        )
    endpoint = options.endpoint or options.azure_endpoint
    config: dict[str, Any] = {"account_name": options.account, "skip_signature": options.anonymous}
    if options.account_key:
        config["account_key"] = options.account_key
    if endpoint:
        config["endpoint"] = endpoint.rstrip("/")

    client = partial(AzureStore, container, config=config)  # type: ignore[arg-type]
    endpoint = endpoint or f"https://{options.account}.blob.core.windows.net"
    return _store(url, endpoint, prefix, client, options)


def _store(
    url: str,
    endpoint: str,
    prefix: str,
    client: Callable[..., Client],
    options: StoreOptions,
    provider: ChainProvider | None = None,
) -> ObjectStore:
    common = _client_options(url, endpoint, options)
    try:
        brief: ClientConfig = {**common, "read_timeout": f"{options.read_timeout * 1000:.0f}ms"}
        quick = client(client_options=brief, retry_config=_NO_RETRIES)
        patient = client(client_options=common, retry_config=_NO_RETRIES)
    except (BaseError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise Denied(f"{url} cannot be opened: {reason}", subject=url, hint=login_hint(url)) from error
    return ObjectStore(
        url, endpoint, prefix, quick, patient, provider=provider, ordered_listing=options.ordered_listing
    )


def _client_options(url: str, endpoint: str, options: StoreOptions) -> ClientConfig:
    plain = endpoint.startswith("http://")
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
            common["proxy_excludes"] = options.no_proxy
    if options.ca_file and not plain:
        common["root_certificate"] = read_certificates(url, Path(options.ca_file))
    return common


def _parts(url: str) -> tuple[str, str]:
    """Bucket and prefix of a store's URL. Raises UsageError."""
    split = urlsplit(url)
    prefix = split.path.strip("/")
    try:
        if not split.hostname or split.query or split.fragment or split.username or split.port:
            raise ValueError(f"it should be {split.scheme}://bucket/prefix")
        if prefix:
            check_key(prefix)
    except ValueError as error:
        raise UsageError(f"{url} is no store: {error}", subject=url) from error
    return split.netloc, prefix
