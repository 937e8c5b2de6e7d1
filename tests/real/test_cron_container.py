"""The Containerfile and the CronJob of docs/operations/automation.md, built and run as a node would run them."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import dsv
from tests.cache.places import make_root, place, publish
from tests.cache.test_automation import block_with
from tests.labs.docker_engine import ContainerEngine

yaml = pytest.importorskip("yaml", reason="needs PyYAML, which moto brings")
ROOT = Path(__file__).parents[2]
IMAGE = "dsv-tests/cron"
# The lab has no package index: what pip would install is copied.
START = """#!/usr/bin/python3
import sys
sys.path.insert(0, "/opt/dsv")
from dsv.cli.main import main
sys.exit(main())
"""


def copy_installed(target: Path) -> None:
    """dsv, and what it needs to run, as they are installed here."""
    shutil.copytree(Path(dsv.__file__).parent, target / "dsv", ignore=shutil.ignore_patterns("__pycache__"))
    waiting: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    seen = set[str]()
    while waiting:
        needed = Requirement(waiting.pop())
        name = needed.name.lower()
        if name in seen or (needed.marker is not None and not needed.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        found = importlib.metadata.distribution(name)
        waiting += found.requires or []
        for file in found.files or []:
            if ".." not in file.parts and "__pycache__" not in file.parts:
                (target / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(str(file.locate()), target / file)


@pytest.fixture
def image(podman: ContainerEngine, tmp_path: Path) -> str:
    """Built from the page's Containerfile, on a Python that is here and without an index."""
    build = tmp_path / "build"
    copy_installed(build / "packages")
    (build / "start").write_text(START)
    text = block_with("automation.md", "FROM")
    base = f"FROM {podman.python_image()}\nCOPY packages /opt/dsv\nCOPY start /opt/start"
    text, bases = re.subn(r"^FROM .*", base, text, flags=re.M)
    start = "install -m 755 /opt/start /usr/local/bin/dsv"
    text, installs = re.subn(r"pip install --no-cache-dir /tmp/dsv_data-\*\.whl", start, text)
    text, copies = re.subn(r"^COPY dsv_data-.*\n", "", text, flags=re.M)
    assert (bases, installs, copies) == (1, 1, 1), text
    (build / "Containerfile").write_text(text)
    how = ["--isolation=chroot", "--pull=never", "--tag", IMAGE]
    podman.call("build", *how, str(build), timeout=300)
    return IMAGE


def test_the_cron_job_evicts_what_is_due(podman: ContainerEngine, image: str, tmp_path: Path) -> None:
    job = yaml.safe_load(block_with("automation.md", "kind: CronJob"))
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (mount,) = container["volumeMounts"]
    user, group = pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"]
    folder = tmp_path / "cache"
    folder.mkdir()
    os.chown(folder, 0, group)
    folder.chmod(0o2775)
    root = make_root(folder)
    due = publish(root, place(1), {"a": b"old"}, age=2 * 86400)
    used = publish(root, place(2), {"a": b"new"})
    memory = container["resources"]["limits"]["memory"].lower().removesuffix("i")
    limits = [f"--user={user}:{group}", f"--memory={memory}", "--network=none"]
    volume = f"--volume={folder}:{mount['mountPath']}"
    command = ["run", "--rm", *limits, volume, image, *container["args"]]
    said = podman.call(*command)
    assert re.fullmatch(rf"evicted xrays@{due.name[:12]}: unused for .*\n", said), said
    assert not due.exists() and used.exists()
    assert podman.call(*command) == ""
