"""What must not enter a run's record: which names and values count as secret, and how text is rid of them.

Two rules. By name: the value of `--token X`, `api_key=X`, `"password": "X"` and the like is replaced. By
value: what the caller is known to hold as a secret (see `Masker`), and what can be nothing else (a PEM key,
an AWS key id, a GitHub token, a password inside a URL).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

HIDDEN = "***"

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
# fmt: off
_SECRET_WORDS = frozenset(
    (
        "password", "passwd", "passphrase", "passcode", "pass", "pwd", "secret", "token", "apikey",
        "accesskey", "secretkey", "privatekey", "credential", "credentials", "auth", "authorization",
        "bearer", "cookie", "sas", "pat", "connstr",
    )
)
_SECRET_ENDINGS = (
    "password", "passwd", "passphrase", "passcode", "pass", "secret", "token", "apikey", "accesskey",
    "secretkey", "privatekey", "credential", "credentials", "connectionstring",
)
_SECRET_PAIRS = frozenset(
    (
        ("connection", "string"), ("connection", "strings"), ("conn", "str"), ("conn", "string"),
        ("webhook", "url"), ("sentry", "dsn"),
    )
)
_NO_SECRET_ENDINGS = frozenset(
    (
        "compass", "encompass", "bypass", "surpass", "trespass", "overpass", "underpass", "lowpass", "highpass",
        "bandpass", "allpass", "multipass", "singlepass", "onepass", "twopass", "firstpass", "secondpass",
        "forwardpass", "backwardpass", "renderpass", "subtoken", "pretoken",
    )
)
_KEY_KINDS = frozenset(
    (
        "api", "access", "secret", "private", "account", "encryption", "signing", "storage", "master",
        "license", "ssh", "subscription", "fernet", "hmac", "aes", "jwt", "deploy", "kaggle", "openai",
        "anthropic",
    )
)
_TOKENS_OF_TEXT = frozenset(
    (
        "pad", "eos", "bos", "unk", "sep", "cls", "mask", "special", "max", "min", "num", "per", "next",
        "first", "last", "new", "extra", "id", "ids", "type", "count", "size",
    )
)
_FOLDERS = frozenset(("PWD", "OLDPWD"))  # where a shell is and was
_NO_SECRETS = frozenset(
    (
        "true", "false", "yes", "no", "none", "null", "auto", "default",
    )
)
# fmt: on

# To the closing quote, which is none after a backslash, or to the end where there is none.
_QUOTED = r"""(?:"(?:[^"\\]++|\\.?)*"?|'(?:[^'\\]++|\\.?)*'?)"""

# A name and what stands between it and its value, within a longer text such as the argument of `sh -c`. A name
# is looked for where a run of its characters begins, and once in each run; so a text is read once, however long.
# Possessive are sets of characters alone: of groups, Python below 3.11.5 gets them wrong (gh-106052).
_ASSIGNED = re.compile(
    r"""(?<![A-Za-z0-9_.-])[0-9_.-]*+(?P<name>[A-Za-z][A-Za-z0-9_.-]*+)["']?+\s*+[=:]\s*+""", re.IGNORECASE
)
_ASSIGNED_VALUE = re.compile(
    rf"""{_QUOTED}|(?:(?:bearer|basic|token)\s+)?(?:\\.?+|[^\s"'&;,|)}}\\])+""", re.IGNORECASE | re.DOTALL
)
_FOLLOWED = re.compile(
    r"(?<![A-Za-z0-9_.-])(?:[A-Za-z0-9_.]|-(?!-?[A-Za-z]))*--?(?P<name>[A-Za-z][A-Za-z0-9_.-]*+)\s++"
)
_FOLLOWED_VALUE = re.compile(rf"""{_QUOTED}|(?:\\.?+|[^\s"'&;|)\\])+""", re.DOTALL)
_WHOLE = re.compile(r"(?P<head>-{0,2}(?P<name>[A-Za-z][A-Za-z0-9_.-]*+)=)(?P<value>.+)", re.DOTALL)
_FLAG = re.compile(r"--?(?P<name>[A-Za-z][A-Za-z0-9_.-]*)")

_SHAPES = (
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"
    r"|\bgh[pousr]_[A-Za-z0-9]{36,}|\bgithub_pat_[A-Za-z0-9_]{22,}|\bglpat-[A-Za-z0-9_-]{20,}"
    r"|\bhf_[A-Za-z0-9]{30,}|\bsk-[A-Za-z0-9_-]{32,}|\bxox[abprs]-[A-Za-z0-9-]{10,}"
    r"|(?i:\b(?:bearer|basic)\s+[A-Za-z0-9._~+/=-]{16,})"
    r"|(?<=://)[^\s/:@\"']{1,256}:[^\s/@\"']{1,256}(?=@)"
)
_IN_BYTES = re.compile(_SHAPES.encode(), re.DOTALL)
_IN_TEXT = re.compile(_SHAPES, re.DOTALL | re.ASCII)  # what bytes match, text matches
# A JSON web token; once in each run of its characters, as above. Only where there is a `.eyJ` is it looked for.
_JWT = (
    r"(?<![A-Za-z0-9_-])(?P<before>(?:(?!\beyJ)[A-Za-z0-9_-])*)"
    r"\beyJ[A-Za-z0-9_-]{10,}+\.eyJ[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]*+"
)
_JWT_IN_BYTES = re.compile(_JWT.encode())
_JWT_IN_TEXT = re.compile(_JWT, re.ASCII)


