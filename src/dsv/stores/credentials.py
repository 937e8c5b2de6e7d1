"""The usual AWS chain (keys, profiles, SSO, roles, instance metadata), as boto3 has it.

boto3 is imported only if the options are incomplete, because that takes 150 ms.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from dsv.errors import Denied
from dsv.stores.object_errors import login_hint

if TYPE_CHECKING:
    from boto3.session import Session
    from obstore.auth.boto3 import Boto3CredentialProvider

    from dsv.stores.options import StoreOptions

# obstore asks again five minutes before this ends, so every minute. boto3 answers from memory, and renews
# credentials with fewer than ten minutes left.
_TRUSTED_FOR: Final = timedelta(minutes=6)


class AwsAccess(msgspec.Struct, frozen=True):
    """The endpoint, region and credentials for S3. `provider`: None for static keys and anonymous access."""

    endpoint: str | None
    region: str
    provider: Boto3CredentialProvider | None


def aws_access(url: str, options: StoreOptions) -> AwsAccess:
    """Complete the options from the profile and the chain. Raises Denied if there are no credentials."""
    endpoint = options.endpoint or options.s3_endpoint
    has_keys = bool(options.access_key and options.secret_key)
    if options.anonymous or (has_keys and (options.region or endpoint)):
        return AwsAccess(endpoint, options.region or "us-east-1", None)
    session, profile = aws_session(url, options)
    endpoint = endpoint or profile.get("endpoint_url")
    region = session.region_name or "us-east-1"
    return AwsAccess(endpoint, region, None if has_keys else _provider(url, session))


def aws_session(url: str, options: StoreOptions) -> tuple[Session, dict[str, Any]]:
    """Return boto3's session, and the settings of the profile in effect, `endpoint_url` that for S3.

    Raises `Denied`.
    """
    import boto3
    import botocore.session
    from botocore.exceptions import BotoCoreError

    keys = (options.access_key, options.secret_key, options.session_token)
    try:
        core = botocore.session.Session(profile=options.profile)
        if options.ca_file:
            core.set_config_variable("ca_bundle", str(Path(options.ca_file)))
        profile = dict(core.get_scoped_config())
        services = core.full_config.get("services", {}).get(profile.get("services"), {})
        session = boto3.Session(
            *(keys if all(keys[:2]) else ()), region_name=options.region, botocore_session=core
        )
    except BotoCoreError as error:
        raise _denied(url, error) from error
    s3 = services.get("s3", {}) if isinstance(services, dict) else {}
    if isinstance(s3, dict) and s3.get("endpoint_url"):
        profile["endpoint_url"] = str(s3["endpoint_url"])
    return session, profile


def _provider(url: str, session: Session) -> Boto3CredentialProvider:
    from botocore.exceptions import BotoCoreError, ClientError
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        return Boto3CredentialProvider(session, ttl=_TRUSTED_FOR)
    except (BotoCoreError, ClientError) as error:
        raise _denied(url, error) from error
    except ValueError as error:  # it has none
        raise Denied(f"there are no credentials for {url}", subject=url, hint=login_hint(url)) from error


def _denied(url: str, error: Exception) -> Denied:
    return Denied(f"the credentials for {url} can't be obtained: {error}", subject=url, hint=login_hint(url))


def boto_client(
    url: str, options: StoreOptions, *, connect_timeout: float, read_timeout: float, attempts: int
) -> Any:
    """Return boto3's client for the server of this s3:// URL. Raises `Denied`."""
    from botocore import UNSIGNED
    from botocore.config import Config

    access = aws_access(url, options)
    session, _ = aws_session(url, options)
    host = access.endpoint or f"https://s3.{access.region}.amazonaws.com"
    proxies = {"http": options.http_proxy, "https": options.https_proxy}
    direct = is_reached_directly(host, options.no_proxy)
    return session.client(
        "s3",
        endpoint_url=access.endpoint,
        region_name=access.region,
        verify=options.ca_file,
        config=Config(
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            retries={"total_max_attempts": attempts},
            s3={"addressing_style": "path"} if access.endpoint else {},
            proxies={scheme: proxy for scheme, proxy in proxies.items() if proxy and not direct},
            signature_version=UNSIGNED if options.anonymous else None,
            max_pool_connections=32,
        ),
    )


def is_reached_directly(endpoint: str, no_proxy: str | None) -> bool:
    """Return whether these hosts include the endpoint's: `*`, names and the domains below them, addresses and
    networks (`10.0.0.0/8`), each with or without a port."""
    from ipaddress import ip_address, ip_network

    split = urlsplit(endpoint.lower())
    host, port = split.hostname or "", split.port or {"http": 80}.get(split.scheme, 443)
    for one in (no_proxy or "").lower().replace(",", " ").split():
        name, _, number = one.rpartition(":")
        if not (number.isdecimal() and name.strip("[]:") and (":" not in name or name.endswith("]"))):
            name = one  # without a port; an address of IPv6 may have colons
        elif int(number) != port:
            continue
        name = name.strip("[]").removeprefix("*").lstrip(".")
        if one == "*" or (name and f".{host}".endswith(f".{name}")):
            return True
        with suppress(ValueError):
            if ip_address(host) in ip_network(name, strict=False):
                return True
    return False
