from __future__ import annotations

import errno
import multiprocessing
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests import exhaustive
from tests.cache.places import Clock, make_root, place, publish
from tests.inputs.small_disk import SmallDisk, small_disk
from tests.waiting import PATIENCE, until

from dsv.cache import claims, leases
from dsv.cache.claims import Intent, LeaseName, read_claims
from dsv.cache.evict import evict, evict_from
from dsv.cache.inventory import take_inventory
from dsv.cache.leases import Lease, end_hold, find_holds, hold
from dsv.cache.policy import EvictionRequest
from dsv.cache.root import CacheRoot
from dsv.cache.settings import CacheSettings, load_settings
from dsv.errors import Conflict, DsvError
from dsv.files import system
from dsv.files.shared_path import SharedPath
from dsv.files.small_files import list_names
from dsv.files.system import FileSystem

ALL = EvictionRequest(everything=True)
EVICTIONS = range(64)


@pytest.fixture
def root(tmp_path: Path) -> CacheRoot:
    return make_root(tmp_path / "cache")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_lease_keeps_a_commit_until_it_is_released(root: CacheRoot) -> None:
    publish(root, place(), {"a": b"1"}, age=1e6)
    with Lease.take(root, place(), "run", run="r1") as lease:
        assert lease.confirm() and lease.secure
        kept = evict(root, CacheSettings(), ALL).kept
        assert [one.reason for one in kept] == [lease.record.describe()] and "run r1" in kept[0].reason
    assert len(evict(root, CacheSettings(), ALL).evicted) == 1
    assert not root.visible(place()).path.exists()


def test_the_file_server_decides_between_a_taker_and_an_evictor(root: CacheRoot) -> None:
    visible = publish(root, place(), {"a": b"1"})
    intent = Intent.declare(root, place(), root.now())
    lease = Lease.take(root, place(), "run")
    assert lease.confirm()
    assert not intent.rename_to_trash(root.visible(place()))
    assert (visible / "a").read_bytes() == b"1"
    intent.withdraw()
    lease.release()
    assert [one.name for one in root.trash.path.iterdir()] == ["spare"]


def test_a_taker_that_comes_too_late_knows_it(root: CacheRoot) -> None:
    publish(root, place(), {"a": b"1"})
    intent = Intent.declare(root, place(), root.now())
    assert intent.rename_to_trash(root.visible(place()))
    with Lease.take(root, place(), "run") as lease:
        assert not lease.confirm()


def test_the_intent_of_a_dead_evictor_delays_no_lease_and_evicts_nothing(root: CacheRoot) -> None:
    publish(root, place(), {"a": b"1"})
    old = Intent.declare(root, place(), root.now() - 1e6)
    with Lease.take(root, place(), "run") as lease:
        assert lease.confirm()
        assert not old.rename_to_trash(root.visible(place())), "it comes back after hours and goes on"


def test_two_evictors_of_one_commit(root: CacheRoot) -> None:
    publish(root, place(), {"a": b"1"})
    first = Intent.declare(root, place(), root.now())
    second = Intent.declare(root, place(), root.now())
    assert first.rename_to_trash(root.visible(place()))
    assert not second.rename_to_trash(root.visible(place()))


