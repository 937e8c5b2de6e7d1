"""Every argument has an effect or is refused: none is accepted and then ignored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.core import TyperArgument, TyperOption

from dsv.cli.catalogue import COMMANDS, look_alikes
from dsv.cli.declare import load
from dsv.cli.parser import global_params, parser_of
from tests.kit.dsv import Dsv, write_files

FLAGS = {flag for option in global_params() for flag in option.opts if flag.startswith("-")}
EVERYWHERE = {"--json", "-C", "--progress", "-q", "--quiet", "--no-pager", "--debug", "-h", "--help"}
UNUSED = [(name, flag) for name in COMMANDS for flag in sorted(load(name).unused)]
TAKES_TEXT = [
    (name, param)
    for name in COMMANDS
    for param in parser_of(load(name)).params
    if isinstance(param, TyperArgument | TyperOption)
    and param.name != "message"
    and not getattr(param, "is_flag", False)
]


def make_pets(dsv: Dsv) -> Dsv:
    """A workspace of `pets` with two commits; the first is tagged v1."""
    write_files(dsv.cwd, {"a.txt": b"alpha\n", "train/b.txt": b"beta\n"})
    dsv.ok("init", "pets")
    dsv.ok("sync", "-m", "one")
    dsv.ok("tag", "v1")
    write_files(dsv.cwd, {"c.txt": b"gamma\n"})
    dsv.ok("sync", "-m", "two")
    return dsv


@pytest.fixture
def pets(dsv: Dsv) -> Dsv:
    return make_pets(dsv)


@pytest.fixture(scope="module")
def shared(dsv_of_the_file: Dsv) -> Dsv:
    return make_pets(dsv_of_the_file)


@pytest.fixture
def unchanged(shared: Dsv) -> Iterator[Dsv]:
    """Give the shared workspace, and check that refused commands changed nothing."""
    before = contents(shared.home.parent)
    yield shared
    assert contents(shared.home.parent) == before


def contents(top: Path) -> dict[Path, bytes | None]:
    """All but the workspace's lock, and what is remembered of the store."""
    return {
        path: path.read_bytes() if path.is_file() else None
        for path in top.rglob("*")
        if not {".cache", "lock", "tracking.json"} & set(path.parts)
    }


@pytest.mark.parametrize(
    ("line", "said", "hint"),
    [
        ("log :a.txt", "dsv log is about whole commits, and :a.txt names a path", "dsv log; dsv ls :a.txt"),
        ("log pets@v1:a.txt", "names a path", "dsv log pets@v1; dsv ls pets@v1:a.txt"),
        ("log :", "names a path", ""),
        ("resolve @main:a.txt", "dsv resolve is about whole commits", "dsv resolve @main; "),
        ("tag v9 @main:a.txt", "dsv tag v9 is about whole commits", "dsv tag v9 @main; "),
        ("restore --from @v1:a.txt", "a.txt", "dsv restore a.txt --from @REV"),
        ("clone pets:train there", "dsv clone takes whole datasets", "dsv cache pets:train"),
        ("log --json --jsonl", "--json and --jsonl can't be used together", ""),
        ("log --jsonl --oneline", "--jsonl and --oneline can't be used together", ""),
        ("log --json --oneline", "--json and --oneline can't be used together", ""),
        ("ls --json --jsonl", "--json and --jsonl can't be used together", ""),
        ("ls -l --json", "--json and --long can't be used together", ""),
        ("ls -l --jsonl", "--jsonl and --long can't be used together", ""),
        ("tag --list pets v1", "a list of tags does not take NAME", "dsv tag --help"),
        ("tag --list pets -m why", "a list of tags does not take -m", ""),
        ("tag -m why", "a list of tags does not take -m", ""),
        ("tag --author Ann", "a list of tags does not take --author", ""),
        ("tag --list pets --delete v1", "--list and --delete can't be used together", ""),
        ("tag --delete v1 pets @main", "one tag and one dataset, not @main too", ""),
        ("cached pets", "TARGET requires --check", ""),
        ("cached --no-repair", "--repair and --no-repair require --check", ""),
        ("evict pets --all", "targets or limits, not both", ""),
        ("evict pets --max-size 1G", "targets or limits, not both", ""),
        ("config --unset store s3://b", "--unset takes a key and no value", ""),
        ("config --unset", "--unset takes a key and no value", ""),
        ("log -n 0", "'0' is not a whole number from 1 on", ""),
        ("log -n -1", "'-1' is not a whole number from 1 on", ""),
        ("cache pets -j -1", "'-1' is not a whole number from 1 on", ""),
        ("evict --max-files -1", "'-1' is not a whole number from 0 on", ""),
        ("evict --max-size -1", "'-1' is not a size", ""),
        ("cache pets --hold -1d", "'-1d' is not a duration", ""),
        ("hold pets --for -1d", "'-1d' is not a duration", ""),
        ("ls pets pets", "unexpected extra argument", ""),
        ("status --progress=", "--progress has no mode ''", "--progress "),
        ("config --progress bra", "--progress has no mode 'bra'", "--progress "),
        ("config --store=", "--store is empty", ""),
        ("status --store=", "--store is empty", ""),
        ("cached --cache=", "--cache is empty", ""),
        ("help ls cat", "dsv help takes one command", ""),
        ("run pets --again x -- true", "--again takes no target", ""),
        ("run --again x --image y", "a repeated run keeps its --image", ""),
        ("run --json pets -- true", "stdout is the job's", "--json-file FILE"),
    ],
)
def test_what_would_be_ignored_is_refused(unchanged: Dsv, line: str, said: str, hint: str) -> None:
    done = unchanged(*line.split(" "))
    told = done.err
    if "--json" in line.split():
        error = done.json["error"]
        told = f"{error['message']}\nhint: {error['hint']}"
    assert done.code == 2 and (done.out == "" or "--json" in line), done
    assert said in told
    assert not hint or f"hint: {hint}" in told
    assert "v9" not in unchanged.ok("tag").out


