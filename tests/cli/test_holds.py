"""cache --hold, hold and release: who may end which hold, and what is printed."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
from msgspec import structs

from dsv.cache.claims import LeaseName, PinRecord
from dsv.cache.leases import Lease, hold
from dsv.cache.root import CachePlace, CacheRoot
from tests.kit.dsv import Dsv, assert_documented, name_of


def test_a_hold_keeps_it_until_it_is_released(pets: Dsv) -> None:
    held = pets.ok("cache", "pets@v1", "--hold", "3d")
    assert "held until " in held.err
    refused = pets("evict", "pets@v1")
    assert (refused.code, refused.out) == (4, "")
    everything = pets.ok("evict", "--all")
    assert everything.out == ""
    assert ": held by" in everything.err
    assert pets.ok("release", "pets@v1").out == f"released {name_of(held.lines[0])}\n"
    assert pets("release", "pets@v1").code == 3
    assert pets.ok("evict", "pets@v1").out.startswith(f"evicted {name_of(held.lines[0])}: ")
    assert not Path(held.lines[0]).exists()


def test_one_hold_of_several_is_released_by_its_id(pets: Dsv) -> None:
    """Two jobs of one user hold the same commit, and the first of them to end lets go of its own hold alone."""
    first, second = (pets.ok("cache", "pets@v1", "--hold", "3d", "--json").json["items"][0] for _ in range(2))
    assert first["hold"] != second["hold"] and first["held_until"].endswith("Z")
    shown = pets.ok("cached", "--json").json["items"][0]["leases"]
    assert {lease["id"] for lease in shown} == {first["hold"], second["hold"]}

    refused = pets("release", "pets@v1")
    assert (refused.code, refused.out) == (4, "")
    assert all(hold["hold"][:12] in refused.err for hold in (first, second))
    assert "dsv release --id " in refused.err
    assert len(pets.ok("cached", "--json").json["items"][0]["leases"]) == 2

    released = pets.ok("release", "--id", first["hold"], "--json").json
    assert released["items"][0]["ids"] == [first["hold"]]
    gone = pets("release", "--id", first["hold"])
    assert gone.code == 3 and "expired" in gone.err
    assert pets.ok("evict", "--all").out == "" and Path(first["path"]).is_dir()
    assert pets("evict", "pets@v1").code == 4

    assert pets.ok("release", "--id", second["hold"][:12]).out == f"released {name_of(first['path'])}\n"
    assert pets.ok("evict", "pets@v1").code == 0


def test_of_many_holds_the_newest_five_are_listed_after_what_to_do(pets: Dsv) -> None:
    """A script that caches in a loop leaves a hold each time. The note of each names the id that ends it."""
    notes = [pets.ok("cache", "pets@v1", "--hold", "1h").err for _ in range(7)]
    released = [note.partition("dsv release --id ")[2].strip() for note in notes]
    assert len({*released}) == 7
    said = pets("release", "pets@v1").err.splitlines()
    assert (
        "you have 7 holds of pets@v1" in said[0]
        and "name one with --id, or release them with --all" in said[0]
    )
    assert [line.split(",")[0].strip() for line in said[1:6]] == released[:1:-1]
    assert said[6] == "  and 2 more" and len(said) == 8
    assert f"dsv release --id {released[-1]} ends one" in said[7]
    pets.ok("release", "--id", released[0])
    assert len(pets.ok("cached", "--json").json["items"][0]["leases"]) == 6


def test_all_holds_are_released_when_all_are_asked_for(pets: Dsv) -> None:
    pets.ok("cache", "pets@v1", "pets@v1", "pets@v2:train", "--hold", "3d")
    assert pets.ok("release", "pets@v1", "--all").out.endswith(" (2 holds)\n")
    assert pets.ok("release", "--all").out.count("released pets@") == 1
    assert pets("release", "--all").code == 3


def test_nothing_is_released_unless_all_that_is_named_can_be(pets: Dsv) -> None:
    hold = pets.ok("cache", "pets@v1", "--hold", "3d", "--json").json["items"][0]["hold"]
    pets.ok("cache", "pets@v2", "pets@v2", "--hold", "3d")
    assert pets("release", "pets@v1", "pets@v2").code == 4
    assert pets("release", "--id", hold, "--id", "0" * 32).code == 3
    assert len(pets.ok("cached", "--json").json["items"][0]["leases"]) == 2
    assert pets.ok("release", "--id", hold, "--json").json["items"][0]["ids"] == [hold]


def test_an_id_names_only_a_hold_of_ones_own(pets: Dsv) -> None:
    folder = Path(pets.ok("cache", "pets@v1").lines[0])
    root, place = CacheRoot(folder.parents[1]), CachePlace("pets", folder.name)
    with Lease.take(root, place, "run", run="r1") as run:
        refused = pets("release", "--id", run.record.owner.id)
        assert refused.code == 4 and "in use by run r1" in refused.err
    other = Lease.take(root, place, "hold", ttl=60)
    path = root.claims(place) / str(LeaseName(other.record.owner.id, 0, other.record.renewed))
    owner = structs.replace(other.record.owner, user="somebody")
    root.replace(path, msgspec.json.encode(structs.replace(other.record, owner=owner)))
    refused = pets("release", "--id", other.record.owner.id)
    assert refused.code == 4 and "somebody's, not yours" in refused.err


def test_a_slurm_job_holds_to_its_end(pets: Dsv) -> None:
    job = pets.at(pets.cwd, SLURM_JOB_ID="77", SLURM_JOB_END_TIME=str(int(time.time()) + 3600))
    job.ok("cache", "pets@v1")
    leases = pets.ok("cached", "--json").json["items"][0]["leases"]
    assert [(lease["purpose"], lease["job"]) for lease in leases] == [("hold", "77")]
    released = job.ok("release", "pets@v1", "--job", "77", "--json").json
    assert_documented("release", released)


def test_a_hold_without_an_end(pets: Dsv) -> None:
    assert pets("hold", "pets@v1").code == 3
    path = pets.ok("cache", "pets@v1").out
    assert pets.ok("hold", "pets@v1", "-m", "the paper").out == f"held {name_of(path.strip())}\n"
    until = pets.ok("hold", "pets@v1", "--for", "2w", "--json").json
    assert_documented("hold", until)
    assert until["items"][0]["until"].endswith("Z")
    assert ": held by " in pets.ok("evict", "--all").err
    assert pets.ok("release", "pets@v1", "--all").out == f"released {name_of(path.strip())} (2 holds)\n"
    assert pets("release", "pets@v1").code == 3
    assert pets("hold", "pets@v1", "--for", "soon").code == 2


def test_a_hold_of_a_commit_holds_no_part_of_it(pets: Dsv) -> None:
    pets.ok("cache", "pets@v1:train")
    refused = pets("hold", "pets@v1")
    assert refused.code == 3 and "has parts of pets@v1, but not all of it" in refused.err
    whole = pets.ok("cache", "pets@v1").lines[0]
    assert pets.ok("hold", "pets@v1").out == f"held {name_of(whole)}\n"
    items = pets.ok("cached", "--json").json["items"]
    assert {tuple(item["selection"]): len(item["pins"]) for item in items} == {("train",): 0, (): 1}
    assert pets.ok("hold", "pets@v1:train").out.endswith("+\n")
    refused = pets("release", "pets@v1")
    assert refused.code == 4 and " (a part of it), taken " in refused.err
    assert pets.ok("release", "pets@v1", "--all").out.count("released ") == 2


def test_another_s_hold_is_released_only_for_everyone(pets: Dsv) -> None:
    folder = Path(pets.ok("cache", "pets@v1").lines[0])
    root, place = CacheRoot(folder.parents[1]), CachePlace("pets", folder.name)
    for number, user in enumerate(("ann", "bob")):
        record = PinRecord(id=f"{number}" * 32, user=user, why="the paper", since=1.0)
        root.write_once(root.claims(place) / f"pin-{record.id}", msgspec.json.encode(record))
    refused = pets("release", "pets@v1")
    assert refused.code == 4 and "held by ann, bob, not by you" in refused.err
    assert pets("release", "--id", "0" * 32).code == 4
    assert pets("release", "--all", "--everyone").code == 2
    assert pets.ok("release", "--id", "0" * 32, "--everyone", "--json").json["items"][0]["ids"] == ["0" * 32]
    assert pets.ok("release", "pets@v1", "--everyone").out == f"released {name_of(str(folder))}\n"
    assert pets.ok("evict", "pets@v1").code == 0


def test_a_pin_is_called_a_hold(pets: Dsv) -> None:
    assert "dsv hold TARGET" in pets("pin", "pets@v1").err
    assert "dsv release TARGET" in pets("unpin", "pets@v1").err


def test_cached_shows_the_ids_of_holds_of_both_kinds(pets: Dsv) -> None:
    pets.ok("cache", "pets@v1", "--hold", "1d")
    pets.ok("hold", "pets@v1", "-m", "the paper")
    item = pets.ok("cached", "--json").json["items"][0]
    both = [claim["id"][:12] for claim in (*item["leases"], *item["pins"])]
    shown = pets.ok("cached").out
    assert len(both) == 2 and all(f"({one})" in shown for one in both), shown
    pets.ok("release", "--id", both[1])
    assert both[0] in pets.ok("cached").out and both[1] not in pets.ok("cached").out


def test_a_claim_that_ends_after_all_calendars_is_shown(pets: Dsv) -> None:
    """An earlier dsv, or another program, may have made it."""
    folder = Path(pets.ok("cache", "pets@v1").lines[0])
    place = CachePlace("pets", folder.name)
    for seconds in (1e12, 1e306):
        hold(CacheRoot(folder.parents[1]), place, seconds=seconds)
    assert "held by" in pets.ok("cached").out
    shown = pets.ok("cached", "--json").json["items"][0]["pins"]
    assert [pin["until"] for pin in shown] == ["9999-12-30T00:00:00Z"] * 2


def test_a_job_without_an_end_holds_for_long(pets: Dsv) -> None:
    job = pets.at(pets.cwd, SLURM_JOB_ID="78", SLURM_JOB_END_TIME="9" * 40)
    job.ok("cache", "pets@v1")
    assert job.ok("cached", "--json").json["items"][0]["leases"][0]["until"] < "9999"


def test_mistakes_of_usage(pets: Dsv) -> None:
    for arguments in (
        ["cache", "pets@v1", "--hold", "0m"],
        ["cache", "pets@v1", "--hold", "9999999d"],
        ["hold", "pets@v1", "--for", "9999999d"],
        ["release"],
        ["release", "--id", "xyz"],
        ["release", "--id", "0" * 32, "pets@v1"],
        ["release", "--id", "0" * 32, "--all"],
        ["release", "--id", "0" * 32, "--job", "7"],
    ):
        assert pets(*arguments).code == 2, arguments


def test_a_cache_of_a_newer_protocol_gets_no_holds(pets: Dsv) -> None:
    """As it gets no commits: its files may mean something else by then."""
    folder = Path(pets.ok("cache", "pets@v1").lines[0])
    pets.ok("hold", "pets@v1")
    settings = folder.parents[1] / "dsv-cache.toml"
    before = settings.read_text()
    settings.write_text(before.replace("protocol = 1", "protocol = 2"))
    held = pets.ok("cached", "--json").json["items"]
    for command in ("hold pets@v1", "release pets@v1", "cache pets@v2", "evict pets@v1"):
        refused = pets(*command.split())
        assert refused.code == 9 and "is a cache of protocol 2" in refused.err, command
    assert pets.ok("cached", "--json").json["items"] == held
    settings.write_text(before)
    for options in (("--for", "0s"), ("--for", "0")):
        assert pets("hold", "pets@v1", *options).code == 2
    pets.ok("release", "pets@v1")
