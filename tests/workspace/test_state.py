from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv.errors import NoRoom
from dsv.values.ids import CommitId
from dsv.workspace.scan import state as state_module
from dsv.workspace.scan.folder import Folder, Relation, decode_folder, encode_folder
from dsv.workspace.scan.state import WorkspaceState


def folder(path: bytes, names: list[bytes], seed: int = 0) -> Folder:
    chance = random.Random(seed)
    count = len(names)
    made = Folder.blank(
        path, b"\0".join(names), bytearray(chance.randbytes(36 * count)), bytearray(count), Relation.ABSENT
    )
    made.ids[:] = chance.randbytes(32 * count)
    if count:
        made.recipes[0] = chance.randbytes(32)
        made.targets[count - 1] = b"target/" + path
    return made


NAMES = st.lists(
    st.binary(min_size=1, max_size=9).filter(lambda name: b"\0" not in name), unique=True, max_size=9
)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.binary(max_size=9), NAMES), max_size=5))
def test_folders_as_bytes(parts: list[tuple[bytes, list[bytes]]]) -> None:
    folders = [folder(path, sorted(names)) for path, names in parts]
    assert [decode_folder(encode_folder(each)) for each in folders] == folders


def filled(folder_path: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> WorkspaceState:
    """A state of many parts."""
    monkeypatch.setattr(state_module, "_PART_SIZE", 4000)
    state = WorkspaceState.load(folder_path)
    for number in range(count):
        state.put(folder(b"f%03d" % number, [b"a", b"b"], number))
    state.set_exact(CommitId.hash(b"c"), {b"gone/one", b"gone/two"})
    state.save()
    return state


def parts(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name.startswith("part-")}


def test_a_save_rewrites_only_the_part_that_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = tmp_path / "state"
    filled(where, 200, monkeypatch)
    before = parts(where)
    assert len(before) > 8
    state = WorkspaceState.load(where)
    assert not state.has_news
    state.edit(b"f100").own = 7
    assert state.has_news
    state.save()
    after = parts(where)
    assert len(set(before) - set(after)) == 1 and len(set(after) - set(before)) == 1
    loaded = WorkspaceState.load(where)
    assert loaded.is_exact_for(CommitId.hash(b"c")) and loaded.gone == {b"gone/one", b"gone/two"}
    assert sorted(loaded.paths()) == [b"f%03d" % number for number in range(200)]
    found = loaded.folder(b"f100")
    assert found is not None and found.own == 7


def test_folders_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = tmp_path / "state"
    state = filled(where, 60, monkeypatch)
    for number in range(0, 60, 2):
        state.drop(b"f%03d" % number)
    state.put(folder(b"", [b"top"]))
    state.put(folder(b"f001/below", [b"x"]))
    state.save()
    loaded = WorkspaceState.load(where)
    assert set(loaded.paths()) == {b"", b"f001/below", *(b"f%03d" % number for number in range(1, 60, 2))}
    for path in loaded.paths():
        loaded.drop(path)
    loaded.save()
    assert WorkspaceState.load(where).paths() == []


@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_damage_is_forgotten_and_never_believed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    where = tmp_path_factory.mktemp("s") / "state"
    with pytest.MonkeyPatch.context() as patch:
        whole = filled(where, 40, patch)
    file = data.draw(st.sampled_from(sorted(where.iterdir())))
    content = bytearray(file.read_bytes())
    how = data.draw(st.sampled_from(["cut", "flip", "gone"]))
    if how == "cut":
        file.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    elif how == "flip":
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        file.write_bytes(content)
    else:
        file.unlink()
    damaged = WorkspaceState.load(where)
    assert not damaged.is_exact_for(CommitId.hash(b"c"))
    for path in damaged.paths():
        assert damaged.folder(path) == whole.folder(path)
    for path in whole.paths():  # learnt again, it can be saved over the damage
        known = whole.folder(path)
        assert known is not None
        damaged.put(known)
    damaged.set_exact(CommitId.hash(b"c"), set())
    damaged.save()
    healed = WorkspaceState.load(where)
    assert healed.is_exact_for(CommitId.hash(b"c")) and set(healed.paths()) == set(whole.paths())


def test_a_save_that_fails_leaves_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = tmp_path / "state"
    state = filled(where, 40, monkeypatch)
    state.edit(b"f007").own = 1
    state.edit(b"f030").own = 1
    written: list[Path] = []
    real = state_module.replace_file

    def full(path: Path, *pieces: bytes) -> None:
        if written:
            raise OSError(28, "No space left on device")
        written.append(path)
        real(path, *pieces)

    monkeypatch.setattr(state_module, "replace_file", full)
    with pytest.raises(NoRoom):
        state.save()
    monkeypatch.setattr(state_module, "replace_file", real)
    old = WorkspaceState.load(where)
    assert old.is_exact_for(CommitId.hash(b"c"))
    found = old.folder(b"f007")
    assert found is not None and found.own == 0
    state.save()
    for path in (b"f007", b"f030"):
        found = WorkspaceState.load(where).folder(path)
        assert found is not None and found.own == 1
    assert not [file for file in where.iterdir() if file.name.startswith(".")]


def test_two_states_of_one_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = tmp_path / "state"
    first = filled(where, 3, monkeypatch)
    second = WorkspaceState.load(where)
    assert first.is_newest and second.is_newest
    second.edit(b"f001").own = 3
    second.save()
    assert second.is_newest and not first.is_newest
