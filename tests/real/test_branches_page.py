"""docs/guide/branches.md, typed as it stands, by one person after the first part of the quickstart."""

from __future__ import annotations

from pathlib import Path

from tests.kit.dsv import write_files
from tests.real.test_quickstart import PETS, Person, blocks

PAGE = (Path(__file__).parents[2] / "docs/guide/branches.md").read_text()


def test_branches_conflicts_and_undo(tmp_path: Path) -> None:
    ann = Person(tmp_path / "ann")
    write_files(ann.home / "pets", PETS)
    ann.types("cd ~/pets\ndsv init\ndsv sync -m 'first import'\ndsv tag v1.0")
    branch, switch, names, take, ben, both, rules, undo = [block for _, block in blocks(PAGE)]
    assert "pets@relabel, base" in ann.types(branch)
    ann.types(switch)
    assert not (ann.home / "pets/labels.csv").exists()
    told = ann.types(names)
    assert "* main" in told and "restored pets@second-try at" in told
    ann.types(take)
    assert (ann.home / "pets/labels.csv").read_text() == "cat/2.png dog\n"
    ann.types(ben)
    before, after = both.split("cp labels.csv")
    ann.types(before)
    refused = ann.types("dsv sync -m mine || echo sync=$?; dsv pull || echo pull=$?; echo pulled")
    assert "1 newer commit" in refused and "sync=4" in refused
    assert "'labels.csv' was changed here, and changed there" in refused and "pull=4" in refused
    ann.types("cp labels.csv" + after)
    assert (ann.home / "pets/labels.csv").read_text() == "cat/1.png cat\ndog/1.png dog\n"
    assert (ann.home / "pets/notes.txt").exists()
    told = ann.types(rules)
    assert "pets@main is protected: at most 5 % removed" in told and "pets@main is not protected" in told
    assert "Ann's label was wrong" in ann.types(undo)
    assert (ann.home / "pets/labels.csv").read_text() == "cat/1.png cat\n"
