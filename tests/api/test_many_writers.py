"""Many who publish on one branch: all land, with not many more objects than each alone, and nobody waits for ever."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from dsv.api.edits import EditRequest, Put, edit
from dsv.api.imports import import_url
from dsv.api.merge import MergeRequest, cherry_pick, merge, revert
from dsv.errors import Conflict
from dsv.format import keys
from dsv.format.records import RefEntry
from dsv.repo import races
from dsv.repo.races import publish_in_turn
from dsv.repo.refs.branches import Head, LostRace
from dsv.stores.memory import MemoryStore
from dsv.values.ids import CommitId, Nonce
from dsv.values.names import MAIN, Target
from tests.kit.dsv import Dsv
from tests.kit.people import SCANS, Dataset, Person, dataset
from tests.stores.wrapper import Watched
from tests.waiting import PATIENCE

WRITERS, ROUNDS = 24, 20
ALONE = 9
"""Objects of a put: those of a lost race, data, the move of the branch."""
LOST = 7
"""Objects of a lost race: session, metadata, index, commit, locator, verdict, end of session."""
MOVE = keys.branch_prefix(SCANS, MAIN)
TARGET = Target(SCANS)


class Busy:
    """A store in which somebody else puts a file before each of the next writes of keys that begin with `before`."""

    def __init__(self) -> None:
        self.store = Watched(MemoryStore(), self.look)
        self.times, self.lost, self.before, self.waits = 0, 0, MOVE, list[float]()
        self.others: Person | None = None

    def look(self, what: str, key: str) -> None:
        if self.times > 0 and what == "put" and key.startswith(self.before) and self.others is not None:
            others, self.others = self.others, None
            self.times, self.lost = self.times - 1, self.lost + 1
            edit(
                others.context(), TARGET, [Put(f"theirs{self.lost}", b"of bob %d" % self.lost)], EditRequest()
            )
            self.others = others


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Busy:
    made = Busy()
    monkeypatch.setattr(races, "time", SimpleNamespace(monotonic=time.monotonic, sleep=made.waits.append))
    return made


@pytest.fixture
def scans(busy: Busy, tmp_path: Path) -> Iterator[Dataset]:
    with dataset(tmp_path, busy.store) as made:
        made.commit({"a": b"1", "b": b"1"})
        busy.others = Person(tmp_path / "bob", "/nowhere", "bob")
        yield made


def put(scans: Dataset, name: str = "mine") -> int:
    """Put a file; return how many objects that stored, with those of others meanwhile."""
    before = len(list(scans.store.list("")))
    edit(scans.context, TARGET, [Put(name, name.encode())], EditRequest())
    return len(list(scans.store.list(""))) - before


def test_each_lost_race_costs_its_metadata_and_a_wait(scans: Dataset, busy: Busy) -> None:
    assert put(scans, "alone") == ALONE
    busy.times = 3
    assert put(scans) == ALONE + 3 * (LOST + ALONE)
    assert scans.files().keys() == {"a", "b", "alone", "mine", "theirs1", "theirs2", "theirs3"}
    assert len(busy.waits) == 3 and 0 <= min(busy.waits) <= max(busy.waits) <= races.LONGEST


def test_a_move_while_contents_are_stored_costs_nothing(scans: Dataset, busy: Busy) -> None:
    busy.times, busy.before = 1, keys.SESSIONS_PREFIX
    assert put(scans) == ALONE + ALONE
    assert busy.lost == 1 and not busy.waits and scans.files().keys() == {"a", "b", "mine", "theirs1"}


def test_a_move_while_the_tree_is_stored_is_seen_before_the_commit_is(scans: Dataset, busy: Busy) -> None:
    busy.times, busy.before = 1, keys.INDEX_PREFIX
    assert put(scans) == ALONE + (LOST - 3) + ALONE, "no commit, locator and verdict"
    assert len(busy.waits) == 1 and scans.files().keys() == {"a", "b", "mine", "theirs1"}


def bring_side(scans: Dataset) -> None:
    merge(scans.context, MergeRequest(scans.target("side")))


def pick_side(scans: Dataset) -> None:
    cherry_pick(scans.context, MergeRequest(scans.target("side")))


def undo_last(scans: Dataset) -> None:
    revert(scans.context, MergeRequest(scans.target("main")))


def take_folder(scans: Dataset) -> None:
    (scans.context.cwd / "folder").mkdir()
    (scans.context.cwd / "folder/side").write_bytes(b"1")
    import_url(scans.context, str(scans.context.cwd / "folder"), TARGET, EditRequest())


@pytest.mark.parametrize(
    ("act", "there"),
    [
        (bring_side, {"a", "b", "last", "side"}),
        (pick_side, {"a", "b", "last", "side"}),
        (undo_last, {"a", "b"}),
        (take_folder, {"a", "b", "last", "side"}),
    ],
)
def test_whatever_publishes_on_a_branch_waits_after_a_lost_race(
    scans: Dataset, busy: Busy, act: Callable[[Dataset], None], there: set[str]
) -> None:
    scans.commit({"side": b"1"}, "side", scans.head())
    scans.commit({"last": b"1"})
    busy.times = 2
    act(scans)
    assert scans.files().keys() == {*there, "theirs1", "theirs2"}
    assert len(busy.waits) == 2


def test_a_conflict_in_one_path_is_said_at_once(scans: Dataset, busy: Busy) -> None:
    busy.times = 5
    with pytest.raises(Conflict, match="bob@lab has just changed 'theirs1'"):
        put(scans, "theirs1")
    assert (busy.lost, busy.waits) == (1, [])


def test_who_loses_until_the_deadline_says_so(
    scans: Dataset, busy: Busy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(races, "DEADLINE", 0.0)
    busy.times = 100
    with pytest.raises(
        Conflict, match="others moved branch main of scans first, 2 times; nothing was"
    ) as caught:
        put(scans)
    assert caught.value.subject == "scans@main" and "quieter" in str(caught.value.hint)
    assert scans.files().keys() == {"a", "b", "theirs1", "theirs2"}


def test_nobody_starves_on_a_branch_that_is_never_quiet() -> None:
    """24 who each publish again and again: while the branch moves 20 times as often, each wins."""
    entry = RefEntry(CommitId.hash(b""), False, Nonce.random(), 1, "ann", "put")
    number, wins, lock, begin = 0, Counter[int](), threading.Lock(), threading.Barrier(WRITERS)

    def commit(me: int) -> Head | LostRace:
        nonlocal number
        after = number
        time.sleep(0.002)  # what storing a commit takes
        with lock:
            if after != number:
                return LostRace(Head(SCANS, MAIN, number, entry))
            number, wins[me] = number + 1, wins[me] + 1
            return Head(SCANS, MAIN, number, entry)

    def publish(me: int) -> None:
        begin.wait(PATIENCE)
        while number < WRITERS * ROUNDS:
            publish_in_turn(lambda: commit(me))

    writers = [threading.Thread(target=publish, args=[me]) for me in range(WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(PATIENCE)
    assert wins.keys() == set(range(WRITERS)), wins


@pytest.mark.timeout(900)  # 24 processes at once
def test_many_processes_store_at_most_three_times_what_each_alone_stores(tmp_path: Path) -> None:
    dsv = Dsv.of(tmp_path / "home", DSV_STORE=str(tmp_path / "store"))
    assert dsv.process("init", "scans").code == 0
    for number in range(WRITERS + 1):
        (dsv.cwd / f"f{number:02}").write_bytes(b"%d" % number)
    assert dsv.process("put", "f24", "scans:", "--create").code == 0
    before = sum(path.is_file() for path in (tmp_path / "store").rglob("*"))
    writers = [dsv.start("put", f"f{number:02}", "scans:") for number in range(WRITERS)]
    told = [writer.communicate(timeout=PATIENCE) for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * WRITERS, told
    assert dsv.process("ls", "scans").out.split() == [f"f{number:02}" for number in range(WRITERS + 1)]
    stored = sum(path.is_file() for path in (tmp_path / "store").rglob("*")) - before
    assert WRITERS * ALONE <= stored <= 3 * WRITERS * ALONE


WAITING = """
import sys
from types import SimpleNamespace
from dsv.cli.main import main
from dsv.repo import races
from dsv.repo.refs.branches import Refs, LostRace
import time
def sleep(seconds):
    print("waiting", flush=True)
    time.sleep(3600)
races.time = SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
Refs.move = lambda self, dataset, branch, after, entry: LostRace(after)
sys.argv = ["dsv", "put", "f", "scans:"]
sys.exit(main())
"""


def test_ctrl_c_ends_the_wait(tmp_path: Path) -> None:
    dsv = Dsv.of(tmp_path / "home", DSV_STORE=str(tmp_path / "store"))
    assert dsv.process("init", "scans").code == 0
    (dsv.cwd / "f").write_bytes(b"1")
    (dsv.cwd / "g").write_bytes(b"1")
    assert dsv.process("put", "g", "scans:", "--create").code == 0
    command, pipe = [sys.executable, "-c", WAITING], subprocess.PIPE
    with subprocess.Popen(
        command, cwd=dsv.cwd, env=dict(dsv.environ), stdout=pipe, stderr=pipe, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130 and "Traceback" not in told, told
    assert dsv.process("ls", "scans").out.split() == ["g"]