@pytest.mark.parametrize(("name", "flag"), UNUSED)
def test_a_global_option_behind_a_command_without_use_for_it_is_refused(
    unchanged: Dsv, name: str, flag: str
) -> None:
    done = unchanged(name, flag) if flag == "--json" else unchanged(name, flag, "x")
    assert (done.code, done.out.startswith("{") if flag == "--json" else done.out == "") == (2, True), done
    assert f"dsv {name} does not take {flag}" in done.out + done.err


def test_a_global_option_before_the_command_is_for_whichever_command_follows(pets: Dsv) -> None:
    """Such as one in an alias of the shell."""
    assert pets.ok("--cache", "/nfs/gpu", "datasets").out == pets.ok("datasets").out


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_one_line_for_the_global_options(dsv: Dsv, name: str) -> None:
    """Which names those that this command does not take."""
    shown = dsv.ok(name, "--help").out
    (line,) = [line for line in shown.splitlines() if line.startswith("Global options")]
    words = set(line.partition(":")[0].replace("(", " ").replace(")", " ").split())
    assert words & FLAGS == set(load(name).unused)
    assert line.endswith(": dsv --help") and "Run as if started in DIR" not in shown


def test_commands_that_are_taken_for_each_other_point_to_each_other(dsv: Dsv) -> None:
    for name in COMMANDS:
        shown = dsv.ok(name, "--help").out.partition("Not to be confused with:")[2].partition("\n\n")[0]
        named = {line.split()[1] for line in shown.splitlines() if line}
        assert named == set(look_alikes(name))
        assert all(name in look_alikes(other) for other in named)
    assert set(look_alikes("cached")) == {"cache"} and set(look_alikes("store")) == {"verify", "doctor"}
    assert set(look_alikes("logs")) == {"log", "run", "runs"}


NEEDED = {
    "bench": ["feed"],
    "node": ["pets", "--left", "."],
    "cat": [],
    "clone": ["pets"],
    "config": ["store"],
    "export": ["pets", "out"],
    "import": ["/data", "pets"],
    "sparse": ["add"],
}
"""Words that a command needs before those that may be left out, if not the name of a dataset."""


@pytest.mark.parametrize(
    ("name", "param"), TAKES_TEXT, ids=lambda value: value if isinstance(value, str) else value.name
)
def test_an_empty_word_is_refused(unchanged: Dsv, name: str, param: TyperArgument | TyperOption) -> None:
    """It is a variable that is not set, and would mean what the command does without it."""
    arguments = [each for each in parser_of(load(name)).params if isinstance(each, TyperArgument)]
    needed = NEEDED.get(name, ["pets"] if arguments and param is not arguments[0] else [])
    if isinstance(param, TyperOption):
        done = unchanged(name, *needed, param.opts[0], "")
    else:
        at = arguments.index(param)
        done = unchanged(name, *needed[:at], "", *needed[at + 1 :])
    assert (done.code, done.out) == (2, ""), done
    assert "empty" in done.err or "''" in done.err, done


