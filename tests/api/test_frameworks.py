"""The examples of the guide's page on packages that read `dsv://`, with these packages."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from dsv.api.branches import tag
from dsv.values.names import TagName, Target
from tests.api.pets_in_python import close_all, environ_of, make_store, of

PAGE = Path(__file__).parents[2] / "docs/guide/frameworks.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
PRINTED = [
    "4 2", "2", "10.0\n2", "[(10.0,)]", "tom\n[0, 0, 1, 1]", "1000.0", "(8, 8)", "True ['0.png', '1.png']", "99",
    "4 b'name' b'PAR1'\nID",
    "False True",
]  # fmt: skip


def make_pets(home: Path) -> dict[str, object]:
    """`pets@v1`: a table as CSV and Parquet, images of two classes, an array, and a volume in zarr."""
    np, pandas, image, zarr = (pytest.importorskip(name) for name in ("numpy", "pandas", "PIL.Image", "zarr"))
    pytest.importorskip("pyarrow")
    make_store(home)
    frame = pandas.DataFrame({"name": ["tom", "rex", "bo", "kim"], "weight": [1.0, 2.0, 3.0, 4.0]})
    volume = zarr.create_array(str(home / "volume"), shape=(20, 20), chunks=(5, 5), dtype="f4")
    volume[:] = 40.0
    with of(home).edit("pets", create=True) as edits:
        edits.put("labels.csv", frame.to_csv(index=False).encode())
        edits.put("pets.parquet", frame.to_parquet(row_group_size=2))
        edits.put("volume.zarr", home / "volume")
        for name, colour in {"cat/0": 9, "cat/1": 8, "dog/0": 7, "dog/1": 6}.items():
            image.new("L", (8, 8), colour).save(drawn := io.BytesIO(), "PNG")
            edits.put(f"images/train/{name}.png", drawn.getvalue())
        np.save(saved := io.BytesIO(), np.arange(100))
        edits.put("vectors.npy", saved.getvalue())
    tag(of(home).context, TagName.parse("v1"), Target.parse("pets"))
    return {"ID": of(home).open("pets").info("labels.csv").id}


@pytest.mark.timeout(600)  # it imports them all
def test_the_examples_of_the_page_work(tmp_path: Path) -> None:
    known = make_pets(tmp_path)
    names = [set(re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE)) for code in EXAMPLES]
    missing = {name for some in names for name in some if find_spec(name) is None}
    assert len(EXAMPLES) == len(PRINTED)
    chosen = [number for number, some in enumerate(names) if not some & missing]
    code = "\n".join(f"{EXAMPLES[number]}\nprint('---')" for number in chosen)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environ_of(tmp_path), "HF_HUB_OFFLINE": "1"}, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = [PRINTED[number].replace("ID", str(known["ID"])) for number in chosen]
    assert done.stdout.split("\n---\n") == [*printed, ""]
    messages = [one.message for one in of(tmp_path).open("pets").log()]
    close_all()
    assert messages == ["weights in kg", ""]
    if missing:
        pytest.skip(f"all examples work but those of {', '.join(sorted(missing))}, which are not installed")
