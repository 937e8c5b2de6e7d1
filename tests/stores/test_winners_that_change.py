"""Servers that replace what a writer has won and read back: whoever sees it says so, and builds nothing on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from dsv.format import keys
from dsv.format.records import FormatEntry, RefEntry, TagValue
from dsv.values.ids import CommitId, Nonce
from dsv.values.names import MAIN, DatasetName
from tests.kit.dsv import Dsv, Result, write_files
from tests.stores.split_world import FILES, World, synced

XRAYS = DatasetName("xrays")
Swap = Callable[[str, bytes], bytes | None]


@dataclass(frozen=True)
class Scene:
    """ann's workspace is at move 2 of `main`, to `commit`; `other` is a commit of a branch `side`."""

    world: World
    names: str
    ann: Dsv
    first: str
    commit: str
    other: str

    def names_now(self) -> dict[str, bytes]:
        """Everything that says what a name means, as the server has it. Ends what it swaps."""
        self.world.does.swap = lambda key, data: None
        client = self.world.server.client()
        found = client.get_paginator("list_objects_v2").paginate(Bucket=self.world.bucket, Prefix=self.names)
        stored = [row["Key"] for page in found for row in page.get("Contents", [])]
        return {
            key: client.get_object(Bucket=self.world.bucket, Key=key)["Body"].read()
            for key in stored
            if "/refs/" in key or "/format/" in key
        }

    def swap_move(self, number: int) -> None:
        """Another writer's move of `main`, to `other`, takes the place of this one once that was read."""
        wanted = f"{self.names}/{keys.branch_key(XRAYS, MAIN, number)}"

        def other_writer(key: str, data: bytes) -> bytes | None:
            if key != wanted:
                return None
            entry = RefEntry.decode(data)
            return replace(
                entry, nonce=Nonce.random(), author="Eve", commit=CommitId.parse(self.other)
            ).encode()

        self.world.does.reads.clear()
        self.world.does.swap = other_writer


@pytest.fixture(params=["names elsewhere", pytest.param("one place", marks=pytest.mark.exhaustive)])
def scene(world: World, request: pytest.FixtureRequest) -> Scene:
    """The names are in a bucket of that server, too."""
    ann = world.person("ann", configured=False)
    names = "dsv"
    if request.param == "names elsewhere":
        names = "names"
        ann.ok("config", "stores.grid.names", f"s3://{world.bucket}/{names}")
    ann.ok("init", str(XRAYS))
    first = synced(ann, FILES)
    ann.ok("branch", "side")
    ann.ok("put", str(ann.cwd / "train/1.txt"), f"{XRAYS}@side:more.txt")
    commit = synced(ann, {"second.txt": b"second"})
    return Scene(world, names, ann, first, commit, ann.ok("resolve", f"{XRAYS}@side").out.strip())


def said_so(result: Result, who: str = "Eve") -> None:
    assert result.code == 5, result
    assert "no longer lets one writer win: " in result.err and who in result.err, result
    assert "hint: " in result.err


COMMANDS: tuple[Sequence[str], ...] = (
    ["sync"],
    ["put", "third.txt", "xrays:put.txt"],
    ["merge", "side"],
    ["rollback", "@{first}"],
    ["branch", "main", "@{first}", "--reset"],
)


def filled(arguments: Sequence[str], scene: Scene) -> list[str]:
    return [one.format(first=scene.first) for one in arguments]


def test_a_change_of_a_move_that_this_workspace_has_recorded_is_reported(scene: Scene) -> None:
    """It had been acknowledged, and was read back. The next command reports it, and does nothing."""
    ann, met = scene.ann, scene.ann.cwd / ".dsv/tracking.json"
    noted, before = met.read_bytes(), scene.names_now()
    write_files(ann.cwd, {"third.txt": b"third"})
    scene.world.does.swap_after = 0
    for arguments in [*COMMANDS, ["pull"], ["tag", "v1", "xrays@main"]]:
        met.write_bytes(noted)
        scene.swap_move(2)
        said_so(ann(*filled(arguments, scene)))
        assert scene.names_now() == before, arguments
    # It was reported: what happens next is what happens if a branch is at a commit that does not descend from the base.
    scene.swap_move(2)
    assert ann("pull").code == 4
    rescued = synced(ann, {}, "--new-branch", "rescued")
    log = [item["commit"] for item in ann.ok("log", "xrays@rescued", "--json").json["items"]]
    assert log[:2] == [rescued, scene.commit]


