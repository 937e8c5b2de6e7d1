"""The lines at the end of a commit's message by which dsv says where it comes from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv.values.trailers import IMPORTED, imported_from, made_by, parse_run, with_made_by

RUN = "team/raw/20261120-132145-1f2e3d4c"
OWN = f"Made-by-run: {RUN}"


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ("", OWN),
        ("new labels", f"new labels\n\n{OWN}"),
        ("fix: labels", f"fix: labels\n\n{OWN}"),
        ("new labels\n\nmore\n", f"new labels\n\nmore\n\n{OWN}"),
        ("x\n\nReviewed-by: Ann", f"x\n\nReviewed-by: Ann\n{OWN}"),
        ("x\n\nImported-from: s3://a", f"x\n\n{OWN}\nImported-from: s3://a"),
        (f"x\n\n{OWN}", f"x\n\n{OWN}"),
        ("x\n\nMade-by-run: raw/1", f"x\n\nMade-by-run: raw/1\n{OWN}"),
    ],
)
def test_the_line_is_in_the_last_paragraph_before_the_import(message: str, wanted: str) -> None:
    assert with_made_by(message, RUN) == wanted


@given(st.text(alphabet="aM:-\n "), st.booleans())
def test_a_named_run_is_found_and_stays_once(message: str, imported: bool) -> None:
    message += f"\n\n{IMPORTED}memory://x" if imported else ""
    named = with_made_by(message, RUN)
    assert RUN in made_by(named)
    assert with_made_by(named, RUN) == named
    assert not imported or named.endswith(f"\n{IMPORTED}memory://x")


def test_a_line_elsewhere_in_a_message_names_no_run() -> None:
    assert made_by(f"{OWN}\n\nis what dsv writes") == ()
    assert made_by("no such line") == ()


def test_what_a_message_names_is_read_back() -> None:
    assert parse_run("team/pets/20261120-132145-1f2e3d4c") == ("team/pets", "20261120-132145-1f2e3d4c")
    assert parse_run("no-dataset") is None and parse_run("../x/run") is None
    assert imported_from("scans\n\nImported-from: s3://lab/scans@v2 to x\n") == "s3://lab/scans@v2 to x"
    assert imported_from("Imported-from: s3://lab/scans\n\nand more") is None
