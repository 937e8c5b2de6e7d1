"""`python -m dsv.cache.hold.lease_holder`: holds places of a cache while another process lives; see `protocol`."""

from __future__ import annotations

import os
import select
import signal
import sys
from pathlib import Path

from dsv.cache.claims.leases import Lease
from dsv.cache.claims.user_leases import end_lease, find_leases
from dsv.cache.hold.protocol import Order
from dsv.cache.layout import Place
from dsv.cache.root import CacheRoot
from dsv.fs.process import Watched

_TICK = 0.5  # seconds


def main() -> int:
    # A signal that ends the watched process may go to every process of its host or of its job. The keeper must outlive
    # the watched process, so it ignores these.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")  # so that any file system can be unmounted meanwhile
    commands = _Commands()
    line = commands.next(None)
    if not line:
        return 1
    order = Order.decode(line)
    held: list[Lease] = []
    try:
        return _keep(order, held, commands)
    except OSError as error:
        _say(f"failed {error.errno or 0} {error.filename or order.root}")
        return 1
    finally:
        for lease in held:
            lease.release()


def _keep(order: Order, held: list[Lease], commands: _Commands) -> int:
    watched = Watched(order.pid, order.start)
    root = CacheRoot(Path(order.root))
    places = [Place(dataset, name) for dataset, name in order.places]
    for place in places:
        lease = Lease.take(
            root, place, "run", run=order.run, job=order.job, process=order.pid, program=order.program
        )
        held.append(lease)
        if not lease.confirm():
            _say(f"gone {place}")
            return 1
        lease.hold()
    for id_ in order.replaces:
        for old in find_leases(root, places, id_):
            end_lease(root, old)
    _say(" ".join(["held", *(lease.record.owner.id for lease in held)]))
    while not watched.has_ended():
        lost = next((lease for lease in held if lease.lost.is_set()), None)
        if lost is not None:
            _say(f"lost {lost.reason}")
            return 1
        line = commands.next(watched)
        if line == "done":
            break
        if line is not None and line.startswith("watch "):
            watched.close()
            watched = Watched(int(line.removeprefix("watch ")))
    return 0


class _Commands:
    """Lines on stdin. Its end means nothing: the parent may be dead while the watched process lives."""

    def __init__(self) -> None:
        self._unread = b""
        self._open = True

    def next(self, watched: Watched | None) -> str | None:
        """The next line; None after a while without one, or when the watched process has ended."""
        while b"\n" not in self._unread:
            inputs = [0] if self._open else []
            if watched is None and not inputs:
                return None
            also = [] if watched is None or watched.descriptor is None else [watched.descriptor]
            ready = select.select(inputs + also, [], [], None if watched is None else _TICK)[0]
            if 0 not in ready:
                return None
            data = os.read(0, 4096)
            self._open = bool(data)
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()


def _say(line: str) -> None:
    try:
        sys.stdout.write(line.replace("\n", " ") + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w", encoding="ascii")  # noqa: SIM115, PTH123 (nobody listens any more)


if __name__ == "__main__":
    sys.exit(main())
