"""Image names that an engine's program would take for an option, or that no image can have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.inputs.scene import Scene, nothing_partial, refused
from tests.kit.dsv import Dsv

FALSE = [
    "--privileged",
    "-v",
    "-",
    "--network=host",
    "-it",
    "",
    " ",
    "a b",
    "a\nb",
    "\x1b]0;owned\x07",
    "a\x00b",
]


@pytest.fixture
def person(scene: Scene, synced: dict[str, bytes]) -> Dsv:
    """With a `docker` that notes what it was called with, and answers nothing."""
    scene.reset(synced)
    someone = scene.newcomer()
    bin_folder = someone.home / "bin"
    bin_folder.mkdir()
    for name in ("docker", "podman"):
        program = bin_folder / name
        program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {someone.home}/called\nexit 1\n')
        program.chmod(0o755)
    return someone.at(someone.cwd, PATH=f"{bin_folder}:{os.environ['PATH']}")


def calls(person: Dsv) -> str:
    noted = Path(person.home / "called")
    return noted.read_text() if noted.exists() else ""


@pytest.mark.parametrize("image", FALSE, ids=repr)
def test_it_is_refused_before_anything_is_done(person: Dsv, image: str) -> None:
    """No data is fetched, no engine asked, nothing recorded; not even for a dry run."""
    for further in ([], ["--dry-run"], ["--engine", "docker"], ["--engine", "process"]):
        result = person("run", "set", f"--image={image}", *further, "--", "true")
        refused(result, 2, "is not the name of an image" if image.strip() else "--image is empty")
        assert "\x1b" not in result.err
    nothing_partial(person)
    assert calls(person) == ""
    assert not list((person.home / ".local/state/dsv").rglob("*"))


def test_as_a_word_of_its_own_it_is_no_option_of_ours_either(person: Dsv) -> None:
    refused(person("run", "set", "--image", "--privileged", "--", "true"), 2, "'--privileged'")
    document = person("run", "set", "--image", "--privileged", "--json-file", "run.json", "--", "true")
    assert (document.code, calls(person)) == (2, "")


def test_a_plain_name_does_reach_the_engine(person: Dsv) -> None:
    refused(
        person("run", "set", "--image", "team/resnet:1", "--", "true"), 125, "no engine can run team/resnet:1"
    )
    assert calls(person).startswith("info ")