def test_a_move_that_was_recorded_from_the_old_place_of_the_names_is_ignored(
    scene: Scene, tmp_path: Path
) -> None:
    """A writer that did not know yet that the names had moved can win there, and learns that it does not count."""
    ann, met = scene.ann, scene.ann.cwd / ".dsv/tracking.json"
    ann.ok("pull")
    ann.ok("store", "move-names", str(tmp_path / "new"))
    noted = json.loads(met.read_bytes())
    noted["branches"]["main"]["commit"] = scene.other
    met.write_text(json.dumps(noted))
    synced(ann, {"third.txt": b"third"})
    noted = json.loads(met.read_bytes())
    noted["branches"]["main"]["commit"] = scene.other
    met.write_text(json.dumps(noted))
    write_files(ann.cwd, {"fourth.txt": b"fourth"})
    said_so(ann("sync"), who="")


def test_a_move_changes_while_a_command_builds_on_it(scene: Scene) -> None:
    ann, before = scene.ann, scene.names_now()
    noted = (ann.cwd / ".dsv/tracking.json").read_bytes()
    write_files(ann.cwd, {"third.txt": b"third"})
    for arguments in COMMANDS:
        scene.swap_move(2)
        said_so(ann(*filled(arguments, scene)))
        assert scene.names_now() == before, arguments
        (ann.cwd / ".dsv/tracking.json").write_bytes(noted)
    synced(ann, {})  # the server has thought better of it


def test_a_tag_that_was_won_is_read_back(scene: Scene) -> None:
    def other_writer(key: str, data: bytes) -> bytes | None:
        if key.endswith("/value"):
            return replace(TagValue.decode(data), nonce=Nonce.random(), author="Eve").encode()
        return None

    scene.world.does.swap, scene.world.does.swap_after = other_writer, 0
    said_so(scene.ann("tag", "v1"))


def test_the_entry_by_which_names_began_to_move_changes(scene: Scene, tmp_path: Path) -> None:
    """It could send the names to a place where nothing was copied."""
    wanted = f"{scene.names}/{keys.format_key(1)}"

    def other_mover(key: str, data: bytes) -> bytes | None:
        if key != wanted:
            return None
        return replace(
            FormatEntry.decode(data), nonce=Nonce.random(), author="Eve", names="/elsewhere"
        ).encode()

    before = scene.names_now()
    scene.world.does.swap = other_mover
    said_so(scene.ann("store", "move-names", str(tmp_path / "new")))
    after = scene.names_now()
    assert [key for key in after if key not in before and "moving-" not in key] == [wanted]
    assert not [*(tmp_path / "new").glob("format/*")]


def test_index_files_that_change_are_not_merged_into_others(scene: Scene) -> None:
    """Their earlier content is not lost: nothing is deleted, and nothing wrong is believed."""
    client = scene.world.server.client()
    before = set(scene.world.stored())
    scene.world.does.swap = lambda key, data: data[:-1] + b"?" if "/index/" in key else None
    scene.world.does.swap_after = 0
    eve = scene.world.person("eve", configured=False)
    if scene.names != "dsv":
        eve.ok("config", "stores.grid.names", f"s3://{scene.world.bucket}/{scene.names}")
    merged = eve("store", "merge-indexes")
    assert merged.code == 5 and "index" in merged.err, merged
    scene.world.does.swap = lambda key, data: None
    assert set(scene.world.stored()) >= before
    assert client is not None
    for name, content in FILES.items():
        assert eve.ok("cat", f"xrays:{name}").out.encode() == content
        break


def test_the_check_and_init_find_such_a_server(scene: Scene) -> None:
    scene.world.does.swap = lambda key, data: b"swapped" if f"{scene.names}/probe/" in key else None
    scene.world.does.swap_after = 18  # so often a race reads its key itself
    checked = scene.ann("store", "check", "--json")
    assert checked.code == 1
    failed = {item["check"]: item["text"] for item in checked.json["items"] if item["state"] == "fail"}
    assert "replaced later" in failed["write"], failed
    scene.world.does.reads.clear()
    scene.world.does.swap = lambda key, data: b"swapped" if "/probe/" in key else None
    eve = scene.world.person("eve", configured=False)
    made = eve("init", "other", "--store", f"s3://{scene.world.bucket}/another")
    assert made.code == 9 and not scene.world.stored("another/"), made
