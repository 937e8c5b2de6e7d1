"""What a notebook shows of datasets, commits, changes, runs and lineage; and what a terminal does."""

from __future__ import annotations

import html
import re

import pytest

import dsv as package
from tests.cli.test_site import ELEMENTS, HOSTILE, Elements, png
from tests.kit.dsv import Dsv, write_files

pytest.importorskip("jinja2")


@pytest.fixture
def store(dsv: Dsv) -> package.Store:
    files = {f"images/{at}.png": png() for at in range(3)}
    write_files(dsv.cwd, {**files, **{f"names/{name.replace('/', '-')}": b"x" * 1_500 for name in HOSTILE}})
    dsv.ok("init", "shapes")
    dsv.ok("sync", "-m", "<b>first</b>\u202e")
    dsv.ok("tag", "v1")
    write_files(dsv.cwd, {"images/3.png": png(shade=9)})
    dsv.ok("sync", "-m", "second")
    job = 'echo "{\\"accuracy\\": 0.9}" > $DSV_OUT/metrics.json'
    assert (
        dsv.process("run", "shapes@v1", "-p", "</td>=1", "--into", "models", "--", "sh", "-c", job).code == 0
    )
    return package.store(environ=dsv.environ, cwd=dsv.cwd)


def shown(value: object) -> str:
    """The text of what a notebook shows, in which nothing is markup but what templates have."""
    made = value._repr_html_()  # type: ignore[attr-defined]
    elements = Elements(made)
    assert {tag for tag, _ in elements.found} <= {*ELEMENTS, "style"}
    assert not [name for _, attributes in elements.found for name in attributes if name.startswith("on")]
    assert "\u202e" not in made and not re.search(r'href="(?!#)', made)
    return html.unescape(re.sub(r"<[^>]*>", " ", re.sub("<style>.*?</style>", "", made, flags=re.DOTALL)))


def test_values_are_tables_in_a_notebook(store: package.Store) -> None:
    first, last = store.open("shapes@v1"), store.open("shapes")
    assert "shapes" in shown(store.datasets()) and "0.9" in shown(store.runs())
    assert all(text in shown(first) for text in ("<b>first</b>", "images/", "0.png"))
    assert first._repr_html_().count("data:image/webp;base64,") == 3
    assert "added" in shown(first.diff(last)) and "images/3.png" in shown(first.diff(last))
    assert r"\u202egpj.exe" in shown(store.open("shapes@v1").diff("models"))
    assert "shapes@" in shown(store.lineage("models"))


def test_values_are_short_in_a_terminal(store: package.Store) -> None:
    assert re.fullmatch(
        r"<dataset shapes: \d+ files, \d.*B, [0-9a-f]{12} of 20.*Z>", repr(store.datasets()).splitlines()[-1]
    )
    changes = store.open("shapes").diff("models")
    assert re.search(r"^<removed 'images/0.png', \d+ B>\n", repr(changes))
    assert repr(changes).endswith(f"... and {len(changes) - 10} more")
    assert repr(store.open("shapes").diff("shapes")) == "[]"
    assert "accuracy=0.9" in repr(store.runs())


def test_runs_become_a_data_frame(store: package.Store) -> None:
    pytest.importorskip("pandas")
    frame = store.runs().to_pandas()
    assert list(frame["metrics.accuracy"]) == [0.9] and list(frame["dataset"]) == ["shapes"]
    none = store.runs("shapes", where=["state=cut-off"])
    assert (repr(none), none._repr_html_(), len(none.to_pandas())) == ("[]", None, 0)


def test_a_job_says_no_metric_that_a_list_of_runs_fails_at(dsv: Dsv) -> None:
    write_files(dsv.cwd, {"a.txt": b"a"})
    dsv.ok("init", "shapes")
    dsv.ok("sync", "-m", "first")
    huge = "1" + "0" * 400
    numbers = f'"x_bytes": {huge}, "y_seconds": {huge}, "n": {huge}, "z_bytes": 1e400, "m": -{huge}'
    metrics = f'{{"\\u001b[31m": 1, {numbers}}}'
    (dsv.cwd / "metrics.json").write_text(metrics)
    for _ in range(2):
        assert (
            dsv.process("run", "shapes", "--", "sh", "-c", f'cp {dsv.cwd}/metrics.json "$DSV_OUT"').code == 0
        )
    runs = package.store(environ=dsv.environ, cwd=dsv.cwd).runs()
    assert r"'\x1b[31m'=1" in repr(runs) and "\x1b" not in repr(runs)
    assert r"\x1b[31m" in shown(runs) and "Infinity" in shown(runs)
    assert max(map(len, shown(runs).split("  "))) <= 200, "the most characters of a cell"
    ids = [view.record.run for view in runs if view.record.metrics]
    assert dsv("runs", terminal=True).code == 0
    assert dsv("runs", ids[0], terminal=True).code == 0
    assert dsv("runs", "--compare", *ids, terminal=True).code == 0
    dsv.ok("site", str(dsv.home / "pages"))


def test_without_the_extra_the_text_remains(store: package.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    assert store.datasets()._repr_html_() is None and store.open("shapes")._repr_html_() is None
