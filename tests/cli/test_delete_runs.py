"""dsv runs --delete."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dsv.errors import Denied
from dsv.run.record import RECORD, START
from dsv.run.record_store import RunStore
from dsv.stores.directory import DirectoryStore
from dsv.values.names import DatasetName
from tests.cli.test_delete_dataset import Interrupted, typed
from tests.kit.dsv import Dsv, write_files
from tests.stores.wrapper import Wrapper

PETS = DatasetName.parse("pets")


@pytest.fixture
def pets(dsv: Dsv) -> Dsv:
    """With two runs."""
    write_files(dsv.cwd, {"a": b"a"})
    dsv.ok("init", "pets")
    dsv.ok("sync")
    for code in (0, 1):
        assert dsv.process("run", "pets", "--", "sh", "-c", f"exit {code}").code == code
    return dsv


def store(dsv: Dsv) -> DirectoryStore:
    return DirectoryStore(dsv.home / ".local/share/dsv/store")


def ids(dsv: Dsv) -> list[str]:
    return [item["run"] for item in dsv.ok("runs", "--json").json["items"]]


def test_runs_are_deleted_by_their_ids(pets: Dsv) -> None:
    newest, oldest = ids(pets)
    assert pets("runs", "--delete", newest).code == 2, "nobody can be asked"
    assert pets("runs", "--delete").code == 2 and pets("runs", "--yes").code == 2
    assert pets("runs", "--delete", newest, "--older-than", "1y").code == 2
    assert ids(pets) == [newest, oldest]
    assert pets.ok("runs", "--delete", newest[-8:], "--yes").lines == [f"deleted run {newest} of pets"]
    assert ids(pets) == [oldest]
    assert [item.key for item in store(pets).list("runs/") if newest in item.key] == []
    assert pets("runs", "--delete", newest, "--yes").code == 3


def test_one_that_can_not_be_read_is_deleted_too(pets: Dsv) -> None:
    newest, oldest = ids(pets)
    record: Path = next((pets.home / ".local/share/dsv/store/runs").rglob(f"{newest}/record"))
    record.unlink()
    record.write_bytes(b"{}")
    pets.ok("runs", "--delete", newest, "--yes")
    assert ids(pets) == [oldest]


def test_runs_that_ended_long_ago_are_deleted(pets: Dsv) -> None:
    assert "no runs are that old" in pets.ok("runs", "--delete", "--older-than", "1y", "--yes").err
    done = pets.ok("runs", "--delete", "--older-than", "0s", "--dataset", "pets", "--yes", "--json").json
    assert len(done["deleted"]) == 2 and ids(pets) == []


def test_the_name_of_a_dataset_stands_for_all_runs_on_it(pets: Dsv) -> None:
    """Unless a run has that name."""
    both = ids(pets)
    assert [item["run"] for item in pets.ok("runs", "pets", "--json").json["items"]] == both
    assert pets("runs", "pets", "--delete", "--yes").code == 2 and pets("runs", "nopets").code == 3
    pets.ok("run", "pets", "--engine", "process", "--name", "pets", "--", "true")
    (named,) = {*ids(pets)} - {*both}
    assert [item["run"] for item in pets.ok("runs", "pets", "--json").json["items"]] == [named]
    assert pets("runs", "pets", "--delete", "--older-than", "0s", "--yes").code == 2
    pets.ok("runs", "pets", "--delete", "--yes")
    assert ids(pets) == both
    pets.ok("runs", "pets", "--delete", "--older-than", "0s", "--yes")
    assert ids(pets) == []


def test_one_that_has_not_ended_is_not_deleted_unless_forced(pets: Dsv) -> None:
    newest, oldest = ids(pets)
    next((pets.home / ".local/share/dsv/store/runs").rglob(f"{newest}/record")).unlink()
    result = pets("runs", "--delete", newest, oldest, "--yes")
    assert result.code == 4 and f"dsv stop {newest}" in result.err
    assert len(RunStore(store(pets)).listing(PETS)) == 2
    pets.ok("runs", "--delete", newest, oldest, "--yes", "--force")
    assert RunStore(store(pets)).listing(PETS) == []


def test_interrupted_at_the_question_nothing_has_changed(pets: Dsv) -> None:
    before = ids(pets)
    interrupted = typed(pets, b"", "runs", "--delete", before[0], terminal=Interrupted())
    assert interrupted.code == 130 and ids(pets) == before
    assert typed(pets, b"no\n", "runs", "--delete", before[0]).code == 4 and ids(pets) == before


def test_without_the_right_to_delete_the_runs_stay(pets: Dsv) -> None:
    class NoDeletes(Wrapper):
        def delete(self, key: str) -> None:
            raise Denied(f"deleting {key} was refused", subject=key)

    stored = RunStore(store(pets)).listing(PETS)
    with pytest.raises(Denied):
        RunStore(NoDeletes(store(pets))).delete(stored[0])
    assert len(RunStore(store(pets)).listing(PETS)) == len(stored)


def test_two_who_delete_a_run_at_once_both_succeed(pets: Dsv) -> None:
    one, other = [RunStore(store(pets)).listing(PETS)[0] for _ in range(2)]
    RunStore(store(pets)).delete(one)
    RunStore(store(pets)).delete(other)
    assert len(RunStore(store(pets)).listing(PETS)) == 1


def test_killed_between_two_deletes_the_run_is_still_listed(pets: Dsv) -> None:
    class Died(Exception):
        pass

    class Dying(Wrapper):
        left = 0

        def delete(self, key: str) -> None:
            if key.startswith("runs/"):  # the edges go before
                if not self.left:
                    raise Died
                self.left -= 1
            super().delete(key)

    for run, last in ((0, RECORD), (1, START)):
        stored = RunStore(store(pets)).listing(PETS)[0]
        if run:
            store(pets).delete(f"runs/pets/{stored.run}/{RECORD}")
            stored = RunStore(store(pets)).listing(PETS)[0]
        dying = Dying(store(pets))
        dying.left = len(stored.parts) - 1
        with pytest.raises(Died):
            RunStore(dying).delete(stored)
        (half,) = [one for one in RunStore(store(pets)).listing(PETS) if one.run == stored.run]
        assert half.parts == {last}
        RunStore(store(pets)).delete(half)
    assert RunStore(store(pets)).listing(PETS) == []


def folder(dsv: Dsv, run: str) -> Path:
    """The run's own folder."""
    return dsv.home / ".local/state/dsv/runs/pets" / run


