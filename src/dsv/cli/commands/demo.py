"""dsv demo: the whole tour, by real commands in a temporary folder."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from textwrap import wrap
from typing import Annotated, Literal

from dsv.cli.call import Call
from dsv.cli.declare import command, option
from dsv.errors import DsvError, LaunchError


@command(
    "demo",
    unused=["--store", "--cache", "-C"],
    examples="""
        dsv demo  # the whole tour, in seconds, with nothing but this machine
        dsv demo --engine process  # without a container, even if an engine is installed
    """,
    result="items(command output)",
)
def demo(
    call: Call,
    engine: Annotated[
        Literal["docker", "podman", "process"] | None,
        option("--engine [docker|podman|process]", "What runs the jobs, instead of the best that answers."),
    ] = None,
) -> None:
    """Take the whole tour in a temporary folder.

    Makes a small dataset, syncs, changes and tags it, caches it, runs jobs on it and evicts it again; then lets old
    commits expire, copies the store, and repairs it: real commands with their real output, over a store and a cache in
    a folder that is gone afterwards. It needs no network, and reads and writes nothing else of yours.
    """
    if call.around.stdout_is_terminal and not call.json:
        call.out.stream()
    folder = Path(tempfile.mkdtemp(prefix="dsv-demo-"))
    try:
        tour = Tour(folder, call.around.environ, (lambda line: None) if call.json else call.line)
        tour.take(engine)
    finally:
        _writable(folder)
        shutil.rmtree(folder, ignore_errors=True)
    if call.json:
        call.results(tour.steps)


def _writable(folder: object) -> None:
    """Make folders writable: cached ones may be read-only, and then their files can't be removed."""
    for root, folders, _ in os.walk(str(folder)):
        for name in folders:
            path = os.path.join(root, name)  # noqa: PTH118 (os.walk deals in strings)
            if not os.path.islink(path):  # noqa: PTH114
                os.chmod(path, 0o700)  # noqa: PTH101


STEP_SECONDS = 120.0
WIDTH = 76
ASK_SECONDS = 15.0
SIDE = 16
"""Pixels of a picture's side."""
PER_CLASS = 40
KNOWN_IMAGES = "python debian ubuntu alpine busybox fedora rockylinux almalinux opensuse"
"""Images that have a shell: another one that happens to lie here might not."""

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


@dataclass(frozen=True, slots=True)
class Step:
    """A command as a person types it, and what it printed."""

    command: str
    output: str


