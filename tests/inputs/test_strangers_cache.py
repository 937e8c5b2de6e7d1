"""A cache that another user wrote: rights, records that are rubbish or no files, links that lead elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import Pipe
from pathlib import Path

import pytest

from dsv.api import environment
from tests.exhaustive import some
from tests.inputs.scene import FILES, Scene, ben, refused, visible, write
from tests.kit.dsv import Dsv, Result
from tests.kit.people import read_folder

ANN, BEN = 4001, 4002
TEAM = 4000


COMMANDS = (
    ["cached"],
    ["cached", "--json"],
    ["evict", "--dry-run"],
    ["cache", "set@v1", "-q"],
    ["cache", "set@v1", "-q", "--offline"],
    ["evict", "--unused-for", "1h"],
    ["release", "set@v1", "--all"],
)


def kept_its_head(result: Result) -> bool:
    """It worked, or was refused in a sentence with a hint; 70 would be something that nobody thought of."""
    if result.code == 0:
        return True
    refused(result, result.code)
    return result.code in (3, 4, 5, 6)


def records(shared: Path) -> list[Path]:
    """One file of each kind that dsv keeps, and the folder that it lies in."""
    found: dict[str, Path] = {}
    for path in sorted((shared / ".dsv").rglob("*")):
        if path.is_file():
            kind = "/".join(path.relative_to(shared).parts[:3]) + path.name.partition("-")[0]
            found.setdefault(kind, path)
    return list(found.values())


RUBBISH: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: path.write_bytes(b""),
    "no JSON": lambda path: path.write_bytes(b"\xff\xfe rubbish " * 9),
    "other JSON": lambda path: path.write_text(json.dumps({"version": 1, "at": "soon", "owner": []})),
    "a newer version": lambda path: path.write_text(json.dumps({"version": 99})),
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a link to nowhere": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.parametrize("make", RUBBISH.values(), ids=RUBBISH.keys())
def test_rubbish_in_place_of_a_record(scene: Scene, shared: Path, make: Callable[[Path], object]) -> None:
    """Nothing hangs or breaks; what ann has cached stays; and without the rubbish all is as it was."""
    person = ben(scene, shared)
    copy = scene.folder / "copy"
    shutil.copytree(shared, copy, symlinks=True)
    tried = records(shared)
    assert len(tried) > 8
    for path in some(tried, every=3):
        path.unlink()
        make(path)
        for arguments in COMMANDS:
            assert kept_its_head(person(*arguments)), (path, arguments)
        assert read_folder(visible(shared)) == FILES
        shutil.rmtree(shared)
        shutil.copytree(copy, shared, symlinks=True)
    assert person.ok("cache", "set@v1", "-q").out.strip() == str(visible(shared))


def test_false_copies_of_metadata_cost_requests_and_nothing_else(scene: Scene, shared: Path) -> None:
    """Everything is checked against its id, whoever fetched it."""
    for path in (shared / ".dsv/stores").rglob("*/objects/*/*/*"):
        if path.is_file():
            data = path.read_bytes()
            path.unlink()
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    person = ben(scene, shared)
    person.ok("cache", "set", "-q")
    commit = person.ok("resolve", "set").out.strip()
    assert read_folder(shared / "set" / commit) == {**FILES, "more": b"more"}


def test_cached_files_that_somebody_changed(scene: Scene, shared: Path) -> None:
    """With size and time as they were, only a read finds the damage; it is asked for, and mends them."""
    for name in ("a.bin", "b/large.bin"):
        path = visible(shared) / name
        status, data = path.stat(), path.read_bytes()
        path.chmod(0o600)
        path.write_bytes(b"evil" + data[4:])
        path.chmod(0o444)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    person = ben(scene, shared)
    told = person("cached", "--check", "set@v1", "--no-repair")
    assert (told.code, told.out) == (5, "")
    assert "a.bin" in told.err
    assert "b/large.bin" in told.err
    assert "hint: dsv cached --check" in told.err
    person.ok("cached", "--check", "set@v1")
    assert read_folder(visible(shared)) == FILES


def test_a_stranger_in_the_place_of_a_commit(scene: Scene, shared: Path) -> None:
    """A folder that somebody made by hand where a commit belongs is not taken for it, nor removed."""
    person = ben(scene, shared)
    commit = person.ok("resolve", "set").out.strip()
    write(shared / "set" / commit, {"a.bin": b"not what the commit has"})
    refused(person("cache", "set"), 4, commit, "in the way")
    assert person("cache", "set", "--json").json["error"]["kind"] == "conflict"
    assert (shared / "set" / commit / "a.bin").read_bytes() == b"not what the commit has"
    shutil.rmtree(shared / "set" / commit)
    person.ok("cache", "set", "-q")
    assert read_folder(shared / "set" / commit) == {**FILES, "more": b"more"}


# --- other users in truth


@pytest.fixture
def outside(loaded: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that every user of the machine can reach."""
    if os.geteuid() != 0:
        pytest.skip("only root can be other users")
    folder = Path(tempfile.mkdtemp(prefix="dsv-users-"))
    folder.chmod(0o755)
    monkeypatch.setattr(environment, "SYSTEM_CONFIG", folder / "etc/config.toml")
    yield folder
    shutil.rmtree(folder)


def user(scene: Scene, uid: int) -> Dsv:
    person = scene.newcomer()
    for path in (person.home, person.cwd):
        os.chown(path, uid, TEAM)
    return person


