"""Loaders for training, side by side: JPEGs of 110 kB on one S3 server, shuffled, by one and by two worker processes.

    python -m benchmarks.loaders                         10,000 images, three rounds; an hour on two cores
    python -m benchmarks.loaders --images 1000 --rounds 1 --only "dsv streamed,WebDataset"     a look, not a result
    python -m benchmarks.loaders --peers VENV --no-install   an environment that has torch and the peers already
    python -m benchmarks.loaders --first 1,16,256 --images 2000     first batches of so many workers, over 20 ms

Needs root and Debian's packages for the Ceph lab (see CONTRIBUTING.md), in whose memory six copies of the images lie;
with DSV_LABS it uses the server that is there. torch and the peers are installed into a venv below --folder, some 6 GB.

The images are crops of scikit-learn's two photographs in 1,000 folders, one for each class. s5cmd uploads them as they
are, dsv syncs them, and they are converted for each of the others, in a random order. A turn is a process that reads
one epoch, with nothing on its disk but what had to be fetched first: plain files, or a cache of dsv. The time of that
stands beside. The loaders take turns in each round, and each round begins with another one. Figures are medians of the
rounds; a ratio is that of the two rates in the same round. `decoded`: the workers decode with Pillow and resize to
224 x 224.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.labs import ceph_rgw, shelf
from tests.labs.s3_server import S3Server

from benchmarks.measure import Command, CommandError, Cost, run
from benchmarks.network import SERVER_ADDRESS, network
from benchmarks.server import fresh

ROOT = Path(__file__).parents[1]
TURNS = Path(__file__).with_name("loader_turns.py")
PACKAGES = ("torch", "pillow", "webdataset", "litdata", "datasets>=4", "s3fs", "s5cmd", "boto3")
STREAMING = (
    "mosaicml-streaming",
    "Brotli",
    "python-snappy",
    "zstd",
    "xxhash",
    "catalogue",
    "transformers>=5",
)
"""Streaming asks for versions that `datasets` does not work with, so it is installed without what it asks for."""
SHOWN = ("torch", "litdata", "webdataset", "mosaicml-streaming", "datasets", "s5cmd", "pillow", "numpy")
FORMATS = ("webdataset", "streaming", "litdata", "parquet")
LOADERS = {
    "dsv streamed": "bench",
    "LitData": "litdata",
    "LitData raw": "files",
    "WebDataset": "webdataset",
    "Streaming": "streaming",
    "HF datasets": "parquet",
    "plain files": "files",
    "dsv cached": "bench",
}
"""Each with what it reads: a prefix of the bucket, or a dataset."""
CLASSES, BATCH, FEW, SIZE = 1000, 64, 8, (500, 400)


@dataclass(slots=True)
class Row:
    """What one loader did in one mode, one value for each round."""

    seconds: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Bench:
    """Where everything is."""

    folder: Path
    python: Path
    server: S3Server
    bucket: str
    inside: Sequence[str] = ()
    """Enters the namespace of whoever reads."""

    @property
    def images(self) -> Path:
        return self.folder / "images"

    @property
    def s5cmd(self) -> Path:
        return self.python.with_name("s5cmd")

    def run(self, *argv: str | Path, cwd: Path | None = None) -> Cost:
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        places = {"DSV_STORE": f"s3://{self.bucket}/lake", "DSV_CACHE": str(self.folder / "cache")}
        quiet = {
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
            "LITDATA_DISABLE_VERSION_CHECK": "1",
        }
        path = f"{self.python.parent}:{os.environ['PATH']}"
        env = {**self.server.env, **places, **quiet, "HOME": str(home), "PATH": path}
        return run(Command([*self.inside, *argv], cwd or self.folder, env))

    def copy(self, source: str, target: str) -> Cost:
        return self.run(
            self.s5cmd, "--endpoint-url", self.server.endpoint, "--log", "error", "cp", source, target
        )


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and data are put away
    options = _options()
    options.folder.mkdir(parents=True, exist_ok=True)
    python = _install(options)
    if options.first:
        _first(options, python)
        return
    with _server() as server, tempfile.TemporaryDirectory(dir=options.folder) as folder:
        bench = Bench(Path(folder), python, server, server.bucket())
        try:
            total = _images(bench.images, options.images, options.folder / f"images-{options.images}")
            print(f"{options.images:,} images, {total / 1e6:,.0f} MB; {_versions(python)}", flush=True)
            chosen = options.only.split(",")
            _store(bench, chosen)
            _measure(bench, chosen, options, total)
        finally:
            server.remove_bucket(bench.bucket)


def _first(options: argparse.Namespace, python: Path) -> None:
    """Print how long it takes until a batch is there, and one of each worker, over 20 ms and 1 Gbit/s, with nothing
    on the disk; beside it, the same of PyTorch with samples that are in memory."""
    with (
        network(0.020, 1e9) as net,
        fresh(SERVER_ADDRESS, net.server) as server,
        tempfile.TemporaryDirectory(dir=options.folder) as folder,
    ):
        bench = Bench(Path(folder), python, server.s3, server.bucket, net.client)
        _images(bench.images, options.images, options.folder / f"images-{options.images}")
        _store(bench, [])
        print(f"{options.images:,} images, batches of {FEW}; {_versions(python)}\n")
        print("| workers | loader | first batch | one of each | CPU |\n|--:|---|--:|--:|--:|", flush=True)
        for workers in map(int, options.first.split(",")):
            for name in ("dsv streamed", "PyTorch alone"):
                found = [
                    _turn(bench, name, ("bytes", workers), one, (), workers) for one in range(options.rounds)
                ]
                first, each = (
                    statistics.median(report[key] for _, report in found) for key in ("first", "seconds")
                )
                cpu = statistics.median(cost.cpu - report["before"] for cost, report in found)
                print(f"| {workers} | {name} | {first:.2f} s | {each:.2f} s | {cpu:.1f} s |", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("/var/tmp/dsv-loaders"), help="for data and peers"
    )
    parser.add_argument("--peers", type=Path, help="their venv; default: one below --folder")
    parser.add_argument("--no-install", action="store_true", help="--peers has all of them and this dsv")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", default="1,2", help="numbers of worker processes")
    parser.add_argument("--modes", default="bytes,decoded")
    parser.add_argument("--first", help="measure the first batches of these numbers of workers, and no more")
    parser.add_argument("--only", default=",".join(LOADERS), help="some of the loaders")
    options = parser.parse_args()
    options.peers = (options.peers or options.folder / "peers").absolute()
    return options


def _install(options: argparse.Namespace) -> Path:
    """Return the peers' Python, with all of them beside this dsv."""
    programs: Path = options.peers / "bin"
    if not options.no_install:
        if not (programs / "python").exists():
            subprocess.run([sys.executable, "-m", "venv", options.peers], check=True)
        pip = [str(programs / "pip"), "install", "--quiet"]
        subprocess.run([*pip, *PACKAGES, "-e", str(ROOT)], check=True)
        subprocess.run([*pip, "--no-deps", STREAMING[0]], check=True)
        subprocess.run([*pip, *STREAMING[1:]], check=True)
    return programs / "python"


