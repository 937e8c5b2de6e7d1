"""Which names say that their value is secret.

A name is split into words (`dbPassword`, `DB_PASSWORD` and `db-password` are the same two) and says secret if

- one of its words does (`password`, `token`, `auth` …); of language models' tokens none does (`pad_token`), or
- two words in a row do (`api_key`, `connection_string`), or
- it is written as one word and ends in one of a few (`PGPASSWORD`, `githubtoken`).

Any other name whose last word is `key` says secret only of a value that looks random: `--wandb-key 0f3a…` does,
`--image-key pixel_values` doesn't.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
# fmt: off
_SECRET_WORDS: Final = frozenset(
    (
        "password", "passwd", "passphrase", "passcode", "pass", "pwd", "secret", "token", "apikey",
        "accesskey", "secretkey", "privatekey", "credential", "credentials", "auth", "authorization",
        "bearer", "cookie", "signature", "sas", "pat", "connstr",
    )
)
_SECRET_PAIRS: Final = frozenset(
    (
        ("connection", "string"), ("connection", "strings"), ("conn", "str"), ("conn", "string"),
        ("webhook", "url"), ("sentry", "dsn"),
    )
)
_SECRET_KEYS: Final = frozenset(
    (
        "api", "access", "secret", "private", "account", "encryption", "signing", "storage", "master",
        "license", "ssh", "subscription", "fernet", "hmac", "aes", "jwt", "deploy", "kaggle", "openai",
        "anthropic",
    )
)
_SECRET_ENDINGS: Final = (
    "password", "passwd", "passphrase", "passcode", "secret", "token", "apikey", "accesskey", "secretkey",
    "privatekey", "credential", "credentials", "connectionstring",
)
_WITH_PASS: Final = frozenset(
    (
        "sshpass", "smtppass", "ftppass", "dbpass", "pgpass", "mysqlpass", "redispass", "ldappass", "mailpass",
        "userpass",
    )
)
_TOKENS_OF_TEXT: Final = frozenset(
    (
        "pad", "eos", "bos", "unk", "sep", "cls", "mask", "special", "max", "min", "num", "per", "next",
        "first", "last", "new", "extra", "sub", "pre", "id", "ids", "type", "count", "size",
    )
)
# fmt: on
_FOLDERS: Final = frozenset(("PWD", "OLDPWD"))  # where a shell is and was

_RANDOM = re.compile(r"[A-Za-z0-9]{16,}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def is_secret_name(name: str) -> bool:
    """Whether any value of this name is taken to be secret: `HF_TOKEN`, `dbPassword`, `PGPASSWORD`, `id_token`,
    `aws-secret-access-key`.

    `max_tokens`, `pad_token`, `token_id`, `tokenizer`, `compass`, `author`, `key` and `PWD` are not.
    """
    if name in _FOLDERS:
        return False
    words = [word.lower() for word in _WORDS.findall(name)]
    pairs = list(pairwise(words))
    others = [word for word, after in pairs if (word, after) != ("id", "token")] + words[-1:]
    if "token" in words and not _TOKENS_OF_TEXT.isdisjoint(others):
        words = [word for word in words if word != "token"]
    if any(word in _SECRET_WORDS or _ends_secretly(word) for word in words):
        return True
    return any(
        pair in _SECRET_PAIRS or (pair[1] in ("key", "keys") and pair[0] in _SECRET_KEYS) for pair in pairs
    )


def is_secret(name: str, value: str) -> bool:
    """Whether a value of this name is taken to be secret, by its name or, for a key of any kind, by its looks."""
    if is_secret_name(name):
        return True
    words = _WORDS.findall(name)
    return bool(words) and words[-1].lower() == "key" and looks_random(value)


def looks_random(value: str) -> bool:
    """Whether it holds sixteen letters and digits in a row, of both kinds, or a UUID."""
    found = _RANDOM.findall(value)
    return any(any(c.isdigit() for c in run) and any(c.isalpha() for c in run) for run in found)


def words_of(name: str) -> list[str]:
    """The words of a name as they stand in it."""
    return _WORDS.findall(name)


def _ends_secretly(word: str) -> bool:
    """For names that are written as one word: `pgpassword`, `githubtoken`."""
    if word in _WITH_PASS:
        return True
    kind = word.removesuffix("token")
    return word.endswith(_SECRET_ENDINGS) and (kind == "id" or kind not in _TOKENS_OF_TEXT)
