"""dsv datasets --delete and --undelete, as a person types them."""

from __future__ import annotations

import io
from contextlib import chdir
from pathlib import Path

import pytest

from dsv.cli.app import run
from dsv.cli.terminal import Surroundings
from tests.kit.dsv import Dsv, Result, write_files


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


class Interrupted(Terminal):
    def readline(self, size: int | None = -1, /) -> bytes:
        raise KeyboardInterrupt


def typed(dsv: Dsv, answer: bytes, *arguments: str, terminal: Terminal | None = None) -> Result:
    stdout, stderr = io.BytesIO(), io.StringIO()
    around = Surroundings(dsv.environ, stdout, stderr, True, True, 200, terminal or Terminal(answer))
    with chdir(dsv.cwd):
        code = run(arguments, around)
    return Result(code, stdout.getvalue().decode(), stderr.getvalue())


@pytest.fixture
def outside(pets: Dsv, tmp_path: Path) -> Dsv:
    """In a folder that is no workspace."""
    (tmp_path / "elsewhere").mkdir()
    store = next(
        line for line in pets.ok("config", "store").lines if "file://" in line or "/" in line
    ).split()[0]
    return pets.at(tmp_path / "elsewhere", DSV_STORE=store)


def names(dsv: Dsv) -> list[str]:
    return [item["dataset"] for item in dsv.ok("datasets", "--json").json["items"]]


def test_without_a_terminal_it_takes_yes(outside: Dsv) -> None:
    result = outside("datasets", "--delete", "pets")
    assert result.code == 2 and "has 1 branch and 2 tags" in result.err and "--yes" in result.err
    assert names(outside) == ["pets"]
    done = outside.ok("datasets", "--delete", "pets", "--yes", "-m", "of no use")
    assert done.lines == ["deleted dataset pets; 2 commits expired with it"]
    assert "dsv datasets --undelete pets brings it back" in done.err
    assert names(outside) == []
    again = outside.ok("datasets", "--delete", "pets", "--yes")
    assert again.lines == [] and "was already deleted by" in again.err
    (item,) = outside.ok("datasets", "--deleted", "--json").json["items"]
    assert item["dataset"] == "pets" and item["deleted_by"] and item["deleted"]
    assert outside.ok("datasets", "--undelete", "pets").lines == ["dataset pets is back, with main"]
    assert names(outside) == ["pets"] and outside("datasets", "--undelete", "pets").code == 4
    assert outside("datasets", "--delete", "nobody", "--yes").code == 3


def test_other_branches_are_reported_although_main_has_no_commit(pets: Dsv, outside: Dsv) -> None:
    fresh = pets.at(outside.cwd / "fresh")
    write_files(fresh.cwd, {"a": b"a"})
    fresh.ok("init", "fresh")
    fresh.ok("sync", "--new-branch", "side")
    refused = outside("datasets", "--delete", "fresh")
    assert refused.code == 2 and "has 2 branches and 0 tags; its main has no commit" in refused.err


def test_at_a_terminal_its_name_is_typed(outside: Dsv) -> None:
    for answer in (b"y\n", b"", b"pet\n"):
        result = typed(outside, answer, "datasets", "--delete", "pets")
        assert result.code == 4 and "nothing was deleted" in result.err, result
        assert "type pets to delete it" in result.err
    interrupted = typed(outside, b"", "datasets", "--delete", "pets", terminal=Interrupted())
    assert interrupted.code == 130
    assert names(outside) == ["pets"]
    assert typed(outside, b"pets\n", "datasets", "--delete", "pets").code == 0
    assert names(outside) == []


def commands(pets: Dsv, outside: Dsv, folder: Path) -> list[tuple[Dsv, tuple[str, ...]]]:
    """Return commands that need the dataset, which is not there any more under its name."""
    (pets.cwd / "new.txt").write_text("new")
    return [
        (outside, ("ls", "pets")), (outside, ("cat", "pets@v1:a.txt")), (outside, ("log", "pets")),
        (outside, ("clone", "pets", str(folder / "clone"))), (outside, ("tag", "--list", "pets")),
        (outside, ("branch", "--list", "pets")), (outside, ("branch", "--restore", "pets@main")),
        (outside, ("tag", "v3", "pets@v1")), (outside, ("branch", "pets@more", "pets@v1")),
        (outside, ("put", str(pets.cwd / "new.txt"), "pets:new.txt")), (outside, ("cache", "pets@v1")),
        (outside, ("expire", "pets", "--keep-last", "1")), (outside, ("expire", "pets", "--undo")),
        (pets, ("sync",)), (pets, ("pull",)), (pets, ("sync", "--new-branch", "more")),
    ]  # fmt: skip


def test_every_command_says_that_it_was_deleted(pets: Dsv, outside: Dsv, tmp_path: Path) -> None:
    assert pets("datasets", "--delete", "pets", "--yes").code == 4, "not in its own workspace"
    outside.ok("datasets", "--delete", "pets", "--yes", "--author", "Ada")
    for here, arguments in commands(pets, outside, tmp_path):
        result = here(*arguments)
        assert result.code in (3, 4), (arguments, result)
        assert "was deleted" in result.err and "--undelete pets" in result.err, (arguments, result)
        assert "Ada" in result.err
    result = outside.at(tmp_path / "elsewhere")("init", "pets")
    assert result.code == 4 and "its name is not used again" in result.err
    outside.ok("datasets", "--undelete", "pets")
    pets.ok("sync")
    assert "new.txt" in outside.ok("ls", "pets").out


def test_a_protected_branch_keeps_its_dataset(pets: Dsv, outside: Dsv) -> None:
    pets.ok("branch", "--protect", "main")
    result = outside("datasets", "--delete", "pets", "--yes")
    assert result.code == 4 and "branch main of pets is protected" in result.err
    assert names(outside) == ["pets"]
    assert outside("datasets", "--delete", "pets", "--yes", "--force").code == 2
    outside.ok("datasets", "--delete", "pets", "--yes", "--force", "-m", "agreed")
    assert names(outside) == []
