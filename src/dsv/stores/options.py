"""Options for reaching a store: endpoint, region, credentials, proxies, private CAs.

Only the command line reads the environment: `from_environment` gets a mapping with the usual variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from dsv.errors import NotFound

_SECRET: Final = frozenset({"secret_key", "session_token", "account_key", "google_token"})


class StoreOptions(msgspec.Struct, frozen=True):
    """All that is needed to reach a store besides its URL. Empty means the library's default."""

    endpoint: str | None = None
    """Base URL of the service; without it, the next three, then the profile, then the provider decide."""
    s3_endpoint: str | None = None
    gcs_endpoint: str | None = None
    azure_endpoint: str | None = None
    region: str | None = None
    profile: str | None = None
    """AWS profile name."""
    access_key: str | None = None
    secret_key: str | None = None
    session_token: str | None = None
    """Static AWS keys; without both of the first two, boto3's chain of providers decides."""
    anonymous: bool = False
    """Send unsigned requests, for public buckets."""
    https_proxy: str | None = None
    http_proxy: str | None = None
    no_proxy: str | None = None
    """Comma-separated hosts that are reached directly."""
    ca_file: str | None = None
    """PEM file of further certificate authorities to trust."""
    account: str | None = None
    """Azure storage account name."""
    account_key: str | None = None
    """Azure storage account key."""
    service_account: str | None = None
    """Path of a Google service-account or application-default file."""
    google_token: str | None = None
    """A Google bearer token, as `gcloud auth print-access-token` prints it; it is not renewed."""
    connect_timeout: float = 5.0
    """Seconds for a connection, name resolution included."""
    read_timeout: float = 14.0
    """Seconds without any answer after which a small request is given up."""
    transfer_timeout: float = 300.0
    """Seconds for a large upload, from start to answer."""
    named_by: str = ""
    """The URL of the git repository from elsewhere that has named the place, which must be on the internet."""

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return the fields without secrets."""
        return [(name, getattr(self, name)) for name in self.__struct_fields__ if name not in _SECRET]

    def __repr__(self) -> str:
        return f"StoreOptions({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> StoreOptions:
        """Read the variables that the AWS, Google and Azure tools share, and those of proxies and CAs."""

        def first(*names: str) -> str | None:
            found = next((environment[name] for name in names if environment.get(name)), None)
            return None if found is None else found.strip() or found  # `echo` leaves a line end in secrets

        ignore = (environment.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") or "").lower() == "true"
        everything = first("ALL_PROXY", "all_proxy")
        return cls(
            s3_endpoint=None if ignore else first("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
            gcs_endpoint=first("STORAGE_EMULATOR_HOST"),
            azure_endpoint=first("AZURE_STORAGE_ENDPOINT", "AZURE_STORAGE_BLOB_ENDPOINT"),
            region=first("AWS_REGION", "AWS_DEFAULT_REGION"),
            profile=first("AWS_PROFILE", "AWS_DEFAULT_PROFILE"),
            access_key=first("AWS_ACCESS_KEY_ID"),
            secret_key=first("AWS_SECRET_ACCESS_KEY"),
            session_token=first("AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN"),
            https_proxy=first("HTTPS_PROXY", "https_proxy") or everything,
            http_proxy=first("HTTP_PROXY", "http_proxy") or everything,
            no_proxy=first("NO_PROXY", "no_proxy"),
            ca_file=first("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE"),
            account=first("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"),
            account_key=first("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY"),
            google_token=first("CLOUDSDK_AUTH_ACCESS_TOKEN", "GOOGLE_BEARER_TOKEN"),
            service_account=first("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT"),
        )

    def overridden(
        self,
        *,
        endpoint: str | None = None,
        region: str | None = None,
        profile: str | None = None,
        ca_file: str | None = None,
    ) -> StoreOptions:
        """Return these options with the settings of one store on top; None changes nothing.

        A given profile has its own credentials: keys of the environment do not count, as in AWS tools.
        """
        options = replace(self, access_key=None, secret_key=None, session_token=None) if profile else self
        return replace(
            options,
            endpoint=endpoint or self.endpoint,
            region=region or self.region,
            profile=profile or self.profile,
            ca_file=ca_file or self.ca_file,
        )


def read_certificates(url: str, path: Path) -> bytes:
    """Return a PEM file, or all of a folder, as REQUESTS_CA_BUNDLE allows. Raises `NotFound`."""
    try:
        if path.is_dir():
            return b"\n".join(file.read_bytes() for file in sorted(path.iterdir()) if file.is_file())
        return path.read_bytes()
    except OSError as error:
        raise NotFound(
            f"the certificates for {url} cannot be read: {path}: {error.strerror}",
            subject=str(path),
            hint="point AWS_CA_BUNDLE (or SSL_CERT_FILE) at a PEM file",
        ) from error
