"""Stores from a newer version: what is forbidden is refused before anything is written, all else works."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from dsv import reader
from dsv.format import keys
from dsv.format.records import Feature, FeatureRule, FormatEntry
from dsv.reader import StoreError
from dsv.values.ids import CommitId
from dsv.values.names import MAIN, DatasetName
from tests.inputs.hostile import named
from tests.inputs.scene import CACHE, CLONE, FILES, RUN, WHOLE, Scene, nothing_partial, refused
from tests.kit.dsv import Dsv

Keys = Mapping[str, bytes]
READS = (["ls", "set"], ["cat", "set:a.bin"], ["log", "set"], ["datasets"], ["resolve", "set"])
WRITES = (["sync"], ["tag", "v2"], ["tag", "--delete", "v1", "--force"], ["sync", "--new-branch", "other"])


def with_features(synced: Keys, *features: Feature) -> dict[str, bytes]:
    """The store after a newer program has added these to its log."""
    first = FormatEntry.decode(synced[keys.format_key(0)])
    return {**synced, keys.format_key(1): replace(first, features=tuple(sorted(features, key=str))).encode()}


def workspace(scene: Scene, synced: Keys) -> Dsv:
    """A clone with a change, made while the store was as old as we are."""
    scene.reset(synced)
    person = scene.newcomer()
    assert CLONE(person, "set").code == 0
    (person.cwd / "clone/new").write_bytes(b"new")
    return person.at(person.cwd / "clone")


def restores(scene: Scene) -> bool:
    try:
        reader.restore(scene.store, "set", scene.folder / "restored")
    except StoreError as error:
        assert "does not know" in str(error) or "newer" in str(error)
        assert not (scene.folder / "restored").exists()
        return False
    return True


def all_refused(person: Dsv, commands: Sequence[Sequence[str]], *said: str) -> None:
    for arguments in commands:
        refused(person(*arguments), 9, *said)


def test_a_feature_that_must_be_known_to_read(scene: Scene, synced: Keys) -> None:
    here = workspace(scene, synced)
    newer = with_features(synced, Feature("holograms", FeatureRule.REFUSE))
    scene.reset(newer)
    all_refused(here, [*READS, *WRITES], "holograms", str(scene.store))
    refused(here.at(here.home)("init", "other"), 9, "holograms")
    for use in WHOLE:
        person = scene.newcomer()
        refused(use(person, "set"), use.code(9), "holograms")
        nothing_partial(person)
    assert scene.contents() == newer
    assert not restores(scene)
    goes_on(scene, here, synced)


def test_a_feature_that_must_be_known_to_write(scene: Scene, synced: Keys) -> None:
    here = workspace(scene, synced)
    newer = with_features(synced, Feature("holograms", FeatureRule.READ_ONLY))
    scene.reset(newer)
    all_refused(here, WRITES, "holograms", "write")
    refused(scene.newcomer()("init", "other"), 9, "holograms")
    for arguments in READS:
        scene.newcomer().ok(*arguments)
    for use in (CACHE, CLONE):
        person = scene.newcomer()
        assert use(person, "set").code == 0
        assert use.result(person, "set") == FILES
    assert scene.contents() == newer
    assert restores(scene)
    goes_on(scene, here, synced)


def test_a_job_runs_on_a_store_that_may_only_be_read(scene: Scene, synced: Keys) -> None:
    """Its record can't be sent there, and is kept here."""
    newer = with_features(synced, Feature("holograms", FeatureRule.READ_ONLY))
    scene.reset(newer)
    person = scene.newcomer()
    result = RUN(person, "set")
    assert result.code == 0, result
    assert "the record is kept here" in result.err
    assert scene.contents() == newer
    scene.reset(synced)
    assert RUN(person, "set").code == 0
    assert sum(key.endswith("/record") for key in scene.contents()) == 2


def goes_on(scene: Scene, here: Dsv, synced: Keys) -> None:
    """With a dsv that knows the feature: here, with the store as it was."""
    scene.reset(synced)
    here.ok("sync")
    assert here.ok("cat", ":new").out == "new"


@pytest.mark.parametrize(
    "features",
    [
        [Feature("holograms", FeatureRule.IGNORE)],
        [Feature("unordered-listing", FeatureRule.REFUSE)],
        [Feature("holograms", FeatureRule.IGNORE), Feature("unordered-listing", FeatureRule.REFUSE)],
    ],
)
def test_features_that_need_nothing_or_are_known(scene: Scene, synced: Keys, features: list[Feature]) -> None:
    here = workspace(scene, synced)
    scene.reset(with_features(synced, *features))
    here.ok("sync")
    person = scene.newcomer()
    assert CACHE(person, "set").code == 0
    assert CACHE.result(person, "set") == {**FILES, "new": b"new"}
    assert restores(scene)
    assert (scene.folder / "restored/new").read_bytes() == b"new"


def test_the_last_entry_counts(scene: Scene, synced: Keys) -> None:
    """A newer program has taken the feature back."""
    newer = with_features(synced, Feature("holograms", FeatureRule.REFUSE))
    scene.reset({**newer, keys.format_key(2): synced[keys.format_key(0)]})
    scene.newcomer().ok("ls", "set")
    assert restores(scene)


def version_9(data: bytes) -> bytes:
    """Return what a newer program would write: the same kind, another version, a body that nobody here knows."""
    kind = data.split(b" ", 2)[1]
    return b"dsv %b 9\n" % kind + b"\xc1\xff and more"


HEAD = keys.branch_key(DatasetName.parse("set"), MAIN, 1)


@pytest.mark.parametrize("key", ["format/0000000000000000", HEAD])
def test_a_record_of_a_newer_version(scene: Scene, synced: Keys, key: str) -> None:
    here = workspace(scene, synced)
    scene.reset({**synced, key: version_9(synced[key])})
    before = scene.contents()
    for arguments in (*READS, *WRITES[:1]):
        refused(here(*arguments), 9, "version 9")
    for use in (CACHE, CLONE):
        person = scene.newcomer()
        refused(use(person, "set"), 9, "version 9")
        nothing_partial(person)
    assert scene.contents() == before
    assert not restores(scene)
    goes_on(scene, here, synced)


def test_a_commit_of_a_newer_version(scene: Scene, synced: Keys) -> None:
    """With the right id."""
    commit = version_9(b"dsv commit 1\n")
    commit_id = CommitId.hash(commit)
    scene.reset({**synced, keys.commit_key(commit_id): commit, **named(commit_id, 2)})
    for use in (CACHE, CLONE):
        person = scene.newcomer()
        refused(use(person, "set"), 9, "version 9")
        nothing_partial(person)
    assert not restores(scene)


def test_another_hash(scene: Scene, synced: Keys) -> None:
    first = FormatEntry.decode(synced[keys.format_key(0)])
    scene.reset({**synced, keys.format_key(0): replace(first, hash="sha3").encode()})
    all_refused(scene.newcomer(), READS, "hashes or cuts")
    assert not restores(scene)
