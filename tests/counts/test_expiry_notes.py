"""What commands ask of a store whose dataset has hundreds of notes of `expire` and `gc`: about as much as of a few."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dsv.api.cache import cache
from dsv.api.context import Context
from dsv.api.datasets import resolve
from dsv.api.diff import show
from dsv.api.edits import EditRequest, Put, edit
from dsv.api.log import log
from dsv.format import keys
from dsv.format.records import ExpiryAction
from dsv.repo import expiry
from dsv.repo.expiry import append, read_expiry
from dsv.repo.repository import Repository
from dsv.stores.memory import MemoryStore
from dsv.stores.open import OpenStore
from dsv.values.ids import CommitId
from dsv.values.names import MAIN, Target
from tests.kit.people import SCANS, Person, every_store_is
from tests.kit.repositories import WRITER

NOTES = 500
"""Five years of a weekly `expire` and a weekly `gc`."""
OLD, HEAD, PREVIOUS = Target.parse("scans@main~2"), Target(SCANS), Target.parse("scans@main~1")


def shown_log(context: Context) -> None:
    with log(context, HEAD) as items:
        assert len(list(items)) == 3


def shown(context: Context) -> None:
    with show(context, PREVIOUS):
        pass


COMMANDS: dict[str, Callable[[Context], object]] = {
    "log": shown_log,
    "show": shown,
    "resolve": lambda context: resolve(context, PREVIOUS),
    "cache": lambda context: cache(context, context.cwd / "cache", [PREVIOUS]),
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[OpenStore]:
    opened = OpenStore(MemoryStore())
    with every_store_is(opened):
        maker = Person(tmp_path / "maker", "/nowhere")
        maker.init()
        for number in range(3):
            edit(maker.context(), HEAD, [Put("a", b"%d" % number)], EditRequest())
        yield opened


def write_notes(store: OpenStore, count: int) -> CommitId:
    """The first one expires the oldest commit, which is returned. Then others expire and are freed by turns."""
    repository = Repository.open(store, None)
    head = repository.refs.head(SCANS, MAIN).commit
    assert head is not None
    (middle,) = repository.objects.commit(head).parents
    (old,) = repository.objects.commit(middle).parents
    noted = len(read_expiry(repository.refs, SCANS).entries)
    for number in range(noted, count):
        action = ExpiryAction.FREE if number % 2 else ExpiryAction.EXPIRE
        one = old if number == 0 else CommitId((1 + number // 2).to_bytes(32))
        if number == 1:
            action = ExpiryAction.EXPIRE
        append(repository, WRITER, SCANS, action, lambda _, one=one: [one])  # type: ignore[misc]
    assert len(read_expiry(repository.refs, SCANS).entries) >= count
    return old


def asked(folder: Path, store: OpenStore, command: Callable[[Context], object]) -> int:
    """Return how many requests somebody without local copies makes."""
    person = Person(folder, "/nowhere")
    person.home.mkdir()
    before = store.counts
    command(person.context(person.home))
    return (store.counts - before).requests


def joined(store: OpenStore) -> list[str]:
    listed = store.list(keys.expiry_prefix(SCANS))
    return [item.key for item in listed if item.key.endswith(keys.EXPIRY_JOINED)]


@pytest.mark.parametrize("what", COMMANDS)
def test_requests_hardly_grow_with_the_notes(
    tmp_path: Path, store: OpenStore, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Also in a store in which an older version has written all notes but the last."""
    write_notes(store, 2)
    few = asked(tmp_path / "few", store, COMMANDS[what])
    with monkeypatch.context() as older:
        older.setattr(expiry, "JOINED", 10 * NOTES)
        write_notes(store, NOTES - 1)
    assert not joined(store) and asked(tmp_path / "old", store, COMMANDS[what]) == few + NOTES - 3
    write_notes(store, NOTES)
    assert len(joined(store)) == 5, "of 256, 128, 64, 32 and 16 notes"
    assert asked(tmp_path / "many", store, COMMANDS[what]) == few + 5 + NOTES % 8 - 2 == few + 7
