"""dsv demo: the whole tour, with real commands in a temporary folder."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from random import Random
from textwrap import wrap
from typing import Literal

from dsv.cli.call import Call
from dsv.cli.declare import command, option
from dsv.cli.terminal import Style
from dsv.errors import DsvError, LaunchError, NotFound

STEP_SECONDS = 120.0
WIDTH = 76
SIDE = 16
"""Pixels of a picture's side."""
PER_CLASS = 40
KNOWN_IMAGES = ("python", "debian", "ubuntu", "alpine", "busybox", "fedora", "rockylinux", "almalinux")
"""Images that have a shell; other images on this machine might not."""

JOB = """\
n=$(find "$DSV_DATA" -name '*.pgm' | wc -l)
echo "$n pictures of commit $(echo $DSV_COMMIT | cut -c 1-12), parameters $DSV_PARAMS"
echo "{\\"pictures\\": $n}" > "$DSV_OUT/metrics.json"
"""

Shape = Callable[[int, int], bool]
SHAPES: Mapping[str, Shape] = {
    "circle": lambda x, y: 20 <= x * x + y * y <= 40,
    "cross": lambda x, y: abs(x) <= 1 or abs(y) <= 1,
    "square": lambda x, y: max(abs(x), abs(y)) in (5, 6),
}

TOUR = """
# A folder with 120 small pictures in 3 classes.
ls
# Bind it to a new dataset; commit and publish it; name the commit for good.
dsv init shapes
dsv sync -m 'the first pictures'
dsv tag v1
# Somebody relabels a picture and redraws another. Only what changed is uploaded.
mv circle/07.pgm square/circle-07.pgm
draw cross/01.pgm
dsv status
dsv sync -m 'circle 7 is a square'
dsv log --oneline
# Make the tag appear as plain files in the cache, for an hour at least.
dsv cache shapes@v1 --hold 1h
# Run a job on each commit; the record keeps what it saw.
dsv run shapes@v1 ENGINE --code ../code -p lr=0.1 -- sh count.sh
dsv run shapes ENGINE --code ../code -p lr=0.1 -- sh count.sh
dsv runs
# What is cached; evicting all of it leaves what is held, until that is released.
dsv cached
dsv evict --all
dsv release shapes@v1
dsv evict --all
# Later: another change. All but the last commit and the tag expire, until --undo.
draw cross/02.pgm
dsv sync -m 'a better cross'
dsv expire shapes --keep-last 1 --also-runs
# Free what only expired commits had, at once.
dsv gc --yes --grace 0s
dsv du shapes
# A second copy of the store; with cron it stays up to date.
dsv copy shapes --tags --to ../copy --create
# A disk loses a pack: a check lists what was lost, and the copy has it.
rm LARGEST
dsv verify shapes@v1
dsv verify --repair --from ../copy
# Your own data: dsv init in its folder, then dsv sync -m TEXT. dsv --help lists all commands.
# All of this as pages for a browser, which stay.
dsv site PAGES
"""
"""Comments, commands and pictures to draw. ENGINE: the engine's options. LARGEST: the largest pack. The last two
lines are for those who have the extra `site`."""
_STYLES = {"# ": Style.HINT, "$ ": Style.HEADING}
"""By the beginning of a line."""
FAILING = {"dsv verify shapes@v1": 5}
"""The exit codes of commands that have to fail."""


@command(
    "demo",
    unused=["--store", "--cache", "-C"],
    examples="""
        dsv demo  # the whole tour, in seconds, with nothing but this machine
        dsv demo --engine podman  # with the jobs in containers
    """,
    result="items(command output)",
)
def demo(
    call: Call,
    engine: Literal["docker", "podman", "process"] = option(
        "--engine [docker|podman|process]", "What runs the jobs.", default="process"
    ),
) -> None:
    """Take the whole tour in a temporary folder.

    Makes a small dataset, syncs, changes and tags it, caches it, runs jobs on it and evicts it again; then lets old
    commits expire, copies the store, and repairs it: real commands with their real output, with a store and a cache
    in a folder that is removed afterwards. It needs no network, and reads and writes nothing else of yours, except for
    a folder with pages for a browser, which stays.
    """
    if call.around.stdout_is_terminal and not call.json:
        call.out.stream()
    folder = Path(tempfile.mkdtemp(prefix="dsv-demo-"))
    try:
        steps = take(
            folder, call.around.environ, engine, lambda line: call.line(line, _STYLES.get(line[:2], ""))
        )
    finally:
        _writable(folder)
        shutil.rmtree(folder, ignore_errors=True)
    if call.json:
        call.items({"command": typed, "output": output} for typed, output in steps)


