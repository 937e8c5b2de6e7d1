"""Which engine a run gets, and that each of them is held to the conformance suite."""

from __future__ import annotations

import importlib
import os
import pkgutil
from contextlib import suppress
from pathlib import Path

import pytest

import tests.engines
from dsv.errors import LaunchError, UsageError
from dsv.run.engine_list import ENGINES, choose
from dsv.run.engines.process import ProcessEngine
from tests.engines.conformance import EngineConformance
from tests.engines.container_conformance import ContainerConformance


def _suites() -> set[str]:
    """The engines that a collected test class joins the suite for."""
    names = set()
    for module in pkgutil.iter_modules(tests.engines.__path__):
        if not module.name.startswith("test_"):
            continue
        loaded = importlib.import_module(f"tests.engines.{module.name}")
        for value in vars(loaded).values():
            if (
                isinstance(value, type)
                and issubclass(value, EngineConformance)
                and value.__name__.startswith("Test")
            ):
                names.add(value.name)
    return names


def test_every_registered_engine_has_a_conformance_suite() -> None:
    assert set(ENGINES) == _suites()


def test_every_registered_engine_goes_by_its_own_name() -> None:
    assert {name: kind.name for name, kind in ENGINES.items()} == {name: name for name in ENGINES}


def test_engines_with_images_on_this_machine_have_the_containers_suite() -> None:
    _suites()  # imports them
    suites = {each.name for each in ContainerConformance.__subclasses__()}
    here = {name for name, make in ENGINES.items() if not make.queues}
    assert {name for name in here if ENGINES[name]({}).needs_image} == suites


def _program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


DOCKER = """echo '{"ServerVersion": "1", "OSType": "linux", "InitBinary": "docker-init"}'"""
PODMAN = (
    """echo '{"host": {"security": {"rootless": true}, "ociRuntime": {}}, "version": {"Version": "5"}}'"""
)
DOWN = """echo 'Cannot connect to the daemon' >&2; echo '{"ServerErrors": ["no"]}'; exit 1"""
DEBIANS_DOWN = """echo '{"ServerErrors": ["Got permission denied"], "ClientInfo": {}}'"""


def test_docker_comes_before_podman(tmp_path: Path) -> None:
    _program(tmp_path / "bin", "docker", DOCKER)
    _program(tmp_path / "bin", "podman", PODMAN)
    chosen = choose({"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}, None, "image")
    assert (chosen.engine.name, chosen.note, chosen.facts.init) == ("docker", None, ("--init",))


@pytest.mark.parametrize(
    ("down", "why"),
    [(DOWN, "Cannot connect to the daemon"), (DEBIANS_DOWN, "Got permission denied")],
    ids=["dockers", "debians"],
)
def test_podman_where_docker_does_not_answer(tmp_path: Path, down: str, why: str) -> None:
    _program(tmp_path / "bin", "docker", down)
    _program(tmp_path / "bin", "podman", PODMAN)
    environ = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    chosen = choose(environ, None, "image")
    assert (chosen.engine.name, chosen.facts.rootless, chosen.facts.version) == ("podman", True, "5")
    assert chosen.passed_over == f"podman is used, because docker does not answer: {why}"
    with pytest.raises(LaunchError, match=f"^docker does not answer: {why}$"):
        choose(environ, "docker", "image")


def test_a_docker_program_that_is_podman_is_not_docker(tmp_path: Path) -> None:
    _program(tmp_path / "bin", "docker", PODMAN)
    _program(tmp_path / "bin", "podman", PODMAN)
    chosen = choose({"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}, None, "image")
    assert (chosen.engine.name, chosen.passed_over) == ("podman", None)


def test_an_engine_that_hangs_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(tmp_path / "bin", "docker", "exec sleep 600")
    _program(tmp_path / "bin", "podman", PODMAN)
    for seconds in (1.0, 10.0, 100.0):  # until the machine is fast enough for the one that answers
        monkeypatch.setattr("dsv.run.engines.containers.engine.PROBE_SECONDS", seconds)
        with suppress(LaunchError):
            assert choose({"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}, None, "image").engine.name == "podman"
            return
    pytest.fail("podman answers at once")


def test_where_none_answers_each_says_why(tmp_path: Path) -> None:
    _program(tmp_path / "bin", "docker", DOWN)
    with pytest.raises(LaunchError) as caught:
        choose({"PATH": f"{tmp_path}/bin"}, None, "image")
    assert "Cannot connect to the daemon" in caught.value.message
    assert "there is no podman program" in caught.value.message
    assert caught.value.exit_code == 125
    with pytest.raises(LaunchError, match="there is no podman"):
        choose({"PATH": f"{tmp_path}/bin"}, "podman", "image")


def test_without_an_image_it_is_a_process_and_that_is_said() -> None:
    chosen = choose(os.environ, None, None)
    assert isinstance(chosen.engine, ProcessEngine)
    assert chosen.note is not None and "plain process" in chosen.note
    named = choose(os.environ, "process", None)
    assert named.note is None


@pytest.mark.parametrize(
    ("name", "image"), [("abacus", "image"), ("docker", None), ("podman", None), ("process", "image")]
)
def test_what_does_not_go_together(name: str, image: str | None) -> None:
    with pytest.raises(UsageError):
        choose({"PATH": ""}, name, image)
