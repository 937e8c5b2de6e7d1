"""Edits do to a tree what they do to a dict."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv.api.edits import Edit, Move, MoveAll, Put, Remove
from dsv.errors import Conflict, NotFound, UsageError
from dsv.repo.repository import Repository
from dsv.repo.tree.reader import TreeReader
from dsv.stores.memory import MemoryStore
from tests.api.test_edits import Edited, change, files
from tests.exhaustive import examples
from tests.kit.people import Person, every_store_is
from tests.kit.repositories import commit, create

Model = dict[str, bytes]
names = st.lists(st.sampled_from(["a", "b", "c", "a-", "ä"]), min_size=1, max_size=3).map("/".join)
one_edit = st.one_of(
    st.builds(Put, names, st.binary(max_size=2)),
    st.builds(Remove, names),
    st.builds(Move, names, names, st.booleans()),
    st.builds(Move, names, names.map(lambda name: name + "/"), st.booleans()),
    st.builds(Remove, names.map(lambda name: name + "/*")),
    st.builds(MoveAll, st.lists(st.tuples(names, names), max_size=3), st.booleans()),
)


class Refused(Exception):
    pass


def is_folder(model: Model, path: str) -> bool:
    return any(name.startswith(path + "/") for name in model)


def place(model: Model, path: str, content: bytes, replace: bool) -> None:
    above = path.split("/")
    if is_folder(model, path) or any("/".join(above[:n]) in model for n in range(1, len(above))):
        raise Refused
    if path in model and not replace:
        raise Refused
    model[path] = content


def at_or_below(model: Model, path: str) -> list[str]:
    found = [path] if path in model else [name for name in model if name.startswith(path + "/")]
    if not found:
        raise Refused
    return found


def relocate(model: Model, pairs: list[tuple[str, str]], replace: bool) -> None:
    if len({old for old, _ in pairs}) < len(pairs) or len({new for _, new in pairs}) < len(pairs):
        raise Refused
    taken = [(new, model.pop(old)) for old, new in pairs]
    for new, content in taken:
        place(model, new, content, replace)


def apply(model: Model, what: Edit) -> None:
    if isinstance(what, Put):
        assert isinstance(what.path, str) and isinstance(what.content, bytes)
        place(model, what.path, what.content, replace=True)
    elif isinstance(what, Remove):
        assert isinstance(what.path, str)
        prefix = what.path.removesuffix("*")
        found = (
            [n for n in model if n.startswith(prefix)]
            if prefix != what.path
            else at_or_below(model, what.path)
        )
        if not found:
            raise Refused
        for name in found:
            del model[name]
    elif isinstance(what, Move):
        assert isinstance(what.path, str) and isinstance(what.to, str)
        old, to = what.path, what.to.rstrip("/")
        found = at_or_below(model, old)
        into = what.to.endswith("/") or is_folder(model, to)
        new = f"{to}/{old.rpartition('/')[2]}" if into else to
        if new == old or new.startswith(old + "/"):
            raise Refused
        if old not in model and is_folder(model, new) and not what.replace:
            raise Refused
        relocate(model, [(name, new + name[len(old) :]) for name in found], what.replace)
    else:
        pairs = [(str(old), str(new)) for old, new in what.pairs if old != new]
        every = [(name, new + name[len(old) :]) for old, new in pairs for name in at_or_below(model, old)]
        relocate(model, every, what.replace)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.lists(one_edit, max_size=5), min_size=1, max_size=5))
def test_edits_do_to_a_tree_what_they_do_to_a_dict(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[list[Edit]]
) -> None:
    """Each list of edits works as a whole, or is refused as a whole."""
    store = MemoryStore()
    with every_store_is(store):
        person = Person(tmp_path_factory.mktemp("ann"), "/nowhere")
        person.init()
        model: Model = {}
        for edits in rounds:
            after = dict(model)
            try:
                for one in edits:
                    apply(after, one)
            except Refused:
                with pytest.raises((Conflict, NotFound, UsageError)):
                    change(person, *edits)
                after = model
            else:
                change(person, *edits)
            model = after
            done = change(person)
            assert files(person, done) == model
            if done.commit is not None:
                assert_as_if_made_at_once(store, done, model)


def assert_as_if_made_at_once(store: MemoryStore, done: Edited, model: Model) -> None:
    """A tree depends on nothing but its paths."""
    other = create(MemoryStore())
    root = other.objects.commit(commit(other, model)).root
    assert done.commit is not None
    assert TreeReader(Repository.open(store, None).objects, done.commit).commit.root == root
