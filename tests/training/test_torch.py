"""`dsv.torch`: the same order whatever reads it, and states that continue after kills with other workers and ranks."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dsv.api.branches import tag
from dsv.training.order import TrainingPlan
from dsv.training.samples import Samples
from dsv.values.names import TagName, Target
from tests.api.pets_in_python import SMALL, close_all, environ_of, make_home, make_store, of
from tests.waiting import until

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/guide/training.md"
pytestmark = pytest.mark.timeout(600)  # each process imports torch


def require_torch() -> None:
    if find_spec("torch") is None:
        if os.environ.get("DSV_REQUIRE_LABS"):
            pytest.fail("there is no torch: see .ci/run")
        pytest.skip("needs torch: see .ci/run")


@pytest.fixture(scope="module", autouse=True)
def has_torch() -> None:
    require_torch()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield make_home(tmp_path_factory.mktemp("ann"))
    close_all()


def python(home: Path, code: str) -> Any:
    """Return what a program prints as JSON. It has a process of its own: torch and forks are none for this one."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        env={**environ_of(home), "PYTHONPATH": str(ROOT)},
        cwd=home,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_file_that_a_commit_refers_to_is_read_where_it_is_or_refused(home: Path) -> None:
    found = python(
        home,
        """
        import json, pathlib, subprocess, sys, dsv
        from dsv.torch import Loader
        here = pathlib.Path("theirs")
        here.mkdir()
        for number in range(40):
            (here / f"{number}.txt").write_text(f"content {number}")
        argv = [sys.executable, "-c", "from dsv.cli.main import main; main()", "import", str(here), "far:"]
        subprocess.run([*argv, "--create", "--reference"], check=True, stdout=subprocess.DEVNULL)
        def read(window):
            loader = Loader(dsv.open("far").samples(window=window, cache=False), 8, num_workers=1)
            return sorted(data.decode() for batch in loader for data in batch.data)
        whole = read(2 << 20) == sorted(f"content {number}" for number in range(40))
        (here / "7.txt").write_text("another")
        try:
            read(3 << 20)  # a window of its own, which has nothing of it yet
        except Exception as error:
            print(json.dumps([whole, str(error)]))
        """,
    )
    assert found[0] and "far:7.txt" in found[1] and "theirs/7.txt" in found[1], found


def test_the_order_is_the_same_for_all_workers_and_datasets(home: Path) -> None:
    found = python(
        home,
        """
        import json, dsv
        from torch.utils.data import DataLoader
        from dsv.torch import Loader, StreamDataset
        samples = dsv.open("pets@v1").samples("images", window=2 << 20)
        found = []
        for options in {"num_workers": 3}, {"num_workers": 1, "multiprocessing_context": "forkserver"}:
            loader = Loader(samples, 64, seed=1, **options)
            found.append([[path for batch in loader for path in batch.path] for _ in range(2)])
        stream = StreamDataset(samples, batch_size=64, seed=1)
        for workers in 0, 2:
            epochs = []
            for epoch in 0, 1:
                stream.set_epoch(epoch)
                epochs.append([path for batch in DataLoader(stream, 64, num_workers=workers) for path in batch.path])
            found.append(epochs)
        print(json.dumps(found))
        """,
    )
    assert all(one == found[0] for one in found)
    for epoch in found[0]:
        assert sorted(epoch) == sorted(SMALL)
    assert found[0][0] != found[0][1]


@pytest.mark.parametrize(
    ("times", "workers"),
    [(1, 1), pytest.param(100, 2, marks=[pytest.mark.exhaustive, pytest.mark.timeout(1800)])],
)
def test_workers_start_by_each_method_without_a_hang(home: Path, times: int, workers: int) -> None:
    """After the program itself has read, so that it has threads and connections."""
    found = python(
        home,
        f"""
        import dsv
        from dsv.torch import Loader
        samples = dsv.open("pets").samples("images", window=2 << 20)
        samples.read([0]), samples.read_ahead([0])
        read = []
        for method in ["fork", "spawn", "forkserver"] * {times}:
            loader = Loader(samples, 300, num_workers={workers}, multiprocessing_context=method)
            read.append(sum(len(batch.path) for batch in loader))
        print(read)
        """,
    )
    assert found == [len(SMALL)] * 3 * times


def test_samples_and_states(home: Path) -> None:
    found = python(
        home,
        """
        import json, dsv, torch
        from torch.utils.data import DataLoader
        from dsv.torch import Loader, MapDataset
        samples = dsv.open("pets@v1").samples("images")
        sizes = MapDataset(samples, lambda sample: len(sample.data))
        assert sizes.__getitems__([3, 0]) == [sizes[3], sizes[0]] == [int(samples.sizes[3]), int(samples.sizes[0])]
        total = sum(int(batch.sum()) for batch in DataLoader(sizes, 100, shuffle=True, num_workers=2))
        assert total == samples.size
        read = lambda sample: (torch.tensor(len(sample.data)), sample.path[7:8])
        loader = Loader(samples, 64, transform=read, num_workers=1, persistent_workers=True, drop_last=True)
        lengths, classes = next(iter(loader))
        assert lengths.shape == (64,) and set(classes) == set("0123456")
        first = [sizes for sizes, _ in loader]  # goes on
        assert len(loader) == 15 and len(first) == 14, len(first)
        assert len([*loader]) == 15 and loader.epoch == 2
        mixture = Loader([(samples, 2), (dsv.open("pets").samples(), 1)], 8, length=100)
        assert len([*mixture]) == len(mixture) == 13
        messages = []
        for wrong in (
            lambda: mixture.load_state_dict(loader.state_dict()),
            lambda: Loader(samples, 0),
            lambda: Loader(samples, 8, sampler=[1]),
            lambda: Loader([], 8),
            lambda: Loader(samples, 8, rank=2, world_size=2),
        ):
            try:
                wrong()
            except dsv.DsvError as error:
                messages.append(f"{type(error).__name__}: {error.message}")
        print(json.dumps([messages, len(json.dumps(mixture.state_dict()))]))
        """,
    )
    messages, length = found
    assert length < 10_000
    assert [message.partition(" ")[0] for message in messages] == ["Conflict:"] + ["UsageError:"] * 4


