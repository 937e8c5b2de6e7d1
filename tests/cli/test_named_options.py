"""An error about an option's value names the option, as a line may have many words."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from typer.core import TyperArgument, TyperOption

from dsv.cli.catalogue import COMMANDS
from dsv.cli.declare import load
from dsv.cli.parser import parser_of
from tests.cli.test_arguments import NEEDED, make_pets
from tests.kit.dsv import Dsv

BAD = "?!"
"""No number, time, size, name or pair."""
REFUSED = {
    "restore": "--from",
    "sync": "--branch --new-branch -j/--jobs",
    "diff": "--dirs",
    "log": "-n/--limit --since --until",
    "show": "--dirs",
    "tag": "--delete",
    "branch": "--move --delete --restore --protect --max-removals --unprotect",
    "merge": "--into --resolved",
    "pull": "--resolved",
    "mv": "--from-file",
    "rm": "--from-file",
    "cherry-pick": "--into --mainline --resolved",
    "revert": "--into --mainline --resolved",
    "cache": "--hold --while -j/--jobs",
    "with": "--data -j/--jobs",
    "hold": "--for",
    "evict": "--unused-for --max-size --max-files --min-free",
    "run": "--data --engine --code --out --into -p/--param --gpus --cpus --memory --time --nodes "
    "--retries --parallel",
    "export": "--shard-size --shuffle --card",
    "lineage": "--depth",
    "node": "--rank --attempt",
    "runs": "--dataset -n/--limit --filter",
    "stop": "--grace",
    "datasets": "--delete --undelete --rename",
    "du": "--by-folder",
    "erase": "--successor",
    "gc": "--budget --max-repack --max-wait --grace",
    "bench": "--make --model --accelerator --from --accelerators --up-to --steps --duration --batch",
    "expire": "--keep-last --keep-hourly --keep-daily --keep-weekly --keep-monthly --keep-yearly --older-than "
    "--undo-for",
}
"""For each command the options that refuse such a word by what it is, as a message calls them."""
NEEDED_HERE = {"evict": [], "with": ["nowhere"]}
MORE = {"run": ["--dry-run", "--", "true"], "with": ["--", "true"], "node": ["--left", "."]}


@pytest.fixture(scope="module")
def shared(dsv_of_the_file: Dsv) -> Dsv:
    return make_pets(dsv_of_the_file)


@pytest.fixture
def pets(shared: Dsv) -> Iterator[Dsv]:
    yield shared
    made = shared.cwd / BAD  # for most options it is the name of a file or folder
    if made.is_dir() and not made.is_symlink():
        shutil.rmtree(made)
    made.unlink(missing_ok=True)


@pytest.mark.parametrize("name", sorted({*COMMANDS} - {"demo"}))
def test_an_option_that_refuses_a_word_is_named(pets: Dsv, name: str) -> None:
    params = parser_of(load(name)).params
    needed = NEEDED.get(name, ["pets"] if any(isinstance(each, TyperArgument) for each in params) else [])
    needed = NEEDED_HERE.get(name, needed)
    refused = []
    for param in params:
        if not isinstance(param, TyperOption) or getattr(param, "is_flag", False):
            continue
        done = pets(name, *needed, param.opts[0], BAD, *MORE.get(name, []))
        assert done.code not in (1, 70), done
        if done.code == 2 and BAD in done.err.splitlines()[0]:
            refused.append("/".join(param.opts))
            assert any(option in done.err.splitlines()[0] for option in param.opts), done
    assert refused == REFUSED.get(name, "").split()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("with nowhere --data a=?! -- true", "--data: '?!' is not a name"),  # a part of the word
        ("sync --branch=?! -j 1", "--branch: '?!' is not a name"),
        ("log -n0", "-n/--limit: '0' is not a whole number from 1 on"),
        ("status --progress bra", "--progress has no mode 'bra'"),
        ("branch ?! --move ?!", "error: '?!' is not a name"),  # nobody knows which
        ("log ?!", "error: '?!' is not a name"),  # no option at all
        ("run pets --again x -- true", "error: --again takes no target"),
        ("diff --key a", "error: --key is for"),  # which names its option already
    ],
)
def test_the_option_is_named_once_and_only_if_it_is_the_one(pets: Dsv, line: str, said: str) -> None:
    done = pets(*line.split())
    assert done.code == 2 and said in done.err.splitlines()[0], done
