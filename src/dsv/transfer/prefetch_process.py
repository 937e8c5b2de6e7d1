"""`python -m dsv.transfer.prefetch_process ROOT PIPE MEMORY`: a reading process, started by `Readers`.

It answers orders until its pipe is closed; the death of its parent closes it too. It decides nothing: a file that it
can't read, or that is changing, is left to the parent.
"""

from __future__ import annotations

import mmap
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from dsv.format.codec import Compressor
from dsv.fs.descent import Descent
from dsv.transfer.prefetch import Order, Slot, read_batch

_orders = msgspec.msgpack.Decoder(Order)


def main() -> None:
    root, pipe, memory = sys.argv[1:]
    slots = memoryview(mmap.mmap(int(memory), 0))
    compressor = Compressor()
    with Connection(int(pipe)) as asked, Descent(Path(root)) as descent:
        while True:
            try:
                order = _orders.decode(asked.recv_bytes())
                slot = Slot(slots, order.slot)
                asked.send_bytes(slot.write(read_batch(descent, compressor, order, slot.contents)))
            except (EOFError, BrokenPipeError, ConnectionResetError):
                return


if __name__ == "__main__":
    main()
