"""The image of dsv for clusters, built as the Containerfile says, on a base that is made on this machine.

No image registry is needed. The package index is asked by this machine's own pip, so a build needs no certificates of a
proxy. Kept under /var/cache/dsv-labs (or $DSV_LABS_CACHE): the base, and the wheels of the dependencies.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from tests.labs import images
from tests.labs.docker_engine import ContainerEngine
from tests.labs.kubernetes import Kubernetes
from tests.labs.machine import call

PROJECT = Path(__file__).parents[2]
BASE = "dsv-labs/debian:trixie"
PYTHON = "3.13"  # Debian's, in the base
PLATFORMS = tuple(f"manylinux{each}_x86_64" for each in ("_2_34", "_2_28", "_2_17", "2014"))


def build(engine: ContainerEngine) -> str:
    """The name of the image of this checkout, in that engine; the name says the content."""
    name = f"dsv-labs/dsv:{_content()}"
    if not engine.has(name):
        if not engine.has(BASE):
            engine.load(images.debian_tar(), BASE)
        context = Path(tempfile.mkdtemp(prefix="dsv-image-"))
        try:
            shutil.copytree(_dependencies(), context, dirs_exist_ok=True)
            _pip("wheel", "--no-deps", "--wheel-dir", str(context), str(PROJECT))
            options = [f"--build-arg=BASE={BASE}", "--build-arg=PIP_NO_INDEX=1", "--network=host"]
            containerfile = str(PROJECT / "Containerfile")
            engine.call("build", "--file", containerfile, *options, "--tag", name, str(context), timeout=900)
        finally:
            shutil.rmtree(context)
    return name


def give(cluster: Kubernetes, engine: ContainerEngine) -> str:
    """The name of that image, which every node of the cluster has now."""
    image = build(engine)
    if not cluster.has(image):
        archive = cluster.folder / "dsv-image.tar"
        engine.call("save", "--output", str(archive), image, timeout=600)
        cluster.load(archive)
        archive.unlink()
    return image


def _content() -> str:
    """Of all that goes into the image but the versions of its dependencies."""
    digest = hashlib.sha256()
    package = sorted(
        each for each in (PROJECT / "src").rglob("*") if each.suffix in (".py", ".json", ".sh", ".typed")
    )
    for path in (PROJECT / "Containerfile", PROJECT / "pyproject.toml", *package):
        digest.update(f"{path.relative_to(PROJECT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _dependencies() -> Path:
    """The folder of their wheels, for the image's Python."""
    project: dict[str, Any] = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"].get("kubernetes", ())]
    recipe = hashlib.sha256(repr((wanted, PYTHON, PLATFORMS)).encode()).hexdigest()[:12]
    folder = images.cache_folder() / f"wheels-{recipe}"
    if not folder.exists():
        partial = Path(tempfile.mkdtemp(prefix="wheels-", dir=folder.parent))
        platforms = [f"--platform={platform}" for platform in PLATFORMS]
        fitting = ["--only-binary=:all:", f"--python-version={PYTHON}", *platforms]
        _pip("download", "--dest", str(partial), *fitting, *wanted)
        partial.rename(folder)
    return folder


def _pip(*arguments: str) -> None:
    log = images.cache_folder() / "pip.log"
    call([sys.executable, "-m", "pip", "--quiet", *arguments], log=log, timeout=600)
