"""Writing to servers that fsspec knows: what each kind of them makes of a file that is given up."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dsv.errors import IntegrityError
from dsv.exchange.export_url import UrlExport
from dsv.exchange.remote import RemoteRoot
from dsv.values.progress import NoProgress

fsspec = pytest.importorskip("fsspec")
AbstractBufferedFile, AbstractFileSystem = fsspec.spec.AbstractBufferedFile, fsspec.AbstractFileSystem
MemoryFileSystem: Any = fsspec.get_filesystem_class("memory")


class _Shown(AbstractBufferedFile):  # type: ignore[misc]
    """As Azure's: with its last piece it is there, and `discard` does nothing."""

    def _initiate_upload(self) -> None:
        self.pieces = b""

    def _upload_chunk(self, final: bool = False) -> None:
        self.pieces += self.buffer.getvalue()
        if final:
            self.fs.shown[self.path] = self.pieces


class _ServerThatShows(AbstractFileSystem):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(skip_instance_cache=True)
        self.shown: dict[str, bytes] = {}

    def _open(self, path: str, mode: str = "rb", **options: Any) -> _Shown:
        return _Shown(self, path, mode, **options)


def test_what_failed_is_not_shown_by_a_server_that_shows_what_is_closed(tmp_path: Path) -> None:
    server = _ServerThatShows()
    place = RemoteRoot(server, "bucket", "az", "az://bucket", nullcontext())
    writes = UrlExport(place, "az://bucket", tmp_path, NoProgress(), force=False)
    with writes._writing("bucket/whole", 1) as file:
        file.write(b"all")
    with pytest.raises(IntegrityError), writes._writing("bucket/half", 1) as file:
        file.write(b"some of it")
        raise IntegrityError("damaged")
    server.transaction.files.clear()  # as at the end of the program
    del file
    gc.collect()
    assert server.shown == {"bucket/whole": b"all"}


class _Encrypting(MemoryFileSystem):  # type: ignore[misc]
    """As S3 with SSE-KMS: the entity tag is not the MD5. It is in the answer, and costs no second request."""

    store: ClassVar[dict[str, Any]] = {}
    asked = 0

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> dict[str, str]:
        super().pipe_file(path, value, mode, **options)
        return {"ETag": f'"of {len(value)}"'}

    def info(self, path: str, refresh: bool = False, **options: Any) -> dict[str, Any]:
        self.asked += refresh
        found: dict[str, Any] = super().info(path, **options)
        return {**found, "ETag": f'"of {found["size"]}"'}


@pytest.mark.parametrize(("size", "asked"), [(0, 0), (5, 0), (8 << 20, 0), (9 << 20, 1)])
def test_the_version_of_a_file_in_a_bucket_is_what_the_server_says(
    tmp_path: Path, size: int, asked: int
) -> None:
    server = _Encrypting(skip_instance_cache=True)
    place = RemoteRoot(server, "/bucket", "s3", "s3://bucket", nullcontext())
    writes = UrlExport(place, "s3://bucket", tmp_path, NoProgress(), force=False)
    assert writes._write("/bucket/x", [b"1" * (size // 2), b"2" * (size - size // 2)], size) == f"of {size}"
    assert server.asked == asked
    assert server.cat_file("/bucket/x") == b"1" * (size // 2) + b"2" * (size - size // 2)
