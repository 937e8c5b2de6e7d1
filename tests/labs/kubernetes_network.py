"""The network of a Kubernetes lab: one namespace for all of it, and a pair of virtual interfaces to this host."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.labs.machine import LabError, call, find

NUMBERS = range(213, 245)  # of 10.N.0.0/16, which this host's other networks rarely use


@dataclass(frozen=True, slots=True)
class Network:
    """Where the parts of one lab are. `number`: N of the lab's own 10.N.0.0/16."""

    number: int
    namespace: str

    @property
    def host(self) -> str:
        """The address by which pods reach this host."""
        return f"10.{self.number}.255.1"

    @property
    def cluster(self) -> str:
        """The address by which this host reaches what runs in the namespace."""
        return f"10.{self.number}.255.2"

    @property
    def pods(self) -> str:
        """The beginning of every pod's address."""
        return f"10.{self.number}."


def make_network(folder: Path) -> Network:
    """Make the namespace, and take a number that no other lab has.

    A lab that was killed with the machine's processes leaves its network, and so its number, behind. The kernel lets
    one route to a network exist, which decides between labs that begin at the same time.
    """
    log, name, veth = folder / "network.log", _namespace(folder), _veth(folder)
    inside = ["ip", "netns", "exec", name]
    for argv in (
        ["ip", "netns", "add", name],
        ["ip", "link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", name],
        ["ip", "link", "set", veth, "up"],
        [*inside, "ip", "link", "set", "lo", "up"],
        [*inside, "ip", "link", "set", "eth0", "up"],
        [*inside, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"],
    ):
        call(argv, log=log)
    network = _take_number(name, veth, log)
    call([*inside, "ip", "addr", "add", f"{network.cluster}/30", "dev", "eth0"], log=log)
    call([*inside, "ip", "route", "add", "default", "via", network.host], log=log)
    call(["ip", "addr", "add", f"{network.host}/30", "dev", veth], log=log)
    return network


def remove_network(folder: Path, pods: Sequence[str] = ()) -> None:
    """Take away what `make_network` made for this folder, whole or not. pods: the namespaces of its pods."""
    namespaces = [["netns", "del", each] for each in (*pods, _namespace(folder))]
    for argv in (["link", "del", _veth(folder)], *namespaces):
        subprocess.run([find("ip") or "ip", *argv], check=False, capture_output=True)


def _take_number(name: str, veth: str, log: Path) -> Network:
    for number in NUMBERS:
        network = Network(number, name)
        try:
            call(
                ["ip", "route", "add", f"10.{number}.0.0/16", "via", network.cluster, "dev", veth, "onlink"],
                log=log,
            )
        except LabError:
            continue
        return network
    raise LabError(f"no network 10.{NUMBERS[0]}.0.0/16 to 10.{NUMBERS[-1]}.0.0/16 is free; {log} says why")


def _namespace(folder: Path) -> str:
    return f"dsv-k8s-{os.stat(folder.parent).st_ino}"


def _veth(folder: Path) -> str:
    return f"dk{os.stat(folder.parent).st_ino}"[:15]
