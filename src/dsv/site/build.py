"""Makes a site: decides which pages there will be, makes them, and deletes the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice, pairwise
from pathlib import Path

from dsv.api.context import Context
from dsv.api.runs import open_runs
from dsv.errors import DsvError, IntegrityError, NotFound
from dsv.run.listing import RunView
from dsv.site.blocks import CACHES, INDEX, RUNS, Page, page_of
from dsv.site.contents import commit_of, difference_of
from dsv.site.decoding import Decoder
from dsv.site.folder import Renderer, SiteFolder
from dsv.site.overviews import caches_of, dataset_of, lineage_of, lineages_of, overview_of
from dsv.site.runs import run_of, runs_of
from dsv.site.source import Folder, Source
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName

_MOST_FILES, _MOST_COMMITS, _MOST_LINEAGES, _NEWEST = 15_000, 500, 200, 30
"""Of a site files, pages of commits and of lineages; and newest commits of a dataset with a page."""
Makers = dict[str, Callable[..., Page]]
Named = tuple[DatasetName, CommitId]


def open_source(stack: ExitStack, context: Context, environ: Mapping[str, str], folder: Folder,
                datasets: Sequence[DatasetName]) -> Source:  # fmt: skip
    """Return what pages of these datasets (none: of all) are made from, as long as the stack is open."""
    runs, decoder = stack.enter_context(open_runs(context, environ)), stack.enter_context(Decoder())
    return Source(context, runs, folder, decoder, datasets)


def plan(source: Source) -> None:
    """Decide which pages there will be. Links lead to these."""
    pages, histories, commits = source.pages, source.histories.items(), list[Named]()
    for dataset, of in histories:
        pages[page_of(dataset)] = partial(dataset_of, source, of)
        some = dict.fromkeys([*of.names, *islice(of.commits, _NEWEST)])
        commits += ((dataset, commit) for commit in of.with_content(some))
    last = dict[DatasetName, RunView]()
    for view in reversed(source.runs):  # each beside the one before it on its dataset
        dataset = view.record.dataset
        pages[page_of(dataset, "run", view.record.run)] = partial(run_of, source, view, last.get(dataset))
        last[dataset] = view
    commits = commits[: min(_MOST_COMMITS, (_MOST_FILES - len(pages)) // 8)]
    for commit in commits:
        pages[page_of(*commit)] = partial(commit_of, source, *commit)
    for pair in islice(_pairs(source, commits), (_MOST_FILES - len(pages)) // 4):
        pages[page_of(*pair)] = partial(difference_of, source, *pair)
    named = [(dataset, commit) for dataset, of in histories for commit in of.names if commit in of.commits]
    for commit in named[:_MOST_LINEAGES]:
        both = lineages_of(source, *commit)
        if any(graph.edges for graph in both):
            pages[page_of(*commit, "lineage")] = partial(lineage_of, source, *commit, both)
    pages[RUNS] = partial(runs_of, source, source.runs, source.all_runs)
    pages[CACHES], pages[INDEX] = partial(caches_of, source), partial(overview_of, source)


def make_site(
    context: Context, environ: Mapping[str, str], root: Path, only: Sequence[DatasetName]
) -> tuple[SiteFolder, list[DsvError]]:
    """Write the pages of these datasets (none: of all) into a folder, and return what could not be read. Raises
    `Conflict` if that has other files, and `NotFound` for a dataset that does not exist."""
    renderer, folder = Renderer(), SiteFolder(root)
    with folder.lock, ExitStack() as stack:
        source = open_source(stack, context, environ, folder, only)
        plan(source)
        for path, make in source.pages.items():
            try:
                page = make()
            except (IntegrityError, NotFound) as error:  # damaged, or erased meanwhile
                source.problems.append(error)
                page = Page("This page can't be made", [], notes=(error.message,))
            folder.page(path, page, renderer.html(page, path))
        folder.finish()
        return folder, source.problems


def one_page(
    context: Context, environ: Mapping[str, str], datasets: Sequence[DatasetName], kind: str, *about: object
) -> bytes:
    """Return the page of a `commit`, a `difference`, a `run` or of `runs` as one file, which leads nowhere."""
    makers: Makers = {"commit": commit_of, "difference": difference_of, "run": run_of, "runs": runs_of}
    renderer, images = Renderer(), dict[str, bytes]()
    with ExitStack() as stack:
        source = open_source(stack, context, environ, images, datasets)
        return renderer.one_file(makers[kind](source, *about), images)


def _pairs(source: Source, commits: Sequence[Named]) -> Iterator[tuple[DatasetName, CommitId, CommitId]]:
    """Yield what to compare: each tag with the one before it, `main` with the last tag, each commit with its parent."""
    for of in source.histories.values():
        yield from ((of.dataset, *pair) for pair in pairwise(of.line))
    for dataset, commit in commits:
        parent = source.parent(dataset, commit)
        if parent is not None:
            yield dataset, parent, commit
