"""What a record says of where a run comes from."""

from __future__ import annotations

import pytest

from dsv.run.origin import without_credentials


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://secret@host/team/code.git", "https://host/team/code.git"),
        ("ssh://git:secret@host:22/code", "ssh://host:22/code"),
        ("git@host:team/code.git", "host:team/code.git"),
        ("https://host/code?token=secret#secret", "https://host/code"),
        ("host:code?token=secret", "host:code"),
        ("/srv/code.git", "/srv/code.git"),
        ("https://user:secret/x@host/code", None),
        ("https://user:secret#x@host/code", None),
        ("https://user:secret?x@host/code", None),
        ("store::https://user:secret@host/code", None),
        ("codecommit::eu-west-1://secret@code", None),
        ("ext::helper --token=secret %S", None),
        ("//secret@host/code", None),
        ("", None),
    ],
)
def test_a_remote_is_kept_without_what_may_be_secret(url: str, kept: str | None) -> None:
    assert without_credentials(url) == kept
