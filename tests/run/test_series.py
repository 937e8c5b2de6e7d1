"""The curves of metrics: what is kept of them, what a job may write, and where they are while a run lives."""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv.errors import Denied, IntegrityError, Unsupported
from dsv.format.keys import BEATS_PREFIX, METRICS_PREFIX, beat_key, parse_beat_key, run_key
from dsv.run import series as module
from dsv.run.record import RECORD, SERIES, RunId, RunState
from dsv.run.series import PIECE, Curves, LiveSeries, Series, pieces_of, series_of
from dsv.stores.base import Bytes, PutResult
from dsv.stores.memory import MemoryStore
from dsv.values.secrets import Masker
from tests.engines.fake_docker import FakeDocker
from tests.run.shop import SCANS, Shop
from tests.run.test_cut_off import complete, docker, left
from tests.waiting import until

assert docker  # a fixture
RUN = RunId.parse("20261120-132145-1f2e3d4c")
NONE = Masker()


def decoded(data: bytes) -> dict[str, Series]:
    return msgspec.json.decode(data, type=module._Document).series


def curves_of(*pieces: bytes) -> dict[str, Series]:
    curves = Curves()
    for data in pieces:
        curves.take(data)
    curves.take(b"\n")
    return decoded(curves.encode(NONE))


def lines(*values: Any) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


@settings(deadline=None)
@given(
    count=st.integers(1, 6000),
    few=st.integers(1, 10**6),
    seed=st.integers(0, 10**6),
    cuts=st.lists(st.integers(0, 10**5), max_size=5),
)
def test_a_curve_keeps_its_ends_and_its_extremes_however_it_is_read(
    count: int, few: int, seed: int, cuts: list[int]
) -> None:
    values = [random.Random(seed + at).randrange(few) / 7 for at in range(count)]
    data = lines(*({"step": at, "a": value} for at, value in enumerate(values)))
    at = [0, *sorted(cuts), len(data)]
    curve = curves_of(*(data[one:other] for one, other in pairwise(at)))["a"]
    assert curve.of == count and curve.last == values[-1] and len(curve.points) <= 1000
    steps = [step for step, _ in curve.points]
    assert steps == sorted(set(steps)) and steps[0] == 0 and steps[-1] == count - 1
    kept = [value for _, value in curve.points]
    assert kept == [values[int(step)] for step in steps]
    assert (min(kept), max(kept)) == (min(values), max(values))
    assert count > 998 or len(kept) == count
    gaps = [later - step for step, later in pairwise(steps)]
    assert max(gaps, default=1) <= max(1, count // 60), "no part of a curve is without points"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"a": 1}\n{"a": 2', {"a": [(0, 1)]}),
        (b'{"a": 1}\n{"a": 2}', {"a": [(0, 1), (1, 2)]}),
        (b'nothing\n[1]\n"a"\n1\n\n\xff\xfe\n{"a": 1}\n', {"a": [(0, 1)]}),
        (b'{"step": 10, "a": NaN}\n{"a": -Infinity}\n', {"a": []}),
        (b'{"a": 1e999, "b": 3}\n', {"a": [], "b": [(0, 3)]}),
        (b'{"a": "text", "b": true, "c": null, "d": [1], "e": {}, "step": "x", "f": 1}\n', {"f": [(0, 1)]}),
        (b'{"a": {"b": {"c": 2.5}}, "step": 7.5}\n', {"a.b.c": [(7.5, 2.5)]}),
        (b'{"step": 5, "a": 1}\n{"step": 3, "a": 2}\n', {"a": [(5, 1), (3, 2)]}),
        (b'{"a": ' + b"9" * 5000 + b'}\n{"a": ' + b"9" * 500 + b'}\n{"a": 123456789012345678901234}\n',
         {"a": [(1, 123456789012345678901234.0)]}),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000 + b'\n{"b": 1}\n', {"b": [(0, 1)]}),
        (b'{"a": "' + b"x" * (1 << 17) + b'", "b": 1}\n{"b": 2}\n', {"b": [(0, 2)]}),
        (b'{"' + b"n" * 300 + b'": 1, "\\ud800": 1, "b": 2}\n{"b": 2}\n', {"b": [(0, 2)]}),
        (b'{"</script>\\u202e": 1, "": 2}\n', {"</script>\u202e": [(0, 1)], "": [(0, 2)]}),
    ],
)  # fmt: skip
def test_of_what_a_job_may_write_only_numbers_are_kept(data: bytes, expected: dict[str, Any]) -> None:
    found = curves_of(data)
    if "a" in expected and not expected["a"]:
        assert found["a"].last in ("NaN", "Infinity", "-Infinity")
    assert {name: [tuple(point) for point in curve.points] for name, curve in found.items()} == expected
    assert curves_of(*(data[at : at + 7] for at in range(0, min(len(data), 1 << 12), 7))) is not None