def take(
    folder: Path, environ: Mapping[str, str], engine: str, show: Callable[[str], None]
) -> list[tuple[str, str]]:
    """Take the tour, and return its commands with their output. Raises `DsvError` if a command fails."""
    workspace = folder / "shapes"
    # Nothing of the user's is touched: the variables override every config file.
    environ = {
        **{key: value for key, value in environ.items() if not key.startswith("DSV_")},
        "DSV_STORE": str(folder / "store"),
        "DSV_CACHE": str(folder / "cache"),
        "DSV_CONFIG": str(folder / "config.toml"),
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_CACHE_HOME": str(folder / "user-cache"),
    }
    options = f"--engine {engine}"
    if engine != "process":
        options += f" --image {local_image(engine, environ)}"
    for name in SHAPES:
        (workspace / name).mkdir(parents=True)
        for number in range(PER_CLASS):
            draw(workspace / name / f"{number:02}.pgm", seed=number)
    (folder / "code").mkdir()
    (folder / "code/count.sh").write_text(JOB)
    steps: list[tuple[str, str]] = []
    has_pages = find_spec("jinja2") is not None
    for line in TOUR.strip().splitlines()[: None if has_pages else -2]:
        word, _, rest = line.partition(" ")
        if word == "#":
            for row in (*([""] if steps else []), *(f"# {each}" for each in wrap(rest, WIDTH))):
                show(row)
            continue
        if word == "draw":
            draw(workspace / rest, seed=99)
            continue
        if rest == "LARGEST":
            packs = (folder / "store/packs").glob("*/*")
            largest = max(packs, key=lambda path: (path.stat().st_size, path.name))
            line = f"rm ../{largest.relative_to(folder)}"
        if rest == "site PAGES":
            line = f"dsv site {tempfile.mkdtemp(prefix='dsv-demo-pages-')}"
        typed = line.replace("ENGINE", options)
        show(f"$ {typed}")
        output = _run(typed, workspace, environ)
        steps.append((typed, output))
        for row in output.splitlines():
            show(row)
    return steps


def _run(typed: str, folder: Path, environ: Mapping[str, str]) -> str:
    """Run a command and return its output. Raises `DsvError` if its exit code is not the expected one."""
    argv = shlex.split(typed)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "dsv.cli.main", *argv[1:]] if argv[0] == "dsv" else argv,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=STEP_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"the demo could not run {typed}: {error}", subject=typed) from error
    output = done.stdout.decode("utf-8", "replace")
    if done.returncode != FAILING.get(typed, 0):
        raise DsvError(
            f"the demo stopped: {typed} ended with exit code {done.returncode}\n{output.rstrip()}",
            subject=typed,
            hint="dsv demo --engine process needs no container" if " run " in typed else None,
        )
    return output


def _writable(folder: object) -> None:
    """Make folders writable: cached ones may be read-only, and then their files can't be removed."""
    for root, folders, _ in os.walk(str(folder)):
        for name in folders:
            path = os.path.join(root, name)  # noqa: PTH118 (os.walk deals in strings)
            if not os.path.islink(path):  # noqa: PTH114
                os.chmod(path, 0o700)  # noqa: PTH101


def local_image(program: str, environ: Mapping[str, str]) -> str:
    """Return the name of an image on this machine, the best known first. Raises `NotFound` if there is none."""
    listed = _run(f"{program} images --format '{{{{.Repository}}}}:{{{{.Tag}}}}'", Path("/"), environ).split()
    for known in KNOWN_IMAGES:
        for name in listed:
            repository, _, tag = name.rpartition(":")
            if repository.rpartition("/")[2] == known and tag != "<none>":
                return name
    raise NotFound(
        f"{program} has no image with a shell here", subject=program, hint="dsv demo --engine process"
    )


def draw(path: Path, seed: int) -> None:
    """Draw the shape that the folder is named after, a little off centre and over noise, as plain PGM."""
    shape = SHAPES[path.parent.name]
    noise = Random(f"{path.parent.name} {seed}")
    centre = SIDE // 2 + seed % 3 - 1

    def pixel(x: int, y: int) -> str:
        return "15" if shape(x - centre, y - centre) else str(noise.randrange(5))

    rows = [" ".join(pixel(x, y) for x in range(SIDE)) for y in range(SIDE)]
    path.write_text(f"P2\n{SIDE} {SIDE}\n15\n" + "\n".join(rows) + "\n")
