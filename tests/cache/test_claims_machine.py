"""Claims and evictions at random on a real folder, against a plain dict of what must be there."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from tests.cache.places import make_root, place, publish
from tests.exhaustive import examples

from dsv.cache.claims import Intent, LeaseRecord, PinRecord, read_claims
from dsv.cache.evict import evict, preview
from dsv.cache.inventory import take_inventory
from dsv.cache.leases import HoldInfo, Lease, end_hold, find_holds, hold
from dsv.cache.policy import EvictionRequest
from dsv.cache.root import CachePlace, CacheRoot
from dsv.cache.settings import CacheLimits, CacheSettings

NUMBERS = st.integers(0, 1)
OLD = 10 * 86400.0


@dataclass
class Model:
    """The expected state of one place."""

    visible: bool = False
    leases: int = 0
    holds: int = 0
    pins: int = 0
    age: float = 0.0

    @property
    def claimed(self) -> bool:
        return bool(self.leases or self.holds or self.pins)


@dataclass
class Held:
    number: int
    lease: Lease = field(repr=False)


class Claims(RuleBasedStateMachine):
    held: Bundle[Held] = Bundle("held")
    intents: Bundle[tuple[int, Intent]] = Bundle("intents")

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.root: CacheRoot = make_root(self.folder / "cache")
        self.model = {number: Model() for number in range(2)}

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    @rule(number=NUMBERS, old=st.booleans())
    def fill(self, number: int, old: bool) -> None:
        if not self.model[number].visible:
            publish(self.root, place(number), {"a": bytes(4000 + number)}, age=OLD if old else 0.0)
            before = self.model[number]
            age = OLD if old else 0.0
            self.model[number] = Model(True, before.leases, before.holds, before.pins, age)

    @rule(target=held, number=NUMBERS)
    def take(self, number: int) -> Held:
        lease = Lease.take(self.root, place(number), "run")
        assert lease.confirm() is self.model[number].visible
        self.model[number].leases += 1
        return Held(number, lease)

    @rule(one=consumes(held))
    def release(self, one: Held) -> None:
        model = self.model[one.number]
        assert not one.lease.lost.is_set()
        one.lease.release()
        model.leases -= 1

    @rule(one=held)
    def renew(self, one: Held) -> None:
        one.lease.renew()
        assert one.lease.secure and not one.lease.lost.is_set()

    @rule(number=NUMBERS)
    def hold(self, number: int) -> None:
        Lease.take(self.root, place(number), "hold", ttl=3600)
        self.model[number].holds += 1

    @rule(number=NUMBERS)
    def end_hold(self, number: int) -> None:
        """Ends the oldest."""
        leases = [one for one in self.holds(number) if isinstance(one.claim, LeaseRecord)]
        assert len(leases) == self.model[number].holds
        for one in leases[:1]:
            end_hold(self.root, one)
            self.model[number].holds -= 1

    def holds(self, number: int) -> list[HoldInfo]:
        return find_holds(self.root, [place(number)])

    @rule(number=NUMBERS, forever=st.booleans())
    def hold_for_long(self, number: int, forever: bool) -> None:
        made = hold(self.root, place(number), seconds=None if forever else 3600)
        assert (made is not None) is self.model[number].visible
        self.model[number].pins += made is not None

    @rule(number=NUMBERS)
    def let_go(self, number: int) -> None:
        pins = [one for one in self.holds(number) if isinstance(one.claim, PinRecord)]
        assert len(pins) == self.model[number].pins
        for one in pins:
            end_hold(self.root, one)
        self.model[number].pins = 0

    @rule(target=intents, number=NUMBERS)
    def another_evictor_begins(self, number: int) -> tuple[int, Intent]:
        """Let it look, and pause before it continues, for as long as the machine likes."""
        intent = Intent.declare(self.root, place(number), self.root.now())
        may = read_claims(self.root, place(number)).protecting(self.root.now()) is None
        assert may is not self.model[number].claimed
        if not may:
            intent.withdraw()
        return number, intent

    @rule(one=consumes(intents))
    def and_goes_on(self, one: tuple[int, Intent]) -> None:
        number, intent = one
        fired = intent.rename_to_trash(self.root.visible(place(number)))
        if fired:
            assert self.model[number].visible and not self.model[number].claimed
            self.model[number].visible = False

    @rule(everything=st.booleans())
    def evict(self, everything: bool) -> None:
        wish = EvictionRequest(everything=everything)
        expected = {
            place(number)
            for number, model in self.model.items()
            if model.visible
            and not model.claimed
            and (everything or (model.age == OLD and not self.recent(number)))
        }
        dry = preview(self.root, CacheSettings(), wish)
        result = evict(self.root, CacheSettings(), wish)
        assert {one.place for one in result.evicted} == expected
        assert [one.freed for one in result.evicted] == [one.freed for one in dry.evicted]
        self.went(result.evicted and [one.place for one in result.evicted])

    @rule(keep=st.integers(0, 2))
    def evict_by_number_of_files(self, keep: int) -> None:
        result = evict(self.root, CacheSettings(limits=CacheLimits(max_files=keep)), EvictionRequest())
        self.went([one.place for one in result.evicted])
        left = sum(model.visible for model in self.model.values())
        assert bool(result.exceeded) is (left > keep)
        assert left <= keep or all(model.claimed for model in self.model.values() if model.visible)

    def recent(self, number: int) -> bool:
        """Return whether a claim or a use after the fill is on record."""
        item = next(item for item in take_inventory(self.root).items if item.place == place(number))
        return take_inventory(self.root).now - item.last_use < OLD / 2

    def went(self, places: list[CachePlace]) -> None:
        for number, model in self.model.items():
            if place(number) in places:
                assert model.visible and not model.claimed
                model.visible = False

    @invariant()
    def what_must_be_there_is_there(self) -> None:
        if not hasattr(self, "root"):
            return
        for number, model in self.model.items():
            assert (self.root.visible(place(number)).path / "a").exists() is model.visible, number
            claims = read_claims(self.root, place(number))
            assert len(claims.leases) == model.leases + model.holds and len(claims.pins) == model.pins


Claims.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestClaims = Claims.TestCase
