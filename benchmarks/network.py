"""A network between client and server: two namespaces joined by a wire of given delay and rate.

The wire is this program: two TUN devices, whose packets it passes on after half a round trip and no faster than
the rate. The kernels on both sides do real TCP over it, handshakes and slow start included. Packets travel as
the large segments that TCP offloading makes (the virtio header in front of each tells the other side how to
treat them), so a Python loop keeps up with 1 Gbit/s; it works where the kernel has no netem.
"""

from __future__ import annotations

import fcntl
import heapq
import itertools
import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

CLIENT_ADDRESS, SERVER_ADDRESS = "10.78.0.2", "10.78.0.1"
MTU = 1500
LARGEST = 1 << 16
QUEUE = 4 << 20  # bytes that wait at the slow end, as in a switch; what comes on top is dropped

TUNSETIFF, TUNSETOFFLOAD, TUNSETVNETHDRSZ = 0x400454CA, 0x400454D0, 0x400454D8
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4 = 0x01, 0x02
VNET_HEADER = 10


@dataclass(frozen=True, slots=True)
class Network:
    """Names of the two namespaces; a command is run in one by putting `client` or `server` in front of it."""

    name: str

    @property
    def client(self) -> list[str]:
        return ["ip", "netns", "exec", f"{self.name}-client"]

    @property
    def server(self) -> list[str]:
        return ["ip", "netns", "exec", f"{self.name}-server"]


@dataclass(slots=True)
class Direction:
    """Packets on their way from one device to the other."""

    source: int
    target: int
    delay: float  # seconds
    rate: float  # bytes/s
    free_at: float = 0.0  # when the wire has sent all that it was given
    under_way: list[tuple[float, int, bytes]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def take(self, now: float) -> None:
        """Put every waiting packet on the wire, or drop it where the queue is full."""
        while True:
            try:
                packet = os.read(self.source, LARGEST + VNET_HEADER)
            except BlockingIOError:
                return
            if (self.free_at - now) * self.rate > QUEUE:
                continue
            segments = -(-len(packet) // MTU)
            self.free_at = max(self.free_at, now) + (len(packet) + 38 * segments) / self.rate
            heapq.heappush(self.under_way, (self.free_at + self.delay, next(self.numbers), packet))

    def deliver(self, now: float) -> None:
        while self.under_way and self.under_way[0][0] <= now:
            packet = heapq.heappop(self.under_way)[2]
            try:
                os.write(self.target, packet)
            except BlockingIOError:
                continue  # the other side's queue is full: the packet is lost, as on any network


@contextmanager
def network(round_trip: float, bits_per_second: float) -> Iterator[Network]:
    """Two namespaces with a wire between them, both gone at the end. Needs root and /dev/net/tun."""
    made = Network(f"dsv-bench-{os.getpid()}")
    argv = [sys.executable, __file__, made.name, str(round_trip), str(bits_per_second)]
    for end in ("client", "server"):
        subprocess.run(["ip", "netns", "add", f"{made.name}-{end}"], check=True)
    wire = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert wire.stdout is not None
        assert wire.stdout.readline() == b"ready\n", "the wire did not come up"
        yield made
    finally:
        assert wire.stdin is not None
        wire.stdin.close()
        wire.wait(10)
        for end in ("client", "server"):
            subprocess.run(["ip", "netns", "del", f"{made.name}-{end}"], check=False)


def _device(namespace: str, name: str, address: str) -> int:
    """A TUN device with offloading inside a namespace; its descriptor, non-blocking."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH14x", name.encode(), IFF_TUN | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(device, TUNSETVNETHDRSZ, struct.pack("i", VNET_HEADER))
    fcntl.ioctl(device, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4)
    subprocess.run(["ip", "link", "set", name, "netns", namespace], check=True)
    inside = ["ip", "-n", namespace]
    for rest in (
        ["link", "set", "lo", "up"],
        ["addr", "add", f"{address}/24", "dev", name],
        ["link", "set", name, "mtu", str(MTU), "txqueuelen", "10000", "up"],
    ):
        subprocess.run([*inside, *rest], check=True)
    return device


def _run_wire(name: str, round_trip: float, bits_per_second: float) -> None:
    """Pass packets on until standard input is closed."""
    client = _device(f"{name}-client", f"wc{os.getpid()}", CLIENT_ADDRESS)
    server = _device(f"{name}-server", f"ws{os.getpid()}", SERVER_ADDRESS)
    rate, delay = bits_per_second / 8, round_trip / 2
    ways = [Direction(client, server, delay, rate), Direction(server, client, delay, rate)]
    by_source = {way.source: way for way in ways}
    print("ready", flush=True)
    while True:
        due = min((way.under_way[0][0] for way in ways if way.under_way), default=None)
        wait = None if due is None else max(0.0, due - time.monotonic())
        readable = select.select([0, client, server], [], [], wait)[0]
        if 0 in readable:
            return
        now = time.monotonic()
        for source in readable:
            by_source[source].take(now)
        for way in ways:
            way.deliver(time.monotonic())


if __name__ == "__main__":
    _run_wire(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
