"""What a detached run has written so far: bounded, without secrets, and read while it is written."""

from __future__ import annotations

import threading
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dsv.run.engines.output import LiveLog, LogKeeper, read_live
from dsv.values.secrets import Masker
from tests.waiting import PATIENCE


def whole(path: Path) -> bytes:
    with read_live(path, None) as pieces:
        return b"".join(pieces)


@given(parts=st.lists(st.binary(max_size=40), max_size=30))
def test_the_end_of_what_was_written_is_there(tmp_path_factory: object, parts: list[bytes]) -> None:
    folder = tmp_path_factory.mktemp("live")  # type: ignore[attr-defined]
    live = LiveLog(folder / "live.log", Masker(), part_size=50)
    for part in parts:
        live.add(part)
    written = b"".join(parts)
    read = whole(folder / "live.log")
    assert written.endswith(read) and len(read) >= min(len(written), 50)
    assert sum(each.stat().st_size for each in folder.iterdir()) <= 100
    live.remove()
    assert list(folder.iterdir()) == []


def test_secrets_are_hidden_also_one_that_is_written_in_pieces(tmp_path: Path) -> None:
    key = b"-----BEGIN PRIVATE KEY-----\nMIIx\n-----END PRIVATE KEY-----\n"
    live = LiveLog(tmp_path / "live.log", Masker((("TOKEN", "hunter2-hunter2"),)))
    keeper = LogKeeper(live=live.add)
    for data in (b"token hunter2-", b"hunter2\n", key[:20], key[20:31], key[31:], b"after\n"):
        keeper.add(data, "stdout")
        assert b"hunter2" not in whole(tmp_path / "live.log") and b"MIIx" not in whole(tmp_path / "live.log")
    assert whole(tmp_path / "live.log") == b"token ***\n***\nafter\n"
    assert (tmp_path / "live.log").stat().st_mode & 0o777 == 0o600


def test_a_reader_goes_along_from_one_part_to_the_next(tmp_path: Path) -> None:
    path, over, more = tmp_path / "live.log", threading.Event(), threading.Event()
    live = LiveLog(path, Masker(), part_size=30)
    live.add(b"first\n")
    got: list[bytes] = []

    def read() -> None:
        with read_live(path, lambda: not over.is_set()) as pieces:
            for data in pieces:
                got.append(data)
                more.set()

    reading = threading.Thread(target=read)
    reading.start()
    for number in range(20):
        assert more.wait(PATIENCE)
        more.clear()
        live.add(b"line %d\n" % number)
    over.set()
    reading.join(PATIENCE)
    assert b"".join(got) == b"first\n" + b"".join(b"line %d\n" % number for number in range(20))


def test_a_log_that_cannot_be_written_on_ends_nothing(tmp_path: Path) -> None:
    live = LiveLog(tmp_path / "live.log", Masker(), part_size=10)
    (tmp_path / "live.log.1").mkdir()  # where the full part has to go
    for _ in range(5):
        live.add(b"12345678\n")
    assert (tmp_path / "live.log").read_bytes() == b"12345678\n1"
