"""Makes a site: decides which pages there will be, makes those that have changed, and deletes the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from dsv.api.cached import cached
from dsv.api.context import Context
from dsv.api.evict import evict
from dsv.api.runs import open_runs
from dsv.api.space import usage
from dsv.errors import DsvError, IntegrityError, NotFound
from dsv.run.lineage import Lineage
from dsv.site import blocks as show
from dsv.site.blocks import Page
from dsv.site.commits import commit_of
from dsv.site.decoding import Decoder
from dsv.site.differences import difference_of
from dsv.site.folder import MOST_FILES, Images, Renderer, SiteFolder
from dsv.site.overviews import caches_of, dataset_of, lineage_of, lineages_of, overview_of
from dsv.site.runs import beside, run_of, runs_of
from dsv.site.source import Source
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName

_MOST_LINEAGES = 200
Pair = tuple[DatasetName, CommitId, CommitId]


class MadeSite(msgspec.Struct, frozen=True):
    """index: the page to open. written: files that are new or have changed. problems: what is missing in the pages."""

    index: Path
    pages: int
    written: int
    removed: int
    problems: tuple[DsvError, ...] = ()


class PlannedPage(NamedTuple):
    """A page that can be made. key: all on which it depends; None for the page itself, which is made quickly."""

    make: Callable[[], Page]
    key: object = None


def plan(source: Source) -> dict[str, PlannedPage]:
    """Return all pages of a site. Links lead to these."""
    pairs = list(islice(dict.fromkeys(_pairs(source)), (MOST_FILES - len(source.planned)) // 4))
    source.planned |= {show.difference_page(*pair) for pair in pairs}
    lineages, pages, before = _lineages(source), dict[str, PlannedPage](), beside(source.runs)
    source.planned |= {show.lineage_page(*commit) for commit in lineages}
    for commit in source.commits:
        pages[show.commit_page(*commit)] = PlannedPage(
            partial(commit_of, source, *commit), _key_of(source, *commit)
        )
    for pair in pairs:
        key = ("difference", *pair, [_key_of(source, pair[0], commit) for commit in pair[1:]])
        pages[show.difference_page(*pair)] = PlannedPage(partial(difference_of, source, *pair), key)
    for commit, both in lineages.items():
        pages[show.lineage_page(*commit)] = PlannedPage(partial(lineage_of, source, *commit, both))
    for of in source.histories.values():
        pages[show.dataset_page(of.dataset)] = PlannedPage(partial(dataset_of, source, of))
    for view in source.runs:
        path = show.run_page(view.record)
        pages[path] = PlannedPage(partial(run_of, source, view, before.get(path)))
    pages[show.RUNS] = PlannedPage(partial(runs_of, source))
    pages[show.CACHES] = PlannedPage(partial(_caches, source))
    pages[show.INDEX] = PlannedPage(
        lambda: overview_of(source, usage(source.context, list(map(str, source.only))))
    )
    return pages


def make_site(
    context: Context, environ: Mapping[str, str], root: Path, only: Sequence[DatasetName]
) -> MadeSite:
    """Write the pages of these datasets (none: of all) into a folder. Raises `Conflict` if that has other files, and
    `NotFound` for a dataset that does not exist."""
    renderer = Renderer()
    with open_runs(context, environ) as opened, Decoder() as decoder:
        folder = SiteFolder(root, renderer)
        with folder.lock:
            source = Source(context, opened, folder, decoder, only)
            for path, planned in plan(source).items():
                folder.page(path, partial(_tried, source, planned.make), planned.key)
            folder.finish()
        problems, index = tuple(source.problems), root / show.INDEX
        return MadeSite(index, len(folder.pages), folder.written, folder.removed, problems)


def _tried(source: Source, make: Callable[[], Page]) -> Page:
    """Return a page; of what is damaged, one that says so."""
    known = len(source.problems)
    try:
        page = make()
    except (IntegrityError, NotFound) as error:
        source.problems.append(error)
        page = Page("This page can't be made", (), notes=(error.message,))
    return replace(page, broken=len(source.problems) > known)


def one_page(
    context: Context,
    environ: Mapping[str, str],
    datasets: Sequence[DatasetName],
    make: Callable[[Source], Page],
) -> bytes:
    """Return a page as one file, which leads nowhere. datasets: those that it is about."""
    renderer = Renderer()
    with open_runs(context, environ) as opened, Decoder() as decoder:
        images = Images()
        source = Source(context, opened, images, decoder, datasets)
        source.planned.clear()
        return renderer.one_file(make(source), images)


def _key_of(source: Source, dataset: DatasetName, commit: CommitId) -> object:
    """Return all on which the page of a commit depends: its content does not change."""
    kept, record = source.parent(dataset, commit), source.objects.commit(commit)
    pages = [show.commit_page(dataset, shown) for shown in (commit, *record.parents)] + [
        show.lineage_page(dataset, commit)
    ]
    pages += [] if kept is None else [show.difference_page(dataset, kept, commit)]
    runs = [(view.record.run, view.record.state) for view in source.runs_on.get(commit, ())]
    names = source.histories[dataset].names.get(commit, [])
    return commit, names, sorted(source.planned.intersection(pages)), runs, source.state()


def _pairs(source: Source) -> Iterator[Pair]:
    """Yield what to compare: each tag with the one before it, `main` with the last tag, each commit with its parent."""
    for of in source.histories.values():
        tagged = {
            value.commit
            for _, value in of.tags
            if value.commit in of.commits and not of.is_freed(value.commit)
        }
        line = sorted(tagged, key=lambda commit: of.commits[commit].time_ms)
        if of.main is not None and of.main not in tagged and not of.is_freed(of.main):
            line.append(of.main)
        yield from ((of.dataset, *pair) for pair in pairwise(line))
    for dataset, commit in source.commits:
        parent = source.parent(dataset, commit)
        if parent is not None:
            yield dataset, parent, commit


def _lineages(source: Source) -> dict[tuple[DatasetName, CommitId], tuple[Lineage, Lineage]]:
    """Return the lineage of the named commits that have one."""
    named = [
        (of.dataset, commit)
        for of in source.histories.values()
        for commit in of.names
        if commit in of.commits
    ]
    both = {commit: lineages_of(source, *commit) for commit in named[:_MOST_LINEAGES]}
    return {commit: graphs for commit, graphs in both.items() if any(graph.edges for graph in graphs)}


def _caches(source: Source) -> Page:
    """Return the page of the cache in effect, and of the others that the settings name."""
    settings, reports, errors = source.context.settings, [], list[str]()
    paths = {settings.cache().path: None}
    for name in settings.names("caches"):
        with suppress(DsvError):
            paths[settings.cache(name).path] = None
    for path in paths:
        try:
            reports.append((cached(path), evict(source.context, path, dry_run=True)))
        except DsvError as error:
            errors.append(error.message)
    return caches_of(source, reports, errors)
