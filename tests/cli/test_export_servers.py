"""Writing to servers that fsspec knows: what each kind of them makes of a file that is given up."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from dsv.errors import IntegrityError
from dsv.exchange.export import UrlExport
from dsv.exchange.remote import Place
from dsv.values.progress import NoProgress

fsspec = pytest.importorskip("fsspec")
AbstractBufferedFile, AbstractFileSystem = fsspec.spec.AbstractBufferedFile, fsspec.AbstractFileSystem


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
    place = Place(server, "bucket", "az", "az://bucket", nullcontext())
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
