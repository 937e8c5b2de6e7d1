"""Keys that may be absent, on a server that answers 500 for them while some of its nodes are down.

It might have them. So the answer is that the server could not answer, and never that the key is absent.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.exhaustive import some
from tests.inputs.scene import FILES, Scene, write
from tests.inputs.troubled import Server, troubled_server
from tests.kit.dsv import Dsv

READING: tuple[Sequence[str], ...] = (
    ["datasets"],
    ["resolve", "set"],
    ["resolve", "set@nothing"],
    ["resolve", "set@{missing}"],
    ["resolve", "nothing"],
    ["ls", "set"],
    ["cat", "set@v1:text.txt"],
    ["log", "set"],
    ["log", "--reflog", "set@main"],
    ["show", "set"],
    ["diff", "set@v1", "set@side"],
    ["tag", "--list", "set"],
    ["branch", "--list", "set"],
    ["cache", "set", "-q"],
    ["clone", "set", "copy"],
    ["runs"],
)
"""By somebody who has nothing of the store here."""
MERGING = ("merge", "cherry-pick", "revert")
WRITING: tuple[Sequence[str], ...] = (
    ["sync"],
    ["sync", "--new-branch", "fresh"],
    ["pull"],
    ["tag", "v2"],
    ["tag", "--delete", "v1", "--force"],
    ["branch", "fresh"],
    ["branch", "--delete", "side", "--force"],
    ["branch", "main", "@v1", "--reset"],
    ["merge", "side"],
    ["put", "text.txt", "set:put.txt"],
    ["mv", "set:text.txt", "set:moved.txt"],
    ["rm", "set:text.txt"],
    ["rollback", "@v1"],
    ["switch", "side"],
    ["store", "move-names", "{folder}/names"],
)
"""In a workspace with a changed file."""


@dataclass(frozen=True)
class World:
    scene: Scene
    server: Server
    ann: Dsv


@pytest.fixture
def world(scene: Scene) -> Iterator[World]:
    """`set` with a tag, a branch `side` that has moved, and a change in ann's workspace that is not synced."""
    with troubled_server() as server:
        ann = scene.newcomer(**server.environ)
        write(ann.cwd, FILES)
        ann.ok("init", "set")
        ann.ok("sync")
        ann.ok("tag", "v1")
        ann.ok("branch", "side")
        ann.ok("put", str(ann.cwd / "text.txt"), "set@side:more.txt")
        write(ann.cwd, {"new": b"1"})
        ann.ok("sync")
        write(ann.cwd, {"new": b"2"})
        yield World(scene, server, ann)


def tried(world: World, who: Dsv, arguments: Sequence[str]) -> None:
    """With no trouble first, then once for each question for an absent key, from which on they get 500."""
    server, kept = world.server, world.scene.folder / "kept"
    shutil.copytree(who.home, kept, symlinks=True)
    before = dict(server.objects)
    asked: int | None = None
    left = [0]
    while left:
        number = left.pop(0)
        server.absent, server.nodes_down = 0, None if asked is None else number + 1
        result = who(*arguments)
        met, server.nodes_down = server.absent, None
        changed = {key for key in server.objects.keys() | before.keys() if _is_name(key)} - before.keys()
        if asked is None:
            asked = min(met, 12)
            left = some(range(asked), 3)
            assert result.code in (0, 3, 4), result
        elif met > number:
            # A merge is published before the workspace is updated, and that alone failed.
            behind = result.code == 0 and "warning: " in result.err and arguments[0] in MERGING
            assert result.code == 6 or behind, (arguments, number, result)
            assert "500" in result.err and "Traceback" not in result.err, result
            assert behind or result.out == "", result
            sure = all(
                words not in result.err for words in ("may have been published", "may have been written")
            )
            # A tag may be there already, and whether it was deleted before could not be asked. Doing it again is fine.
            assert behind or not (sure and changed) or all("/tags/" in key for key in changed), (
                changed,
                result,
            )
        else:
            break  # of questions that are asked at the same time, fewer were needed
        server.objects.clear()
        server.objects.update(before)
        shutil.rmtree(who.home)
        shutil.copytree(kept, who.home, symlinks=True)
        shutil.rmtree(world.scene.folder / "names", ignore_errors=True)
    shutil.rmtree(kept)


def _is_name(key: str) -> bool:
    return key.startswith("dsv/refs/")


def filled(arguments: Sequence[str], folder: Path) -> list[str]:
    return [one.format(missing="ab" * 32, folder=folder) for one in arguments]


def test_a_reader_never_gets_an_unavailable_key_as_missing(world: World) -> None:
    for arguments in READING:
        tried(world, world.scene.newcomer(**world.server.environ), filled(arguments, world.scene.folder))


def test_a_writer_builds_on_nothing_that_may_be_there(world: World) -> None:
    for arguments in WRITING:
        tried(world, world.ann, filled(arguments, world.scene.folder))
