"""dsv lineage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsv.api.dossier import dossier as write_dossier
from dsv.api.lineage import lineage as find
from dsv.cli.call import Call
from dsv.cli.declare import argument, command, option, whole
from dsv.cli.options import ExitCode
from dsv.cli.output import printable, shortened, to_item
from dsv.run.lineage import Lineage, LineageEdge, LineageNode, RawChange
from dsv.run.record import RunRecord
from dsv.values.secrets import Masker
from dsv.values.trailers import imported_from

_NODE = "kind id dataset commit path root rev branch branch_state raw run"
_RUN = "state exit_code started ended user host engine image image_digest code params"
_COMMIT = "author time message files bytes"
_NOTES = {
    "output": "",
    "read": "read, not declared",
    "again": "made an equal tree later",
    "part": "made a part of it",
    "made": "committed it",
    "history": "before it",
    "within": "started that run",
    "said": "is named as its run, but has no record here that can be read",
}


@command(
    "lineage",
    examples="""
        dsv lineage models@production  # the runs that made it, the data that they read, back to raw data
        dsv lineage ./model.pt --changes  # of a file: what has changed since in the data that it was made from
        dsv lineage models@production --dossier audit  # JSON and a page with origins, licences, code, metrics
        dsv lineage raw@v1 --down  # who used it, and what was made of it
    """,
    result=(
        f"start found looked down cut moved nodes({_NODE} {_RUN} {_COMMIT} imported_from) edges(from to name) "
        "changes(dataset commit path branch head commits added removed changed)"
    ),
)
def lineage(
    call: Call,
    target: str = argument("[TARGET|FILE]", ""),
    down: bool = option("--down", "Show what was made of it, and who used it."),
    changes: bool = option("--changes", "Show what has changed since in each of the raw datasets."),
    depth: int | None = option("--depth N", "Follow at most N runs.", parser=whole(0)),
    dossier: str | None = option("--dossier DIR", "Write all that is known into a folder, for an audit."),
    exit_code: ExitCode = False,
) -> int:
    """Show where data comes from, and what was made of it.

    TARGET is [DATASET][@REV][:PATH]. What begins with ./ ../ / or ~ is a file, looked up in the newest outputs of
    runs and in branches. Runs are joined by the trees that they read and made, as their records have them. With
    --exit-code the difference is an input whose branch has moved.
    """
    if dossier is not None:
        call.takes_only("--dossier", "target", "dossier", "depth", "exit_code")
    with call.context() as context:
        if dossier is None:
            found = find(context, target, down=down, changes=changes, depth=depth)
        else:
            masker = Masker.of({}, call.around.environ)
            found = write_dossier(context, target, context.cwd / dossier, masker, depth)
    if call.json:
        call.result(found, nodes=[_item(node) for node in found.nodes], edges=found.edge_items())
    else:
        _write(call, found, target)
    for problem in found.problems:
        call.complain(problem)
    if found.problems:
        return found.problems[0].exit_code
    return 1 if exit_code and found.moved else 0


def _item(node: LineageNode) -> dict[str, object]:
    about = node.about
    url = None if about is None else imported_from(about.message)
    parts = to_item(node, _NODE), to_item(node.record, _RUN, True), to_item(about, _COMMIT, True)
    return {**parts[0], **parts[1], **parts[2], "imported_from": url}


def _write(call: Call, found: Lineage, target: str) -> None:
    if found.found is not None:
        call.line(f"{printable(target)} is {found.found}")
        call.say(f"looked at {found.looked}")
    if found.changes is not None:
        columns = ["dataset~", "since", "commits>", "added>", "removed>", "changed>"]
        call.table(columns, [_change(change) for change in found.changes])
        if not found.changes:
            call.say("no raw data is known")
    else:
        room = call.around.columns() if call.around.stdout_is_terminal else None
        for line in _tree(found):
            call.line(line if room is None else shortened(line, room))
        if found.raw and not found.down:
            call.line(f"raw data: {', '.join(node.name for node in found.raw)}")
    if found.cut:
        call.say("there is more: use a larger --depth")


def _change(change: RawChange) -> Sequence[str]:
    name = f"{change.dataset}{f':{change.path}' if change.path else ''}"
    since = f"{str(change.commit)[:12]}..{change.branch}"
    if change.head is None or change.commit == change.head or change.commits is None:
        is_same, is_gone = change.commit == change.head, change.head is None
        why = "no change" if is_same else "branch is gone" if is_gone else "can't be compared"
        return name, since, why, "", "", ""
    paths = f"+{change.added:,}", f"-{change.removed:,}", f"~{change.changed:,}"
    return name, since, f"{change.commits:,}", *paths


def _tree(found: Lineage) -> Iterator[str]:
    """Yield the lines of the tree, each node with what is below it once."""
    nodes, below = {node.id: node for node in found.nodes}, dict[str, list[tuple[str, LineageEdge]]]()
    for edge in found.edges:
        if edge.name != "file":
            near, far = (edge.source, edge.target) if found.down else (edge.target, edge.source)
            below.setdefault(near, []).append((far, edge))
    seen = set[str]()
    waiting: list[tuple[str, str, str, LineageEdge | None]] = [(found.start, "", "", None)]
    while waiting:
        node_id, lead, indent, above = waiting.pop()
        node, known = nodes[node_id], below.get(node_id, []) if node_id not in seen else []
        more = " (see above)" if node_id in seen and below.get(node_id) else ""
        note = "" if above is None else _NOTES.get(above.name, above.name.removeprefix("data").lstrip())
        words = [node.name, *node.facts(is_start=above is None), note + more]
        yield printable(lead + "  ".join(filter(None, words)))
        if node.record is not None and node_id not in seen and (line := _where(node.record)):
            yield printable(f"{indent}{'│' if known else ' '} {line}")
        seen.add(node_id)
        for number, (other, edge) in enumerate(reversed(known)):
            mark, rest = ("├ ", "│ ") if number else ("└ ", "  ")
            waiting.append((other, indent + mark, indent + rest, edge))


def _where(record: RunRecord) -> str:
    """Return the image and the code of a run."""
    image, digest, code = record.image or "", record.image_digest, record.code
    image += f"@{digest[:11]}…" if image and digest and "@" not in image else ""
    if code is None:
        return image
    git = f" (git {code.commit[:8]}{', changed' if code.dirty else ''})" if code.commit else ""
    return f"{image}  code {code.tree[:12] if code.tree else code.path}{git}".strip()
