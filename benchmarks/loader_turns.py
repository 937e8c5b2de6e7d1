"""One conversion or one reading for `benchmarks.loaders`, by the Python that has torch and the peers.

    python loader_turns.py convert NAME FILES OUTPUT
    python loader_turns.py read '{"loader": "dsv streamed", …}'

The second prints a line of JSON. It waits for all its descendants, also those that outlive the reader, so that its
processor time is that of all.
"""

from __future__ import annotations

import ctypes
import glob
import io
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

SEED = 11
SHARD = 64 << 20
"""Bytes of a shard: the default of LitData and Streaming. Parquet files and tars get the same."""
BUFFER = 1000
"""Samples in the shuffle buffer of a worker, for those loaders that have one."""
SIDE = 224

Config = dict[str, Any]


def load(name: str) -> Any:
    """Import a package that the linter's environment does not have."""
    return import_module(name)


def main() -> None:
    if sys.argv[1] == "convert":
        CONVERTERS[sys.argv[2]](Path(sys.argv[3]), Path(sys.argv[4]))
        return
    ctypes.CDLL(None).prctl(
        36, 1
    )  # PR_SET_CHILD_SUBREAPER: orphaned descendants become children of this process
    reader, code = os.fork(), 0
    if not reader:
        read(json.loads(sys.argv[2]))
        return
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            sys.exit(code)
        if pid == reader:
            code = os.waitstatus_to_exitcode(status)


def files_of(folder: Path) -> list[tuple[Path, int]]:
    """Return the files and their classes, in the random order in which a conversion should write them."""
    classes = {path.name: number for number, path in enumerate(sorted(folder.iterdir()))}
    found = [(path, classes[path.parent.name]) for path in sorted(folder.glob("*/*.jpg"))]
    random.Random(SEED).shuffle(found)
    return found


def to_webdataset(files: Path, output: Path) -> None:
    output.mkdir()
    with load("webdataset").ShardWriter(str(output / "%05d.tar"), maxsize=SHARD, verbose=0) as sink:
        for path, label in files_of(files):
            sink.write({"__key__": path.stem, "jpg": path.read_bytes(), "cls": str(label)})


def to_streaming(files: Path, output: Path) -> None:
    columns = {"image": "bytes", "label": "int"}
    with load("streaming").MDSWriter(out=str(output), columns=columns, size_limit=SHARD) as sink:
        for path, label in files_of(files):
            sink.write({"image": path.read_bytes(), "label": label})


def _row(item: tuple[str, int]) -> dict[str, object]:
    return {"image": Path(item[0]).read_bytes(), "label": item[1]}


def to_litdata(files: Path, output: Path) -> None:
    items = [(str(path), label) for path, label in files_of(files)]
    load("litdata").optimize(_row, items, str(output), chunk_bytes=SHARD, num_workers=2, verbose=False)


