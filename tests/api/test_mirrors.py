"""Mirrors of a store: dsv reads from them what the store has lost or can't give any more, and prints a warning."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec import structs

from dsv.api.cache import cache
from dsv.api.cache_targets import Targets
from dsv.api.clone import clone
from dsv.api.context import Context
from dsv.api.copy import CopyRequest, copy
from dsv.api.datasets import cat, ls, resolve
from dsv.api.export import export
from dsv.api.settings import Settings, SettingsSource
from dsv.cache.root import CacheRoot
from dsv.errors import DsvError, IntegrityError, NotFound, Unreachable
from dsv.exchange.export import Selection
from dsv.format import keys
from dsv.stores import open as opening
from dsv.stores.directory import DirectoryStore
from dsv.stores.open import OpenStore
from dsv.transfer.download import WantedFile
from dsv.values.names import Target
from dsv.values.progress import NoProgress
from tests.kit.people import Files, Person, read_folder
from tests.stores.faulty import Fault, Faulty, Kind, Operation


class Notes(NoProgress):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


@dataclass
class World:
    """A store in a folder with a mirror in another, and people with machines of their own."""

    base: Path
    files: Files
    notes: Notes = field(default_factory=Notes)

    def context(self, machine: str = "bob", mirrors: str | None = None) -> Context:
        home = self.base / machine
        person = Person(home, "lake")
        (home / "work").mkdir(parents=True, exist_ok=True)
        known = {"stores.lake.url": str(self.base / "lake"), "store": "lake", "cache": str(home / "cache")}
        known["stores.lake.mirrors"] = mirrors or f"{self.base / 'gone'},{self.base / 'mirror'}"
        settings = Settings([SettingsSource("test", known)], home / "work", home, home / "state")
        return structs.replace(person.context(home / "work"), settings=settings, progress=self.notes)

    def lake(self) -> DirectoryStore:
        return DirectoryStore(self.base / "lake")

    def lose_packs(self) -> None:
        store = self.lake()
        for item in list(store.list(keys.PACK_PREFIX)):
            store.delete(item.key)

    def damage(self, prefix: str, *, flipped: bool) -> None:
        store = self.lake()
        for item in list(store.list(prefix)):
            data = bytearray(store.get(item.key))
            store.delete(item.key)
            for at in (len(data) // 2, len(data) - 40) if flipped else ():
                data[at] ^= 1
            if flipped:
                store.put_if_absent(item.key, bytes(data))

    def go_away(self) -> None:
        (self.base / "lake").rename(self.base / "away")

    def read(self, machine: str, path: str = "f/0007", at: str = "") -> bytes:
        with cat(self.context(machine), Target.parse(f"scans{at}:{path}")) as pieces:
            return b"".join(pieces)

    def check_all(self, machine: str) -> None:
        """Clone and cache have every file."""
        for made in (
            clone(self.context(machine), Target.parse("scans")).root,
            cache(self.context(machine), self.base / machine / "cache", [Target.parse("scans")])[0].path,
        ):
            found = {name.removesuffix(".sh"): data for name, data in read_folder(Path(made)).items()}
            assert found == self.files


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    files: Files = {f"f/{number:04}": b"%d" % number * 50 for number in range(300)}
    files["large"] = bytes(range(256)) * 12_000
    files["pixels"] = random.Random(3).randbytes(5 << 20)  # stored without compression
    ann = Person(tmp_path / "ann", str(tmp_path / "lake"))
    ann.init()
    ann.write(files)
    ann.sync()
    copy(ann.context(), Target.parse("scans"), str(tmp_path / "mirror"), CopyRequest(create=True))
    yield World(tmp_path, files)


def test_a_lost_pack_is_read_from_the_mirror(world: World) -> None:
    world.lose_packs()
    assert world.read("bob") == world.files["f/0007"]
    told = [one for one in world.notes.said if "mirror" in one]
    assert any(str(world.base / "mirror") in one and "is gone" in one for one in told)
    assert any(str(world.base / "gone") in one and "can't be read" in one for one in told)
    world.check_all("eve")


def test_without_a_mirror_that_has_it_the_loss_is_an_error(world: World) -> None:
    world.lose_packs()
    for pack in list(DirectoryStore(world.base / "mirror").list(keys.PACK_PREFIX)):
        DirectoryStore(world.base / "mirror").delete(pack.key)
    with pytest.raises(IntegrityError, match="is gone") as raised:
        world.read("bob")
    assert str(world.base / "lake") in raised.value.message


def test_a_lost_commit_is_read_from_the_mirror(world: World) -> None:
    store = world.lake()
    for prefix in (keys.COMMIT_PREFIX, keys.LOCATOR_PREFIX):
        for item in list(store.list(prefix)):
            store.delete(item.key)
    assert world.read("bob") == world.files["f/0007"]


@pytest.mark.parametrize(("digits", "flipped"), [(64, False), (64, True), (12, True)])
def test_a_commit_of_which_the_store_has_nothing_whole_is_read_from_the_mirror_by_its_id(
    world: World, digits: int, flipped: bool
) -> None:
    """A short id is looked up among the commits that are there."""
    [item] = world.lake().list(keys.COMMIT_PREFIX)
    commit = item.key.removeprefix(keys.COMMIT_PREFIX)
    for prefix in (keys.COMMIT_PREFIX, keys.LOCATOR_PREFIX):
        world.damage(prefix, flipped=flipped)
    assert world.read("bob", at=f"@{commit[:digits]}") == world.files["f/0007"]


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize(
    "prefix", [keys.PACK_PREFIX, keys.INDEX_PREFIX, keys.COMMIT_PREFIX, keys.LOCATOR_PREFIX]
)
def test_whatever_is_lost_or_damaged_is_read_from_the_mirror(
    world: World, prefix: str, flipped: bool
) -> None:
    world.damage(prefix, flipped=flipped)
    assert world.read("bob") == world.files["f/0007"]
    clone(world.context("eve"), Target.parse("scans"))
    assert read_folder(world.base / "eve" / "work" / "scans") == world.files


@pytest.mark.parametrize("flipped", [False, True])
def test_a_store_whose_format_log_is_gone_or_damaged_is_replaced_by_its_mirror(
    world: World, flipped: bool
) -> None:
    assert world.read("bob") == world.files["f/0007"]
    world.damage(keys.FORMAT_PREFIX, flipped=flipped)
    assert world.read("bob", "f/0008") == world.files["f/0008"]
    assert any("can't be opened" in one and str(world.base / "mirror") in one for one in world.notes.said)
    with pytest.raises(IntegrityError, match="has not reached it since"):
        world.read("new")


@pytest.mark.parametrize("flipped", [False, True])
def test_a_branch_that_is_gone_or_damaged_is_an_error(world: World, flipped: bool) -> None:
    """As a mirror's may be older. Whoever wants that names the mirror."""
    world.damage(keys.REFS_PREFIX, flipped=flipped)
    with pytest.raises(IntegrityError if flipped else NotFound):
        world.read("bob")


