"""Hiding secrets in what is recorded of a run.

    by name    the value of `--token X`, `api_key=X`, `"password": "X"`, `-u user:X`, `mysql -pX`
    by looks   private keys, tokens of well-known services, signed URLs
    by value   what is known to be secret, wherever it turns up: values that were hidden by name in the command and the
               parameters, values given with `-e`, and the caller's own variables with secret names

Known values of eight characters or more are hidden anywhere, within a longer word too; those of four to seven, and
numbers of six digits or more, only as a word of their own; shorter ones only right behind their name (`token='ab'`).
Each pattern reads a text once, however long. Only sets of characters are possessive: groups are not right in Python
below 3.11.5 (gh-106052).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Final
from urllib.parse import quote, quote_plus, unquote

HIDDEN: Final = "***"
ANYWHERE, A_WORD, _GIVEN, _LINE = 8, 4, 6, 16
"""Characters from which on a known value is hidden anywhere, as a word, if given with `-e`, and each line of it."""
_NO_SECRETS: Final = frozenset(("true", "false", "yes", "no", "on", "off", "none", "null", "auto", "default"))

Named = tuple[str, str]
"""A name, and a value that is secret because of it."""

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_OF_TEXT = r"pad|eos|bos|unk|sep|cls|mask|special|max|min|num|per|next|first|last|new|extra|sub|pre|ids|type|count|size"
# Matched against the words of a name, joined by underscores: HF_TOKEN, hf-token and hfToken are `hf_token`.
_NAME = re.compile(
    rf"""(?:.*_)?(?:
        [a-z]*(?:password|passwd|passphrase|passcode|secret|credentials?|(?:api|access|secret|private)key
          |connectionstring)
        |(?:ssh|smtp|ftp|db|pg|mysql|redis|ldap|mail|user)?pass
        |pwd|auth|authorization|bearer|cookie|signature|sas|pat|connstr|webhook_url|sentry_dsn
        |conn(?:ection)?_str(?:ings?)?
        |(?:api|access|secret|private|account|encryption|signing|storage|master|license|ssh|kaggle|openai|wandb)_keys?
        |(?!(?:{_OF_TEXT})token)[a-z]+token
    )(?:_.*)?
    |(?!(?:.*_)?(?:{_OF_TEXT}|id(?!_token(?:_|$)))(?:_|$))(?:.*_)?token(?:_.*)?""",
    re.VERBOSE,
)
_RANDOM = re.compile(
    r"(?<![A-Za-z0-9])(?=[A-Za-z]*+[0-9])(?=[0-9]*+[A-Za-z])[A-Za-z0-9]{16,}"
    r"|(?=[0-9a-f-]*?[0-9])(?=[0-9-]*[a-f])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    re.IGNORECASE,
)
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
    r"|(?P<head>\b(?i:X-Amz-Signature|X-Goog-Signature|Signature|sig|AccountKey|SharedAccessKey)=)"
    r"[A-Za-z0-9%+/=_-]{16,}"
    r"|(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{10,}+\.eyJ[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]*+"  # a JSON web token
    rf"|{_URL_USER}",
    re.DOTALL | re.ASCII,
)
_QUERY = re.compile(r"(?P<head>[?&](?P<name>[A-Za-z][A-Za-z0-9_.-]{0,63})=)(?P<value>[^\s&\"'<>#]+)")

# To the closing quote, which does not follow a backslash, or to the end if there is none.
_QUOTED = r"""(?:"(?:[^"\\]++|\\.?)*"?|'(?:[^'\\]++|\\.?)*'?)"""
_SCHEME = r"(?:bearer|basic|token)\s+"
# A name and what stands between it and its value, within a longer text such as the argument of `sh -c`.
_ASSIGNED = re.compile(
    r"""(?<![A-Za-z0-9_.-])[0-9_.-]*+(?P<name>[A-Za-z][A-Za-z0-9_.-]*+)["']?+\s*+[=:]\s*+""", re.IGNORECASE
)
_FOLLOWED = re.compile(
    r"(?<![A-Za-z0-9_.-])(?:[A-Za-z0-9_.]|-(?!-?[A-Za-z]))*--?(?P<name>[A-Za-z][A-Za-z0-9_.-]*+)\s++"
)
_VALUE = re.compile(rf"""{_QUOTED}|(?:{_SCHEME})?(?:\\.?+|[^\s"'&;,|)}}\\])+""", re.IGNORECASE | re.DOTALL)
_FLAG = re.compile(r"--?(?P<name>[A-Za-z][A-Za-z0-9_.-]*)")
_WHOLE = re.compile(r"(?P<head>-{0,2}(?P<name>[A-Za-z][A-Za-z0-9_.-]*+)=)(?P<value>.+)", re.DOTALL)
_LOGIN = re.compile(
    r"(?P<head>(?<![\w-])(?:-u|--user|--proxy-user)[ =]{0,4}[\"']?(?=\S))"
    r"(?P<user>[^\s:/\"']{1,256}):(?P<password>[^\s\"']{1,1024})"
)
_SHORT = re.compile(rf"(?P<head>(?<!\S)-p(?=\S))(?P<value>{_QUOTED}|[^\s\"';|&)]++)", re.DOTALL)
_TAKES_P = re.compile(r"(?<![\w.-])(?:mysql|mariadb|sshpass)")
_PASSWORD = re.compile(r"(?=[^A-Za-z]*[A-Za-z])(?=[a-z]*[^a-z])(?![./~$-]|[A-Za-z_-]+=|rint0$)[^\s/]{6,}")
_VARIABLE = re.compile(r"(?P<head>(?P<name>[^=]*)=)(?P<value>.*)", re.DOTALL)
_ENV_OPTION = re.compile(r"(?P<head>(?:--env=|-e=?)(?P<name>[^=]+)=)(?P<value>.*)", re.DOTALL)
_GLANCE = 512
"""Characters of a value that are looked at before it is known to be secret: a text is still read once."""