EFFECTS = {
    "log": ["-n 1", "--oneline", "--jsonl", "--json", "@v1"],
    "ls": ["-l", "--jsonl", "--json", ":train", "@v1"],
    "resolve": ["--json", "@v1"],
    "datasets": ["--json", "--store other"],
    "tag": ["--list pets --json", "--json", "v2", "v3 @v1", "--delete v1 --force"],
    "status": ["--json", "-q", "train", "--exit-code"],
    "config": ["store", "--json", "--store s3://b", "--cache /c", "--unset store", "author Ann"],
    "cache @v1": ["--json", "-q", "--hold 1d", "--cache other", "--progress json", "@main", ":train"],
    "cached": ["--json", "--check", "--cache other"],
    "evict --dry-run": [
        "--json",
        "--all",
        "--max-size 1",
        "--max-files 0",
        "--unused-for 0s",
        "--cache other",
    ],
}


@pytest.mark.parametrize(("line", "more"), [(line, more) for line in EFFECTS for more in EFFECTS[line]])
def test_an_argument_changes_what_is_done_or_said(pets: Dsv, line: str, more: str) -> None:
    pets.ok("cache", "pets")
    if line == "cache @v1":
        pets.ok("cache", "@v1")  # so that both have it cached already
    if line == "status":
        write_files(pets.cwd, {"new.txt": b"new\n"})
    without = pets(*line.split())
    with_it = pets(*line.split(), *more.split())
    shown = lambda result: (result.code, result.out, result.err)  # noqa: E731
    assert shown(with_it) != shown(without)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tag", "v9", "--author", "a" * 2000), "the author from --author has 2,000 characters, and 1,024"),
        (("tag", "v9", "-m", "m" * 90_000), "a text has 90,000 characters, and 65,536 is the most"),
        (("branch", "--protect", "main", "--who", "w" * 3000), "an author of --who has 3,000 characters"),
    ],
)
def test_a_text_that_no_record_can_hold_is_refused_where_it_is_given(
    pets: Dsv, words: tuple[str, ...], said: str
) -> None:
    refused = pets(*words)
    assert refused.code == 2 and said in refused.err and "hint: shorten it" in refused.err


def test_a_dataset_may_have_a_name_of_one_letter(pets: Dsv) -> None:
    (pets.cwd / "file").write_text("x")
    pets.ok("put", "file", "x:", "--create")
    assert pets.ok("cat", "x:file").out == "x"
    assert "x" in pets.ok("datasets").out.split()


def test_every_command_refuses_text_that_is_no_utf_8(pets: Dsv) -> None:
    for arguments in (
        ["sync", "-m", "\udcff"],
        ["tag", "v3", "-m", "\udcff"],
        ["sync", "--author", "\udcff"],
    ):
        assert pets(*arguments).code == 2


def test_an_author_or_a_store_of_the_surroundings_that_is_no_utf_8(pets: Dsv, tmp_path: Path) -> None:
    """Values without a parser of their own: variables, and names of folders."""
    latin = pets.at(pets.cwd, DSV_AUTHOR="Ren\udce9")
    (pets.cwd / "b.txt").write_bytes(b"beta\n")
    for arguments in (["sync"], ["tag", "v9"]):
        refused = latin(*arguments)
        assert refused.code == 2 and "the author from DSV_AUTHOR is not valid UTF-8" in refused.err
    assert latin("sync", "--author", "René").code == 0
    (tmp_path / "new").mkdir()
    there = pets.at(tmp_path / "new")
    store = f"{tmp_path}/st\udcff"
    for refused in (
        there("init", "cats", "--store", store),
        there.at(there.cwd, DSV_STORE=store)("init", "cats"),
    ):
        assert refused.code == 2 and "is not valid UTF-8" in refused.err
        assert "from --store" in refused.err or "from DSV_STORE" in refused.err
    assert not Path(store).exists() and not (there.cwd / ".dsv").exists()
