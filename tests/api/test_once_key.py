"""The key of a run that is not repeated, collected from its options, its data, its code and its machine."""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsv.api.once_key import LARGEST_FILE, MadeKey, nearest, once_key
from dsv.api.run_code import code_entries, commit_code
from dsv.api.run_staging import RunStaging
from dsv.errors import DsvError, NotFound, UsageError
from dsv.repo.tree.hashing import root_of
from dsv.run.dirs import RunPlace
from dsv.run.engine_list import ENGINES
from dsv.run.once import computed_again, document
from dsv.run.record import RECORD, RunId, RunRecord, RunState
from dsv.run.record_store import RunStore
from dsv.run.resources import Pool
from dsv.run.spec import JobSpec, again, parse_env
from dsv.run.supervisor import _decide
from dsv.values.ids import FileId
from dsv.values.names import DatasetName, Target
from dsv.values.progress import NoProgress
from tests.engines.fake_docker import FakeDocker
from tests.kit.dsv import Dsv, assert_documented
from tests.kit.people import SCANS, Person

DIGEST = "sha256:" + "d0" * 32


class Notes(NoProgress):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def ann(tmp_path: Path) -> Person:
    person = Person.who_synced(tmp_path, {"a": b"1", "part/b": b"2"})
    (person.home / "elsewhere").mkdir()
    return person


def make(
    ann: Person,
    *command: str,
    on: str = "scans",
    environ: dict[str, str] | None = None,
    notes: Notes | None = None,
    pull: bool = True,
    **options: Any,
) -> MadeKey:
    spec = JobSpec(target=Target.parse(on), command=command or ("true",), once=True, **options)
    place = RunPlace(
        environ or {"PATH": os.environ["PATH"]}, ann.home / "state", ann.home / "elsewhere", "gpu1", "ann"
    )
    with ExitStack() as opened:
        staging = RunStaging(ann.context(place.cwd), ann.home / "cache", spec, opened, [])
        return once_key(_decide(spec, place, staging), staging, notes or NoProgress(), pull=pull)


def key(*arguments: Any, **options: Any) -> str:
    made = make(*arguments, **options)
    assert made.record.once is not None
    assert made.record.once.values or computed_again(made.record) == made.record.once.key
    return made.record.once.key


def once(made: MadeKey) -> Any:
    assert made.record.once is not None
    return made.record.once


def in_store(ann: Person) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path(ann.store).rglob("*") if path.is_file()}


def test_data_counts_by_the_root_of_what_the_job_sees(ann: Person, tmp_path: Path) -> None:
    first = key(ann, data={"more": Target.parse("scans:part")})
    bob = Person(tmp_path / "bob", ann.store, "bob")
    (bob.home / "elsewhere").mkdir(parents=True)
    bob.init(DatasetName("copies"))
    bob.write({"a": b"1", "part/b": b"2"})
    bob.sync("the same files in another commit of another dataset")
    assert key(bob, on="copies", data={"more": Target.parse("copies:part")}) == first
    assert key(ann, on="scans:part") == key(bob, on="copies:part") != key(ann)
    bob.write({"a": b"3"})
    bob.sync("another file")
    assert key(bob, on="copies", data={"more": Target.parse("copies:part")}) != first
    assert key(bob, on="copies:part") == key(ann, on="scans:part"), "which does not have the file"


def test_cached_data_of_a_part_counts_too(ann: Person) -> None:
    """The store is not open for cached data, and the root of a part is in no commit."""
    from dsv.api.cache import cache

    first = key(ann, on="scans:part")
    cache(ann.context(), ann.home / "cache", [Target.parse("scans:part")])
    assert key(ann, on=f"scans@{make(ann).record.commit}:part") == first


def test_a_root_that_is_not_known_is_an_error_that_says_why(ann: Person) -> None:
    commit = make(ann).record.commit
    from dsv.api.cache import cache

    cache(ann.context(), ann.home / "cache", [Target.parse("scans:part")])
    Path(ann.store).rename(f"{ann.store}.away")
    with pytest.raises(DsvError, match=re.escape(ann.store)):
        key(ann, on=f"scans@{commit}:part")


# --- code

NAMES = st.sampled_from(["a", "b.py", "lib/c.py", "lib/d", "z"])
CONTENT = st.binary(max_size=20) | st.tuples(st.integers(1, 3), st.integers(-1, 1)).map(
    lambda size: b"dsv!" * (size[0] * (1 << 18)) + b"x" * size[1]
)