def is_secret_name(name: str) -> bool:
    """Check that any value of this name is taken to be secret: `HF_TOKEN`, `dbPassword`, `PGPASSWORD`, `id_token`.

    `max_tokens`, `pad_token`, `token_id`, `tokenizer`, `compass`, `author`, `key` and `PWD` are not.
    """
    words = "_".join(_WORDS.findall(name)).lower()
    return name not in ("PWD", "OLDPWD") and _NAME.fullmatch(words) is not None


def is_secret(name: str, value: str) -> bool:
    """Check that a value is taken to be secret by its name or, for a key of any kind, because it looks random."""
    words = _WORDS.findall(name)
    is_key = bool(words) and words[-1].lower() == "key"
    return is_secret_name(name) or (is_key and _RANDOM.search(value) is not None)


def hide_shapes(text: str) -> str:
    """Return the text without what can only be a secret."""
    return _SHAPES.sub(lambda found: (found["head"] or "") + HIDDEN, _hide_queries(text))


def hide_in_urls(text: str) -> str:
    """Return a text, such as a message that quotes what was typed, without passwords and signatures in URLs."""
    return _hide_queries(_IN_URLS.sub(HIDDEN, text)) if "://" in text else text


def _hide_queries(text: str) -> str:
    def hide(found: re.Match[str]) -> str:
        secret = is_secret(found["name"], found["value"]) or found["name"].lower() == "sig"
        return found["head"] + HIDDEN if secret else found[0]

    return _QUERY.sub(hide, text)


def hide_in_command(argv: Sequence[str]) -> tuple[tuple[str, ...], list[Named]]:
    """Return as many arguments, without the values of secret names, and those values."""
    kept: list[str] = []
    found: list[Named] = []
    takes_p = any(_TAKES_P.match(argument.rpartition("/")[2]) for argument in argv)
    before = ""
    for argument in argv:
        flag = _FLAG.fullmatch(before)
        if flag is not None and not argument.startswith("--") and is_secret(flag["name"], argument):
            found.append((flag["name"], argument))
            kept.append(HIDDEN)
            before = ""
            continue
        head = f"{before} " if before in ("-u", "--user", "--proxy-user") else ""
        shown = _LOGIN.sub(partial(_hide_login, found), head + argument).removeprefix(head)
        whole = None if before in ("-c", "-lc", "-ec") else _WHOLE.fullmatch(shown)
        if whole is not None and is_secret(whole["name"], whole["value"]):
            found.append((whole["name"], whole["value"]))
            kept.append(whole["head"] + HIDDEN)
        else:
            always = takes_p or _TAKES_P.search(argument) is not None
            shown = _SHORT.sub(partial(_hide_short, found, always), shown)
            kept.append(_hide_values(_FOLLOWED, _hide_values(_ASSIGNED, shown, found), found))
        for url in _IN_URLS.finditer(argument):
            password = url[0].partition(":")[2] or url[0]
            found += [("password", password), ("password", unquote(password))]
        before = argument
    return tuple(kept), found