def as_user(person: Dsv, uid: int, *arguments: str, umask: int = 0o022) -> Result:
    """In a child of this process: the Python that runs here may be one that only root can start."""
    receiver, sender = Pipe(duplex=False)
    child = os.fork()
    if not child:
        try:
            os.setgroups([TEAM])
            os.setgid(TEAM)
            os.setuid(uid)
            os.umask(umask)
            sender.send(person(*arguments))
        finally:
            os._exit(0)
    sender.close()
    try:
        result = receiver.recv()
    finally:
        os.waitpid(child, 0)
    assert isinstance(result, Result)
    return result


@pytest.fixture
def loaded(scene: Scene, synced: Mapping[str, bytes]) -> None:
    """Import what a command imports at its first call: a child that is another user may not be able to read it."""
    scene.reset(synced)
    person = scene.newcomer()
    person.ok("cache", "set", "--hold", "1h")
    for arguments in (
        ["cached"],
        ["hold", "set"],
        ["release", "set", "--all"],
        ["evict", "--all"],
        ["run", "set", "--image", "-", "--", "true"],
        ["run", "set", "--", "true"],
        ["cache", "nothing"],
    ):
        person(*arguments)


def test_a_cache_that_one_may_only_read(outside: Path, synced: Mapping[str, bytes]) -> None:
    """Its content can be used; nothing can be added, claimed or removed."""
    scene = Scene(outside)
    scene.reset(synced)
    owner = scene.newcomer()
    cache = outside / "cache"
    path = owner.at(owner.cwd, DSV_CACHE=str(cache)).ok("cache", "set", "-q").out
    before = sorted(map(str, cache.rglob("*")))
    person = user(scene, BEN)
    person = person.at(person.cwd, DSV_CACHE=str(cache))
    assert as_user(person, BEN, "cache", "set", "-q").out == path
    assert as_user(person, BEN, "cached").code == 0
    # A job has to leave a lease there.
    refused(as_user(person, BEN, "run", "set", "-q", "--", "true"), 125, "ermission denied")
    for arguments in (
        ["cache", "set:b"],
        ["cache", "set", "--hold", "1h"],
        ["hold", "set"],
        ["evict", "--all"],
        ["evict", "set"],
    ):
        refused(as_user(person, BEN, *arguments), 8, "ermission denied")
    assert sorted(map(str, cache.rglob("*"))) == before


def test_a_cache_of_a_team(outside: Path, synced: Mapping[str, bytes]) -> None:
    """Each uses, adds to and evicts what the other made, whatever their umasks."""
    scene = Scene(outside)
    scene.reset(synced)
    cache = outside / "cache"
    cache.mkdir()
    os.chown(cache, 0, TEAM)
    cache.chmod(0o2770)
    ann, other = user(scene, ANN), user(scene, BEN)
    ann, other = (each.at(each.cwd, DSV_CACHE=str(cache)) for each in (ann, other))
    first = as_user(ann, ANN, "cache", "set:b", "-q", umask=0o077)
    assert first.code == 0, first
    assert as_user(other, BEN, "cache", "set:b", "-q").out == first.out
    whole = as_user(other, BEN, "cache", "set", "-q", umask=0o077)
    assert whole.code == 0, whole
    assert read_folder(Path(whole.out.strip())) == FILES
    assert as_user(ann, ANN, "cache", "set", "--hold", "1h", "-q").out == whole.out
    refused(as_user(other, BEN, "evict", "set"), 4, "held by")
    assert as_user(ann, ANN, "release", "set").code == 0
    gone = as_user(other, BEN, "evict", "--all")
    assert gone.code == 0, gone
    assert not Path(whole.out.strip()).exists()
    assert not Path(first.out.strip()).exists()


def test_files_of_another_user_that_the_kernel_lets_nobody_link(
    outside: Path, synced: Mapping[str, bytes]
) -> None:
    """They are copied, which takes room and no request; one's own are linked all the same."""
    if Path("/proc/sys/fs/protected_hardlinks").read_text().strip() != "1":
        pytest.skip("fs.protected_hardlinks is off")
    scene = Scene(outside)
    scene.reset(synced)
    writer = scene.newcomer()
    writer.ok("tag", "v1", "set")
    writer.ok("clone", "set", "clone")
    for number in (2, 3):
        write(writer.cwd / "clone", {"more": str(number).encode() * 5000})
        writer.at(writer.cwd / "clone").ok("sync")
        writer.ok("tag", f"v{number}", "set")
    cache = outside / "cache"
    cache.mkdir()
    os.chown(cache, 0, TEAM)
    cache.chmod(0o2770)
    ann, other = user(scene, ANN), user(scene, BEN)
    ann, other = (each.at(each.cwd, DSV_CACHE=str(cache)) for each in (ann, other))
    one, two, three = (
        as_user(who, uid, "cache", f"set@v{number}", "--json").json["items"][0]
        for number, (who, uid) in enumerate(((ann, ANN), (other, BEN), (other, BEN)), 1)
    )
    # The large one gives its chunks, each of them checked, and counts as new.
    assert (two["linked_files"], three["linked_files"]) == (2, 3)
    assert two["fetched_bytes"] < 1000 and three["fetched_bytes"] < 1000
    for name in ("a.bin", "b/large.bin", "text.txt"):
        first, second, third = (Path(item["path"], name).stat() for item in (one, two, three))
        assert (first.st_uid, second.st_uid) == (ANN, BEN), name
        assert first.st_ino != second.st_ino == third.st_ino, name
    assert read_folder(Path(two["path"])) == {**FILES, "more": b"2" * 5000}
    assert as_user(ann, ANN, "evict", "--all").code == 0
