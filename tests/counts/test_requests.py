"""What each command asks of a store, counted by the server: requests, round trips, bytes.

Counts don't depend on how busy a machine is, so their bounds leave no room: one more request for each file, pack
or name is a failure. Who makes dsv ask for less lowers the bound. `pytest -rP` prints the requests of each work.
"""

from __future__ import annotations

import random
from dataclasses import astuple, dataclass
from pathlib import Path

import pytest

from tests.counts.observed import ObservedServer, Seen
from tests.counts.people import path_of, person, write
from tests.kit.dsv import Dsv
from tests.waiting import PATIENCE

FILES, SIZE = 2000, 8192
CHANGED = range(0, FILES, 100)  # one in a hundred, each in another folder
LARGE = 64 << 20
# Round trips of so many seconds are tried: requests that are sent at once overlap, if the machine is not too busy.
ROUND_TRIPS = (0.06, 0.2, 0.6)

CONTENT = FILES * SIZE
# A file's name, id and place: once in a segment, once in an index, once in its pack's table.
NOTED = 140 * FILES
# The segments of these files, with where they lie. The largest has 1,366 of them, the one of 00512.bin 634.
SEGMENTS, SEGMENT = 71_000, 24_000
# Records, listings and the tables of small packs.
SMALL = 5_000


@dataclass(frozen=True, slots=True)
class Most:
    """The most that a work may take. up, down: bytes."""

    requests: int
    rounds: int
    up: int
    down: int

    def within(self, most: Most) -> bool:
        return all(mine <= its for mine, its in zip(astuple(self), astuple(most), strict=True))