@given(files=st.dictionaries(NAMES, st.tuples(CONTENT, st.booleans()), min_size=1), link=st.booleans())
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_hashing_alone_gives_the_root_of_the_commit_of_the_code(
    ann: Person, files: dict[str, tuple[bytes, bool]], link: bool
) -> None:
    folder = ann.home / "code"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "empty").mkdir(parents=True)
    for name, (content, executable) in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o755 if executable else 0o644)
    (folder / ".gitignore").write_text("ignored\n")
    (folder / "ignored").write_text("x")
    if link:
        (folder / "link").symlink_to(min(files))
    root = root_of(code_entries(folder))
    with ann.context().repository() as repository:
        commit, session = commit_code(ann.context(), repository, SCANS, folder)
        session.close()
        assert repository.objects.commit(commit).root == root


@pytest.fixture
def code(ann: Person) -> Path:
    folder = ann.home / "code"
    folder.mkdir()
    (folder / "resize.py").write_text("print(1)\n")
    (folder / "other.py").write_text("x = 1\n")
    return folder


def test_code_counts_by_its_content_and_nothing_is_stored_for_that(ann: Person, code: Path) -> None:
    before = in_store(ann)
    first = key(ann, code=code)
    moved = code.with_name("moved")
    shutil.copytree(code, moved)
    assert key(ann, code=moved) == first != key(ann)
    (moved / "resize.py").chmod(0o755)
    assert key(ann, code=moved) != first
    assert in_store(ann) == before


def test_committed_code_of_a_repeated_run_counts_the_same(ann: Person, code: Path) -> None:
    made = make(ann, code=code)
    with ann.context().repository() as repository:
        commit, session = commit_code(ann.context(), repository, SCANS, code)
        session.close()
    assert made.record.code is not None
    recorded = replace(made.record.code, tree=commit.hex(), root=None)
    (code / "resize.py").write_text("print(2)\n")
    assert key(ann, code=code, recorded_code=recorded) == once(made).key != key(ann, code=code)


# --- what the command names


def test_files_that_the_command_names_count_by_content(ann: Person) -> None:
    here = ann.home / "elsewhere"
    (here / "resize.py").write_text("print(1)\n")
    words = ("python", "resize.py", "--out=resize.py", "", "x" * 5000, str(here / "resize.py"))
    made = make(ann, *words)
    assert set(once(made).files) == {"resize.py", str(here / "resize.py")} and len(made.left_out) == 1
    first = once(made).key
    (here / "resize.py").touch()
    assert key(ann, *words) == first
    (here / "resize.py").write_text("print(2)\n")
    assert key(ann, *words) != first


def test_with_code_only_files_outside_of_it_count_by_themselves(ann: Person, code: Path) -> None:
    here = ann.home / "elsewhere"
    (here / "resize.py").write_text("not the one of the code\n")
    (here / "model").write_text("x")
    assert set(once(make(ann, "resize.py", str(here / "model"), code=code)).files) == {str(here / "model")}


def test_what_does_not_count_is_named(ann: Person) -> None:
    here = ann.home / "elsewhere"
    (here / "folder").mkdir()
    os.mkfifo(here / "fifo")
    with (here / "large").open("wb") as file:
        file.truncate(LARGEST_FILE + 1)
    with (here / "most").open("wb") as file:
        file.truncate(LARGEST_FILE)
    made = make(ann, "folder", "fifo", "large", "most", "missing")
    assert made.left_out[1:] == (
        "the content of folder is not in its key: it is no file",
        "the content of fifo is not in its key: it is no file",
        "the content of large is not in its key: it has more than 67.1 MB",
    )
    assert set(once(made).files) == {"most"}


def test_a_key_is_a_text_or_the_content_of_a_file(ann: Person) -> None:
    here = ann.home / "elsewhere"
    (here / "uv.lock").write_text("1")
    keys = ("gpu=A100", "uv.lock")
    first = once(make(ann, key=keys))
    assert first.keys["gpu=A100"] is None and len(first.keys["uv.lock"]) == 64
    assert key(ann, key=keys[::-1]) == first.key
    assert len({first.key, key(ann), key(ann, key=keys[:1]), key(ann, key=("gpu=H100", "uv.lock"))}) == 4
    (here / "uv.lock").write_text("2")
    assert key(ann, key=keys) != first.key
    with pytest.raises(UsageError, match="it is no file"):
        make(ann, key=("../elsewhere",))


# --- variables


def given_by(*texts: str, environ: dict[str, str] | None = None) -> dict[str, Any]:
    environ = {"PATH": os.environ["PATH"], **(environ or {})}
    return {**parse_env(texts, environ)[0], "environ": environ}


