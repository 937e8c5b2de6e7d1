"""Makes a site: decides which pages there will be, makes those that have changed, and deletes the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice, pairwise
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dsv.api.context import Context
from dsv.api.runs import open_runs
from dsv.errors import DsvError, IntegrityError, NotFound
from dsv.site.blocks import CACHES, INDEX, RUNS, Page, page_of
from dsv.site.contents import commit_of, difference_of
from dsv.site.decoding import Decoder
from dsv.site.folder import Images, Renderer, SiteFolder
from dsv.site.overviews import caches_of, dataset_of, lineage_of, lineages_of, overview_of
from dsv.site.runs import before, run_of, runs_of
from dsv.site.source import MOST_FILES, Source
from dsv.values.ids import CommitId
from dsv.values.names import MAIN, DatasetName

_MOST_LINEAGES = 200
Makers = dict[str, Callable[..., Page]]
Plan = dict[str, tuple[Callable[[], Page], object]]
"""How each page is made, and a key: all on which it depends; None for the page itself, which is made quickly."""


class MadeSite(msgspec.Struct, frozen=True):
    """index: the page to open. written: files that are new or have changed. problems: what is missing in the pages."""

    index: Path
    pages: int
    written: int
    removed: int
    problems: tuple[DsvError, ...] = ()


def open_source(stack: ExitStack, context: Context, environ: Mapping[str, str], folder: SiteFolder | Images,
                datasets: Sequence[DatasetName]) -> Source:  # fmt: skip
    """Return what pages of these datasets (none: of all) are made from, as long as the stack is open."""
    runs, decoder = stack.enter_context(open_runs(context, environ)), stack.enter_context(Decoder())
    return Source(context, runs, folder, decoder, datasets)


def plan(source: Source) -> Plan:
    """Return all pages of a site. Links lead to these."""
    pairs = list(islice(dict.fromkeys(_pairs(source)), (MOST_FILES - len(source.planned)) // 4))
    named = [
        (of.dataset, commit)
        for of in source.histories.values()
        for commit in of.names
        if commit in of.commits
    ]
    lineages = {commit: lineages_of(source, *commit) for commit in named[:_MOST_LINEAGES]}
    lineages = {commit: graphs for commit, graphs in lineages.items() if any(graph.edges for graph in graphs)}
    source.planned |= {page_of(*ids) for ids in (*pairs, *((*commit, "lineage") for commit in lineages))}
    pages: Plan = {}
    for commit in source.commits:
        pages[page_of(*commit)] = partial(commit_of, source, *commit), _key_of(source, *commit)
    for pair in pairs:
        key = [_key_of(source, pair[0], commit) for commit in pair[1:]]
        pages[page_of(*pair)] = partial(difference_of, source, *pair), key
    for commit, both in lineages.items():
        pages[page_of(*commit, "lineage")] = partial(lineage_of, source, *commit, both), None
    for of in source.histories.values():
        pages[page_of(of.dataset)] = partial(dataset_of, source, of), None
    for view, other in before(source.runs):
        path = page_of(view.record.dataset, "run", view.record.run)
        pages[path] = partial(run_of, source, view, other), None
    for path, make in ((RUNS, runs_of), (CACHES, caches_of), (INDEX, overview_of)):
        pages[path] = partial(make, source), None
    return pages


def make_site(
    context: Context, environ: Mapping[str, str], root: Path, only: Sequence[DatasetName]
) -> MadeSite:
    """Write the pages of these datasets (none: of all) into a folder. Raises `Conflict` if that has other files, and
    `NotFound` for a dataset that does not exist."""
    folder = SiteFolder(root, Renderer())
    with folder.lock, ExitStack() as stack:
        source = open_source(stack, context, environ, folder, only)
        for path, (make, key) in plan(source).items():
            folder.page(path, partial(_tried, source, make), key)
        folder.finish()
        problems, index = tuple(source.problems), root / INDEX
        return MadeSite(index, len(folder.pages), folder.written, folder.removed, problems)


def _tried(source: Source, make: Callable[[], Page]) -> Page:
    """Return a page; of what is damaged, one that says so."""
    known = len(source.problems)
    try:
        page = make()
    except (IntegrityError, NotFound) as error:
        source.problems.append(error)
        page = Page("This page can't be made", [], notes=(error.message,))
    return replace(page, broken=len(source.problems) > known)


def one_page(
    context: Context, environ: Mapping[str, str], datasets: Sequence[DatasetName], kind: str, *about: object
) -> bytes:
    """Return the page of a `commit`, a `difference`, a `run` or of `runs` as one file, which leads nowhere."""
    makers: Makers = {"commit": commit_of, "difference": difference_of, "run": run_of, "runs": runs_of}
    renderer, images = Renderer(), Images()
    with ExitStack() as stack:
        source = open_source(stack, context, environ, images, datasets)
        source.planned.clear()
        return renderer.one_file(makers[kind](source, *about), images)


def _key_of(source: Source, dataset: DatasetName, commit: CommitId) -> object:
    """Return all on which the page of a commit depends: its content does not change, but may be erased, damaged or
    repaired."""
    kept, record = source.parent(dataset, commit), source.objects.commit(commit)
    ids = [(commit,), (commit, "lineage"), (kept or "", commit), *((parent,) for parent in record.parents)]
    links = sorted(source.planned & {page_of(dataset, *each) for each in ids})
    runs = [(view.record.run, view.record.state) for view in source.runs_on.get(commit, ())]
    state = len(source.objects.erasures.known), None if source.damage is None else source.damage.nonce.hex()
    return commit, source.names(dataset, commit), links, runs, state


def _pairs(source: Source) -> Iterator[tuple[DatasetName, CommitId, CommitId]]:
    """Yield what to compare: each tag with the one before it, `main` with the last tag, each commit with its parent."""
    for of in source.histories.values():
        tagged = set(of.with_content(value.commit for _, value in of.tags))
        line = sorted(tagged, key=lambda commit: of.commits[commit].time_ms)
        mains = [head.commit for head in of.heads if head.branch == MAIN and head.commit]
        line += [commit for commit in of.with_content(mains) if commit not in tagged]
        yield from ((of.dataset, *pair) for pair in pairwise(line))
    for dataset, commit in source.commits:
        parent = source.parent(dataset, commit)
        if parent is not None:
            yield dataset, parent, commit
