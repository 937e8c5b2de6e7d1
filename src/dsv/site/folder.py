"""The folder of a site: pages are written if they have changed, and deleted if nothing names them any more."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Final

from dsv.errors import Conflict, lacks
from dsv.files.errors import about
from dsv.files.lock import Lock, LockHeld
from dsv.files.small_files import replace_file
from dsv.site.blocks import CACHES, INDEX, RUNS, Page

STATIC: Final = ("style.css", "script.js", "icon.svg")
TEMPLATES: Final = Path(__file__).parent / "templates"
_LOCK, _OWN = ".dsv-site.lock", re.compile(r"[a-z0-9-]+\.(html|webp)", re.ASCII)
_TABS = ((INDEX, "Overview"), (RUNS, "Runs"), (CACHES, "Caches"))


def visible(text: str) -> str:
    """Return a text without characters that are invisible or turn others around: these are escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


class Renderer:
    """Makes HTML of pages. Whatever text a template gets is made visible and then escaped."""

    def __init__(self) -> None:
        try:
            import jinja2
            from markupsafe import Markup
        except ImportError as error:
            raise lacks(error, "site") from error

        def finalized(value: object) -> object:
            return value if isinstance(value, Markup) else visible(str(value))

        self._markup, self._templates = Markup, jinja2.Environment(
            loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, finalize=finalized,
            undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, auto_reload=False,
        )  # fmt: skip
        self._version = version("dsv-data")

    def html(self, page: Page, path: str) -> bytes:
        """path: of the page in its site, from which links lead on."""
        up, here = "../" * path.count("/"), "'self' file:"
        policy = f"style-src {here}; script-src {here}; img-src {here}"
        return self._html(page, up=up, here=path, tabs=_TABS, policy=policy, style="", address=up.__add__)

    def one_file(self, page: Page, images: dict[str, bytes]) -> bytes:
        """Return a page with all that it needs. The policy names style and script by their content."""
        style, script = ((TEMPLATES / name).read_text("utf-8") for name in ("style.css", "script.js"))
        digests = (b64encode(sha256(text.encode()).digest()).decode() for text in (style, script))
        policy = "style-src 'sha256-{}'; script-src 'sha256-{}'; img-src data:".format(*digests)

        return self._html(page, up="", here="", tabs=(), policy=policy, style=self._markup(style),
                          script=self._markup(script), address=partial(_inline, images))  # fmt: skip

    def fragment(self, page: Page, images: dict[str, bytes]) -> str:
        """Return the blocks of a page, with a style that holds for these alone."""
        style = (TEMPLATES / "style.css").read_text("utf-8").replace(":root", "&").replace("body {", "& {")
        names = {"up": "", "address": partial(_inline, images)}
        content = vars(self._templates.get_template("blocks.html").make_module(names))["content"](page)
        return f'<div class="dsv"><style>.dsv {{ {style} }}</style>{content}</div>'

    def _html(self, page: Page, **more: object) -> bytes:
        names = {"page": page, "version": self._version, **more}
        text: str = self._templates.get_template("page.html").render(names)
        return text.encode("utf-8", "backslashreplace")


def _inline(images: Mapping[str, bytes], name: str) -> str:
    return f"data:image/webp;base64,{b64encode(images[name]).decode()}"


class SiteFolder:
    """Deletes nothing but files that are named like pages and images, in the folders `pages` and `images`.

    Raises `Conflict` if the folder has other files, or another process writes there. The caller releases the lock.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.index, self._used = root, root / INDEX, set[str]()
        self.pages = self.written = self.removed = 0
        with about(root):
            root.mkdir(parents=True, exist_ok=True)
            is_own = not any((root / name).is_symlink() for name in (_LOCK, "pages", "images"))
            if not (is_own and (root / _LOCK).is_dir()) and any(root.iterdir()):
                text = f"{root} has other files, and is no site of dsv"
                raise Conflict(text, subject=str(root), hint="name a new folder")
            lock = Lock.take(root / _LOCK, "dsv site")
            if isinstance(lock, LockHeld):
                raise lock.refusal(root)
            self.lock = lock
            for folder in ("pages", "images"):
                (root / folder).mkdir(exist_ok=True)

    def __contains__(self, path: str) -> bool:
        return (self.root / path).is_file()

    def __setitem__(self, path: str, data: bytes) -> None:
        """Write a file if it has changed."""
        with about(self.root / path):
            if path not in self or (self.root / path).read_bytes() != data:
                replace_file(self.root / path, data, sync=False)
                self.written += 1

    def page(self, path: str, page: Page, html: bytes) -> None:
        self[path], self.pages = html, self.pages + 1
        rows = (row for block in page.blocks if block.kind == "pictures" for row in block.rows)
        self._used |= {path, *(cell.image for row in rows for cell in row if cell.image)}

    def finish(self) -> None:
        """Delete what no page names."""
        for name in STATIC:
            self[name] = (TEMPLATES / name).read_bytes()
        with about(self.root):
            for path in sorted((*(self.root / "pages").iterdir(), *(self.root / "images").iterdir())):
                is_used = f"{path.parent.name}/{path.name}" in self._used
                if not is_used and _OWN.fullmatch(path.name) and path.is_file():
                    path.unlink()
                    self.removed += 1