def test_values_count_if_they_were_given(ann: Person) -> None:
    assert key(ann, **given_by("LEVEL=1")) != key(ann, **given_by("LEVEL=2"))
    passed = [key(ann, **given_by("LEVEL", environ={"LEVEL": value})) for value in "12"]
    assert passed[0] == passed[1] not in (key(ann), key(ann, **given_by("LEVEL=1")))
    both = given_by("LEVEL=1", "LEVEL", environ={"LEVEL": "1"})
    assert key(ann, **both) == passed[0], "the last one counts"
    made = make(ann, **given_by("LEVEL=1", "B", environ={"B": "2"}))
    assert once(made).values == ("LEVEL",) and computed_again(made.record) is None


def test_no_secret_is_in_the_key_nor_in_the_record(ann: Person) -> None:
    here = ann.home / "elsewhere"
    (here / "token.txt").write_text("hunter2\n")
    (here / "pw").write_text("sesame-open\n")
    environ = {"HF_TOKEN": "sesame-open"}
    words = ("train", "--password", "hunter2", "token.txt", "pw")

    def made(secret: str) -> MadeKey:
        env = given_by(f"API_KEY={secret}", f"URL=https://ann:{secret}@host/db", environ=environ)
        return make(ann, *words, params={"api_key": secret}, key=(f"token={secret}",), **env)

    first, second = made("hunter2hunter2"), made("sesame2sesame2")
    assert once(first).key == once(second).key, "so no digest of it is in there either"
    assert once(first).values == ("URL",) and first.values == {"URL": "https://***@host/db"}
    assert not once(first).files
    assert first.left_out[1:] == (
        "the content of token.txt is not in its key: it is a secret",
        "the content of pw is not in its key: it is a secret",
        "its key hides the secrets in its command, its parameters and --key",
    )
    text = json.dumps(document(first.record, first.values)) + first.record.encode().decode()
    assert "hunter2" not in text and "sesame" not in text and "***" in text
    with pytest.raises(UsageError, match="it is a secret"):
        make(ann, key=("token.txt",))


def test_what_only_looks_like_a_value_of_e_stays_in_the_key(ann: Person) -> None:
    here = ann.home / "elsewhere"
    (here / "resnet50").write_text("weights")

    def made(model: str) -> MadeKey:
        return make(ann, "train", model, **given_by("MODEL", environ={"MODEL": model}))

    first, second = made("resnet50"), made("resnet18")
    assert first.record.command == second.record.command == ("train", "***")
    assert once(first).key != once(second).key and computed_again(first.record) is None
    assert once(first).values == ("MODEL",) and set(once(first).files) == {"*** (word 1)"}
    assert "resnet" not in first.record.encode().decode()


@pytest.mark.parametrize(
    ("name", "content", "secret"),
    [
        ("password.txt", "correct horse\n", True),
        (".env", "# of the lab\nexport DB_PASSWORD='hunter 2'\n\nDB_HOST=db\n", True),
        (".netrc", "machine a\nlogin b\n", True),
        ("settings", "HOST=db\nUSER=ann\n", False),
        ("auth.py", "import os\nTOKEN = 7\n", False),
    ],
)
def test_files_of_secrets_do_not_count(ann: Person, name: str, content: str, secret: bool) -> None:
    (ann.home / "elsewhere" / name).write_text(content)
    made = make(ann, "train", name)
    assert set(once(made).files) == (set() if secret else {name})
    assert (f"the content of {name} is not in its key: it is a secret" in made.left_out) is secret


def test_a_repeated_run_passes_on_the_values_that_are_not_recorded(ann: Person) -> None:
    made = make(ann, **given_by("LEVEL=1", "B", environ={"B": "2"}))
    place = RunPlace({"LEVEL": "1", "B": "3"}, ann.home / "state", ann.home, "gpu1", "ann")
    env, _ = parse_env(["LEVEL=1"], place.environ)
    assert again(made.record, place, **env).spec.passed == {"B"}
    assert again(made.record, place).spec.passed == {"B", "LEVEL"}


# --- images


@pytest.fixture
def docker(tmp_path: Path) -> FakeDocker:
    return FakeDocker.make(tmp_path / "docker")


def test_a_digest_in_the_name_needs_no_engine_but_the_one_that_runs(ann: Person, docker: FakeDocker) -> None:
    docker.set("no-image")
    made = make(ann, image=f"x/y@{DIGEST}", environ=docker.environ)
    assert (once(made).image, once(made).system, once(made).files) == (DIGEST, None, {})
    assert "pull" not in (docker.folder / "calls").read_text()


