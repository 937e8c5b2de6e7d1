"""KeyClaims on a key and beats: who runs, who waits, and when a waiting run takes over."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from dsv.errors import Conflict, Denied, Unreachable
from dsv.format import keys
from dsv.run import once_claims
from dsv.run.once_claims import (
    Beats,
    Claimant,
    Hit,
    KeyClaim,
    KeyClaims,
    Miss,
    NotEnded,
    Wait,
    beats_of,
    look,
    settle,
)
from dsv.run.record import RECORD as PART
from dsv.run.record import OnceKey, RunId, RunRecord, RunState
from dsv.run.record_store import RunStore, Spool
from dsv.stores.base import PutResult, StoreBackend
from dsv.stores.memory import MemoryStore
from dsv.stores.open import OpenStore
from dsv.values.ids import StoreId
from tests.run.test_record import DATASET
from tests.run.test_record import RECORD as ANY
from tests.waiting import until

KEY = "ab" * 32
ENDED = replace(ANY, once=OnceKey(key=KEY))
RUNNING = replace(ENDED, state=RunState.RUNNING, ended_ms=None, exit_code=None)


def claimant(number: int = 0) -> Claimant:
    return Claimant(dataset=DATASET, run=run_id(number), host=f"gpu{number}", user="ben")


def run_id(number: int) -> RunId:
    return RunId.make(1_795_000_000_000 + 1000 * number, bytes(4))


def record(number: int, record: RunRecord = ENDED) -> RunRecord:
    return replace(record, run=run_id(number))


class Lab:
    """A store, and a waiting run with a clock of its own: `at[n]` happens before its n-th look."""

    def __init__(self, store: StoreBackend | None = None) -> None:
        self.store = store or MemoryStore()
        self.runs = RunStore(self.store)
        self.claims = KeyClaims(self.store, KEY)
        self.now = 1000.0
        self.notes: list[str] = []
        self.looks = 0
        self.meanwhile: Callable[[], object] = lambda: None
        self.settled: list[RunId] = []

    def judge(self, by: Claimant) -> Hit | Miss | NotEnded:
        found = self.runs.newest(by.dataset, by.run)
        if found is None or not found.state.is_terminal:
            return NotEnded(found)
        return Hit(found) if found.exit_code == 0 else Miss("it failed")

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds <= 15
        self.now += seconds
        self.looks += 1
        self.meanwhile()

    def settle(self, number: int = 9) -> Hit | KeyClaim:
        wait = Wait(
            self.notes.append,
            lambda by: self.settled.append(by.run),
            sleep=self.sleep,
            clock=lambda: self.now,
        )
        return settle(self.claims, claimant(number), self.judge, self.beats(number), wait)

    def beats(self, number: int) -> Beats:
        return Beats(self.store, DATASET, run_id(number))

    def claimed_by(self, number: int, *, more: bool = True) -> Beats:
        """A run that has claimed the key; its process is gone, so no beat follows by itself."""
        beats = self.beats(number)
        beats.start()
        assert self.claims.take(self.claims.newest(), claimant(number))
        beats.stop() if more else beats.last()
        return beats

    def beat(self, number: int) -> None:
        beats = self.beats(number)
        beats.start()
        beats.stop()

    def beating(self) -> list[RunId]:
        parsed = [keys.parse_beat_key(item.key) for item in self.store.list(keys.BEATS_PREFIX)]
        return [beat[1] for beat in parsed if beat is not None]


@pytest.fixture
def lab() -> Lab:
    return Lab()


def test_keys_are_parsed_as_they_were_built_and_the_newest_claim_comes_first() -> None:
    numbers = [0, 1, 9, 10, 11, 99, 1 << 40]
    built = [keys.once_key(KEY, number) for number in numbers]
    assert sorted(built) == built[::-1]
    assert [keys.parse_once_key(key) for key in built] == [(KEY, number) for number in numbers]
    beats = [keys.beat_key(DATASET, run_id(1), number) for number in numbers]
    assert sorted(beats) == beats
    assert [keys.parse_beat_key(key) for key in beats] == [(DATASET, run_id(1), number) for number in numbers]
    for wrong in (
        f"once/{KEY}/1",
        f"once/{KEY[1:]}/{0:016x}",
        f"beats/a/{run_id(1)}/1",
        "beats/a/b/c/d",
        "runs/a/b/c",
    ):
        assert keys.parse_once_key(wrong) is None and keys.parse_beat_key(wrong) is None
    assert keys.needs_winner(built[0]) and keys.needs_winner(keys.ONCE_PREFIX)
    assert not keys.needs_winner(beats[0])


def test_the_newest_claim_counts_and_numbers_go_beyond_ten(lab: Lab) -> None:
    assert lab.claims.newest() is None
    for number in range(20):
        assert lab.settle(number) == KeyClaim(number, claimant(number))
        lab.runs.add_end(record(number, replace(ENDED, exit_code=1)), None)
        assert lab.claims.newest() == KeyClaim(number, claimant(number))
    assert len(list(lab.store.list(keys.once_prefix(KEY)))) == 20  # all stay


def test_of_many_takers_exactly_one_wins_each_number(lab: Lab) -> None:
    def take(number: int) -> list[int]:
        claims = [None, *(KeyClaim(n, None) for n in range(9))]
        return [place for place, after in enumerate(claims) if lab.claims.take(after, claimant(number))]

    with ThreadPoolExecutor(16) as pool:
        won = [number for some in pool.map(take, range(16)) for number in some]
    assert sorted(won) == list(range(10))


def test_a_result_is_a_hit_and_asks_for_one_listing_and_one_claim() -> None:
    store = OpenStore(MemoryStore())
    lab = Lab(store)
    lab.claimed_by(1)
    lab.runs.add_end(record(1), None)
    before = store.counts
    claim, verdict = look(lab.claims, lambda by: Miss(by.run))
    asked = store.counts - before
    assert (claim, verdict) == (KeyClaim(0, claimant(1)), Miss(run_id(1)))
    assert (asked.lists, asked.gets, asked.requests) == (1, 1, 2)
    assert lab.settle() == Hit(record(1))
    assert lab.looks == 0 and lab.notes == []


def test_claims_are_with_the_names_and_beats_with_the_data() -> None:
    names, data = MemoryStore(), MemoryStore()
    data.conditional = False
    lab = Lab(OpenStore(data, names))
    assert isinstance(lab.settle(), KeyClaim) and lab.claims.one_wins
    assert [item.key for item in names.list("")] == [keys.once_key(KEY, 0)]
    assert [item.key for item in data.list("")] == [keys.beat_key(DATASET, run_id(9), 0)]
    assert not KeyClaims(OpenStore(data), KEY).one_wins  # unconditional-writes: two may win


def test_a_claim_whose_run_was_deleted_is_a_miss_at_once(lab: Lab) -> None:
    beats = lab.claimed_by(1)
    beats.start()
    lab.runs.write(DATASET, run_id(1), "start", record(1, RUNNING).encode())
    (stored,) = lab.runs.listing(DATASET)
    lab.runs.delete(stored)  # with --force
    beats.stop()
    assert lab.beating() == []
    assert lab.settle() == KeyClaim(1, claimant(9))
    assert lab.looks == 0

    lab.runs.add_end(record(9), None)
    (stored,) = lab.runs.listing(DATASET)
    lab.runs.delete(stored)
    assert isinstance(lab.settle(8), KeyClaim) and lab.looks == 0


def test_a_claim_that_cannot_be_read_is_nobodys_result(lab: Lab) -> None:
    lab.store.put_if_absent(keys.once_key(KEY, 0), b"{}")
    assert look(lab.claims, lab.judge) == (KeyClaim(0, None), Miss("its claim can't be read"))
    assert lab.settle() == KeyClaim(1, claimant(9))


@pytest.mark.parametrize("skew", [-40_000_000, 40_000_000])
def test_a_silent_run_is_taken_over_by_the_clock_of_who_waits_alone(
    lab: Lab, skew: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: skew * 1_000_000_000)
    lab.claimed_by(1)
    assert lab.settle() == KeyClaim(1, claimant(9))
    assert 1600 <= lab.now < 1600 + 30
    assert 40 <= lab.looks < 140  # at most 15 s apart
    assert 8 <= len(lab.settled) <= 11 and set(lab.settled) == {run_id(1)}
    assert lab.notes == [f"waits for run {run_id(1)} (ben@gpu1)"]
    assert lab.beating().count(run_id(9)) == 1


def test_a_new_beat_within_ten_minutes_keeps_others_waiting(lab: Lab) -> None:
    lab.claimed_by(1)
    last = lab.now

    def beat() -> None:
        nonlocal last
        if lab.now - last > 580 and lab.now < 7000:
            lab.beat(1)
            last = lab.now
        if lab.now > 7100:
            lab.runs.add_end(record(1), None)

    lab.meanwhile = beat
    assert lab.settle() == Hit(record(1))
    assert lab.beating() == [] and lab.now > 7100


def test_a_pause_of_the_machine_that_waits_is_no_silence_of_the_other(lab: Lab) -> None:
    lab.claimed_by(1)

    def pause() -> None:
        if lab.looks == 3:
            lab.now += 36_000  # a laptop that slept
        if lab.looks == 6:
            lab.runs.add_end(record(1), None)

    lab.meanwhile = pause
    assert lab.settle() == Hit(record(1))


def test_nobody_takes_over_from_a_job_that_waits_for_its_cluster(lab: Lab) -> None:
    lab.claimed_by(1, more=False)
    lab.runs.write(DATASET, run_id(1), "start", record(1, replace(RUNNING, started_ms=0)).encode())

    def go_on() -> None:
        if lab.now < 100_000:
            return
        if lab.now < 101_000:
            lab.beat(1)  # on its node, whose machine goes down after that
            lab.now = 200_000.0

    lab.meanwhile = go_on
    assert isinstance(lab.settle(), KeyClaim)
    assert 200_600 <= lab.now < 200_700
    assert "; to run anyway" not in lab.notes[1] and len(lab.notes) == 2
    assert lab.notes[0].endswith("may have died unseen; to run anyway: --fresh")
    assert " so far)" in lab.notes[0]


def test_a_record_that_comes_between_two_looks_is_found_after_its_beats_have_gone(lab: Lab) -> None:
    lab.claimed_by(1)
    judged: list[object] = []

    def judge(by: Claimant) -> Hit | Miss | NotEnded:
        verdict = lab.judge(by)
        if not judged:  # it ends just after this look
            lab.runs.add_end(record(1), None)
        judged.append(verdict)
        return verdict

    wait = Wait(lab.notes.append, sleep=lab.sleep, clock=lambda: lab.now)
    assert settle(lab.claims, claimant(9), judge, lab.beats(9), wait) == Hit(record(1))
    assert len(judged) == 2 and lab.looks == 0


def test_who_may_not_write_the_names_runs_unclaimed_and_may_hit(lab: Lab) -> None:
    put = lab.store.put_if_absent

    def denied(key: str, data: bytes) -> PutResult:
        if keys.needs_winner(key):
            raise Denied("not there")
        return put(key, data)

    lab.store.put_if_absent = denied  # type: ignore[method-assign,assignment]
    with pytest.raises(Denied):
        lab.settle()
    assert lab.beating() == []
    lab.store.put_if_absent = put  # type: ignore[method-assign]
    lab.claimed_by(1)
    lab.runs.add_end(record(1), None)
    lab.store.put_if_absent = denied  # type: ignore[method-assign,assignment]
    assert lab.settle() == Hit(record(1))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Unreachable("away")])
def test_an_interrupt_ends_only_the_waiting(lab: Lab, error: BaseException) -> None:
    lab.claimed_by(1)

    def interrupt() -> None:
        raise error

    lab.meanwhile = interrupt
    with pytest.raises(type(error)):
        lab.settle()
    assert lab.claims.newest() == KeyClaim(0, claimant(1))
    assert lab.beating() == [run_id(1)]


def test_a_store_that_fails_at_the_claim_leaves_no_beats(lab: Lab) -> None:
    put = lab.store.put_if_absent

    def away(key: str, data: bytes) -> PutResult:
        if key.startswith(keys.ONCE_PREFIX):
            raise Unreachable("away")
        return put(key, data)

    lab.store.put_if_absent = away  # type: ignore[method-assign,assignment]
    with pytest.raises(Unreachable):
        lab.settle()
    assert lab.beating() == []


def test_beats_of_two_machines_leave_few_keys(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once_claims, "BEAT", 0.01)
    here, there = lab.beats(1), lab.beats(1)
    here.start()
    there.start(joins=True)
    until(lambda: max(beats_of(lab.store, DATASET, run_id(1)), default=0) > 30)
    here.last()
    newest = max(beats_of(lab.store, DATASET, run_id(1)))
    until(lambda: max(beats_of(lab.store, DATASET, run_id(1))) > newest)
    there.stop()
    assert 2 <= len(lab.beating()) <= 4
    here.start()
    assert lab.runs.add_end(record(1), None) == record(1)
    until(lambda: not here._periodic or not here._periodic._thread or not here._periodic._thread.is_alive())
    here.stop()
    assert len(lab.beating()) <= 1  # one may have been under way


@pytest.mark.parametrize("how", ["end", "spool", "other", "delete", "repair"])
def test_beats_go_after_the_record_below_all_who_complete_it(lab: Lab, how: str, tmp_path: Path) -> None:
    lab.claimed_by(1)
    lab.beat(2)
    spool = Spool(tmp_path, StoreId(bytes(16)))
    if how == "end":
        lab.runs.add_end(record(1), None)
    elif how == "spool":
        spool.keep_end(record(1), None, None)
        assert spool.send(lab.runs) == 1
    elif how == "other":  # this supervisor's record comes too late
        lab.store.put_if_absent(keys.run_key(DATASET, run_id(1), PART), record(1).encode())
        with pytest.raises(Conflict):
            lab.runs.write(DATASET, run_id(1), PART, record(1, replace(ENDED, exit_code=1)).encode())
    elif how == "delete":
        lab.runs.write(DATASET, run_id(1), "start", record(1, RUNNING).encode())
        lab.runs.delete(lab.runs.listing(DATASET)[0])
    else:  # whoever completed it may not delete
        lab.store.put_if_absent(keys.run_key(DATASET, run_id(1), PART), record(1).encode())
        lab.runs.repair_edges(lambda _: None, lambda _: None)
    assert lab.beating() == [run_id(2)]  # that of another run stays


def test_who_may_not_delete_completes_records_all_the_same(lab: Lab) -> None:
    lab.claimed_by(1)

    def denied(key: str) -> None:
        raise Denied("not you")

    lab.store.delete = denied  # type: ignore[method-assign]
    lab.beat(1)
    assert lab.runs.add_end(record(1), None) == record(1)
    assert lab.settle() == Hit(record(1))
