"""The usual AWS chain (keys, profiles, SSO, roles, instance metadata), through botocore.

botocore is imported only if the options are incomplete, because that takes 150 ms.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dsv.errors import Denied
from dsv.store.object_errors import login_hint

if TYPE_CHECKING:
    from obstore.store import S3Credential

    from dsv.store.options import StoreOptions

# obstore asks again five minutes before this ends, so every minute. botocore answers from memory, and renews
# credentials with fewer than ten minutes left.
_TRUSTED_FOR: Final = timedelta(minutes=6)


class AwsAccess(msgspec.Struct, frozen=True):
    """The endpoint, region and credentials for S3. `provider`: None for static keys and anonymous access."""

    endpoint: str | None
    region: str
    provider: ChainProvider | None


class ChainProvider:
    """Gives botocore's credentials to obstore, which calls it from its own threads.

    `failure` is why the last call failed, because obstore keeps only the text of an exception.
    """

    def __init__(self, url: str, credentials: Any) -> None:
        self._url = url
        self._credentials = credentials
        self.failure: Denied | None = None

    def __call__(self) -> S3Credential:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            frozen = self._credentials.get_frozen_credentials()
        except (BotoCoreError, ClientError) as error:
            self.failure = _denied(self._url, error)
            raise self.failure from error
        self.failure = None
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + _TRUSTED_FOR,
        }


def aws_access(url: str, options: StoreOptions) -> AwsAccess:
    """Complete the options from the profile and the chain. Raises Denied if there are no credentials."""
    endpoint = options.endpoint or options.s3_endpoint
    has_keys = bool(options.access_key and options.secret_key)
    if options.anonymous or (has_keys and (options.region or endpoint)):
        return AwsAccess(endpoint, options.region or "us-east-1", None)
    session = aws_session(url, options)
    profile = session.get_scoped_config()
    if endpoint is None:
        endpoint = profile_endpoint(profile, session.full_config)
    region = options.region or session.get_config_variable("region") or "us-east-1"
    if has_keys:
        return AwsAccess(endpoint, region, None)
    return AwsAccess(endpoint, region, ChainProvider(url, _credentials(url, session)))


def aws_session(url: str, options: StoreOptions) -> Any:
    """Return a botocore session for the profile in effect. Raises `Denied`."""
    import botocore.session
    from botocore.exceptions import BotoCoreError

    try:
        session = botocore.session.Session(profile=options.profile)
        if options.ca_file:
            session.set_config_variable("ca_bundle", str(Path(options.ca_file)))
        session.get_scoped_config()
    except BotoCoreError as error:
        raise _denied(url, error) from error
    return session


def _credentials(url: str, session: Any) -> Any:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        credentials = session.get_credentials()
    except (BotoCoreError, ClientError) as error:
        raise _denied(url, error) from error
    if credentials is None:
        raise Denied(f"there are no credentials for {url}", subject=url, hint=login_hint(url))
    return credentials


def profile_endpoint(profile: dict[str, Any], config: dict[str, Any]) -> str | None:
    """Return the profile's `endpoint_url`: from its `services` section for s3, or else its own."""
    services = config.get("services", {}).get(profile.get("services"), {})
    s3 = services.get("s3", {}) if isinstance(services, dict) else {}
    found = (s3.get("endpoint_url") if isinstance(s3, dict) else None) or profile.get("endpoint_url")
    return str(found) if found else None


def _denied(url: str, error: Exception) -> Denied:
    return Denied(f"the credentials for {url} can't be obtained: {error}", subject=url, hint=login_hint(url))


def boto_client(
    url: str, options: StoreOptions, *, connect_timeout: float, read_timeout: float, attempts: int
) -> Any:
    """Return botocore's client for the server of this s3:// URL. Raises `Denied`."""
    from urllib.parse import urlsplit

    from botocore import UNSIGNED
    from botocore.config import Config

    access = aws_access(url, options)
    host = urlsplit(access.endpoint or "").hostname or f"s3.{access.region}.amazonaws.com"
    proxies = {"http": options.http_proxy, "https": options.https_proxy}
    if options.no_proxy and _is_reached_directly(host, options.no_proxy):
        proxies = {}
    keys = (options.access_key, options.secret_key, options.session_token)
    access_key, secret_key, token = keys if all(keys[:2]) else (None, None, None)
    return aws_session(url, options).create_client(
        "s3",
        endpoint_url=access.endpoint,
        region_name=access.region,
        verify=options.ca_file,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        aws_session_token=token,
        config=Config(
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            retries={"total_max_attempts": attempts},
            s3={"addressing_style": "path"} if access.endpoint else {},
            proxies={scheme: proxy for scheme, proxy in proxies.items() if proxy},
            signature_version=UNSIGNED if options.anonymous else None,
            max_pool_connections=32,
        ),
    )


def _is_reached_directly(host: str, no_proxy: str) -> bool:
    """Return whether these hosts, domains and networks (`10.0.0.0/8`) include the host."""
    from ipaddress import ip_address, ip_network

    for one in no_proxy.lower().split(","):
        name = one.strip().lstrip(".")
        if name == "*" or (name and f".{host}".endswith(f".{name}")):
            return True
        with suppress(ValueError):
            if ip_address(host) in ip_network(name, strict=False):
                return True
    return False
