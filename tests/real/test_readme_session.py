"""The sessions in the README and the docs can be typed as they stand, and print what stands there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.dsv import plain_environment
from tests.real.session import README, RELABELLING, block, commands, comparable, typed, with_shown_person


@pytest.mark.parametrize("page", [README, RELABELLING], ids=lambda page: page.stem)
def test_the_session_is_what_its_commands_print(tmp_path: Path, page: Path) -> None:
    for module in ("sklearn", "PIL") if page == README else ():
        pytest.importorskip(module, reason="the session trains with scikit-learn and Pillow")
    session = block(page.read_text())
    printed = typed(commands(session), tmp_path / "session", plain_environment(tmp_path / "home"))
    assert comparable(printed) == comparable(session), "run: python -m tests.real.session"


def test_what_differs_each_time_is_not_compared() -> None:
    one = "effa83581b8b (v1) first\ncb0a5bd5a894 (main)\nnow 224 kB in 0.9 s, accuracy 0.9852"
    other = "88e25052ab85 (v1)  first\n03ecd2898b34 (main)\nnow 1.2 MB in 12 s, accuracy 0.98"
    assert comparable(one) == comparable(other)
    assert comparable(one) != comparable(one.replace("cb0a5bd5a894", "effa83581b8b")), "another commit"
    assert comparable(one) != comparable(one.replace("first", "second"))


def test_a_user_whose_name_is_an_english_word_is_replaced_only_where_dsv_names_users() -> None:
    text = "a plain process\nmain  13 s ago  plain\n  held by plain@host until\nkept: held by plain until"
    shown = "a plain process\nmain  13 s ago  ann\n  held by ann@laptop until\nkept: held by ann until"
    assert with_shown_person(text, "plain", "host") == shown