def test_renewing_keeps_it_valid_and_the_folder_small(
    root: CacheRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renewed each tenth of a second, and valid for so long that no pause of the machine ends it."""
    publish(root, place(), {"a": b"1"})
    monkeypatch.setattr(leases, "_RENEWALS", 600)
    with Lease.take(root, place(), "run", ttl=60) as lease:
        assert lease.confirm()
        sure_until = lease._sure_until
        until(lambda: lease._name.number >= 3)
        with lease._turn:  # not in the middle of the next
            assert lease.secure and not lease.lost.is_set()
            assert lease._sure_until > sure_until
            claims = read_claims(root, place())
            assert len([name for name in claims.names if name.startswith("lease-")]) == 2
            (found,) = claims.leases
            assert found.valid(root.now()) and found.renewed > lease.record.renewed
        assert evict(root, CacheSettings(), ALL).evicted == []
    assert read_claims(root, place()).leases == ()


def test_a_lease_that_could_not_be_renewed_expires_and_says_that_it_was_lost(
    root: CacheRoot, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(root, place(), {"a": b"1"})
    lease = Lease.take(root, place(), "run", ttl=3600)
    assert lease.confirm()
    lease._sure_until = 0.0  # as if it had been taken long ago
    assert not lease.secure and not lease.lost.is_set(), "not being able to renew is no loss yet"
    lease.renew()
    assert lease.secure and not lease.lost.is_set(), "nothing went meanwhile"
    clock.move(3601)
    assert not lease.secure and not lease.lost.is_set()
    assert len(evict(root, CacheSettings(), ALL).evicted) == 1
    publish(root, place(), {"a": b"1"})  # even filled anew it is not the folder that a container has mounted
    secure, unchanged = list[bool](), lease._unchanged
    monkeypatch.setattr(lease, "_unchanged", lambda: secure.append(lease.secure) or unchanged())
    lease.renew()
    assert secure == [False], "before it is known that the commit is the same"
    assert lease.lost.is_set() and "evicted" in lease.reason
    lease.release()


def test_clearing_expired_leases_never_hits_a_renewed_one(root: CacheRoot, clock: Clock) -> None:
    publish(root, place(), {"a": b"1"})
    lease = Lease.take(root, place(), "run", ttl=3600)
    assert lease.confirm()
    clock.move(3601)
    names = [name for name in read_claims(root, place()).names if name.startswith("lease-")]
    lease.renew()
    for name in names:
        (root.claims(place()).path / name).unlink(missing_ok=True)
    assert [one.owner for one in read_claims(root, place()).leases] == [lease.record.owner]
    for name in read_claims(root, place()).names:  # and where all of it was cleared, it is written anew
        (root.claims(place()).path / name).unlink()
    lease.renew()
    assert len(read_claims(root, place()).leases) == 1
    lease.release()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as disk:
        yield disk


def names_of(lease: Lease) -> list[str]:
    """Of its file, the oldest first."""
    names = read_claims(lease.root, place()).names
    return sorted(
        (name for name in names if name.startswith("lease-")), key=lambda name: int(name.split(".")[1])
    )


def test_a_disk_that_was_full_before_the_first_renewal_ends_no_lease(disk: SmallDisk) -> None:
    root = make_root(disk.path / "cache")
    publish(root, place(), {"a": b"1"}, age=1e6)
    lease = Lease.take(root, place(), "run", ttl=60)
    assert lease.confirm()
    disk.limit(files=0)
    seen = set(names_of(lease))
    for _ in range(4):
        lease._sure_until = 0.0
        lease.renew()
        assert lease.secure
        (name,) = names_of(lease)
        assert name not in seen, "no name is used twice"
        seen.add(name)
    assert len(evict(root, CacheSettings(), ALL).kept) == 1
    disk.limit(files=10)
    for _ in range(3):
        before = names_of(lease)
        lease.renew()
        assert len(names_of(lease)) == 2 and names_of(lease)[0] == before[-1]
        assert not seen & {names_of(lease)[-1]}
    lease.release()
    assert names_of(lease) == []


def test_a_full_disk_after_one_of_the_two_names_was_cleared_away(disk: SmallDisk) -> None:
    root = make_root(disk.path / "cache")
    publish(root, place(), {"a": b"1"})
    lease = Lease.take(root, place(), "run")
    lease.renew()
    (root.claims(place()).path / names_of(lease)[0]).unlink()
    disk.limit(files=0)
    for _ in range(3):
        before = names_of(lease)
        lease.renew()
        assert len(names_of(lease)) == 1 and names_of(lease) != before
    lease.release()
    assert names_of(lease) == []


def test_a_renewal_that_fails_after_all_costs_no_name_and_leaves_none(
    root: CacheRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a soft mount says it: an error, of what the server has done or will do."""
    publish(root, place(), {"a": b"1"})
    lease = Lease.take(root, place(), "run")
    lease.renew()
    rename = SharedPath.rename

    def done_and_failed(self: SharedPath, target: SharedPath) -> None:
        rename(self, target)
        if self.name.startswith("lease-"):
            raise OSError(errno.EIO, "the server did it, but its answer was lost")

    with monkeypatch.context() as patched:
        patched.setattr(SharedPath, "rename", done_and_failed)
        with pytest.raises(OSError, match="lost"):
            lease.renew()
    seen = names_of(lease)
    assert len(seen) == 2
    lease.renew()
    assert names_of(lease)[:-1] == seen, "one of its names stays, and the next is a new one"
    lease.release()
    assert names_of(lease) == []


def test_the_last_use_of_a_run_that_died_is_kept(root: CacheRoot, clock: Clock) -> None:
    publish(root, place(), {"a": b"1"}, age=90000)
    lease = Lease.take(root, place(), "run", ttl=3600)
    assert lease.confirm()
    clock.move(3601)
    assert evict(root, CacheSettings(), EvictionRequest()).evicted == []
    assert read_claims(root, place()).leases == (), "the sweep removed it"
    assert evict(root, CacheSettings(), EvictionRequest()).evicted == [], "but knows that it was used"


def test_a_hold_belongs_to_a_person(root: CacheRoot) -> None:
    publish(root, place(), {"a": b"1"})
    Lease.take(root, place(), "hold", ttl=3600)
    Lease.take(root, place(), "hold", ttl=3600, job="slurm 7")
    with Lease.take(root, place(), "run"):
        first, second = find_holds(root, [place()])
        assert find_holds(root, [place()], job="slurm 7") == [second]
        end_hold(root, first)
        assert find_holds(root, [place()]) == [second]
        end_hold(root, second)
        assert [one.purpose for one in read_claims(root, place()).leases] == ["run"]


def _stage_and_die(path: str) -> None:
    Lease.take(CacheRoot(Path(path)), place(), "stage").confirm()
    os._exit(1)


def test_a_command_that_was_killed_here_stops_protecting_at_once(root: CacheRoot) -> None:
    publish(root, place(), {"a": b"1"})
    child = multiprocessing.get_context("spawn").Process(target=_stage_and_die, args=(str(root.path),))
    child.start()
    child.join()
    assert len(read_claims(root, place()).leases) == 1
    assert len(evict(root, CacheSettings(), ALL).evicted) == 1


def test_holds_without_an_end_protect_and_have_a_reason_and_an_owner(root: CacheRoot, clock: Clock) -> None:
    assert hold(root, place(), why="x") is None
    publish(root, place(), {"a": b"1"}, age=1e6)
    record = hold(root, place(), why="paper")
    assert record is not None
    assert [one.reason for one in evict(root, CacheSettings(), ALL).kept] == [f"held by {record.user}: paper"]
    foreign = msgspec.structs.replace(record, id="f" * 32, user="ann")
    root.write_once(root.claims(place()) / f"pin-{foreign.id}", msgspec.json.encode(foreign))
    (mine,) = find_holds(root, [place()])
    assert mine.claim == record
    end_hold(root, mine)
    (other,) = find_holds(root, [place()], everyone=True)
    assert other.claim == foreign
    end_hold(root, other)
    assert hold(root, place(), seconds=3600) is not None
    assert evict(root, CacheSettings(), ALL).evicted == []
    clock.move(3601)
    assert len(evict(root, CacheSettings(), ALL).evicted) == 1


def test_a_hold_that_failed_leaves_nothing_behind(root: CacheRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(root, place(), {"a": b"1"})

    def away(*_: object) -> None:
        raise OSError(errno.EIO, "the server is away")

    for name in ("cancel_intents", "visible_identity"):
        with monkeypatch.context() as patched:
            patched.setattr(leases, name, away)
            with pytest.raises(OSError, match="away"):
                hold(root, place())
        assert find_holds(root, [place()]) == []
    assert len(evict(root, CacheSettings(), ALL).evicted) == 1


def test_a_claim_of_a_newer_dsv_is_respected_for_a_day(root: CacheRoot) -> None:
    publish(root, place(), {"a": b"1"}, age=1e6)
    path = root.claims(place()).path / "lease-in a newer way"
    path.write_text("whatever")
    assert "does not understand" in evict(root, CacheSettings(), ALL).kept[0].reason
    os.utime(path, (1, 1))
    assert len(evict(root, CacheSettings(), ALL).evicted) == 1


def test_lease_names_round_trip_and_nothing_else_is_one() -> None:
    name = LeaseName("ab" * 16, 3, 1234.567)
    assert LeaseName.parse(str(name)) == name
    assert LeaseName.parse("lease-xyz.1.2") is None and LeaseName.parse("pin-" + "ab" * 16) is None


def _taker(path: str, over: Event, torn: multiprocessing.Queue[str]) -> None:
    """Takes leases, and checks that nothing goes while it holds one."""
    root = CacheRoot(Path(path))
    while not over.wait(random.random() / 50):  # else two of them leave evictors hardly a moment
        with Lease.take(root, place(), "run") as lease:
            if not lease.confirm():
                try:
                    publish(root, place(), {"a": b"1", "b/c": b"2"})
                except OSError:
                    continue  # another published first
                if not lease.confirm():
                    torn.put("a commit went that was published under a lease")
            for _ in range(5):
                if not (root.visible(place()).path / "b/c").exists():
                    torn.put("a leased file is missing")
                time.sleep(0.001)


def _evictor(path: str, times: int) -> None:
    root = CacheRoot(Path(path))
    while times > 0:
        times -= len(evict(root, load_settings(root), ALL).evicted)


def test_takers_and_evictors_in_many_processes(root: CacheRoot) -> None:
    times = len(exhaustive.some(EVICTIONS, every=21))
    context = multiprocessing.get_context("spawn")
    torn: multiprocessing.Queue[str] = context.Queue()
    over = context.Event()
    takers = [context.Process(target=_taker, args=(str(root.path), over, torn)) for _ in range(2)]
    evictors = [context.Process(target=_evictor, args=(str(root.path), times)) for _ in range(2)]
    for job in (*takers, *evictors):
        job.start()
    for job in evictors:
        job.join()
    over.set()
    for job in takers:
        job.join()
    assert [job.exitcode for job in (*takers, *evictors)] == [0] * 4
    assert torn.empty(), torn.get()
    evict(root, CacheSettings(), ALL)
    assert not root.visible(place()).path.exists() and [one.name for one in root.trash.path.iterdir()] == [
        "spare"
    ]
    assert list((root.dot.path / "claims").iterdir()) == []


def test_the_renewing_thread_survives_what_it_cannot_write(
    root: CacheRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(root, place(), {"a": b"1"})
    fail = threading.Event()
    now = CacheRoot.now

    def failing(self: CacheRoot, folder: Path | None = None) -> float:
        if fail.is_set():
            raise OSError(5, "the server is away")
        return now(self, folder)

    monkeypatch.setattr(CacheRoot, "now", failing)
    monkeypatch.setattr(leases, "_RETRY", 0.05)
    with Lease.take(root, place(), "run", ttl=0.5) as lease:
        lease.confirm()
        fail.set()
        until(lambda: not lease.secure)
        assert not lease.lost.is_set()
        fail.clear()
        until(lambda: lease.secure)


@pytest.mark.parametrize("evicted", [False, True])
def test_the_renewing_thread_survives_a_symlink_in_place_of_the_claims(
    root: CacheRoot, clock: Clock, monkeypatch: pytest.MonkeyPatch, evicted: bool
) -> None:
    """For longer than the lease lasts. Then it shows whether the commit was evicted meanwhile."""
    visible = publish(root, place(), {"a": b"1"})
    monkeypatch.setattr(leases, "_RENEWALS", 360_000)
    errors: list[DsvError] = []
    with Lease.take(root, place(), "run", ttl=3600) as lease:
        assert lease.confirm()
        renew, between, renewed = lease.renew, threading.Lock(), threading.Event()

        def noted() -> None:
            try:
                with between:
                    renew()
            except DsvError as error:
                errors.append(error)
                raise
            renewed.set()

        monkeypatch.setattr(lease, "renew", noted)
        assert renewed.wait(PATIENCE)
        folder = root.claims(place()).path.parent
        with between:  # a renewal between the two would make the folder again
            away = folder.rename(root.path / "away")
            folder.symlink_to("nowhere")
        until(lambda: len(errors) > 1)
        assert {type(error) for error in errors} == {Conflict}
        assert lease.secure, "others still respect it"
        clock.move(3601)
        assert not lease.secure and not lease.lost.is_set()
        if evicted:
            visible.rename(root.trash.path / "gone")
        folder.unlink()
        away.rename(folder)
        until(lambda: lease.secure or lease.lost.is_set())
        assert lease.lost.is_set() == evicted
        assert ("evicted" in lease.reason) == evicted


def test_a_lease_is_released_though_its_use_cannot_be_recorded(root: CacheRoot) -> None:
    publish(root, place(), {"a": b"1"})
    lease = Lease.take(root, place(), "run")
    assert lease.confirm()
    shutil.rmtree(root.temporary.path)
    root.temporary.path.symlink_to("nowhere")
    lease.release()
    assert names_of(lease) == []


def test_the_lease_of_a_silent_process_is_ended_by_whoever_takes_its_part_over(
    root: CacheRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one that it has not renewed lately; and it renews before it relies on what others have filled."""
    lease = Lease.take(root, place(), "stage")
    run = Lease.take(root, place(), "run")
    elsewhere = msgspec.structs.replace(lease.record.owner, kernel="another host", pid=1, start=1)
    other = Lease.take(root, place(), "stage")
    now = root.now()

    def owners() -> set[str]:
        return {one.owner.id for one in read_claims(root, place()).leases}

    leases.end_leases_of(root, place(), lease.record.owner, now)
    assert owners() == {lease.record.owner.id, run.record.owner.id, other.record.owner.id}, "renewed just now"
    leases.end_leases_of(root, place(), elsewhere, now + 2 * leases.SILENCE)
    assert len(owners()) == 3, "those of another process"
    until(lambda: root.now() > lease._name.renewed + 0.01)  # names have whole milliseconds
    other.renew()
    leases.end_leases_of(root, place(), lease.record.owner, other._name.renewed - 0.001 + leases.SILENCE)
    assert owners() == {run.record.owner.id, other.record.owner.id}
    publish(root, place(), {"a": b"1"})
    began = leases.boot_clock()
    monkeypatch.setattr(leases, "boot_clock", lambda: began + 2 * leases.SILENCE)
    assert lease.confirm()
    assert lease.record.owner.id in owners()
    for one in (lease, run, other):
        one.release()


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A file server whose next listing of a folder lacks all names but those that begin so, as was seen of NFS."""
    shown: list[str] = []

    def forget(prefix: str) -> None:
        shown.append(prefix)

    def names(folder: Path, *, asked: bool = False) -> list[str]:
        found = list_names(folder, asked=asked)
        if folder.parent.parent.name != "claims" or not shown:
            return found
        prefix = shown.pop()
        return [name for name in found if prefix and name.startswith(prefix)]

    for module in (claims, leases):
        monkeypatch.setattr(module, "list_names", names, raising=False)
    monkeypatch.setattr(system, "kind_of", lambda path: FileSystem(remote=True, sync_each=True))
    return forget


@pytest.mark.parametrize("shown", ["", claims.INTENT])
def test_an_evictor_respects_a_lease_that_one_listing_lacks(
    root: CacheRoot, forgetful: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, shown: str
) -> None:
    """All names are left out, or all but the evictor's own."""
    publish(root, place(), {"a": b"1"}, age=1e6)
    stock = take_inventory(root)
    lease = Lease.take(root, place(), "run")
    assert lease.confirm()
    declare = Intent.declare

    def declared(*arguments: Any) -> Intent:
        found = declare(*arguments)
        forgetful(shown)
        return found

    monkeypatch.setattr(Intent, "declare", declared)
    result = evict_from(root, CacheSettings(), ALL, stock)
    assert not result.evicted and root.visible(place()).path.is_dir()
    assert [one.reason for one in result.kept] == [lease.record.describe()]
    lease.release()


@pytest.mark.parametrize("shown", ["", "lease-"])
@pytest.mark.parametrize("claim", ["lease", "hold"])
def test_a_taker_ends_an_intent_that_one_listing_lacks(
    root: CacheRoot, forgetful: Callable[[str], None], shown: str, claim: str
) -> None:
    publish(root, place(), {"a": b"1"})
    intent = Intent.declare(root, place(), root.now())
    forgetful(shown)
    assert Lease.take(root, place(), "run").confirm() if claim == "lease" else hold(root, place())
    assert not intent.rename_to_trash(root.visible(place()))


def test_a_lease_is_not_lost_because_a_listing_lacks_the_commit_s_record(
    root: CacheRoot, forgetful: Callable[[str], None]
) -> None:
    publish(root, place(), {"a": b"1"})
    with Lease.take(root, place(), "run") as lease:
        assert lease.confirm()
        for shown in ("", "lease-"):
            forgetful(shown)
            forgetful(shown)
            lease.renew()
        assert not lease.lost.is_set()


def test_a_hold_is_released_though_a_listing_lacks_it(
    root: CacheRoot, forgetful: Callable[[str], None]
) -> None:
    publish(root, place(), {"a": b"1"})
    Lease.take(root, place(), "hold")
    (held,) = find_holds(root, [place()])
    forgetful("entry-")
    end_hold(root, held)
    assert find_holds(root, [place()]) == []