def _hide_login(found: list[Named], match: re.Match[str]) -> str:
    """Hide `user:password`; numbers are the ids of a user and a group, and a password like its user hides nothing."""
    user, password = match["user"], match["password"]
    if user.isdigit() and password.isdigit():
        return match[0]
    if user != password:
        found.append(("password", password))
    return match[0][: -len(password)] + HIDDEN


def _hide_short(found: list[Named], always: bool, match: re.Match[str]) -> str:
    """Hide `-pX`, if the program is known to take a password so, or if it looks like no port or path."""
    value = match["value"]
    if not always and _PASSWORD.fullmatch(value.strip("\"'")) is None:
        return match[0]
    found += [("password", each) for each in _meanings(value)]
    return match["head"] + HIDDEN


def _hide_values(names: re.Pattern[str], text: str, found: list[Named]) -> str:
    """Hide values of secret names, also inside the values of other names: `url=http://host/?token=X`."""
    parts, done, position = [], 0, 0
    while (head := names.search(text, position)) is not None:
        position = head.end()
        glance = _VALUE.match(text, position, position + _GLANCE)
        if glance is not None and is_secret(head["name"], glance[0]):
            value = _VALUE.match(text, position)
            assert value is not None  # as a part of it did
            quoted = value[0][0] if value[0][0] in "\"'" else ""
            found += [(head["name"], each) for each in _meanings(value[0])]
            parts += [text[done:position], quoted, HIDDEN, quoted]
            done = position = value.end()
    return "".join((*parts, text[done:]))


def _meanings(value: str) -> set[str]:
    """Return a value without its quotes and without `Bearer`, with and without its backslashes."""
    if value[:1] in ("'", '"'):
        value = value[1:].removesuffix(value[0])
    value = re.sub(rf"\A{_SCHEME}", "", value, flags=re.IGNORECASE)
    return {value, re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL)}