def test_a_piece_is_small_and_names_are_few() -> None:
    curves = Curves()
    wide = {"x" * 190 + str(number): random.Random(number).random() * 1e-100 for number in range(150)}
    for step in range(2000):
        curves.take(lines({"step": step + 0.123456789, **wide}))
    data = curves.encode(NONE, PIECE)
    found = decoded(data)
    assert len(data) <= PIECE and len(found) == 100 and {each.of for each in found.values()} == {2000}
    assert [found[next(iter(wide))].points[at][0] for at in (0, -1)] == [0.123456789, 1999.123456789]
    hidden = Masker((("TOKEN", "hunter2hunter2"),))
    secret = Curves()
    secret.take(b'{"hunter2hunter2": 1}\n')
    assert list(decoded(secret.encode(hidden))) == ["***"]


def test_a_file_is_read_on_and_anew_if_it_is_another(tmp_path: Path) -> None:
    file, curves = tmp_path / "metrics.jsonl", Curves()

    def found() -> list[float]:
        return [value for _, value in decoded(curves.encode(NONE))["a"].points]

    curves.read(file)
    file.write_bytes(lines({"a": 1}) + b'{"a"')
    curves.read(file)
    curves.read(file)
    assert found() == [1]
    with file.open("ab") as more:
        more.write(b": 2}\n")
    curves.read(file)
    assert found() == [1, 2]
    file.write_bytes(lines({"a": 3}))
    curves.read(file)
    assert found() == [3]
    file.write_bytes(lines({"a": 5}, {"a": 6}, {"a": 7}))
    curves.read(file)
    assert found() == [5, 6, 7]
    (tmp_path / "other").write_bytes(lines({"a": 9}))
    for strange in (lambda: file.symlink_to(tmp_path / "other"), lambda: os.mkfifo(file), file.mkdir):
        file.unlink()
        strange()
        curves.read(file)
        assert found() == [5, 6, 7]
        if file.is_dir():
            break


def test_of_a_huge_file_the_beginning_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST", 3 << 20)
    with (tmp_path / "m").open("wb") as file:
        file.write(lines({"a": 1}, {"a": 2}))
        file.truncate(1 << 40)
    curves = Curves()
    curves.read(tmp_path / "m", ended=True)
    assert decoded(curves.encode(NONE))["a"].of == 2


def test_keys_of_pieces_and_of_beats_are_told_apart() -> None:
    piece = beat_key(SCANS, RUN, 3, METRICS_PREFIX)
    assert piece == f"metrics/team%2Fscans/{RUN}/0000000000000003"
    assert parse_beat_key(piece, METRICS_PREFIX) == (SCANS, RUN, 3) and parse_beat_key(piece) is None
    assert parse_beat_key(beat_key(SCANS, RUN, 3)) == (SCANS, RUN, 3)
    assert parse_beat_key(beat_key(SCANS, RUN, 3), METRICS_PREFIX) is None and BEATS_PREFIX == "beats/"


JOB = """
import json, os, sys, time
with open(os.environ["DSV_OUT"] + "/metrics.jsonl", "w") as file:
    for step in range(3000):
        file.write(json.dumps({"step": step, "loss": 1 / (step + 1)}) + "\\n")
    file.flush()
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.02)
    file.write('{"step": 3000, "loss": 7, "acc": 0.5}\\n{"loss"')
"""


def run_meanwhile(shop: Shop, look: Callable[[RunId], object]) -> Any:
    """Run the job, which waits until `look` has returned."""
    go, seen = shop.home / "go", list[object]()

    def wait() -> None:
        until(lambda: shop.runs.listing(SCANS))
        try:
            seen.append(look(shop.runs.listing(SCANS)[0].run))
        finally:
            go.touch()

    looking = threading.Thread(target=wait)
    looking.start()
    result = shop.run(sys.executable, "-c", JOB, str(go))
    looking.join()
    assert seen, "it was seen while it ran"
    return result


def check(shop: Shop, run: RunId) -> None:
    found = series_of(shop.store, SCANS, run)
    assert {name: curve.of for name, curve in found.items()} == {"loss": 3001, "acc": 1}
    assert found["loss"].points[0] == (0, 1) and found["loss"].points[-1] == (3000, 7)
    assert pieces_of(shop.store, SCANS, run) == []
    record = shop.runs.newest(SCANS, run)
    assert record is not None and record.state is RunState.ENDED
    assert record.metrics == {"loss": 7, "acc": 0.5} and b'"curves"' not in record.encode()


def test_a_run_shows_its_curves_while_it_runs_and_keeps_them(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.02)

    def look(run: RunId) -> None:
        until(lambda: series_of(shop.store, SCANS, run).get("loss", Series([], 0, 0)).of == 3000)
        assert len(pieces_of(shop.store, SCANS, run)) <= 2

    result = run_meanwhile(shop, look)
    assert result.exit_code == 0 and result.problem is None
    check(shop, result.record.run)
    assert {RECORD, SERIES} <= shop.runs.listing(SCANS)[0].parts
    shop.runs.delete(shop.runs.listing(SCANS)[0])
    assert [item.key for item in shop.store.list("") if "lineage/" not in item.key] == []


