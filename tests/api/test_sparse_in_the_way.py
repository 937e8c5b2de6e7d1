"""Random work in a sparse workspace in which files take the places of folders, and folders those of files."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from dsv.api.checkout import pull
from dsv.api.clone import clone
from dsv.api.sparse import sparse_add, sparse_remove
from dsv.api.status import status
from dsv.errors import Conflict, NotFound
from dsv.stores.memory import MemoryStore
from dsv.values.names import Target
from tests.kit.people import Files, Person, every_store_is

PATHS = ["a", "a/b", "a/b/c", "a/b/d", "a/e", "f", "f/g"]
EDITS = st.lists(st.tuples(st.sampled_from(PATHS), st.sampled_from([b"1\n", b"2\n", None, b""])), max_size=3)
TEXTS = st.sampled_from(["a", "a/b", "a/*", "a/b/c", "f", "**/b", "*"])
STEPS = st.one_of(
    st.tuples(st.just("theirs"), EDITS),
    st.tuples(st.just("edit"), EDITS),
    st.tuples(st.sampled_from(["sync", "pull"])),
    st.tuples(st.sampled_from(["add", "remove"]), TEXTS),
)


def edit(person: Person, edits: list[tuple[str, bytes | None]]) -> None:
    """Writes files, makes folders (None) and removes what is there (empty), whatever is in the way."""
    for name, data in edits:
        path = person.workspace / name
        for folder in [path, *path.parents]:
            if folder.is_file():
                folder.unlink()
        if path.is_dir() and data is not None:
            shutil.rmtree(path)
        if data is None:
            path.mkdir(parents=True, exist_ok=True)
        elif data:
            person.write({name: data})


def work(bob: Person, name: str, *words: object) -> None:
    with suppress(Conflict, NotFound):
        if name == "edit":
            edit(bob, *words)  # type: ignore[arg-type]
        elif name == "pull":
            pull(bob.context())
        elif name == "add":
            sparse_add(bob.context(), words)  # type: ignore[arg-type]
        elif name == "remove":
            sparse_remove(bob.context(), words)  # type: ignore[arg-type]


def sync(bob: Person, base: Files) -> Files:
    """A commit has all that is here, and all that is neither here nor chosen, as the base had it."""
    try:
        done = bob.sync(allow_removals=True)
    except Conflict:
        return base
    after, here = bob.read(done.commit) if done.commit else {}, bob.files()
    chosen = bob.context().workspace().chosen
    for name, data in here.items():
        if data is not None:
            assert after[name] == data
    for name, data in base.items():
        filled = data is None and any(path.startswith(f"{name}/") for path in after)
        absent = name not in here or (here[name] is None and data is not None)
        if absent and not chosen.matches(name.encode()) and not filled:
            assert after[name] == data
    for name, data in after.items():
        assert data is None or name in here or base[name] == data
    assert not bob.sync().any_change and status(bob.context()).is_clean
    return after


@settings(max_examples=30, deadline=None)
@given(first=EDITS, text=TEXTS, steps=st.lists(STEPS, min_size=3, max_size=12))
def test_no_tree_is_broken_and_nothing_else_changes(
    first: list[tuple[str, bytes | None]], text: str, steps: list[tuple[object, ...]]
) -> None:
    with tempfile.TemporaryDirectory() as home, every_store_is(MemoryStore()):
        ann = Person(Path(home) / "ann", "memory://unused")
        bob = Person(Path(home) / "bob", "memory://unused", "bob")
        ann.init()
        ann.write({"z": b"0\n", "a/b/c": b"0\n", "a/b/d": b"0\n", "f": b"0\n"})
        edit(ann, first)
        ann.sync()
        with suppress(NotFound):
            clone(bob.context(Path(home)), Target.parse("scans"), bob.workspace, only=(text,))
        if not bob.workspace.exists():
            return
        for name, *words in steps:
            if name == "theirs":
                with suppress(Conflict):
                    pull(ann.context())
                    edit(ann, *words)  # type: ignore[arg-type]
                    ann.sync(allow_removals=True)
            elif name == "sync":
                base = bob.context().workspace().base()
                assert base is not None
                sync(bob, bob.read(base))
            else:
                work(bob, str(name), *words)
            status(bob.context())