WORKS = {
    # Format 2, head 3 | session, gc, index 3 | a pack of data, a pack of metadata, an index | commit and beside it its
    # locator, verdict, ref, the ref read back and beside it the next entry of the format log, for names that move, end
    # of session 7. In turn but for the format and the listing, and the head and what may follow it. Beside commit and
    # verdict the session's first key is put once more, and read when that was refused (2): only a server that still
    # lets one writer win gets a ref. At the same time the move that the ref is to follow is read once more (1): nothing
    # is built on one whose place another writer has taken. Of the proofs, only the ref read back takes time of its own.
    "first sync": Most(21, 13, CONTENT + NOTED + SMALL, SMALL),
    # Format 2, head 3, and the base's commit: whether others have moved the branch, and whether the store still has
    # what the workspace builds on, which is asked for beside the format and takes no time of its own.
    "sync of nothing": Most(6, 2, 0, SMALL),
    # As the first one, and the base's commit; up go the file and its segment. Never more than 300 kB.
    "sync of one file": Most(22, 13, SIZE + SEGMENT + SMALL, SMALL),
    # The chunk around the insertion, perhaps the next one, and the recipe: chunks have 1 MiB on average. One listing
    # shows that the packs of all other chunks are there, before the new commit refers to them (2,600 bytes); and the
    # server says in 370 bytes that it refuses the session's first key, and in 340 that the format log ends. The
    # move that is read once more has 200.
    "sync of an insertion": Most(23, 14, 2 << 20, SMALL + 2_200),
    # Format 2, head 3, commit.
    "resolve": Most(6, 3, 0, SMALL),
    # Format 2, listing, the tag, its end, no branch of that name; commit.
    "resolve of a tag": Most(7, 3, 0, SMALL),
    # Format 2, head 3 | branches and tags 2 | the branch's head once more, the tag 2 | the one commit not seen yet.
    "log": Most(11, 5, 0, SMALL),
    # Format 2, tag 4, head 3, both commits and their locators 4, a node each 2, the segments that one has alone 3.
    "diff": Most(18, 10, 0, 2 * SEGMENTS + SMALL),
    # Format 2, head 3, names as for a log 5, and the same two commits, of which each locator has a copy.
    "show": Most(19, 10, 0, 2 * SEGMENTS + SMALL + 1_200),
    # Format 2, head 3, names 5; of each of three commits itself, its locator, its node, and the folder's segment.
    # Two that look at one commit at the same time may both ask for its locator.
    "log of a folder": Most(25, 16, 0, 4 * SEGMENT + SMALL),
    # Format 2, head 3, commit, locator, node, segment, chunk: two ranged reads below the node.
    "first cat": Most(10, 6, 0, SIZE + SEGMENT + SMALL),
    # The metadata is here: format 2, head 3, chunk.
    "second cat": Most(6, 3, 0, SIZE + SMALL),
    # Format 2, tag 4, commit, locator, node, segments 2 (in two packs by now), 16 MiB in reads of up to 8 MiB: 3 of
    # the first pack (where the changed file was is read past), and the changed file.
    "cold cache": Most(15, 6, 0, CONTENT + SIZE + SEGMENTS + SMALL),
    # One in a hundred changed: no more than 1.5 times these bytes, all metadata counted.
    "cache of the next commit": Most(10, 6, 0, len(CHANGED) * SIZE * 3 // 2),
    # Each file that changed lies between some that did not, in another pack, and is no read of its own.
    "cold cache of an edited commit": Most(16, 6, 0, CONTENT + len(CHANGED) * SIZE + SEGMENTS + SMALL),
    # The files, and the metadata too, come from the cache: format 2, head 3.
    "clone of a cached commit": Most(5, 2, 0, SMALL),
    # What the branch names.
    "cache hit by branch": Most(5, 2, 0, SMALL),
    # A tag means what it meant, unless it was deleted: format 2, the tag's end.
    "cache hit by tag": Most(3, 2, 0, SMALL),
}

HISTORY = {
    "diff": ("diff", "scans@v1", "scans", "-q", "--stat"),
    "show": ("show", "scans", "-q"),
    "log of a folder": ("log", "scans", "-q", "--", path_of(512).partition("/")[0]),
}
"""Questions to a dataset that the machine of the person who asks knows nothing of."""


class Works:
    """Does them one after the other, as each needs what those before it left."""

    def __init__(self, server: ObservedServer, base: Path, round_trip: float) -> None:
        self._server = server
        self._round_trip = round_trip
        self._base = base
        self._store = f"s3://{server.s3.bucket()}/lake"
        self.seen: dict[str, Seen] = {}

    def person(self, name: str) -> Dsv:
        return person(self._base / name, self._store, self._server.s3.env)

    def do(self, work: str, who: Dsv, *arguments: str) -> None:
        with self._server.watch(self._round_trip) as seen:
            with who.start(*arguments) as process:
                _, errors = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, errors
        self.seen[work] = seen

    def small_files(self) -> None:
        ann, bob, eve = self.person("ann"), self.person("bob"), self.person("eve")
        write(ann.cwd, range(FILES), SIZE, 1)
        assert ann.process("init", "scans").code == 0
        self.do("first sync", ann, "sync", "-q")
        self.do("sync of nothing", ann, "sync", "-q")
        write(ann.cwd, [512], SIZE, 2)
        self.do("sync of one file", ann, "sync", "-q")
        assert ann.process("tag", "v1").code == 0
        write(ann.cwd, CHANGED, SIZE, 3)
        assert ann.process("sync", "-q").code == 0
        self.do("resolve", bob, "resolve", "scans")
        self.do("resolve of a tag", bob, "resolve", "scans@v1")
        self.do("log", bob, "log", "scans")
        for number, (work, words) in enumerate(HISTORY.items()):
            self.do(work, self.person(f"reader{number}"), *words)
        self.do("first cat", eve, "cat", f"scans:{path_of(150)}")
        self.do("second cat", eve, "cat", f"scans:{path_of(151)}")
        self.do("cold cache", bob, "cache", "scans@v1", "-q")
        self.do("cache of the next commit", bob, "cache", "scans", "-q")
        self.do("clone of a cached commit", bob, "clone", "scans", "-q", "cloned")
        self.do("cache hit by branch", bob, "cache", "scans", "-q")
        self.do("cache hit by tag", bob, "cache", "scans@v1", "-q")
        self.do("cold cache of an edited commit", self.person("kim"), "cache", "scans", "-q")

    def large_file(self) -> None:
        zoe = self.person("zoe")
        content = random.Random(4).randbytes(LARGE)
        volume = zoe.cwd / "volume.raw"
        volume.write_bytes(content)
        assert zoe.process("init", "volumes").code == 0
        assert zoe.process("sync", "-q").code == 0
        middle = LARGE // 2
        volume.write_bytes(content[:middle] + random.Random(5).randbytes(1024) + content[middle:])
        self.do("sync of an insertion", zoe, "sync", "-q")


@pytest.mark.timeout(600)
def test_no_work_asks_for_more_than_it_needs(tmp_path: Path) -> None:
    """One test for all: each work needs what the ones before it left.

    Requests that are sent at once may come one after the other on a busy machine, and never the other way round: of
    several tries the fewest round trips count.
    """
    pytest.importorskip("moto.server", reason="needs moto[server]")
    fewest: dict[str, int] = {}
    for round_trip in ROUND_TRIPS:
        too_much = [
            f"{work}: {found}, and should be within {WORKS[work]}\n{seen}"
            for work, (found, seen) in observed(tmp_path / str(round_trip), fewest, round_trip).items()
            if not found.within(WORKS[work])
        ]
        if not too_much:
            return
    pytest.fail("\n\n".join(too_much))


def observed(folder: Path, fewest: dict[str, int], round_trip: float) -> dict[str, tuple[Most, Seen]]:
    """Return the requests of each task, with the fewest round trips that it has taken so far."""
    server = ObservedServer()
    try:
        works = Works(server, folder, round_trip)
        works.small_files()
        works.large_file()
    finally:
        server.close()
    assert works.seen.keys() == WORKS.keys()
    result = {}
    for work, seen in works.seen.items():
        fewest[work] = min(seen.rounds, fewest.get(work, seen.rounds))
        result[work] = Most(len(seen), fewest[work], seen.up, seen.down), seen
        print(f"{work}: {result[work][0]}\n{seen}\n")
    return result
