"""The site's page of commands, made from the commands themselves when `mkdocs` builds the site."""

from __future__ import annotations

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from dsv.cli.reference import reference


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add cli.md, which no folder has."""
    files.append(File.generated(config, "cli.md", content=reference()))
    return files
