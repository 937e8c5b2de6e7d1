"""A folder for somebody who audits a model: what it was made from and by which runs, as JSON and as a page to read. It
has what the store knows, and judges nothing. As long as that does not change, it is always the same."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from dsv.api.context import Context
from dsv.api.lineage import lineage
from dsv.api.lineage_search import LineageSearch
from dsv.errors import Conflict
from dsv.exchange.licence import licence_of
from dsv.files.errors import about
from dsv.files.small_files import put_file, read_small
from dsv.repo.objects.objects import Objects
from dsv.repo.tree.reader import TreeReader
from dsv.run.lineage import Lineage, LineageNode
from dsv.run.record import RunRecord
from dsv.values.ids import CommitId
from dsv.values.json import on_a_line
from dsv.values.paths import show
from dsv.values.secrets import Masker
from dsv.values.trailers import imported_from
from dsv.values.units import rfc3339

_GRAPH, _PAGE = "lineage.json", "README.md"
_OWN: Final = {_GRAPH, _PAGE, f".{_GRAPH}.part", f".{_PAGE}.part"}
_OF_ALL: Final = ("id", "kind", "path", "rev", "root", "raw")
_INTRODUCTION: Final = """\
# Dossier

`dsv lineage --dossier` made this of the records in a store. They are what runs and their users have said, and nobody
has signed them. It promises nothing about any law. lineage.json has the same for programs.
"""


def dossier(context: Context, named: str, folder: Path, masker: Masker, depth: int | None = None) -> Lineage:
    """Write a dossier of what `lineage` finds. Return that, with what could not be read. masker: hides the secrets of
    this machine. Raises `Conflict` for a folder with anything else, or the dossier of something else."""
    found = lineage(context, named, depth=depth)
    start = f'{{\n "start": {json.dumps(masker.text(found.start))},'.encode()
    with about(folder), context.repository() as repository:
        folder.mkdir(parents=True, exist_ok=True)
        others = {path.name for path in folder.iterdir()} - _OWN
        if others or not (read_small(folder / _GRAPH, 1 << 30) or start).startswith(start):
            what = show(os.fsencode(min(others))) if others else "the dossier of something else"
            text = f"{show(bytes(folder))} has {what}"
            raise Conflict(text, subject=str(folder), hint="name an empty folder")
        search = LineageSearch(repository)
        nodes = [_members(search, node) for node in found.nodes]
        problems = (*found.problems, *search.problems.values())
        unread, edges = [str(problem) for problem in problems], found.edge_items()
        graph: Any = {name: getattr(found, name) for name in ("start", "found", "cut")}
        graph = masker.value({**graph, "unread": unread, "edges": edges, "nodes": nodes})
        put_file(folder / _GRAPH, json.dumps(graph, indent=1).encode() + b"\n")
        put_file(folder / _PAGE, "\n".join(_page(graph)).encode())
    return replace(found, problems=problems)


def _members(search: LineageSearch, node: LineageNode) -> dict[str, Any]:
    record, commit, objects = node.record, node.about, search.repository.objects
    members: dict[str, Any] = {name: getattr(node, name) for name in _OF_ALL}
    if record is not None:
        hosts = sorted({record.host, *(part.host for part in record.parts if part.host)})
        times = {"started": rfc3339(record.started_ms), "ended": record.ended_ms and rfc3339(record.ended_ms)}
        members |= times | {"hosts": hosts} | record.members()
    if commit is not None and node.commit is not None:
        told = search.tried(partial(_told, objects, node.commit, os.fsencode(node.path or "")))
        members |= told or {"licence": "can't be read"}
        members |= {name: getattr(commit, name) for name in ("author", "message", "files", "bytes")}
        members |= {"origin": imported_from(commit.message), "made": rfc3339(commit.time_ms)}
    return members


def _told(objects: Objects, commit: CommitId, path: bytes) -> dict[str, Any]:
    tree, erased = TreeReader(objects, commit), dict[bytes, dict[str, Any]]()
    for entry, _ in tree.below(path) if objects.erasures else ():
        if (erasure := objects.erasures.of(entry)) is not None:
            why = {"files": 0, "at": rfc3339(erasure.time_ms), "by": erasure.author, "reason": erasure.reason}
            erased.setdefault(erasure.nonce, why)["files"] += 1
    return {"licence": licence_of(tree), "erased": [*erased.values()]}


def _page(graph: dict[str, Any]) -> Iterator[str]:
    """Yield the lines. What others wrote is in indented blocks, where nothing is markup."""
    yield _INTRODUCTION
    left_out = {*RunRecord.keys("not shown"), "edges", "nodes"}
    for number, members in enumerate((graph, *graph["nodes"])):
        yield f"\n## {number}. {members.get('kind', 'what was asked')}\n"
        for key, value in members.items():
            if value not in (None, [], {}, "") and key not in left_out:
                yield f"    {key}: {on_a_line(value)}"
        for edge in graph["edges"]:
            if members.get("id") in (edge["from"], edge["to"]):
                yield f"    edge: {on_a_line([edge['from'], edge['name'], edge['to']])}"
