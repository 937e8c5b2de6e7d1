"""A Parquet table and the same with one row in a hundred changed."""

from __future__ import annotations

import random
from pathlib import Path

from benchmarks.data import SEED

ROWS = 4_000_000


def make(below: Path, chunked: bool, changed: bool) -> Path:
    """The file, made now unless it is there; `chunked` by content, as pyarrow can since release 21."""
    import numpy
    import pyarrow
    import pyarrow.parquet

    folder = below / "parquet"
    (folder / "nothing").mkdir(parents=True, exist_ok=True)
    path = folder / f"{'chunked' if chunked else 'plain'}-{'after' if changed else 'before'}.parquet"
    if not path.exists():
        source = numpy.random.default_rng(SEED)
        columns = {
            "patient": source.integers(0, 1 << 40, ROWS),
            "value": source.normal(size=ROWS),
            "score": source.normal(size=ROWS).astype("float32"),
            "label": source.integers(0, 15, ROWS),
        }
        if changed:  # whole rows, in runs, as an edit of some patients would
            picks = random.Random(SEED)
            for first in (picks.randrange(ROWS - 400) for _ in range(ROWS // 100 // 400)):
                for name in ("value", "score"):
                    columns[name][first : first + 400] += 1
        table = pyarrow.table(columns)
        pyarrow.parquet.write_table(table, path, use_content_defined_chunking=chunked)
    return path
