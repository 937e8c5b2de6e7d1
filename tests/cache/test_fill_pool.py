"""Many operations at once: a caller that waits for them is woken, whatever happens to them."""

from __future__ import annotations

import pytest

from dsv.cache.fill.place_files import Pool


def test_an_error_is_heard_once_or_dropped_on_demand() -> None:
    pool = Pool(2)

    def fail() -> None:
        raise OSError("no")

    pool.run(fail)
    pool.settle()
    with pytest.raises(OSError, match="no"):
        pool.drain()
    pool.drain()
    pool.run(fail)
    pool.clear()
    pool.drain()
    pool.close()