class Guarded(MemoryStore):
    def put_if_absent(self, key: str, data: Bytes) -> PutResult:
        if key.startswith(METRICS_PREFIX):
            self.refused = True
            raise Denied("no right", subject=key)
        return super().put_if_absent(key, data)


def test_without_the_right_to_write_there_curves_are_shown_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.02)
    store = Guarded("memory://guarded")
    shop = Shop(tmp_path, store=store)
    result = run_meanwhile(shop, lambda run: until(lambda: getattr(store, "refused", False)))
    assert result.exit_code == 0 and result.problem is None
    check(shop, result.record.run)


class Keeping(MemoryStore):
    def delete(self, key: str) -> None:
        raise Denied("no right", subject=key)


def test_who_may_not_delete_pieces_writes_less_and_less_often(tmp_path: Path) -> None:
    store, file, pauses = Keeping("memory://keeping"), tmp_path / "m", list[float]()
    live = LiveSeries(lambda: store, (SCANS, RUN), file, NONE)
    live.stop()
    for step in range(30):
        with file.open("ab") as out:
            out.write(lines({"a": step}))
        pauses.append(live._next())
    assert pauses[:4] == [30, 30, 30, 60] and pauses[-1] == 600 and live._next() == 30, "it has not grown"


def test_nothing_is_written_for_a_run_that_was_deleted_or_a_file_that_was_there_before(
    tmp_path: Path,
) -> None:
    store, file = MemoryStore("memory://one"), tmp_path / "m"
    file.write_bytes(lines({"a": 1}))
    live = LiveSeries(lambda: store, (SCANS, RUN), file, NONE)
    live.stop()
    live._next()
    assert pieces_of(store, SCANS, RUN) == []
    file.write_bytes(lines({"a": 1}, {"a": 2}))
    assert live._next() == 30
    (piece,) = pieces_of(store, SCANS, RUN)
    store.delete(piece)
    file.write_bytes(lines({"a": 3}))
    assert live._next() == float("inf") and pieces_of(store, SCANS, RUN) == []


def leave_piece(shop: Shop) -> None:
    curves = Curves()
    curves.take(b'{"a": 1}\n{"a": 2}\n')
    for number in (4, 5):
        shop.store.put_if_absent(beat_key(SCANS, RUN, number, METRICS_PREFIX), curves.encode(NONE, PIECE))


@pytest.mark.parametrize("file", [True, False])
def test_who_completes_a_record_makes_curves_of_the_file_or_else_of_the_last_piece(
    shop: Shop, docker: FakeDocker, file: bool
) -> None:
    record = left(shop)
    if file:
        (Path(record.out) / "metrics.jsonl").write_bytes(lines({"a": 1}, {"a": 2}, {"a": 3}))
        (Path(record.out) / "metrics.json").unlink()
    leave_piece(shop)
    (done,) = complete(shop, TOKEN="hunter2hunter2")
    assert done.metrics == ({"a": 3} if file else {"acc": 0.5})
    assert series_of(shop.store, SCANS, RUN)["a"].of == (3 if file else 2)
    assert pieces_of(shop.store, SCANS, RUN) == [] and shop.spool.waiting() == []


def test_repair_completes_the_series_of_ended_runs_and_removes_pieces(shop: Shop) -> None:
    ended = shop.run("true").record.run
    curves = Curves()
    curves.take(b'{"a": 1}\n')
    for run in (ended, RUN):
        shop.store.put_if_absent(beat_key(SCANS, run, 0, METRICS_PREFIX), curves.encode(NONE))
    shop.runs.repair_edges(lambda _: None, print)
    assert series_of(shop.store, SCANS, ended)["a"].of == 1 and series_of(shop.store, SCANS, RUN) == {}
    assert list(shop.store.list(METRICS_PREFIX)) == []


def test_a_series_that_two_have_made_does_not_keep_the_record_back(shop: Shop) -> None:
    """A node has put its own, and died before the record."""
    write = 'echo \'{"a": 1}\' >"$DSV_OUT/metrics.jsonl"'
    record = shop.run("sh", "-c", write, offline=True).record
    shop.store.put_if_absent(run_key(SCANS, record.run, SERIES), b"other")
    assert shop.run("true").problem is None and shop.spool.waiting() == []
    with pytest.raises(IntegrityError, match="has no series of a run"):
        series_of(shop.store, SCANS, record.run)
    newer = b'{"kind":"dsv run series","version":2,"series":{}}'
    shop.store.put_if_absent(run_key(SCANS, RUN, SERIES), newer)
    with pytest.raises(Unsupported, match="newer dsv"):
        series_of(shop.store, SCANS, RUN)
