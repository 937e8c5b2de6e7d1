"""Revisions of datasets of the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from urllib.parse import quote, unquote

from dsv.errors import UsageError
from dsv.exchange.reference import open_referred
from dsv.exchange.remote import absent, converting, hub_endpoint, missing_package, open_place
from dsv.exchange.revisions import HUB, Revision, commit_time
from dsv.exchange.sources import FolderSource, RemoteFile, in_order
from dsv.stores.options import StoreOptions
from dsv.transfer.stable_read import Problem


class HubHistory(ExitStack):
    """The revisions of a dataset of the Hub, like `DvcHistory`. Each file of a revision has its own URL,
    whose content never changes."""

    def __init__(self, url: str, options: StoreOptions) -> None:
        try:
            from huggingface_hub import HfApi
            from huggingface_hub.hf_api import RepoFile
        except ImportError as error:
            raise missing_package(url, error) from None
        super().__init__()
        self._repository, self._named = _split(url)
        if self._repository.count("/") != 1:
            text = f"{url} is not a whole dataset of the Hub, which has revisions"
            raise UsageError(text, subject=url, hint=f"{HUB}OWNER/NAME[@REVISION]")
        self.url = f"{HUB}{self._repository}"
        self._api, self._file, self._options = HfApi(), RepoFile, options

    def revisions(self, names: Sequence[str], *, every: bool) -> list[Revision]:
        with converting(f"{self.url}@{self._named}", "read"):
            last = str(self._api.dataset_info(self._repository, revision=self._named).sha)
        if every:
            return self._commits(last)
        if not names:
            return [Revision(last, "", 0, "")]
        chosen: list[Revision] = []
        for name in names:
            start, dots, end = name.partition("..")
            before = {revision.id for revision in self._commits(start)} if dots and start else set()
            commits = self._commits((end or last) if dots else name)
            listed = commits if dots else commits[-1:]
            chosen += [revision for revision in listed if revision.id not in before]
        return chosen

    def _commits(self, revision: str) -> list[Revision]:
        shown = f"{self.url}@{revision}"
        with converting(shown, "read"):
            said = self._api.list_repo_commits(self._repository, repo_type="dataset", revision=revision)
        if not said:
            raise absent(shown, "no commit")
        return [
            Revision(
                one.commit_id,
                ", ".join(one.authors),
                commit_time(one.created_at.timestamp()),
                f"{one.title}\n\n{one.message.strip()}".strip(),
            )
            for one in reversed(said)
        ]

    def source(self, revision: Revision, *, reference: bool) -> FolderSource:
        self._refers = reference
        if reference:
            return open_referred(self._web(revision), self._options)
        return FolderSource(open_place(f"{self.url}@{revision.id}", self._options))

    def _web(self, revision: Revision) -> str:
        return f"{at_web(self.url)}/resolve/{revision.id}"

    def files(self, revision: Revision) -> tuple[list[RemoteFile], list[Problem]]:
        with converting(f"{self.url}@{revision.id}", "read"):
            listed = self._api.list_repo_tree(
                self._repository, recursive=True, revision=revision.id, repo_type="dataset"
            )
            tree = list(listed)
        start = self._web(revision) if self._refers else f"datasets/{self._repository}@{revision.id}"
        files = []
        for one in tree:
            if isinstance(one, self._file):
                digest = f"git:{one.blob_id}" if one.lfs is None else f"sha256:{one.lfs.sha256}"
                path = one.path.encode("utf-8", "surrogateescape")
                key = f"{start}/{quote(one.path) if self._refers else one.path}"
                info = {"size": one.size, "blob_id": one.blob_id}
                files.append(RemoteFile(path, key, one.size, digest, info=info, digest=digest))
        return in_order(files), []


def _split(url: str) -> tuple[str, str]:
    name, _, revision = url.removeprefix(HUB).rstrip("/").partition("@")
    return name, unquote(revision) or "main"


def at_web(url: str) -> str:
    """Return the web URL of a dataset, with which references to its files begin."""
    return f"{hub_endpoint()}/datasets/{_split(url)[0]}"
