"""The tour works, is true, and leaves nothing behind."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from dsv.cli.commands.demo import local_image
from dsv.errors import DsvError, NotFound
from tests.kit.dsv import Dsv, assert_documented
from tests.waiting import PATIENCE, until


@pytest.fixture
def visitor(dsv: Dsv) -> Dsv:
    """Somebody with settings of their own, which the tour must not touch, and a folder for temporary files."""
    temporary = dsv.cwd.parent / "tmp"
    temporary.mkdir()
    return dsv.at(dsv.cwd, TMPDIR=str(temporary), DSV_STORE="/nowhere/store", DSV_CACHE="/nowhere/cache")


def left_behind(visitor: Dsv) -> list[Path]:
    """What is there but for pages."""
    paths = [path for folder in ("home", "work", "tmp") for path in (visitor.cwd.parent / folder).rglob("*")]
    return [path for path in paths if not any(part.startswith("dsv-demo-pages-") for part in path.parts)]


def test_the_tour_is_whole_and_leaves_nothing(visitor: Dsv) -> None:
    result = visitor.process("demo", "--engine", "process", "--json")
    assert result.code == 0, result
    document = json.loads(result.out)
    assert_documented("demo", document)
    typed = [item["command"] for item in document["items"]]
    assert "dsv-demo-pages-" in typed[-1] and document["items"][-1]["output"].endswith("/index.html\n")
    names = {line.split()[1] for line in typed if line.startswith("dsv ")}
    assert {
        "init",
        "sync",
        "tag",
        "status",
        "log",
        "cache",
        "run",
        "runs",
        "cached",
        "release",
        "evict",
        "expire",
        "gc",
        "du",
        "copy",
        "verify",
    } <= names
    printed = "".join(item["output"] for item in document["items"])
    assert "120 pictures of commit" in printed
    assert re.search(r"RESULT .*pictures\n.* ok .* 120\n", printed)
    assert "1 path added, 1 changed, 1 removed" in printed
    assert ": held by" in printed
    assert "expired " in printed and "sent 2 commits" in printed
    check, repair, site = document["items"][-3:]
    assert "120 objects lost" in check["output"] and "and 110 more" in check["output"], check
    assert "objects stored again" in repair["output"], repair
    index = Path(site["output"].splitlines()[-1])
    assert "shapes" in index.read_text("utf-8") and len(list((index.parent / "images").iterdir())) > 20
    assert left_behind(visitor) == []


def test_interrupted_it_leaves_nothing_either(visitor: Dsv, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "mv").write_text(f"#!/bin/sh\ntouch {tmp_path}/reached\nexec sleep 600\n")
    (programs / "mv").chmod(0o755)
    visitor = visitor.at(visitor.cwd, PATH=f"{programs}:{visitor.environ['PATH']}")
    with visitor.start("demo", "--engine", "process", start_new_session=True) as process:
        until((tmp_path / "reached").exists)
        assert left_behind(visitor)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, err) == (130, b"", b"error: interrupted\n")
    assert left_behind(visitor) == []


def test_an_image_that_has_a_shell_is_found(tmp_path: Path) -> None:
    """Programs that answer like the engines do: one that is not running, and one that has images."""
    for name, script in {
        "docker": "echo 'Cannot connect to the Docker daemon' >&2; exit 1",
        "podman": "echo team/own:1; echo docker.io/library/debian:12; echo localhost/x/busybox:latest",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert local_image("podman", environ) == "docker.io/library/debian:12"
    with pytest.raises(DsvError, match="Cannot connect to the Docker daemon"):
        local_image("docker", environ)
    (tmp_path / "podman").write_text("#!/bin/sh\necho team/own:1\n")
    with pytest.raises(NotFound, match="podman has no image with a shell here"):
        local_image("podman", environ)


@pytest.mark.real
@pytest.mark.parametrize("engine", ["docker", pytest.param("podman", marks=pytest.mark.exhaustive)])
def test_the_tour_in_real_containers(visitor: Dsv, engine: str, request: pytest.FixtureRequest) -> None:
    lab = request.getfixturevalue("docker_engine" if engine == "docker" else "podman")
    result = visitor.at(visitor.cwd, **lab.env).process("demo", "--engine", engine)
    assert result.code == 0, result
    assert f"$ dsv run shapes@v1 --engine {engine} --image " in result.out
    assert re.search(r"RESULT .*pictures\n.* ok .* 120\n", result.out)
    assert left_behind(visitor) == []
