"""The real Snakemake, in an environment of its own, as it needs fifty packages.

It is kept under /var/cache/dsv-labs (or $DSV_LABS_CACHE) by version; to install it takes a minute.
"""

from __future__ import annotations

import fcntl
import shutil
import sys
from pathlib import Path

from tests.labs.images import cache_folder
from tests.labs.machine import LabError, MissingError, call

VERSION = "9.27.1"


def program() -> Path:
    """The program, which is installed now unless it is there. Raises `MissingError`."""
    folder = cache_folder() / f"snakemake-{VERSION}-{sys.implementation.cache_tag}"
    with (folder.parent / "snakemake.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "done"
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            log = folder.parent / "snakemake.log"
            try:
                call([sys.executable, "-m", "venv", str(folder)], log=log)
                install = [f"{folder}/bin/pip", "install", "--quiet", f"snakemake=={VERSION}"]
                call(install, log=log, timeout=600)
            except LabError as error:
                raise MissingError(f"Snakemake needs a Python package index: {error}") from error
            done.touch()
    return folder / "bin" / "snakemake"