def test_the_own_folder_of_a_deleted_run_goes_too(pets: Dsv) -> None:
    out = pets.home / "results"
    assert pets.process("run", "pets", "--out", str(out), "--", "sh", "-c", "echo 1 >$DSV_OUT/m").code == 0
    script = "mkdir -p $DSV_OUT/a/b; echo 1 >$DSV_OUT/a/b/m; ln -s $HOME/keep $DSV_OUT/link"
    (pets.home / "keep").write_text("kept")
    assert pets.process("run", "pets", "-e", f"HOME={pets.home}", "--", "sh", "-c", script).code == 0
    detached = pets.ok("run", "--detach", "pets", "--engine", "process", "--", "true").out.strip()
    assert pets("wait", detached).code == 0 and (folder(pets, detached) / "dsv.log").exists()
    kept, *gone = ids(pets)
    pets.ok("runs", "--delete", *gone, "--yes")
    assert [folder(pets, run).exists() for run in (kept, *gone)] == [True] + 4 * [False]
    assert (out / "m").exists() and (pets.home / "keep").read_text() == "kept"


def test_only_folders_whose_output_the_store_has_are_removed_after_their_time(pets: Dsv) -> None:
    job = ("--", "sh", "-c", 'echo 1 >"$DSV_OUT/m"')
    linked = ("--", "sh", "-c", 'ln -s /etc "$DSV_OUT/m"')

    def run(*arguments: str) -> Path:
        pets.ok("run", "pets", "--engine", "process", *arguments)
        return folder(pets, ids(pets)[0])

    stored, here, partly = run("--keep-output", *job), run(*job), run("--keep-output", *linked)
    assert pets("config", "runs.keep_local", "soon").code == 2
    pets.ok("config", "runs.keep_local", "30d")
    assert pets.ok("config", "runs.keep_local").out == "30d\n"
    run(*job)
    assert (stored / "out/m").exists()
    pets.ok("config", "runs.keep_local", "0s")
    last = run(*job)
    assert [folder.exists() for folder in (stored, here, partly, last)] == [False, True, True, True]
    pets.ok("runs", stored.name, "--out", str(pets.home / "copy"))
    assert (pets.home / "copy/m").read_bytes() == b"1\n"


