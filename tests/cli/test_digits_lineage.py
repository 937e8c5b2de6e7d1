"""The digits of the README from raw data to a model: resized, trained on two versions, relabelled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit.dsv import Dsv

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits"
RESIZE = """
import os, pathlib
from PIL import Image
data, out = pathlib.Path(os.environ["DSV_DATA"]), pathlib.Path(os.environ["DSV_OUT"])
for image in sorted(data.rglob("*.png")):
    place = out / image.relative_to(data)
    place.parent.mkdir(exist_ok=True)
    Image.open(image).resize((4, 4)).save(place)
"""
TRAIN = """
import json, os, pathlib, pickle
import numpy
from PIL import Image
from sklearn.linear_model import LogisticRegression
data, out = pathlib.Path(os.environ["DSV_DATA"]), pathlib.Path(os.environ["DSV_OUT"])
images = sorted(data.rglob("*.png"))[::5]
x = numpy.array([numpy.asarray(Image.open(image)).ravel() for image in images])
y = [int(image.parent.name) for image in images]
model = LogisticRegression(max_iter=50).fit(x, y)
(out / "model.pt").write_bytes(pickle.dumps(model.coef_))
(out / "metrics.json").write_text(json.dumps({"accuracy": model.score(x, y)}))
"""


def raw_of(dsv: Dsv, target: str) -> set[str]:
    """The commits of raw data that a target comes from."""
    nodes: list[dict[str, Any]] = dsv.ok("lineage", target, "--json").json["nodes"]
    return {node["commit"] for node in nodes if node["raw"]}


@pytest.mark.timeout(600)
def test_a_model_leads_to_the_data_that_it_saw(dsv: Dsv) -> None:
    work, here = dsv.cwd / "digits", dsv.at(dsv.cwd, DSV_CACHE=str(dsv.home / "cache"))
    work.mkdir()
    subprocess.run(
        [sys.executable, EXAMPLE / "write_digits.py", str(work)], check=True, stdout=subprocess.DEVNULL
    )
    raw = here.at(work)

    def resize(of: str) -> None:
        assert (
            here.process(
                "run", of, "--into", "resized", "-p", "size=4", "--", sys.executable, "-c", RESIZE
            ).code
            == 0
        )

    def train() -> str:
        words = ("run", "resized", "--into", "models@production", "--", sys.executable, "-c", TRAIN)
        done = here.process(*words)
        assert done.code == 0, done
        return str(here.ok("log", "models@production", "--json").json["items"][0]["commit"])

    def synced(message: str) -> str:
        return raw.ok("sync", "-m", message).out.strip()

    raw.ok("init", "digits")
    first = synced("8x8 digits, ten classes")
    raw.ok("tag", "v1")
    resize("digits@v1")
    old = train()
    (work / "7/digit-0007.png").rename(work / "1/digit-0007.png")
    second = synced("0007 is a one")
    resize("digits")
    new = train()
    assert new != old
    assert raw_of(here, f"models@{old}") == {first}
    assert raw_of(here, "models@production") == {second}

    (work / "README").write_text("what is in it")
    third = synced("a page that no step reads")
    resize("digits")
    assert train() == new, "the resized result is equal, and so is the model"
    assert raw_of(here, "models@production") == {second, third}

    cached = here.ok("cache", "models@production").out.strip()
    (dsv.cwd / "model.pt").write_bytes((Path(cached) / "model.pt").read_bytes())
    (work / "1/digit-0007.png").unlink()
    synced("0007 can't be read")
    answer = here.ok("lineage", "./model.pt", "--changes")
    assert "./model.pt is model.pt of run " in answer.out
    assert "(models@production)" in answer.out
    (change,) = [line.split() for line in answer.lines if line.startswith("digits") and third[:12] in line]
    assert change[2:] == ["1", "+0", "-1", "~0"]
    moved = here("lineage", "models@production", "--exit-code")
    assert moved.code == 1
    assert "main has moved" in moved.out
