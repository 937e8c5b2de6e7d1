"""Which SSH servers are trusted: those that `ssh` itself knows."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import paramiko
from fsspec.implementations import sftp

KNOWN = (Path("/etc/ssh/ssh_known_hosts"), Path.home() / ".ssh/known_hosts")


class KnownHosts(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
    """Refuses a server whose key is not in OpenSSH's files of known hosts: anybody could be answering there."""

    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        for path in KNOWN:
            if path.is_file() and paramiko.HostKeys(str(path)).check(hostname, key):
                return
        raise paramiko.SSHException(
            f"the {key.get_name()} key of {hostname} is not in {KNOWN[-1]}; ssh asks whether it is the right one"
        )


def ssh_options() -> dict[str, Any]:
    """What fsspec's file system over SSH is to be told. Older ones take no policy, and trust any server."""
    logging.getLogger("paramiko").addHandler(logging.NullHandler())  # its traceback of what it raises as well
    return {"host_key_policy": KnownHosts()} if hasattr(sftp, "_resolve_host_key_policy") else {}
