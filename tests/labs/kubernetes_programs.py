"""The programs of Kubernetes and CoreDNS, built once on a machine from the Go module proxy.

Debian has no current Kubernetes. They are kept under /var/cache/dsv-labs (or $DSV_LABS_CACHE) by version; to build
them takes about ten minutes on two processors.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import urllib.request
from pathlib import Path

from tests.labs.images import cache_folder
from tests.labs.machine import MissingError, call, find

KUBERNETES = "1.34.4"  # containerd 1.6, which Debian 12 has, serves releases below 1.36
COREDNS = "1.13.1"
PROXY = "https://proxy.golang.org"
COMMANDS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
GO = Path("/usr/local/go/bin/go")


def programs_folder() -> Path:
    """The folder that has `COMMANDS` and coredns, which are built now unless they are there."""
    folder = cache_folder() / f"kubernetes-{KUBERNETES}-{COREDNS}"
    with (folder.parent / "kubernetes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder.mkdir(exist_ok=True)
        if not all((folder / name).exists() for name in COMMANDS):
            _build(folder, _kubernetes_module(), [f"k8s.io/kubernetes/cmd/{name}" for name in COMMANDS])
        if not (folder / "coredns").exists():
            module = f"module lab\n\ngo 1.24\n\nrequire github.com/coredns/coredns v{COREDNS}\n"
            _build(folder, module, ["github.com/coredns/coredns"])
    return folder


def _kubernetes_module() -> str:
    """A go.mod that asks for Kubernetes, and for the published form of the modules that its sources bring along."""
    address = f"{PROXY}/k8s.io/kubernetes/@v/v{KUBERNETES}.mod"
    with urllib.request.urlopen(address, timeout=60) as answer:
        text = answer.read().decode()
    staged = sorted(set(re.findall(r"(k8s\.io/\S+) => \./staging", text)))
    version = re.search(r"^go (\S+)", text, re.MULTILINE)
    assert version is not None, address
    lines = "".join(f"\t{name} => {name} v0{KUBERNETES.removeprefix('1')}\n" for name in staged)
    head = f"module lab\n\ngo {version[1]}\n\nrequire k8s.io/kubernetes v{KUBERNETES}\n"
    return f"{head}\nreplace (\n{lines})\n"


def go_program(lab: str) -> str:
    """Raises `MissingError`."""
    go = find("go") or (str(GO) if GO.exists() else None)
    if go is None:
        raise MissingError(f"{lab} needs Go, to build it (golang.org, or Debian's golang)")
    return go


def _build(folder: Path, module: str, packages: list[str]) -> None:
    go = go_program("a Kubernetes cluster")
    log = folder / "build.log"
    work = Path(tempfile.mkdtemp(prefix="dsv-build-"))
    try:
        (work / "go.mod").write_text(module)
        imports = "".join(f'\t_ "{name}"\n' for name in packages)
        (work / "tools.go").write_text(f"//go:build tools\n\npackage lab\n\nimport (\n{imports})\n")
        env = {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOPROXY": PROXY, "HOME": os.environ["HOME"]}
        env["GOPATH"] = os.environ.get("GOPATH", f"{env['HOME']}/go")
        call([go, "-C", str(work), "mod", "tidy"], log=log, env=env, timeout=1200)
        release = "k8s.io/component-base/version"
        major, minor, _ = KUBERNETES.split(".")
        facts = {"gitVersion": f"v{KUBERNETES}", "gitMajor": major, "gitMinor": minor}
        flags = " ".join(["-s -w", *(f"-X {release}.{name}={value}" for name, value in facts.items())])
        built = work / "built"
        built.mkdir()
        argv = [go, "-C", str(work), "build", "-trimpath", "-ldflags", flags, "-o", f"{built}/", *packages]
        call(argv, log=log, env=env, timeout=4800)
        for program in built.iterdir():
            shutil.copy(program, folder / f".{program.name}")
            (folder / f".{program.name}").rename(folder / program.name)
    finally:
        shutil.rmtree(work, ignore_errors=True)