def _versions(python: Path) -> str:
    code = (
        "import sys, importlib.metadata as m; print(', '.join(f'{n} {m.version(n)}' for n in sys.argv[1:]))"
    )
    return subprocess.run(
        [python, "-c", code, *SHOWN], capture_output=True, text=True, check=True
    ).stdout.strip()


@contextmanager
def _server() -> Iterator[S3Server]:
    """Start a server, unless a lab has one."""
    lab = os.environ.get("DSV_LABS")
    if lab:
        yield shelf.attach(Path(lab), "ceph-rgw")
        return
    folder = Path(tempfile.mkdtemp(prefix="dsv-bench-"))
    try:
        yield ceph_rgw.up(folder)
    finally:
        ceph_rgw.down(folder)
        shutil.rmtree(folder)


def _images(place: Path, number: int, kept: Path) -> int:
    """Make the images once, and link them at the place; return the bytes of all."""
    if not kept.exists():
        partial = kept.with_name(f"{kept.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        with ProcessPoolExecutor() as pool:
            for _ in pool.map(_write, [partial] * number, range(number), [number] * number, chunksize=50):
                pass
        partial.rename(kept)
    shutil.copytree(kept, place, copy_function=os.link)
    return sum(path.stat().st_size for path in place.glob("*/*.jpg"))


def _write(folder: Path, index: int, number: int) -> None:
    """Write a crop of a photograph, resized, with the quality at which it takes about 110 kB."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    draw = random.Random(index)
    photograph = Image.fromarray(draw.choice(_photographs(load_sample_images)))
    width, height = draw.randrange(250, 500), draw.randrange(200, 400)
    left, top = draw.randrange(photograph.width - width), draw.randrange(photograph.height - height)
    crop = photograph.crop((left, top, left + width, top + height)).resize(SIZE)
    if index % 2:
        crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    low, high, best = 75, 100, b""
    while high - low > 1:
        quality = (low + high) // 2
        crop.save(made := io.BytesIO(), "JPEG", quality=quality)
        best = min(best, made.getvalue(), key=lambda data: abs(len(data) - 110_000))
        low, high = (quality, high) if len(made.getvalue()) < 110_000 else (low, quality)
    path = folder / f"class-{index * CLASSES // number:04}" / f"{index:07}.jpg"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(best)


def _photographs(load: Any, _kept: list[Any] = []) -> list[Any]:  # noqa: B006
    if not _kept:
        _kept.extend(load().images)
    return _kept


def _store(bench: Bench, chosen: Sequence[str]) -> None:
    """Upload the images, sync them, and convert them; print what each took."""
    os.sync()
    uploaded = bench.copy(f"{bench.images}/", f"s3://{bench.bucket}/files/")
    _said("s5cmd, files as they are", uploaded)
    program = bench.python.with_name("dsv")
    bench.run(program, "--quiet", "init", "bench", cwd=bench.images)
    _said("dsv sync", bench.run(program, "--quiet", "sync", "-m", "images", cwd=bench.images))
    wanted = {LOADERS[one] for one in chosen}
    for name in FORMATS:
        if name in wanted:
            output = bench.folder / name
            made = bench.run(bench.python, TURNS, "convert", name, bench.images, output)
            sent = bench.copy(f"{output}/", f"s3://{bench.bucket}/{name}/")
            _said(f"{name}: conversion", made)
            _said(f"{name}: upload", sent)
            if name != "webdataset":
                shutil.rmtree(output)


def _said(what: str, cost: Cost) -> None:
    print(f"  {what:28} {cost.seconds:7.1f} s {cost.cpu:7.1f} s CPU", flush=True)


def _measure(bench: Bench, chosen: Sequence[str], options: argparse.Namespace, total: int) -> None:
    modes = [
        (mode, int(workers)) for mode in options.modes.split(",") for workers in options.workers.split(",")
    ]
    found = {mode: {name: Row() for name in chosen} for mode in modes}
    fetched: dict[str, list[Cost]] = {"plain files": [], "dsv cached": []}
    shards = [path.name for path in sorted((bench.folder / "webdataset").glob("*.tar"))]
    for number in range(options.rounds):
        for name, costs in fetched.items():
            if name in chosen:
                costs.append(_fetch(bench, name))
        for mode in modes:
            turn = number % len(chosen)
            for name in [*chosen[turn:], *chosen[:turn]]:
                cost, report = _peer_turn(bench, name, mode, number, shards)
                _check(name, report, options.images, total)
                row = found[mode][name]
                row.seconds.append(report["seconds"])
                row.first.append(report["first"])
                row.cpu.append(cost.cpu - report["before"])
                row.memory.append(cost.memory)
                rate = options.images / report["seconds"]
                what = f"round {number + 1}, {mode[0]}, {mode[1]}: {name:14} {rate:7.0f}/s {row.cpu[-1]:6.1f} s CPU"
                print(f"  {what}, load {os.getloadavg()[0]:.1f}", flush=True)
        for (mode, workers), rows in found.items():
            _table(f"{mode}, {workers} worker{'s' * (workers > 1)}", rows, fetched, options.images, total)


def _fetch(bench: Bench, name: str) -> Cost:
    if name == "plain files":
        shutil.rmtree(bench.folder / "fetched", ignore_errors=True)
        return bench.copy(f"s3://{bench.bucket}/files/*", f"{bench.folder}/fetched/")
    if (bench.folder / "cache").exists():
        bench.run(bench.python.with_name("dsv"), "--quiet", "evict", "--all")
    return bench.run(bench.python.with_name("dsv"), "--quiet", "cache", "bench")


def _peer_turn(
    bench: Bench, name: str, mode: tuple[str, int], seed: int, shards: Sequence[str]
) -> tuple[Cost, dict[str, Any]]:
    """As `_turn`, again if a peer fails: Streaming sometimes takes a shard for whole that is not."""
    for _ in range(2):
        try:
            return _turn(bench, name, mode, seed, shards)
        except CommandError as error:
            if name.startswith("dsv"):
                raise
            print(f"  {name} failed, and is tried again: {str(error).splitlines()[-1]}", flush=True)
    return _turn(bench, name, mode, seed, shards)


def _turn(
    bench: Bench,
    name: str,
    mode: tuple[str, int],
    seed: int,
    shards: Sequence[str],
    batches: int | None = None,
) -> tuple[Cost, dict[str, Any]]:
    """Have one loader read an epoch, or so many batches of it."""
    place = LOADERS.get(name, "")
    if name == "plain files":
        place = str(bench.folder / "fetched")
    elif not name.startswith("dsv"):
        place = f"s3://{bench.bucket}/{place}"
    with tempfile.TemporaryDirectory(dir=bench.folder) as scratch:
        config = {
            "loader": name, "place": place, "scratch": scratch, "endpoint": bench.server.endpoint,
            "s5cmd": str(bench.s5cmd), "shards": shards, "decoded": mode[0] == "decoded", "workers": mode[1],
            "batch": BATCH if batches is None else FEW, "seed": seed, "batches": batches,
        }  # fmt: skip
        shutil.rmtree(bench.folder / "home", ignore_errors=True)
        cost = bench.run(bench.python, TURNS, "read", json.dumps(config))
        report: dict[str, Any] = json.loads(cost.output.splitlines()[-1])
    return cost, report


def _check(name: str, report: dict[str, Any], images: int, total: int) -> None:
    wrong = abs(report["count"] - images) > 0.02 * images
    if wrong or (report["size"] and report["count"] == images and report["size"] != total):
        raise SystemExit(
            f"{name} delivered {report['count']:,} images of {report['size']:,} bytes, not {images:,} of {total:,}"
        )


def _table(what: str, rows: dict[str, Row], fetched: dict[str, list[Cost]], images: int, total: int) -> None:
    print(
        f"\n| {what} | images/s | MB/s | to dsv streamed | CPU s/GB | first batch | memory | with the fetch |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    base = rows.get("dsv streamed")
    for name, row in rows.items():
        seconds = statistics.median(row.seconds)
        ratio = (
            ""
            if base is None
            else f"{statistics.median(a / b for a, b in zip(base.seconds, row.seconds, strict=True)):.2f}"
        )
        whole = ""
        if fetched.get(name):
            together = statistics.median(
                one + other.seconds for one, other in zip(row.seconds, fetched[name], strict=True)
            )
            whole = f"{images / together:,.0f}/s"
        print(
            f"| {name} | {images / seconds:,.0f} | {total / seconds / 1e6:,.0f} | {ratio} | "
            f"{statistics.median(row.cpu) / total * 1e9:.1f} | {statistics.median(row.first):.2f} s | "
            f"{statistics.median(row.memory) / (1 << 20):,.0f} MiB | {whole} |",
            flush=True,
        )
    for name, costs in fetched.items():
        if costs and name in rows:
            print(
                f"\n{name}: fetched in {statistics.median(cost.seconds for cost in costs):.1f} s, "
                f"{statistics.median(cost.cpu for cost in costs) / total * 1e9:.1f} s CPU/GB"
            )


if __name__ == "__main__":
    main()
