"""Files of certificate authorities."""

from __future__ import annotations

from pathlib import Path

from dsv.errors import NotFound


def read_certificates(url: str, path: Path) -> bytes:
    """The PEM file, or all files of a folder of them, as REQUESTS_CA_BUNDLE allows. Raises `NotFound`."""
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