def test_an_image_counts_by_its_digest_else_by_its_id(ann: Person, docker: FakeDocker) -> None:
    local = make(ann, image="x/y", environ=docker.environ)
    assert once(local).image == "sha256:1"
    docker.set("digests", f'"x/y@{DIGEST}"')
    assert key(ann, image="x/y", environ=docker.environ) == key(
        ann, image=f"z@{DIGEST}", environ=docker.environ
    )


def test_an_image_is_pulled_unless_nothing_may_be_fetched(ann: Person, docker: FakeDocker) -> None:
    docker.set("no-image")
    with pytest.raises(NotFound, match="the digest of x/y is not known until it is pulled") as missing:
        make(ann, image="x/y", environ=docker.environ, pull=False)
    assert missing.value.hint == "docker pull x/y"
    notes = Notes()
    assert once(make(ann, image="x/y", environ=docker.environ, notes=notes)).image == "sha256:1"
    assert notes.notes == ["docker pulls x/y"]
    docker.set("no-image")
    docker.set("unknown")
    with pytest.raises(DsvError, match="manifest unknown") as refused:
        make(ann, image="x/y", environ=docker.environ)
    assert refused.value.hint == "see why this fails: docker pull x/y"


def test_podman_names_the_list_of_images_as_docker_does() -> None:
    podman = ENGINES["podman"]({})
    own, listed = f"x/y@sha256:{'1' * 64}", f"x/y@sha256:{'2' * 64}"
    for digests in ([own, listed], [listed, own]):
        found = podman.read_image({"Id": "3", "RepoDigests": digests, "Digest": own.partition("@")[2]})  # type: ignore[attr-defined]
        assert found.digest == listed


def test_a_cluster_needs_the_digest_itself(
    ann: Person, monkeypatch: pytest.MonkeyPatch, docker: FakeDocker
) -> None:
    monkeypatch.setattr(ENGINES["docker"], "queues", True)
    with pytest.raises(UsageError) as refused:
        key(
            ann,
            image="x/y:1",
            environ=docker.environ,
            engine="docker",
            pool=Pool(name="lab", engine="docker", out=str(ann.home)),
        )
    assert refused.value.exit_code == 2 and "NAME@sha256:…" in str(refused.value.hint)


def test_variables_in_engine_args_count_but_for_secrets(ann: Person, docker: FakeDocker) -> None:
    def made(*engine_args: str) -> MadeKey:
        image = f"x/y@{DIGEST}"
        return make(ann, image=image, environ=docker.environ, engine_args=engine_args, engine="docker")

    first, second = made("-e", "LEVEL=1"), made("-e", "LEVEL=2")
    assert once(first).key != once(second).key and once(first).values == ("LEVEL",)
    assert first.record.engine_args == ("-e", "LEVEL=***") and computed_again(first.record) is None
    secret = made("-e", "API_TOKEN=hunter2", "--env-file", "x")
    assert once(secret).key == once(made("-e", "API_TOKEN=sesame2", "--env-file", "x")).key
    assert computed_again(secret.record) in (None, once(secret).key) and not secret.values
    assert secret.left_out == ("the content of --env-file is not in its key",)


# --- erased files


def test_erased_files_count_if_an_input_lists_them(ann: Person, code: Path) -> None:
    dsv = Dsv.of(ann.home, ann.workspace)
    (code / "patient").write_text("name\n")
    before = {on: key(ann, on=on) for on in ("scans", "scans:part", "scans:a")}
    with_code = key(ann, on="scans:a", code=code)
    dsv.ok("erase", "scans:part/b", "--reason", "consent withdrawn", "--yes")
    assert once(make(ann)).erased == once(make(ann, on="scans:part")).erased == (str(FileId.hash(b"2")),)
    assert key(ann, on="scans:part") != before["scans:part"]
    assert key(ann, on="scans:a") == before["scans:a"], "which does not have it"
    assert key(ann, on="scans:a", code=code) == with_code
    ann.write({"copy": b"name\n"})
    ann.sync("a copy of what the code has")
    dsv.ok("erase", "scans:copy", "--reason", "consent withdrawn", "--yes")
    assert key(ann, on="scans:a", code=code) != with_code, "which is in its code too"


# --- the nearest run


