"""The scripts of examples/digits, on the digits in a store."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from dsv.api.branches import tag
from dsv.api.clone import init
from dsv.api.sync import SyncRequest, sync
from dsv.values.names import DatasetName, TagName, Target
from tests.api.pets_in_python import environ_of, of

EXAMPLES = Path(__file__).parents[2] / "examples/digits"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Somebody with `digits@v1` in a store in their home."""
    home = tmp_path_factory.mktemp("home")
    run(home, "write_digits.py", str(home / "digits"))
    made = of(home, cwd=home / "digits").context
    init(made, home / "digits", DatasetName.parse("digits"))
    sync(made, SyncRequest(message="8x8 digits, ten classes"))
    tag(made, TagName.parse("v1"), Target())
    return home


def run(home: Path, script: str, *arguments: str) -> str:
    """Return what a script prints."""
    environ = environ_of(home) | {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(EXAMPLES / script), *arguments]
    done = subprocess.run(command, env=environ, cwd=home, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(600)
def test_pandas_makes_a_table_and_publishes_it(home: Path) -> None:
    pytest.importorskip("pandas")
    printed = run(home, "with_pandas.py", "digits@v1")
    rows = [line.split() for line in printed.splitlines() if line[0].isdigit()]
    assert [row[0] for row in rows] == [str(digit) for digit in range(10)]
    assert sum(int(row[1]) for row in rows) == 1797
    first, *_ = of(home).open("digits").log()
    assert [change.path for change in first.parents[0].diff(first)] == ["statistics.parquet"]
    assert first.message == f"statistics of {of(home).open('digits@v1').id[:12]}"


@pytest.mark.timeout(600)
def test_datasets_streams_images_with_their_labels(home: Path) -> None:
    pytest.importorskip("datasets")
    counted, accuracy = run(home, "with_datasets.py", "digits@v1").split(", accuracy ")
    assert counted == "1437 images of 10 classes"
    assert float(accuracy) > 0.85


@pytest.mark.timeout(600)
def test_a_killed_training_is_continued_and_ends_with_the_same_order_and_weights(home: Path) -> None:
    if find_spec("torch") is None:
        if os.environ.get("DSV_REQUIRE_LABS"):
            pytest.fail("there is no torch: see .ci/run")
        pytest.skip("needs torch: see .ci/run")
    how = ["digits@v1", "whole.pt", "--epochs", "2"]
    whole = run(home, "train_torch.py", *how).splitlines()[-1]
    assert whole.startswith("114 steps, accuracy 0.")
    how[1] = "killed.pt"
    command = [sys.executable, str(EXAMPLES / "train_torch.py"), *how]
    with subprocess.Popen(
        command, env=environ_of(home), cwd=home, stdout=subprocess.PIPE, text=True
    ) as killed:
        assert killed.stdout is not None
        assert "step 15\n" in iter(killed.stdout.readline, "")
        killed.kill()
    resumed = run(home, "train_torch.py", *how, "--workers", "1").splitlines()
    assert resumed[0].startswith("goes on with epoch ")
    assert resumed[-1] == whole
