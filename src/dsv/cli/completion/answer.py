"""The answer to a shell: the words that may stand where the cursor is."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from dsv.cli.completion.known import Known, Row
from dsv.cli.completion.line import COMMANDS, Wanted, options, wanted

FILES, FOLDERS, NOTHING_ELSE = "files", "folders", "words"
"""The first line of an answer: what the shell adds by itself."""
_MAX_ROWS = 500
_OPEN_ENDS = ("/", "@", ":", "=")
"""After a word that ends so something follows, so no space is put behind it."""
_QUOTED = re.compile(r"([\s'\"\\$`&|;<>()*?\[\]#!{}])")


def main(environ: Mapping[str, str], arguments: Sequence[str]) -> str:
    """The answer to the shell that `_DSV_COMPLETE` names.

    arguments: for bash its COMP_LINE, COMP_POINT and COMP_WORDBREAKS; for the others the words behind `dsv`.
    """
    shell = environ.get("_DSV_COMPLETE", "")
    known_to = {name: value for name, value in environ.items() if name != "_DSV_COMPLETE"}
    if shell != "bash":
        otherwise, rows = complete(arguments or [""], known_to)
        separator = "\t" if shell == "fish" else "\x1f"
        return _lines(
            otherwise, (f"{word}{separator}{_plain(text)}".rstrip(separator) for word, text in rows)
        )
    line, point, breaks = (*arguments, "", "", "")[:3]
    typed = os.fsencode(line)[: int(point) if point.isdecimal() else None]
    words = split(os.fsdecode(typed))[1:] or [""]
    otherwise, rows = complete(words, known_to)
    # bash replaces what stands behind the last of its word breaks alone.
    kept = (
        max(
            (words[-1].rfind(each) for each in breaks if not each.isspace() and each not in "\"'"), default=-1
        )
        + 1
    )
    return _lines(otherwise, (_QUOTED.sub(r"\\\1", word[kept:]) for word, _ in rows))


def complete(words: Sequence[str], environ: Mapping[str, str]) -> tuple[str, list[Row]]:
    """What the shell adds by itself, and the words that the last one may become."""
    asked = wanted(words)
    if asked.kind in ("program", "file", "path"):
        return FILES, []
    if asked.kind == "folder":
        return FOLDERS, []
    rows = [
        (f"{asked.before}{word}", text)
        for word, text in _values(asked, environ)
        if word.startswith(asked.word)
    ]
    if asked.kind in ("store", "cache"):
        return FOLDERS, rows[:_MAX_ROWS]
    return NOTHING_ELSE, rows[:_MAX_ROWS]


def split(line: str) -> list[str]:
    """The words of an unfinished line as a shell takes them; the last one is empty after a space."""
    words, word, quote, begun = [], "", "", False
    characters = iter(line)
    for each in characters:
        if quote:
            if each == quote:
                quote = ""
            elif each == "\\" and quote == '"':
                word += next(characters, "")
            else:
                word += each
        elif each in "'\"":
            quote, begun = each, True
        elif each == "\\":
            word, begun = word + next(characters, ""), True
        elif each.isspace():
            if begun or word:
                words.append(word)
            word, begun = "", False
        else:
            word += each
    return [*words, word]


def _values(asked: Wanted, environ: Mapping[str, str]) -> list[Row]:
    if asked.kind == "command":
        return [(name, each.help) for name, each in COMMANDS.items() if name]
    if asked.kind == "option":
        return options(asked.command)
    if "|" in asked.kind:
        return [(choice, "") for choice in asked.kind.split("|")]
    known = Known(environ, os.getcwd(), asked.flags or {})
    if asked.kind == "target":
        return _targets(known, asked.word)
    if asked.kind == "named-target":
        name, equals, target = asked.word.partition("=")
        return [(f"{name}={word}", text) for word, text in _targets(known, target)] if equals else []
    finders: dict[str, Callable[[], list[Row]]] = {
        "dataset": known.datasets,
        "run": known.runs,
        "store": known.stores,
        "cache": known.caches,
        "key": known.keys,
        "branch": lambda: known.branches(""),
        "tag": lambda: known.tags(""),
        "pattern": lambda: known.paths("", "", asked.word),
    }
    return finders[asked.kind]() if asked.kind in finders else []


def _targets(known: Known, word: str) -> list[Row]:
    """Words of `[DATASET][@REV][:PATH]`."""
    names, colon, path = word.partition(":")
    dataset, at, revision = names.partition("@")
    if colon:
        return [(f"{names}:{found}", text) for found, text in known.paths(dataset, revision, path)]
    if at:
        return [(f"{dataset}@{found}", text) for found, text in known.revisions(dataset)]
    rows = known.datasets()
    if any(name == word for name, _ in rows) and not any(
        name != word and name.startswith(word) for name, _ in rows
    ):
        rows += [(f"{word}@{found}", text) for found, text in known.revisions(word)]
    return rows


def _lines(otherwise: str, rows: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in (otherwise, *rows))


def _plain(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text)[:72]
