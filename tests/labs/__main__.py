"""Labs by hand.

python -m tests.labs up NAME DIR     start one (ceph-rgw, docker-engine, kubernetes, nfs-hosts, podman, slurm);
                                     prints the exports that reach it. With DSV_LABS=DIR the tests use what runs
                                     there.
python -m tests.labs image           make the files of the Python image and of the dsv image's base now, so that later
                                     runs are fast
python -m tests.labs kubernetes      build Kubernetes' programs now, so that later runs are fast
python -m tests.labs kueue           build Kueue, and print the folder for DSV_KUEUE; see kueue.py
python -m tests.labs snakemake       install Snakemake now, so that later runs are fast
python -m tests.labs down DIR        stop all that runs there and remove the folder
python -m tests.labs keep DIR PID    wait for that process's end, then do the same
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from tests.labs import images, kubernetes_programs, kueue, shelf, snakemake
from tests.labs.machine import LabError, MissingError


def main(arguments: list[str]) -> int:
    match arguments:
        case ["up", name, folder] if name in shelf.LABS:
            for variable, value in shelf.attach(Path(folder).resolve(), name).env.items():
                print(f"export {variable}={shlex.quote(value)}")
            print(f"export DSV_LABS={shlex.quote(str(Path(folder).resolve()))}")
        case ["image"]:
            print(images.debian_tar(), images.python_tar(), sep="\n")
        case ["kubernetes"]:
            print(kubernetes_programs.programs_folder())
        case ["kueue"]:
            print(kueue.program_folder())
        case ["snakemake"]:
            print(snakemake.program())
        case ["down", folder]:
            shelf.take_down(Path(folder).resolve())
        case ["keep", folder, owner]:
            shelf.keep(Path(folder), int(owner))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (MissingError, LabError) as error:
        sys.exit(str(error))
