"""What dsv on another machine needs to reach the store."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import tomli_w

from dsv.api.settings import StoreChoice
from dsv.errors import UsageError
from dsv.run.node_order import StoreAccess
from dsv.stores.options import StoreOptions, read_certificates

_CERTIFICATE: Final = re.compile(
    rb"-----BEGIN (TRUSTED )?CERTIFICATE-----[^-]+-----END (?:TRUSTED )?CERTIFICATE-----"
)


_MOST: Final = 96 << 10
"""Bytes of certificates: Linux limits a variable to 128 KiB."""


def store_access(store: StoreChoice, options: StoreOptions) -> StoreAccess:
    """Return what a job's machine needs to reach the store. Raises `UsageError`, `NotFound`, `Denied`.

    The address in a profile is passed on, but never its credentials or a private key in the certificate file.
    """
    from dsv.stores.open import local_folder

    places = [local_folder(each) for each in (store.url, store.names) if each is not None]
    folders = tuple(str(each) for each in places if each is not None)
    if store.name is None:
        return StoreAccess(folders=folders)
    endpoint, region = store.endpoint, store.region
    if store.profile is not None and store.url.startswith("s3://"):
        from dsv.stores.credentials import aws_session

        _, profile = aws_session(store.url, options)
        endpoint, region = endpoint or profile.get("endpoint_url"), region or profile.get("region")
    known = {"endpoint": endpoint, "region": region, "names": store.names}
    table = {"url": store.url, **{key: value for key, value in known.items() if value is not None}}
    return StoreAccess(
        settings=tomli_w.dumps({"stores": {store.name: table}}),
        certificates="" if store.ca_bundle is None else _certificates(store, Path(store.ca_bundle)),
        folders=folders,
        profile=None if store.profile is None else f"stores.{store.name}.profile",
    )


def _certificates(store: StoreChoice, path: Path) -> str:
    key = f"stores.{store.name}.ca_bundle"
    certificates = [match.group() for match in _CERTIFICATE.finditer(read_certificates(store.url, path))]
    text = b"\n".join(certificates)
    if not certificates:
        raise UsageError(
            f"{path} has no certificate",
            subject=key,
            hint=f"dsv config {key} FILE, which is in the PEM format",
        )
    if len(text) > _MOST:
        raise UsageError(
            f"{path} has {len(text) >> 10} KiB of certificates, and a job takes at most {_MOST >> 10} KiB",
            subject=key,
            hint=f"dsv config {key} FILE, with the authority of this store alone",
        )
    return text.decode("ascii", "replace") + "\n"