def train(home: Path, log: Path, steps: int | None, **order: Any) -> dict[str, Any]:
    """Train until so many more steps were noted, and then kill all; to the end without a number."""
    before = len(noted(log)["delivered"])
    command = [sys.executable, "-m", "tests.training.trainer", str(home), str(log), json.dumps(order)]
    process = subprocess.Popen(
        command, env=environ_of(home), cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE
    )
    if steps is not None:
        until(lambda: process.poll() is not None or len(noted(log)["delivered"]) >= before + steps)
        os.killpg(process.pid, signal.SIGKILL)
    _, said = process.communicate()
    assert process.returncode == (0 if steps is None else -signal.SIGKILL), said.decode()
    return noted(log)


def noted(log: Path) -> dict[str, Any]:
    return json.loads(log.read_text()) if log.exists() else {"delivered": []}  # type: ignore[no-any-return]


def in_order(*mixed: tuple[Samples, float]) -> Iterator[str]:
    """The paths of a training with the window of the trainer, epoch after epoch."""
    sources = [samples for samples, _ in mixed]
    count, window = sum(map(len, sources)), int((2 << 20) * 0.75)
    plan = TrainingPlan(
        [one.shape for one in sources], [weight for _, weight in mixed], 3, window, True, count
    )
    paths = [one.path(number) for one in sources for number in range(len(one))]
    for epoch in range(2):
        for numbers, _ in plan.sequence(epoch):
            yield from (paths[number] for number in numbers)


def check(found: dict[str, Any], expected: list[str]) -> None:
    """Each step has the samples that come next, whatever ranks take them."""
    at = 0
    for step in found["delivered"]:
        assert step == sorted(expected[at : at + len(step)])
        at += len(step)
    assert at == len(expected)


def test_a_killed_training_continues_with_other_workers_and_ranks(home: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.json"
    train(home, log, 5, epochs=2, size=20, num_workers=2)
    train(home, log, 7, epochs=2, size=16, world=3)
    found = train(home, log, None, epochs=2, size=25, world=2, num_workers=1)
    expected = [*in_order((of(home).open("pets").samples("images"), 1.0))]
    assert Counter(expected) == Counter([*SMALL] * 2)
    check(found, expected)


def test_a_killed_training_of_a_mixture_continues(home: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.json"
    train(home, log, 6, epochs=1, size=20, world=2, mixture=True)
    found = train(home, log, None, epochs=1, size=50, num_workers=1, mixture=True)
    commit = of(home).open("pets")
    mixed = (commit.samples("images"), 0.7), (commit.samples("images/0", "images/1"), 0.3)
    check(found, [*in_order(*mixed)][: sum(len(one) for one, _ in mixed)])


def test_the_examples_of_the_page_work(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    make_store(tmp_path)
    with of(tmp_path).edit("digits", create=True) as edits:
        for number, (pixels, label) in enumerate(zip(digits.images[:400], digits.target, strict=False)):
            drawn = io.BytesIO()
            image.frombytes("L", (8, 8), bytes((pixels * 15).astype("u1"))).save(drawn, "PNG")
            edits.put(f"train/{label}/{number:04}.png", drawn.getvalue())
    tag(of(tmp_path).context, TagName.parse("v1"), Target.parse("digits"))
    code = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "\n".join(code)],
        env=environ_of(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    first, mixture, samples, names = done.stdout.splitlines()
    assert (first, mixture) == ("2", "100 0")
    assert samples.startswith("400 train/0/0000.png ")
    assert names == "['train/0/0020.png', 'train/0/0010.png']"


def test_loaders_without_the_garbage_collector_leave_no_file_or_memory(home: Path) -> None:
    left = """
        import gc, json, os
        import dsv
        from dsv.torch import Loader

        def call(workers):
            for batch in Loader(dsv.open("pets@v1").samples("images/0", cache=False), 64, num_workers=workers,
                                collate_fn=len):
                pass

        for workers in (0, 1):
            call(workers)
        gc.collect()
        gc.disable()
        before = len(os.listdir("/proc/self/fd"))
        for number in range(100):
            call(int(number % 10 == 0))
        print(json.dumps([len(os.listdir("/proc/self/fd")) - before, gc.collect() // 100]))
    """
    files, cyclic = python(home, left)
    assert files <= 0 and cyclic == 0
