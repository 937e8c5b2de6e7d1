"""The keys of a Kubernetes lab, by which its parts know each other."""

from __future__ import annotations

from pathlib import Path

from tests.labs.kubernetes_config import API, NODES
from tests.labs.machine import call


def make_keys(folder: Path, programs: Path, address: str) -> None:
    """An authority and, for each part of the cluster, a key and a configuration with it. address: of the API server."""
    log = folder / "keys.log"
    new = ["openssl", "req", "-newkey", "rsa:2048", "-nodes"]
    authority = ["-x509", "-subj", "/CN=lab", "-days", "30", "-out", f"{folder}/ca.crt"]
    call([*new, *authority, "-keyout", f"{folder}/ca.key"], log=log)
    call(["openssl", "genrsa", "-out", f"{folder}/accounts.key", "2048"], log=log)
    names = "DNS:localhost,DNS:kubernetes,DNS:kubernetes.default.svc"
    addresses = f"IP:127.0.0.1,IP:{address},IP:10.96.0.1"
    (folder / "names").write_text(f"subjectAltName={addresses},{names}")
    for name, subject in (
        ("api", "/CN=kube-apiserver"),
        ("admin", "/O=system:masters/CN=admin"),
        ("manager", "/CN=system:kube-controller-manager"),
        ("scheduler", "/CN=system:kube-scheduler"),
        *((node, f"/O=system:nodes/CN=system:node:{node}") for node in NODES),
    ):
        _make_key(folder, programs, address, name, subject)


def _make_key(folder: Path, programs: Path, address: str, name: str, subject: str) -> None:
    log = folder / "keys.log"
    key, request, signed = (f"{folder}/{name}.{end}" for end in ("key", "csr", "crt"))
    new = ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-keyout", key]
    call([*new, "-subj", subject, "-out", request], log=log)
    sign = [
        "openssl",
        "x509",
        "-req",
        "-in",
        request,
        "-CA",
        f"{folder}/ca.crt",
        "-CAkey",
        f"{folder}/ca.key",
    ]
    more = ["-CAcreateserial", "-days", "30", "-extfile", f"{folder}/names", "-out", signed]
    call([*sign, *more], log=log)
    kubectl = [str(programs / "kubectl"), "config", "--kubeconfig", f"{folder}/{name}.conf"]
    where = [
        "--server",
        f"https://{address}:{API}",
        "--certificate-authority",
        f"{folder}/ca.crt",
    ]
    call([*kubectl, "set-cluster", "lab", *where, "--embed-certs"], log=log)
    who = ["--client-certificate", signed, "--client-key", key]
    call([*kubectl, "set-credentials", "me", *who, "--embed-certs"], log=log)
    call([*kubectl, "set-context", "lab", "--cluster", "lab", "--user", "me"], log=log)
    call([*kubectl, "use-context", "lab"], log=log)