def test_a_store_that_is_away_is_replaced_by_its_mirror(world: World) -> None:
    assert world.read("bob") == world.files["f/0007"]
    store_id = world.lake().get(keys.format_key(0))
    world.go_away()
    world.notes.said.clear()
    assert world.read("bob", "f/0008") == world.files["f/0008"]
    assert any("is read instead" in one and str(world.base / "mirror") in one for one in world.notes.said)
    world.check_all("bob")
    bound = structs.replace(world.context("bob"), cwd=world.base / "bob" / "work" / "scans").workspace()
    assert bytes(bound.store_id) in store_id and bound.store == "lake"
    with pytest.raises(Unreachable, match="has not reached it since"):
        world.read("new")


def test_a_command_that_asks_the_store_alone_is_enough_to_know_it(world: World) -> None:
    with ls(world.context("new"), Target.parse("scans")) as (found, _):
        assert next(found)[0].path
    world.go_away()
    assert world.read("new") == world.files["f/0007"]


def test_a_helper_process_reads_mirrors_too(world: World) -> None:
    world.lose_packs()
    context = world.context("bob")
    with Targets(context, CacheRoot(world.base / "bob" / "cache")) as targets:
        assert targets.repository.access.mirrors is not None
        order = pickle.dumps(targets.helper())
        for _ in range(2):  # with a lost pack, then with nothing there
            source = pickle.loads(order)()
            commit = targets.find(Target.parse("scans")).commit
            entry = source.tree(commit).entry(b"f/0009")
            assert entry is not None
            [(_, pieces)] = source.files([WantedFile(*entry)])
            assert b"".join(pieces) == world.files["f/0009"]
            if (world.base / "lake").exists():
                world.go_away()


