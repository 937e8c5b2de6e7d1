"""What must not enter a run's record, and how text is rid of it.

    by name    the value of `--token X`, `api_key=X`, `"password": "X"`, `-u user:X`: see `secret_names`
    by looks   what can be nothing else: see `secret_shapes`
    by value   what is known to be secret is hidden wherever it turns up: what was hidden by its name in the command
               and the parameters, what was given with `-e`, and the caller's own variables whose names say secret

How far a known value is looked for depends on how likely the same text means something else. Eight characters or
more are hidden anywhere, within a longer word too; four to seven, and numbers of six digits or more, only as a word
of their own; anything shorter only right behind its name (`token='ab'`). `true`, `none` and the like are no secrets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final
from urllib.parse import quote, quote_plus

from dsv.model.secret_argv import hide_in_command
from dsv.model.secret_names import is_secret, words_of
from dsv.model.secret_shapes import HIDDEN, hide_shapes

ANYWHERE: Final = 8
"""Characters from which on a known value is hidden within longer words too."""
A_WORD: Final = 4
"""Characters from which on it is hidden where it is a word of its own."""
_GIVEN: Final = 6
"""Characters from which on a value given with `-e` is hidden whatever its name."""
_LINE: Final = 16
_NO_SECRETS: Final = frozenset(("true", "false", "yes", "no", "on", "off", "none", "null", "auto", "default"))

Named = tuple[str, str]
"""A name, and a value that is secret because of it."""


@dataclass(frozen=True, slots=True)
class Masker:
    """Replaces secrets in what is about to be recorded.

    known: values to hide wherever they occur. surely: those of them whose names say secret, which not even parameters
    may show. named: the names of values that are too short to be hidden without one.
    """

    known: tuple[str, ...] = field(default=(), repr=False)
    surely: tuple[str, ...] = field(default=(), repr=False)
    named: tuple[Named, ...] = field(default=(), repr=False)

    @classmethod
    def of(
        cls,
        given: Mapping[str, str],
        environ: Mapping[str, str],
        command: Sequence[str] = (),
        params: Mapping[str, object] | None = None,
    ) -> Masker:
        """From the values given to the job with `-e`, the caller's own environment, the job's command with the
        engine's options, and its parameters."""
        pairs = [pair for pair in (*given.items(), *environ.items()) if is_secret(*pair)]
        pairs += hide_in_command(command)[1]
        pairs += _pairs_in(params or {})
        pairs = [(name, value) for name, value in pairs if _may_be_secret(value)]
        secret = {value for _, value in pairs if _stands_alone(value)}
        plain = {value for value in given.values() if len(value) >= _GIVEN and not _is_number(value)}
        longest_first = sorted(secret | plain, key=lambda value: (-len(value), value))
        return cls(
            tuple(longest_first),
            tuple(value for value in longest_first if value in secret),
            tuple(sorted({(name, value) for name, value in pairs if value not in secret})),
        )

    @property
    def longest(self) -> int:
        """Bytes of the longest text that is looked for."""
        forms = [form for value in self.known for form in _forms(value)]
        return max((len(form.encode("utf-8", "surrogatepass")) for form in forms), default=0)

    def data(self, data: bytes) -> bytes:
        """A log, or any other text, without what is known or obvious."""
        return self.text(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def text(self, text: str) -> str:
        """As `data`, of any string, even one that no encoding has bytes for."""
        finder = _finder(self.known, self.named)
        return hide_shapes(finder.hide(text))

    def name(self, text: str) -> str:
        """A name or a path, which has to stay what it is unless a secret of some length is in it."""
        return Masker(tuple(value for value in self.surely if len(value) >= ANYWHERE)).text(text)

    def value(self, value: object, *, surely: bool = False) -> object:
        """A JSON value with all strings and keys masked, and members hidden whose names say secret; with `surely`,
        of what is known only what surely is secret counts."""
        if surely:
            return Masker(self.surely, named=self.named).value(value)
        return self._value(value, "")

    def argv(self, argv: Sequence[str]) -> tuple[str, ...]:
        """A command without its secrets, by name and by value; as many arguments as before."""
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


class _Finder:
    """Looks for known values in text."""

    def __init__(self, known: Sequence[str], named: Sequence[Named]) -> None:
        anywhere = [form for value in known if _anywhere(value) for form in _forms(value)]
        self._anywhere = sorted(dict.fromkeys(anywhere), key=lambda value: -len(value))
        words = [_word(value) for value in known if not _anywhere(value)]
        self._words = re.compile("|".join(words)) if words else None
        self._behind = [_behind(name, value) for name, value in named]

    def hide(self, text: str) -> str:
        for value in self._anywhere:
            text = text.replace(value, HIDDEN)
        if self._words is not None:
            text = self._words.sub(HIDDEN, text)
        for pattern in self._behind:
            text = pattern.sub(rf"\g<head>{HIDDEN}", text)
        return text


@lru_cache(maxsize=4)
def _finder(known: tuple[str, ...], named: tuple[Named, ...]) -> _Finder:
    return _Finder(known, named)


def hide_env_values(arguments: Iterable[str]) -> tuple[str, ...]:
    """Arguments meant for a container engine: of `-e K=V`, `--env=K=V` and the like, the name alone stays."""
    return tuple(
        f"{head}{name}={HIDDEN}" if equals else argument
        for argument, (head, name, equals, _) in _env_arguments(arguments)
    )


def env_values(arguments: Iterable[str]) -> dict[str, str]:
    """The variables that arguments meant for a container engine give values to."""
    return {name: value for _, (_, name, equals, value) in _env_arguments(arguments) if equals}


def _env_arguments(arguments: Iterable[str]) -> Iterable[tuple[str, tuple[str, str, str, str]]]:
    """Each argument, and what it says of a variable: what stands before its name, the name, `=`, the value."""
    expects = False
    for argument in arguments:
        match = re.fullmatch(r"(--env=|-e=?)([^=]+)=(.*)", argument, re.DOTALL)
        if expects:
            yield argument, ("", *argument.partition("="))
        elif match is not None:
            yield argument, (match[1], match[2], "=", match[3])
        else:
            yield argument, ("", "", "", "")
        expects = not expects and argument in ("-e", "--env")


def _pairs_in(value: object, name: str = "") -> Iterable[Named]:
    """The strings in a JSON value that are secret by the names of their members."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _pairs_in(each, str(key))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _pairs_in(each, name)
    elif isinstance(value, str) and is_secret(name, value):
        yield name, value


def _may_be_secret(value: str) -> bool:
    """Not what a shell will put something else in place of, nor a plain word."""
    return value != "" and value.lower() not in _NO_SECRETS and not value.startswith(("$", HIDDEN))


def _stands_alone(value: str) -> bool:
    """Whether it is long enough to be looked for without its name."""
    return len(value) >= (_GIVEN if _is_number(value) else A_WORD)


def _anywhere(value: str) -> bool:
    return len(value) >= ANYWHERE and not _is_number(value)


def _forms(value: str) -> Iterable[str]:
    """A value as it stands, as JSON, Python, a URL and a shell write it, and each long line of it."""
    yield value
    for line in value.splitlines():
        if len(line.strip()) >= _LINE:
            yield line.strip()
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield repr(value)[1:-1]
    yield value.replace("'", "'\\''")
    yield value.replace("'", "'\"'\"'")
    for quoted in (quote, quote_plus):
        yield quoted(value, safe="", errors="surrogatepass")
    yield quote(value, errors="surrogatepass")


def _word(value: str) -> str:
    """A pattern of a value that is no part of a longer word or number; an escape such as `\\n` is none of a word."""
    if _is_number(value):
        return rf"(?<![A-Za-z0-9_.]){re.escape(value)}(?!\.?[A-Za-z0-9_])"
    return rf"(?:(?<![A-Za-z0-9_])|(?<=\\[nrt])){re.escape(value)}(?![A-Za-z0-9_])"


def _behind(name: str, value: str) -> re.Pattern[str]:
    """A a name, however its words are joined, with a value behind it."""
    words = "[-_. ]?".join(re.escape(word) for word in words_of(name))
    between = r"[\"']?[ \t]{0,4}[=: ][ \t]{0,4}[\"']?"
    return re.compile(rf"(?P<head>(?i:{words}){between}){re.escape(value)}(?![A-Za-z0-9_])")


def _is_number(value: str) -> bool:
    return re.fullmatch(r"[-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?", value) is not None
