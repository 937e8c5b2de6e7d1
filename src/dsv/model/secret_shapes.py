"""Secrets that can be told by their looks, in any text: private keys, tokens of well-known services, signed URLs.

Each pattern reads a text once, however long. Possessive are sets of characters alone: of groups, Python below
3.11.5 gets them wrong (gh-106052).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

from dsv.model.secret_names import is_secret

HIDDEN: Final = "***"

_URL_USER = (
    r"(?<=://)(?:"
    r"[^\s/:@\"']{0,256}:[^\s/@\"']{1,256}"  # name and password
    r"|[A-Za-z0-9]{1,128}:[A-Za-z0-9/+]{40}"  # a secret key of S3 may hold a slash
    r"|[A-Za-z0-9_-]{20,256}"  # a token in place of a name
    r")(?=@)"
)
_IN_URLS = re.compile(_URL_USER, re.ASCII)
_SHAPES = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"
    r"|\bgh[pousr]_[A-Za-z0-9]{36,}|\bgithub_pat_[A-Za-z0-9_]{22,}|\bglpat-[A-Za-z0-9_-]{20,}"
    r"|\bhf_[A-Za-z0-9]{30,}|\bxox[abprs]-[A-Za-z0-9-]{10,}"
    r"|\bsk-(?:proj|ant|svcacct|admin)-[A-Za-z0-9_-]{8,}|\bsk-[A-Za-z0-9_-]{32,}|\bsk-[A-Za-z0-9]{20,}"
    r"|\bAIza[A-Za-z0-9_-]{30,}|\bya29\.[A-Za-z0-9_-]{20,}|\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}"
    r"|\b(?:npm_|dckr_pat_|pypi-)[A-Za-z0-9_-]{24,}"
    r"|(?i:\b(?:bearer|basic)\s+[A-Za-z0-9._~+/=-]{16,})"
    rf"|{_URL_USER}",
    re.DOTALL | re.ASCII,
)
_SIGNATURE = re.compile(
    r"(?P<head>\b(?:X-Amz-Signature|X-Goog-Signature|Signature|sig|AccountKey|SharedAccessKey)=)"
    r"[A-Za-z0-9%+/=_-]{16,}",
    re.ASCII | re.IGNORECASE,
)
_QUERY = re.compile(r"(?P<head>[?&](?P<name>[A-Za-z][A-Za-z0-9_.-]{0,63})=)(?P<value>[^\s&\"'<>#]+)")
# A JSON web token, looked for once in each run of its characters, and only in a text that has a `.eyJ`.
_JWT = re.compile(
    r"(?<![A-Za-z0-9_-])(?P<before>(?:(?!\beyJ)[A-Za-z0-9_-])*)"
    r"\beyJ[A-Za-z0-9_-]{10,}+\.eyJ[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]*+",
    re.ASCII,
)


def hide_shapes(text: str) -> str:
    """The text without what can be nothing else than a secret."""
    if ".eyJ" in text:
        text = _JWT.sub(rf"\g<before>{HIDDEN}", text)
    if "=" in text:
        text = _SIGNATURE.sub(rf"\g<head>{HIDDEN}", _QUERY.sub(_hide_query, text))
    return _SHAPES.sub(HIDDEN, text)


def hide_in_urls(text: str) -> str:
    """The text without passwords and signatures in URLs: for messages, which quote what a person typed."""
    if "://" not in text:
        return text
    return _SIGNATURE.sub(rf"\g<head>{HIDDEN}", _QUERY.sub(_hide_query, _IN_URLS.sub(HIDDEN, text)))


def passwords_in_urls(text: str) -> Iterator[str]:
    """The passwords and tokens that stand before the host in the URLs of a text, decoded too."""
    for found in _IN_URLS.finditer(text):
        password = found[0].partition(":")[2] or found[0]
        yield password
        yield unquote(password)


def _hide_query(found: re.Match[str]) -> str:
    secret = is_secret(found["name"], found["value"]) or found["name"].lower() == "sig"
    return found["head"] + HIDDEN if secret else found[0]