@dataclass(frozen=True, slots=True)
class Masker:
    """Replaces secrets in what is about to be recorded."""

    known: tuple[str, ...] = field(default=(), repr=False)
    """Values to hide wherever they occur."""
    surely: tuple[str, ...] = field(default=(), repr=False)
    """Those of them whose names say secret, which not even parameters may show."""
    named: tuple[Named, ...] = field(default=(), repr=False)
    """Values that are too short to be hidden without their names."""

    @classmethod
    def of(
        cls,
        given: Mapping[str, str],
        environ: Mapping[str, str],
        command: Sequence[str] = (),
        params: Mapping[str, object] | None = None,
    ) -> Masker:
        """Collect secrets from the values given with `-e`, the caller's environment, the command with the engine's
        options, and the parameters."""
        pairs = [pair for pair in (*given.items(), *environ.items()) if is_secret(*pair)]
        pairs += hide_in_command(command)[1]
        pairs += _pairs_in(params or {})
        pairs = [(name, value) for name, value in pairs if _may_be_secret(value)]
        secret = {value for _, value in pairs if len(value) >= (_GIVEN if _is_number(value) else A_WORD)}
        plain = {value for value in given.values() if len(value) >= _GIVEN and not _is_number(value)}
        longest_first = sorted(secret | plain, key=lambda value: (-len(value), value))
        return cls(
            tuple(longest_first),
            tuple(value for value in longest_first if value in secret),
            tuple(sorted({(name, value) for name, value in pairs if value not in secret})),
        )

    @property
    def longest(self) -> int:
        """Return the number of bytes of the longest text that is looked for."""
        forms = [form for value in self.known for form in _forms(value)]
        return max((len(form.encode("utf-8", "surrogatepass")) for form in forms), default=0)

    def data(self, data: bytes) -> bytes:
        """Hide what is known or obvious in a log, or any other text."""
        return self.text(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def text(self, text: str) -> str:
        """Do the same for any string, even one that no encoding has bytes for."""
        forms, pattern = _forms_and_pattern(self.known, self.named)
        for form in forms:
            text = text.replace(form, HIDDEN)
        if pattern is not None:
            text = pattern.sub(
                lambda found: (found[found.lastindex] if found.lastindex else "") + HIDDEN, text
            )
        return hide_shapes(text)

    def name(self, text: str) -> str:
        """Hide only long secrets, in a name or a path that has to stay what it is."""
        return Masker(tuple(value for value in self.surely if len(value) >= ANYWHERE)).text(text)

    def value(self, value: object, *, surely: bool = False) -> object:
        """Mask all strings and keys of a JSON value, and hide members whose names say secret.

        surely: of the known values, hide only those that surely are secret
        """
        if surely:
            return Masker(self.surely, named=self.named).value(value)
        return self._value(value, "")

    def argv(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Return as many arguments, without secrets by name and by value."""
        return tuple(self.text(argument) for argument in hide_in_command(argv)[0])

    def _value(self, value: object, name: str) -> object:
        if isinstance(value, str):
            return HIDDEN if _may_be_secret(value) and is_secret(name, value) else self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self._value(each, str(key)) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._value(each, name) for each in value]
        if isinstance(value, int | float) and not isinstance(value, bool) and self.known:
            return HIDDEN if repr(value) in self.known else value
        return value


@lru_cache(maxsize=4)
def _forms_and_pattern(
    known: tuple[str, ...], named: tuple[Named, ...]
) -> tuple[list[str], re.Pattern[str] | None]:
    """Return the texts to hide anywhere, the longest first, and a pattern of words, and of heads in groups before
    values."""
    forms = dict.fromkeys(form for value in known if _anywhere(value) for form in _forms(value))
    parts = [_word(value) for value in known if not _anywhere(value)] + [_behind(*pair) for pair in named]
    return sorted(forms, key=lambda form: -len(form)), re.compile("|".join(parts)) if parts else None


def hide_env_values(arguments: Iterable[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the arguments of a container engine without the values of `-e K=V`, `--env=K=V` and the like, and those
    variables."""
    kept: list[str] = []
    values: dict[str, str] = {}
    follows = False
    for argument in arguments:
        found = (_VARIABLE if follows else _ENV_OPTION).fullmatch(argument)
        if found is not None:
            values[found["name"]] = found["value"]
        kept.append(argument if found is None else found["head"] + HIDDEN)
        follows = not follows and argument in ("-e", "--env")
    return tuple(kept), values


def _pairs_in(value: object, name: str = "") -> Iterable[Named]:
    """Yield the strings in a JSON value that are secret by the names of their members."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _pairs_in(each, str(key))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _pairs_in(each, name)
    elif isinstance(value, str) and is_secret(name, value):
        yield name, value


def _may_be_secret(value: str) -> bool:
    """Check that it is no plain word, nor something that a shell replaces."""
    return value != "" and value.lower() not in _NO_SECRETS and not value.startswith(("$", HIDDEN))


def _anywhere(value: str) -> bool:
    return len(value) >= ANYWHERE and not _is_number(value)


def _forms(value: str) -> list[str]:
    """Return a value as it stands, each long line of it, and as JSON, Python, a shell and a URL write it."""
    return [
        value,
        *(line.strip() for line in value.splitlines() if len(line.strip()) >= _LINE),
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        repr(value)[1:-1],
        value.replace("'", "'\\''"),
        value.replace("'", "'\"'\"'"),
        quote(value, errors="surrogatepass"),
        quote(value, safe="", errors="surrogatepass"),
        quote_plus(value, errors="surrogatepass"),
    ]


def _word(value: str) -> str:
    """Return a pattern of a value that is no part of a longer word or number; an escape such as `\\n` is none."""
    if _is_number(value):
        return rf"(?<![A-Za-z0-9_.]){re.escape(value)}(?!\.?[A-Za-z0-9_])"
    return rf"(?:(?<![A-Za-z0-9_])|(?<=\\[nrt])){re.escape(value)}(?![A-Za-z0-9_])"


def _behind(name: str, value: str) -> str:
    """Return a pattern of a name, however its words are joined, in a group, and a value behind it."""
    words = "[-_. ]?".join(re.escape(word) for word in _WORDS.findall(name))
    between = r"[\"']?[ \t]{0,4}[=: ][ \t]{0,4}[\"']?"
    return rf"((?i:{words}){between}){re.escape(value)}(?![A-Za-z0-9_])"


def _is_number(value: str) -> bool:
    return re.fullmatch(r"[-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?", value) is not None