def is_secret_name(name: str) -> bool:
    """Whether a value of this name is taken to be secret: `HF_TOKEN`, `dbPassword`, `PGPASSWORD`, `id_token`,
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
        pair in _SECRET_PAIRS or (pair[1] in ("key", "keys") and pair[0] in _KEY_KINDS) for pair in pairs
    )


def _ends_secretly(word: str) -> bool:
    """For names that are written as one word: `sshpass`, `githubtoken`."""
    if not word.endswith(_SECRET_ENDINGS) or word in _NO_SECRET_ENDINGS:
        return False
    kind = word.removesuffix("token")
    return kind == "id" or kind not in _TOKENS_OF_TEXT


@dataclass(frozen=True, slots=True)
class Masker:
    """Replaces secrets in what is about to be recorded.

    known: values to hide wherever they occur; `surely` are those that not even parameters may show.
    """

    known: tuple[str, ...] = field(default=(), repr=False)
    surely: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, given: Mapping[str, str], environ: Mapping[str, str]) -> Masker:
        """From the values given to the job with `-e`, and the caller's own environment.

        Given values of six characters or more count unless they are numbers; where the name says secret, four
        do. Of the environment only names that say secret count.
        """
        named = {
            value
            for name, value in [*given.items(), *environ.items()]
            if is_secret_name(name) and len(value) >= 4 and value.lower() not in _NO_SECRETS
        }
        plain = {value for value in given.values() if len(value) >= 6 and not _is_number(value)}
        longest_first = sorted(named | plain, key=lambda value: (-len(value), value))
        return cls(tuple(longest_first), tuple(value for value in longest_first if value in named))

    @property
    def longest(self) -> int:
        """Bytes of the longest known value."""
        return max((len(_bytes(value)) for value in self.known), default=0)

    def data(self, data: bytes) -> bytes:
        """A log, or any other text, without what is known or obvious."""
        for value in self.known:
            data = data.replace(_bytes(value), HIDDEN.encode())
        if b".eyJ" in data:
            data = _JWT_IN_BYTES.sub(rb"\g<before>" + HIDDEN.encode(), data)
        return _IN_BYTES.sub(HIDDEN.encode(), data)

    def text(self, text: str) -> str:
        """As `data`, of any string, even one that no encoding has bytes for."""
        for value in self.known:
            text = text.replace(value, HIDDEN)
        if ".eyJ" in text:
            text = _JWT_IN_TEXT.sub(rf"\g<before>{HIDDEN}", text)
        return _IN_TEXT.sub(HIDDEN, text)

    def value(self, value: object, *, surely: bool = False) -> object:
        """A JSON value with all strings and keys masked; with `surely`, by what surely is secret alone."""
        if surely:
            return Masker(self.surely).value(value)
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.value(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(each) for each in value]
        return value

    def argv(self, argv: Sequence[str]) -> tuple[str, ...]:
        """A command without its secrets, by name and by value; as many arguments as before."""
        kept: list[str] = []
        hide_next = False
        for argument in argv:
            if hide_next and not argument.startswith("--"):
                kept.append(HIDDEN)
                hide_next = False
                continue
            flag = _FLAG.fullmatch(argument)
            hide_next = flag is not None and is_secret_name(flag["name"])
            script = bool(kept) and kept[-1] in ("-c", "-lc", "-ec")
            kept.append(self.text(_by_name(argument, script)))
        return tuple(kept)


def hide_env_values(arguments: Iterable[str]) -> tuple[str, ...]:
    """Arguments meant for a container engine: of `-e K=V`, `--env=K=V` and the like, the name alone stays."""
    kept: list[str] = []
    expects = False
    for argument in arguments:
        match = re.fullmatch(r"(--env=|-e=?)([^=]+)=(.*)", argument, re.DOTALL)
        if expects:
            name, equals, _ = argument.partition("=")
            kept.append(f"{name}={HIDDEN}" if equals else name)
        elif match is not None:
            kept.append(f"{match[1]}{match[2]}={HIDDEN}")
        else:
            kept.append(argument)
        expects = not expects and argument in ("-e", "--env")
    return tuple(kept)


def _by_name(argument: str, script: bool) -> str:
    whole = None if script else _WHOLE.fullmatch(argument)
    if whole is not None and is_secret_name(whole["name"]):
        return whole["head"] + HIDDEN
    argument = _hide_values(_ASSIGNED, _ASSIGNED_VALUE, argument)
    return _hide_values(_FOLLOWED, _FOLLOWED_VALUE, argument)


def _hide_values(names: re.Pattern[str], values: re.Pattern[str], text: str) -> str:
    """Goes on inside the value of a name that isn't secret: `url=http://host/?token=X`."""
    parts, done, position = [], 0, 0
    while (head := names.search(text, position)) is not None:
        position = head.end()
        if is_secret_name(head["name"]) and (value := values.match(text, position)) is not None:
            quote = value[0][0] if value[0][0] in "\"'" else ""
            parts += [text[done:position], quote, HIDDEN, quote]
            done = position = value.end()
    return "".join((*parts, text[done:]))


def _is_number(value: str) -> bool:
    return re.fullmatch(r"[-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?", value) is not None


def _bytes(text: str) -> bytes:
    """As the system has it; what no system could have passed is encoded too."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