def test_a_store_that_goes_away_in_the_middle_is_asked_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = str(world.base / "lake")
    before = opening.open_store
    dying: list[Faulty] = []

    def open_dying(url: str, *rest: object, **named: object) -> OpenStore:
        if url != lake:
            return before(url, *rest, **named)  # type: ignore[arg-type]
        plan = {
            number: Fault(Kind.REFUSED) for number in range(2, 1000)
        }  # of the reads of packs, the first succeeds
        dying.append(Faulty(DirectoryStore(world.base / "lake"), plan, only=[Operation.RANGE]))
        return OpenStore(dying[-1])

    monkeypatch.setattr(opening, "open_store", open_dying)
    assert world.read("bob") == world.files["f/0007"]
    assert dying[-1].calls == 2
    clone(world.context("eve"), Target.parse("scans"))
    found = read_folder(world.base / "eve" / "work" / "scans")
    assert found == world.files and dying[-1].calls <= 3


def test_nothing_is_written_to_a_mirror(world: World) -> None:
    world.read("bob")
    world.go_away()
    before = [item.key for item in DirectoryStore(world.base / "mirror").list("")]
    context = world.context("bob")
    with context.repository(Target.parse("scans"), mirrors=True) as repository:
        for write in (
            lambda: repository.store.put_if_absent("probe/x", b""),
            lambda: repository.store.delete("x"),
        ):
            with pytest.raises(Unreachable, match="nothing is written to its mirror"):
                write()
    with pytest.raises(DsvError), context.repository(Target.parse("scans")):
        pass
    assert [item.key for item in DirectoryStore(world.base / "mirror").list("")] == before


def test_the_processes_of_an_export_read_mirrors_too(world: World) -> None:
    target = Target.parse("scans:f/0009")
    commit = resolve(world.context("bob"), target).commit
    world.lose_packs()
    for _ in range(2):  # with lost packs, then with nothing there
        open_repository = pickle.loads(pickle.dumps(world.context("bob").opener()))
        objects = open_repository().objects
        [(_, _, pieces)] = Selection(objects, commit, target, skip_damaged=False, strict=False).contents()
        assert b"".join(pieces) == world.files["f/0009"]
        if (world.base / "lake").exists():
            world.go_away()


@pytest.mark.parametrize("flipped", [False, True])
def test_an_export_takes_what_is_lost_or_damaged_from_the_mirror(world: World, flipped: bool) -> None:
    """Of a large file it checks the whole first, and each chunk only if that is not right."""
    world.damage(keys.PACK_PREFIX, flipped=flipped)
    for path in ("scans", "scans:pixels"):
        assert not export(world.context("bob"), Target.parse(path), str(world.base / path)).damaged
    assert read_folder(world.base / "scans") == world.files
    assert (world.base / "scans:pixels").read_bytes() == world.files["pixels"]
