"""Root file systems for container images, made on this machine so that no image registry is needed.

Kept as tar files under /var/cache/dsv-labs (or $DSV_LABS_CACHE), because the Python one takes over a minute.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from tests.labs.machine import MissingError, call, find, require

BUSYBOX = "dsv-labs/busybox:latest"
PYTHON = "dsv-labs/python:latest"
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

SUITE = "bookworm"
BASE_SUITE = "trixie"  # that of the Containerfile
PACKAGES = ("python3-numpy", "python3-pil", "python3-sklearn")  # each brings python3 along
NOT_IN_THE_IMAGE = (
    "./var/cache/apt",
    "./var/lib/apt/lists",
    "./var/log",
    "./usr/share/doc",
    "./usr/share/man",
    "./usr/share/locale",
)


def cache_folder() -> Path:
    folder = Path(os.environ.get("DSV_LABS_CACHE", "/var/cache/dsv-labs"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def busybox_tar() -> Path:
    """A shell and the usual small tools, all in one static program (2 MB)."""
    program = find("busybox")
    if program is None:
        raise MissingError("the busybox image needs Debian's busybox-static (apt-get install)")
    target = cache_folder() / "busybox.tar"
    tools = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
    partial = target.with_name(f"busybox-{os.getpid()}.partial")
    with tarfile.open(partial, mode="w") as tar:
        for name, mode in (("bin", 0o755), ("etc", 0o755), ("tmp", 0o1777), ("dev", 0o755), ("proc", 0o755)):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, mode
            tar.addfile(folder)
        tar.add(Path(program).resolve(), "bin/busybox")
        for tool in tools:
            if tool != "busybox":
                link = tarfile.TarInfo(f"bin/{tool}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)
        passwd = b"root:x:0:0:root:/:/bin/sh\n"
        entry = tarfile.TarInfo("etc/passwd")
        entry.size = len(passwd)
        tar.addfile(entry, io.BytesIO(passwd))
    partial.replace(target)
    return target


def archive(
    root: Path, name: str, target: Path, entrypoint: tuple[str, ...] = (), layers: tuple[Path, ...] = ()
) -> Path:
    """An image as `docker save` writes it, of a root file system and of `layers` above it (tar files)."""
    files = (root, *layers)
    digests = [hashlib.file_digest(layer.open("rb"), "sha256").hexdigest() for layer in files]
    run: dict[str, list[str]] = {"Env": [f"PATH={SEARCH_PATH}"]}
    if entrypoint:
        run["Entrypoint"] = list(entrypoint)
    system = {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]}
    config = json.dumps({"architecture": "amd64", "os": "linux", "config": run, "rootfs": system}).encode()
    named = f"{hashlib.sha256(config).hexdigest()}.json"
    content = {"Config": named, "RepoTags": [name], "Layers": [f"{digest}.tar" for digest in digests]}
    with tarfile.open(target, mode="w") as tar:
        for member, data in ((named, config), ("manifest.json", json.dumps([content]).encode())):
            entry = tarfile.TarInfo(member)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        for layer, digest in zip(files, digests, strict=True):
            tar.add(layer, f"{digest}.tar")
    return target


def python_tar() -> Path:
    """Debian with Python, NumPy, Pillow and scikit-learn (about 0.9 GB), made once per machine."""
    return _debian_tar("python", SUITE, PACKAGES)


def debian_tar() -> Path:
    """A Debian with nothing but what has to be there, as the dsv image is made of; once per machine."""
    return _debian_tar("debian", BASE_SUITE, ("ca-certificates",))


def _debian_tar(kind: str, suite: str, packages: tuple[str, ...]) -> Path:
    require(f"the {kind} image", {"debootstrap": "debootstrap"})
    recipe = hashlib.sha256(repr((suite, packages, NOT_IN_THE_IMAGE)).encode()).hexdigest()[:12]
    target = cache_folder() / f"{kind}-{recipe}.tar"
    with (target.parent / f"{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _make_debian_tar(target, suite, packages)
    return target


def _make_debian_tar(target: Path, suite: str, packages: tuple[str, ...]) -> None:
    root = Path(tempfile.mkdtemp(prefix=f"{target.stem}-root-", dir=target.parent))
    log = target.with_suffix(".log")
    log.unlink(missing_ok=True)
    try:
        options = ["--variant=minbase", f"--include={','.join(packages)}"]
        call(["debootstrap", *options, suite, str(root)], log=log, timeout=1200)
        partial = target.with_suffix(".partial")
        leave_out = [f"--exclude={path}/*" for path in NOT_IN_THE_IMAGE]
        call(["tar", "-C", str(root), *leave_out, "-cf", str(partial), "."], log=log, timeout=600)
        partial.replace(target)
    finally:
        shutil.rmtree(root, ignore_errors=True)
