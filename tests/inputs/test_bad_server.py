"""A store that answers 500, 503, half of a body, something else, or nothing: from any request on, or once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from dsv.stores.options import StoreOptions
from tests.exhaustive import is_full
from tests.inputs.scene import CACHE, CLONE, FILES, RUN, Scene, Use, nothing_partial, refused, write
from tests.inputs.troubled import Server, Trouble, hasty, troubled_server
from tests.kit.dsv import Dsv, Result

UNREACHABLE = {Trouble.ERROR_500, Trouble.ERROR_503, Trouble.HANG_UP, Trouble.LOST_ANSWER, Trouble.TRUNCATED}
CODES: dict[Trouble, set[int]] = {
    **{trouble: {6} for trouble in UNREACHABLE},
    Trouble.EXPIRED: {8},
    Trouble.PORTAL: {5, 6},
    # A record that is cut is damaged, a listing that is cut is none, and one's own write can't be read back.
    Trouble.SHORT: {4, 5, 6},
}
# With these an answer may be lost behind its effect, or what was written is read as something else afterwards.
UNSURE = {Trouble.LOST_ANSWER, Trouble.TRUNCATED, Trouble.SHORT, Trouble.PORTAL}


@dataclass(frozen=True)
class World:
    """`set` on an S3 server that can fail, synced by ann from her workspace."""

    scene: Scene
    server: Server
    ann: Dsv

    def newcomer(self) -> Dsv:
        return self.scene.newcomer(**self.server.environ)


@pytest.fixture
def world(scene: Scene) -> Iterator[World]:
    with troubled_server() as server:
        ann = scene.newcomer(**server.environ)
        write(ann.cwd, FILES)
        ann.ok("init", "set")
        ann.ok("sync")
        yield World(scene, server, ann)


def failed(result: Result, trouble: Trouble) -> None:
    assert result.code in CODES[trouble], result
    refused(result, result.code, "127.0.0.1" if result.code == 6 else "")


@pytest.mark.parametrize("trouble", sorted(CODES, key=lambda one: one.name), ids=lambda trouble: trouble.name)
def test_a_sync_survives_trouble_at_any_request(world: World, trouble: Trouble) -> None:
    """Whatever the failed sync came to, the next one ends with all changes published, each commit once."""
    server, ann = world.server, world.ann
    commits = [ann.ok("resolve", "set").out.strip()]
    thorough = trouble in (Trouble.LOST_ANSWER, Trouble.EXPIRED)
    step = 11 if not is_full() else 1 if thorough else 4
    for first in range(1, 60, step):
        write(ann.cwd, {"new": b"%d" % first})
        before = server.refs()
        server.fail(trouble, first)
        result = ann("sync")
        met = server.requests >= first
        server.heal()
        if "may have been published" in result.err:  # it was, and could not be read back
            refused(result, 6, "could not be read back")
        elif "format log cannot be read" in result.err:  # it was, and the last look at the place failed
            refused(result, 6, "may have been written")
        elif result.code != 0:
            failed(result, trouble)
            assert trouble in UNSURE or server.refs() == before
        commits.append(ann.ok("sync").out.strip())
        if not met:
            break
    else:
        raise AssertionError("a sync takes more requests than were tried")
    listed = [item["commit"] for item in ann.ok("log", "--json").json["items"]]
    assert listed[::-1] == commits
    person = world.newcomer()
    assert CACHE(person, "set").code == 0
    assert CACHE.result(person, "set") == {**FILES, "new": b"%d" % first}


@pytest.mark.parametrize(
    "use", [CACHE, pytest.param(CLONE, marks=pytest.mark.exhaustive)], ids=lambda use: use.name
)
@pytest.mark.parametrize("trouble", sorted(CODES, key=lambda one: one.name), ids=lambda trouble: trouble.name)
def test_a_reader_survives_trouble_at_any_request(world: World, use: Use, trouble: Trouble) -> None:
    thorough = use is CACHE and trouble in (Trouble.ERROR_500, Trouble.TRUNCATED)
    for first in range(1, 60, 11 if not is_full() else 1 if thorough else 4):
        person = world.newcomer()
        world.server.fail(trouble, first)
        result = use(person, "set")
        met = world.server.requests >= first
        world.server.heal()
        if met:
            failed(result, trouble)
            nothing_partial(person, FILES)
            result = use(person, "set")
        assert result.code == 0, result
        assert use.result(person, "set") == FILES
        if not met:
            return
    raise AssertionError("it takes more requests than were tried")


@pytest.mark.parametrize("trouble", [Trouble.ERROR_500, Trouble.LOST_ANSWER, Trouble.TRUNCATED])
def test_what_passes_is_not_even_noticed(world: World, trouble: Trouble) -> None:
    """One bad answer at any request: it is asked again."""
    requests = range(1, 24, 2 if is_full() else 5)
    for first in requests:
        write(world.ann.cwd, {"new": b"%d" % first})
        world.server.fail(trouble, first, count=1)
        commit = world.ann.ok("sync").out.strip()
        person = world.newcomer()
        world.server.fail(trouble, first, count=1)
        result = CACHE(person, "set")
        assert result.code == 0, result
        assert commit in result.out
    world.server.heal()
    assert CACHE.result(person, "set") == {**FILES, "new": b"%d" % requests[-1]}
    assert len(world.ann.ok("log", "--oneline").lines) == 1 + len(requests)


def test_silence(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that accepts everything and says nothing is given up, at whatever request it falls silent."""
    usual = StoreOptions.from_environment
    silent = False

    def options(environ: Mapping[str, str]) -> StoreOptions:  # a loaded machine may be slow, too
        return hasty(usual(environ)) if silent else usual(environ)

    monkeypatch.setattr(StoreOptions, "from_environment", options)
    for first in (1, 4, 8):
        person = world.newcomer()
        silent = True
        world.server.fail(Trouble.SILENCE, first)
        refused(CACHE(person, "set"), 6, "did not answer in time")
        nothing_partial(person)
        write(world.ann.cwd, {"new": b"%d" % first})
        world.server.fail(Trouble.SILENCE, first + 6)
        before = world.server.refs()
        refused(world.ann("sync"), 6, "did not answer in time")
        assert world.server.refs() == before
        world.server.heal()
        silent = False
        world.ann.ok("sync")
        assert CACHE(person, "set").code == 0


def test_nobody_listens(scene: Scene) -> None:
    with troubled_server() as server:
        ann = scene.newcomer(**server.environ)
        write(ann.cwd, FILES)
        ann.ok("init", "set")
    for arguments in (["sync"], ["ls", "set"], ["cache", "set"], ["clone", "set", "clone"], ["datasets"]):
        refused(ann(*arguments), 6, server.endpoint, "cannot be reached")
    failure = ann("cache", "set", "--json").json["error"]
    assert (failure["kind"], failure["retryable"]) == ("unreachable", True)
    refused(RUN(ann, "set"), 125, server.endpoint, "cannot be reached")
    nothing_partial(ann)


def test_a_store_cannot_be_made_on_a_server_that_fails(scene: Scene) -> None:
    """From any request of the proof on; what was begun is no store, and doing it again makes one."""
    with troubled_server() as server:
        for trouble in (Trouble.ERROR_503, Trouble.LOST_ANSWER, Trouble.PORTAL, Trouble.EXPIRED):
            person = scene.newcomer(**server.environ)
            for first in (1, 2, 5, 20):
                server.objects.clear()
                server.fail(trouble, first)
                result = person("init", "set")
                server.heal()
                failed(result, trouble)
                assert not server.refs()
            person.ok("init", "set")
            server.objects.clear()