def ended(ann: Person, made: MadeKey, number: int, **members: Any) -> RunRecord:
    """Put a record into the store, with its code."""
    run = RunId.parse(f"20261120-132145-{number:08x}")
    record = replace(made.record, run=run, state=RunState.ENDED, ended_ms=1, **{"exit_code": 0, **members})
    with ann.context().repository() as repository:
        if record.code is not None:
            commit, session = commit_code(ann.context(), repository, SCANS, Path(record.code.path))
            session.close()
            record = replace(record, code=replace(record.code, tree=commit.hex()))
        RunStore(repository.store).write(record.dataset, run, RECORD, record.encode())
    return record


def near(ann: Person, made: MadeKey) -> tuple[str, tuple[str, ...]] | None:
    with ann.context().repository() as repository:
        found = nearest(made, repository, RunStore(repository.store))
    return None if found is None else (found[0].run, found[1])


def test_the_nearest_run_and_what_differs(ann: Person, code: Path) -> None:
    def made(size: int, **options: Any) -> MadeKey:
        return make(ann, "python", "resize.py", "--size", str(size), code=code, **options)

    assert near(ann, made(64)) is None
    far = ended(ann, made(64, params={"lr": 1}), 1)
    best = ended(ann, made(64), 2)
    ended(ann, made(96), 3, exit_code=1)
    hit = made(96)
    ended(ann, replace(hit, record=replace(hit.record, once=replace(once(hit), hit_of="x/y"))), 4)
    assert near(ann, made(96)) == (best.run, ("command --size 64 -> --size 96",)), (
        "a failure and a hit are no results"
    )
    (code / "resize.py").write_text("print(2)\n")
    (code / "new.py").write_text("print(2)\n")
    assert near(ann, made(64)) == (best.run, ("code new.py, resize.py changed",))
    assert near(ann, made(64, params={"lr": 1})) == (far.run, ("code new.py, resize.py changed",))
    for number in range(6):
        (code / f"{number}.py").write_text("print(2)\n")
    assert near(ann, made(64)) == (best.run, ("code 0.py, 1.py, 2.py, 3.py, 4.py, … changed",))


def test_the_value_of_a_variable_may_be_all_that_differs(ann: Person) -> None:
    best = ended(ann, make(ann, **given_by("LEVEL=1")), 1)
    assert near(ann, make(ann, **given_by("LEVEL=2"))) == (best.run, ("env.LEVEL may have another value",))
    assert near(ann, make(ann)) == (best.run, ("env.LEVEL set -> none",))


# --- dsv runs ID --once


def test_the_key_of_a_run_shown_and_computed_again(ann: Person) -> None:
    dsv = Dsv.of(ann.home, ann.workspace)
    big = {"n": 2**60, "lr": 0.1}
    run = ended(ann, make(ann, "train", "--size", "64", params=big, key=("a=b",)), 1).run
    shown = dsv("runs", run, "--once")
    assert shown.code == 0 and "the key, computed again from the record, is the same" in shown.err
    rows = dict(line.split(maxsplit=1) for line in shown.lines)
    assert rows["command"] == "train --size 64" and rows["params.n"] == str(2**60) and rows["keys.a=b"] == "-"
    found = dsv.ok("runs", run, "--once", "--json").json
    assert_documented(
        "runs", found, without=("items", "copy", "into", "deleted", "compare", "series", "export")
    )
    assert found["once"]["key"] == found["once"]["again"] == rows["key"] and found["once"]["same"]
    canonical = json.dumps(found["once"]["document"], sort_keys=True, separators=(",", ":")).encode()
    assert blake3(canonical, derive_key_context="dsv 2026-11 once v1").hexdigest() == rows["key"]


def test_a_key_that_is_not_the_same_or_can_not_be_computed_again(ann: Person) -> None:
    dsv = Dsv.of(ann.home, ann.workspace)
    made = make(ann, "train")
    forged = ended(ann, made, 1, command=("other",)).run
    shown = dsv("runs", forged, "--once")
    assert shown.code == 1 and f"computed again from the record, is another: {key(ann, 'other')}" in shown.err
    valued = ended(ann, make(ann, **given_by("LEVEL=secret-1", "B=2")), 2).run
    shown = dsv("runs", valued, "--once")
    assert shown.code == 1 and "the key can't be computed again without the values of B, LEVEL" in shown.err
    answer = dsv("runs", valued, "--once", "--json").json["once"]
    assert answer["again"] is None and not answer["same"] and "secret-1" not in shown.out
    plain = ended(ann, replace(made, record=replace(made.record, once=None)), 3).run
    assert dsv("runs", plain, "--once").code == 3
    refused = dsv("runs", "--once")
    assert refused.code == 2 and "--once needs one run" in refused.err