def test_runs_of_a_deleted_dataset_are_deleted_with_their_folders(pets: Dsv) -> None:
    runs = ids(pets)
    pets.at(pets.home).ok("datasets", "--delete", "pets", "--yes")
    assert all(folder(pets, run).exists() for run in runs), "it can be taken back"
    pets.ok("runs", "--delete", runs[0], "--dataset", "pets", "--yes")
    pets.at(pets.home).ok("runs", "--delete", "--older-than", "0s", "--yes")
    assert not any(folder(pets, run).exists() for run in runs)


def test_nothing_behind_a_symlink_is_deleted(pets: Dsv) -> None:
    newest, oldest = ids(pets)
    own = folder(pets, newest)
    elsewhere = pets.home / "elsewhere"
    own.rename(elsewhere)
    own.symlink_to(elsewhere)
    done = pets.ok("runs", "--delete", newest, "--yes")
    assert str(own) in done.err and (elsewhere / "out").is_dir() and own.is_symlink()
    datasets = own.parent
    datasets.rename(pets.home / "moved")
    datasets.symlink_to(pets.home / "moved")
    done = pets.ok("runs", "--delete", oldest, "--yes")
    assert f"{folder(pets, oldest)} can't be deleted" in done.err and ids(pets) == []
    assert (pets.home / "moved" / oldest / "out").is_dir()


def test_the_folder_of_a_run_that_may_still_write_there_stays(pets: Dsv) -> None:
    newest, oldest = ids(pets)
    next((pets.home / ".local/share/dsv/store/runs").rglob(f"{newest}/record")).unlink()
    done = pets.ok("runs", "--delete", newest, "--yes", "--force")
    assert f"{folder(pets, newest)} stays" in done.err and folder(pets, newest).is_dir()
    marks = pets.home / ".local/state/dsv/running"
    script = "touch ready; until [ -e go ]; do sleep 0.05; done"
    run = pets.ok("run", "--detach", "pets", "--engine", "process", "--", "sh", "-c", script).out.strip()
    mark = marks / run
    record = msgspec.json.decode(mark.read_bytes())
    record["record"] = record["record"].replace(run, oldest)
    (marks / oldest).write_bytes(msgspec.json.encode(record))  # as if its record had been sent already
    pets.ok("runs", "--delete", oldest, "--yes")
    assert folder(pets, oldest).is_dir() and folder(pets, run).is_dir()
    (pets.cwd / "go").touch()
    assert pets("wait", run).code == 0


def test_a_run_can_t_write_into_the_folder_of_another_run(pets: Dsv) -> None:
    """It would be deleted with that."""
    (pets.home / "link").symlink_to(folder(pets, ids(pets)[0]))
    for out in (folder(pets, ids(pets)[0]) / "out", pets.home / "link" / "new"):
        refused = pets("run", "pets", "--out", str(out), "--engine", "process", "--", "true")
        assert refused.code == 2 and "are deleted with their records" in refused.err
