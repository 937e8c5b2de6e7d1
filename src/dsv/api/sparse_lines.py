"""Patterns as a person types them, made into those that a sparse workspace keeps."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from dsv.errors import NotFound, UsageError
from dsv.model.names import clean_path
from dsv.model.path_pattern import escaped, is_pattern
from dsv.model.paths import show
from dsv.model.sparse_patterns import EVERYTHING, EVERYTHING_LINE, SparsePatterns
from dsv.repo.find_paths import find_paths
from dsv.repo.trees import TreeReader


def lines_of(tree: TreeReader | None, texts: Iterable[str]) -> tuple[str, ...]:
    """The lines that stand for these patterns. A path of exactly a pattern's name, if the tree has one, comes first."""
    return tuple(_line(tree, text) for text in texts)


def chosen_by(tree: TreeReader | None, only: Sequence[str]) -> SparsePatterns:
    """What `--only` chooses, each pattern on top of those before it; one that begins with `!` leaves out.

    Raises `NotFound` for a pattern that matches nothing.
    """
    if not only:
        return EVERYTHING
    chosen = EVERYTHING if only[0].startswith("!") else SparsePatterns(())
    for text in only:
        [line] = lines_of(tree, [text.removeprefix("!")])
        if text.startswith("!"):
            chosen = chosen.removed([line])
        else:
            check_matches(tree, [line])
            chosen = chosen.added([line])
    return chosen


def check_matches(tree: TreeReader | None, lines: Iterable[str]) -> None:
    """Raises `NotFound` for a pattern that matches nothing of the tree: it may be misspelt."""
    for line in lines:
        if tree is not None and not _finds(tree, line):
            raise NotFound(
                f"nothing in commit {str(tree.commit_id)[:12]} matches {line}",
                subject=line,
                hint=_several(tree, line)
                or "patterns begin at the top of the dataset; dsv ls shows what is there",
            )


def _several(tree: TreeReader, line: str) -> str | None:
    """What to do if the line is several patterns in one, at least one of which matches something."""
    parts = line.replace(",", " ").split()
    if len(parts) < 2 or set(line) & set("\\[]") or not any(_finds(tree, part) for part in parts):
        return None
    name = "a comma" if "," in line else "a space"
    each = f"--only {parts[0]} --only {parts[1]}"
    return f"{name} is a part of the pattern; name each pattern by itself (dsv clone: {each})"


def _finds(tree: TreeReader, line: str) -> bool:
    pattern = SparsePatterns((line,))
    return any(pattern.matches(entry.path) for entry, _ in tree.within(pattern))


def _line(tree: TreeReader | None, text: str) -> str:
    path = clean_path(text.encode("utf-8", "surrogateescape"))
    if not path:
        return EVERYTHING_LINE
    if is_pattern(path) or b"\\" in path:
        if tree is not None:
            [(_, found)] = find_paths(tree, [path])
            if found.entry is not None or found.below:
                path = escaped(path)
    elif path.startswith(b"!"):
        path = b"\\" + path
    try:
        return path.decode()
    except UnicodeDecodeError:
        raise UsageError(
            f"the pattern {show(path)} is not UTF-8, and paths of a dataset are", subject=text
        ) from None


def typed(lines: Iterable[str]) -> str:
    """The patterns as words of a command line."""
    return " ".join(map(shlex.quote, lines))
