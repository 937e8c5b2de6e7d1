"""`python -m tests.training.trainer HOME LOG ORDER`: a training that notes what is delivered to it, until it is killed.

All ranks are in one process, and advance in step. The log has the delivered paths and the state, and is replaced as a
whole, as a checkpoint is.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tests.api.pets_in_python import of

warnings.simplefilter("ignore")  # of an old PyTorch about a new numpy


def main(home: Path, log: Path, order: dict[str, Any]) -> None:
    from dsv.torch import Loader

    commit = of(home).open("pets@v1")
    images = commit.samples("images", window=2 << 20)
    mixture = [(images, 0.7), (commit.samples("images/0", "images/1"), 0.3)]
    data = mixture if order.pop("mixture", False) else images
    epochs, world, size = order.pop("epochs"), order.pop("world", 1), order.pop("size")
    loaders = [Loader(data, size, seed=3, rank=rank, world_size=world, **order) for rank in range(world)]
    known = json.loads(log.read_text()) if log.exists() else {"delivered": [], "state": None}
    for loader in loaders:
        if known["state"] is not None:
            loader.load_state_dict(known["state"])
    while loaders[0].epoch < epochs:
        for batches in zip_longest(*loaders):
            states = {
                json.dumps(loader.state_dict()) for loader, one in zip(loaders, batches, strict=True) if one
            }
            assert len(states) == 1
            known["state"] = json.loads(states.pop())
            known["delivered"].append(sorted(path for one in batches if one for path in one.path))
            new = log.with_suffix(".new")
            new.write_text(json.dumps(known))
            os.replace(new, log)
    known["end"] = loaders[0].state_dict()
    log.write_text(json.dumps(known))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