class Tour:
    """Runs commands, shows their output line by line, and remembers it."""

    def __init__(self, folder: Path, environ: Mapping[str, str], show: Callable[[str], None]) -> None:
        self.folder = folder
        self.workspace = folder / "shapes"
        self.steps: list[Step] = []
        self._show = show
        # Nothing of this person's is touched: the variables come before any config file.
        self._environ = {
            **{key: value for key, value in environ.items() if not key.startswith("DSV_")},
            "DSV_STORE": str(folder / "store"),
            "DSV_CACHE": str(folder / "cache"),
            "DSV_CONFIG": str(folder / "config.toml"),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CACHE_HOME": str(folder / "user-cache"),
        }

    def take(self, engine: str | None) -> None:
        """Take all of the tour. Raises `DsvError` if a command fails."""
        options, note = choose_engine(engine, self._environ)
        self.workspace.mkdir()
        make_pictures(self.workspace)
        (self.folder / "code").mkdir()
        (self.folder / "code/count.sh").write_text(JOB)
        self.say(f"A folder with {PER_CLASS * len(SHAPES)} small pictures in {len(SHAPES)} classes.")
        self.shell(["ls"])
        self.say("Bind it to a new dataset; commit and publish it; name the commit for good.")
        self.dsv("init", "shapes")
        self.dsv("sync", "-m", "the first pictures")
        self.dsv("tag", "v1")
        self.say("Somebody relabels a picture and redraws another. Only what changed is uploaded.")
        self.shell(["mv", "circle/07.pgm", "square/circle-07.pgm"])
        draw(self.workspace / "cross/01.pgm", SHAPES["cross"], seed=99)
        self.dsv("status")
        self.dsv("sync", "-m", "circle 7 is a square")
        self.dsv("log", "--oneline")
        self.say("Make the tag appear as plain files in the cache, for an hour at least.")
        self.dsv("cache", "shapes@v1", "--hold", "1h")
        self.say(f"Run a job on each commit; the record keeps what it saw. {note}")
        job = (*options, "--code", "../code", "-p", "lr=0.1", "--", "sh", "count.sh")
        self.dsv("run", "shapes@v1", *job)
        self.dsv("run", "shapes", *job)
        self.dsv("runs")
        self.say("What is cached; evicting all of it leaves what is held, until that is released.")
        self.dsv("cached")
        self.dsv("evict", "--all")
        self.dsv("release", "shapes@v1")
        self.dsv("evict", "--all")
        self.keep()

    def keep(self) -> None:
        """Take the last third: free, check, repair and copy a store that is kept for years."""
        self.say("Later: another change. All but the last commit and the tag expire, until --undo.")
        draw(self.workspace / "cross/02.pgm", SHAPES["cross"], seed=98)
        self.dsv("sync", "-m", "a better cross")
        self.dsv("expire", "shapes", "--keep-last", "1", "--also-runs")
        self.say("Free what only expired commits had, at once.")
        self.dsv("gc", "--yes", "--grace", "0s")
        self.dsv("du", "shapes")
        self.say("A second copy of the store; with cron it stays up to date.")
        self.dsv("copy", "shapes", "--tags", "--to", "../copy", "--create")
        self.say("A disk loses a pack: a check lists what was lost, and the copy has it.")
        packs = (self.folder / "store/packs").glob("*/*")
        largest = max(packs, key=lambda path: (path.stat().st_size, path.name))
        self.shell(["rm", f"../{largest.relative_to(self.folder)}"])
        self.dsv("verify", "shapes@v1", code=5)
        self.dsv("verify", "--repair", "--from", "../copy")

    def say(self, text: str) -> None:
        if self.steps:
            self._show("")
        for line in wrap(text, WIDTH):
            self._show(f"# {line}")

    def dsv(self, *arguments: str, code: int = 0) -> None:
        """Run a command that ends with this exit code."""
        argv = [sys.executable, "-m", "dsv.cli.main", *arguments]
        self._run(argv, shlex.join(["dsv", *arguments]), code)

    def shell(self, argv: Sequence[str]) -> None:
        self._run(argv, shlex.join(argv))

    def _run(self, argv: Sequence[str], text: str, code: int = 0) -> None:
        self._show(f"$ {text}")
        try:
            done = subprocess.run(
                argv,
                cwd=self.workspace,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=STEP_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LaunchError(f"the demo could not run {text}: {error}", subject=text) from error
        output = done.stdout.decode("utf-8", "replace")
        self.steps.append(Step(text, output))
        for line in output.splitlines():
            self._show(line)
        if done.returncode != code:
            raise DsvError(
                f"the demo stopped: {text} ended with exit code {done.returncode}",
                subject=text,
                hint="dsv demo --engine process needs no container" if " run " in text else None,
            )


def choose_engine(name: str | None, environ: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    """Return the options of `dsv run` for the tour's jobs, and a sentence about them.

    The best engine is one that has an image with a shell and starts it; without any, jobs are processes. Raises
    `LaunchError` if the named one can't.
    """
    note = "No container engine with an image is here, so the jobs are plain processes."
    for program in ("docker", "podman"):
        if name not in (None, program):
            continue
        image = local_image(program, environ)
        reason = f"{program} does not answer, or has no image with a shell"
        if image is not None:
            reason = _ask([program, "run", "--rm", image, "sh", "-c", "true"], environ)[1]
            if not reason:
                options = ("--engine", program, "--image", image)
                return options, f"The jobs run in containers of {program}."
            note = f"{program} could not start a container here ({reason}), so the jobs are plain processes."
        if name == program:
            raise LaunchError(
                f"{program} can't run the demo: {reason}", subject=program, hint="dsv demo --engine process"
            )
    return ("--engine", "process"), "The jobs are plain processes." if name == "process" else note


def local_image(program: str, environ: Mapping[str, str]) -> str | None:
    """Return the name of an image on this machine, the best known first."""
    listed, refused = _ask([program, "images", "--format", "{{.Repository}}:{{.Tag}}"], environ)
    names = [] if refused else listed.split()
    for known in KNOWN_IMAGES.split():
        for name in names:
            repository, _, tag = name.rpartition(":")
            if repository.rpartition("/")[2] == known and tag != "<none>":
                return name
    return None


def _ask(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the output of a program, and why it failed, which is empty if it didn't."""
    try:
        done = subprocess.run(
            argv, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=ASK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"{argv[0]}: {error.__class__.__name__}"
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    said = lines[-1] if lines else f"exit code {done.returncode}"
    return done.stdout.decode("utf-8", "replace"), said if done.returncode else ""


def make_pictures(folder: Path) -> None:
    """Write the same pictures every time."""
    for name, shape in SHAPES.items():
        (folder / name).mkdir()
        for number in range(PER_CLASS):
            draw(folder / name / f"{number:02}.pgm", shape, seed=number)


def draw(path: Path, shape: Shape, seed: int) -> None:
    """Draw a shape a little off the middle, over noise, as plain PGM."""
    noise = Random(f"{path.parent.name} {seed}")
    centre = SIDE // 2 + seed % 3 - 1

    def pixel(x: int, y: int) -> str:
        return "15" if shape(x - centre, y - centre) else str(noise.randrange(5))

    rows = [" ".join(pixel(x, y) for x in range(SIDE)) for y in range(SIDE)]
    path.write_text(f"P2\n{SIDE} {SIDE}\n15\n" + "\n".join(rows) + "\n")