def to_parquet(files: Path, output: Path) -> None:
    """Write images as `datasets` does for its hub: embedded, with row groups of 100."""
    arrow, parquet = load("pyarrow"), load("pyarrow.parquet")
    output.mkdir()
    rows, found = files_of(files), itertools.count()
    each = max(1, SHARD * len(rows) // sum(path.stat().st_size for path, _ in rows))
    for start in range(0, len(rows), each):
        part = rows[start : start + each]
        images = [{"bytes": path.read_bytes(), "path": path.name} for path, _ in part]
        table = arrow.table({"image": images, "label": [label for _, label in part]})
        parquet.write_table(table, output / f"{next(found):05}.parquet", row_group_size=100)


CONVERTERS: dict[str, Callable[[Path, Path], None]] = {
    "webdataset": to_webdataset,
    "streaming": to_streaming,
    "litdata": to_litdata,
    "parquet": to_parquet,
}


def decode(data: bytes) -> Any:
    """Return the image as a small array of numpy."""
    image = load("PIL.Image").open(io.BytesIO(data)).convert("RGB").resize((SIDE, SIDE))
    return load("numpy").asarray(image)


def gather(prepare: Callable[[bytes], Any] | None, samples: Sequence[Any]) -> Any:
    """Collate: a list of bytes, or one tensor of the decoded images."""
    contents = [_content(sample) for sample in samples]
    if prepare is None:
        return contents
    return load("torch").from_numpy(load("numpy").stack([prepare(content) for content in contents]))


def _content(sample: Any) -> bytes:
    if isinstance(sample, bytes):
        return sample
    if isinstance(sample, tuple):  # of dsv
        content: bytes = sample.data  # type: ignore[attr-defined]
        return content
    image = sample["image"]
    found: bytes = image["bytes"] if isinstance(image, dict) else image
    return found


class Files:
    """A map-style dataset of plain files."""

    def __init__(self, folder: str) -> None:
        self.paths = sorted(glob.glob(f"{folder}/*/*.jpg"))  # noqa: PTH207

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> bytes:
        return Path(self.paths[index]).read_bytes()


def plain_files(config: Config, collate: Any) -> Iterable[Any]:
    how = {"shuffle": True, "collate_fn": collate, "num_workers": config["workers"]}
    return load("torch.utils.data").DataLoader(Files(config["place"]), config["batch"], **how)  # type: ignore[no-any-return]


def nothing(config: Config, collate: Any) -> Iterable[Any]:
    """What PyTorch itself takes, with samples that are there."""
    how = {"collate_fn": collate, "num_workers": config["workers"]}
    return load("torch.utils.data").DataLoader([bytes(1)] * 10_000, config["batch"], **how)  # type: ignore[no-any-return]


def _litdata() -> Any:
    """Import LitData, and let it talk to the lab, which has no TLS."""
    load("litdata.streaming.downloader")._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    return load("litdata")


def litdata(config: Config, collate: Any) -> Iterable[Any]:
    package = _litdata()
    data = package.StreamingDataset(
        config["place"], cache_dir=config["scratch"], shuffle=True, seed=config["seed"]
    )
    how = {"num_workers": config["workers"], "collate_fn": collate}
    return package.StreamingDataLoader(data, batch_size=config["batch"], **how)  # type: ignore[no-any-return]


def litdata_raw(config: Config, collate: Any) -> Iterable[Any]:
    data = _litdata().StreamingRawDataset(config["place"], cache_dir=config["scratch"])
    how = {"shuffle": True, "collate_fn": collate, "num_workers": config["workers"]}
    return load("torch.utils.data").DataLoader(data, config["batch"], **how)  # type: ignore[no-any-return]


def webdataset(config: Config, collate: Any) -> Iterable[Any]:
    package = load("webdataset")
    cat = f"pipe:{config['s5cmd']} --endpoint-url {config['endpoint']} cat {config['place']}"
    urls = [f"{cat}/{name}" for name in config["shards"]]
    data = package.WebDataset(urls, shardshuffle=100, seed=config["seed"]).shuffle(BUFFER).to_tuple("jpg")
    data = data.map(_first).batched(config["batch"], collation_fn=collate)
    return package.WebLoader(data, batch_size=None, num_workers=config["workers"])  # type: ignore[no-any-return]


def _first(sample: tuple[bytes]) -> bytes:
    return sample[0]


def streaming(config: Config, collate: Any) -> Iterable[Any]:
    os.environ["S3_ENDPOINT_URL"] = config["endpoint"]
    package, batch = load("streaming"), config["batch"]
    load("streaming.base.util").clean_stale_shared_memory()  # of a turn that was killed
    places = {"remote": config["place"], "local": f"{config['scratch']}/mds"}
    data = package.StreamingDataset(**places, shuffle=True, shuffle_seed=config["seed"], batch_size=batch)
    how = {"num_workers": config["workers"], "collate_fn": collate}
    return package.StreamingDataLoader(data, batch_size=batch, **how)  # type: ignore[no-any-return]


def hf_datasets(config: Config, collate: Any) -> Iterable[Any]:
    options = {"endpoint_url": config["endpoint"]}
    data = load("datasets").load_dataset(
        "parquet",
        data_files=f"{config['place']}/*.parquet",
        split="train",
        streaming=True,
        storage_options=options,
    )
    data = data.shuffle(seed=config["seed"], buffer_size=BUFFER)
    how = {"collate_fn": collate, "num_workers": config["workers"]}
    return load("torch.utils.data").DataLoader(data, batch_size=config["batch"], **how)  # type: ignore[no-any-return]


def dsv(config: Config, collate: Any) -> Iterable[Any]:
    samples = load("dsv").open(config["place"]).samples(cache=config["loader"] == "dsv cached")
    how = {"num_workers": config["workers"], "collate_fn": collate, "seed": config["seed"]}
    return load("dsv.torch").Loader(samples, config["batch"], **how)  # type: ignore[no-any-return]


READERS: dict[str, Callable[[Config, Any], Iterable[Any]]] = {
    "plain files": plain_files,
    "LitData": litdata,
    "LitData raw": litdata_raw,
    "WebDataset": webdataset,
    "Streaming": streaming,
    "HF datasets": hf_datasets,
    "PyTorch alone": nothing,
    "dsv streamed": dsv,
    "dsv cached": dsv,
}


def read(config: Config) -> None:
    """Read one epoch. Time and processor time begin before the loader's package is imported, and after torch is."""
    load("torch").set_num_threads(1)
    load("torch.utils.data")
    decoded = config["decoded"]
    if decoded:
        load("PIL.JpegImagePlugin")
    began, before = time.perf_counter(), time.process_time()
    loader = READERS[config["loader"]](config, partial(gather, decode if decoded else None))
    count = size = 0
    first = 0.0
    batches = iter(loader)  # is kept, so that the end of workers does not count if there are more batches
    for batch in itertools.islice(batches, config["batches"]):
        first = first or time.perf_counter() - began
        count += len(batch)
        size += 0 if decoded else sum(map(len, batch))
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "first": first, "before": before, "count": count, "size": size}))


if __name__ == "__main__":
    main()
