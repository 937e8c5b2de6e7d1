"""The folder of a site: pages are written if they have changed, and deleted if nothing names them any more."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Collection
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Final

import msgspec
from blake3 import blake3

from dsv.errors import Conflict, Unsupported
from dsv.files.errors import about
from dsv.files.lock import Lock, LockHeld
from dsv.files.small_files import replace_file
from dsv.site.blocks import CACHES, INDEX, RUNS, Page

MARK: Final = ".dsv-site.json"
STATIC: Final = ("style.css", "script.js", "icon.svg")
_OWN = re.compile(r"[a-z0-9-]+\.(html|webp)", re.ASCII)
TEMPLATES = Path(__file__).parent / "templates"
_TABS = ((INDEX, "Overview"), (RUNS, "Runs"), (CACHES, "Caches"))


def visible(text: str) -> str:
    """Return a text without characters that are invisible or turn others around: these are escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def missing(error: ImportError) -> Unsupported:
    text = f"pages are made with {error.name}, which is not installed"
    return Unsupported(text, subject=error.name, hint="pip install 'dsv-data[site]'")


class Renderer:
    """Makes HTML of pages. Whatever text a template gets is made visible and then escaped."""

    def __init__(self) -> None:
        try:
            import jinja2
            from markupsafe import Markup
        except ImportError as error:
            raise missing(error) from error

        def finalized(value: object) -> object:
            return value if isinstance(value, Markup) else visible(str(value))

        self._markup, self._template = Markup, jinja2.Environment(
            loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, finalize=finalized,
            undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        ).get_template("page.html")  # fmt: skip

    def html(self, page: Page, path: str) -> bytes:
        """path: of the page in its site, from which links lead on."""
        up, here = "../" * path.count("/"), "'self' file:"
        policy = f"style-src {here}; script-src {here}; img-src {here}"
        return self._html(page, up=up, here=path, tabs=_TABS, policy=policy, style="", address=up.__add__)

    def one_file(self, page: Page, images: Images) -> bytes:
        """Return a page with all that it needs. The policy names style and script by their content."""
        style, script = ((TEMPLATES / name).read_text("utf-8") for name in ("style.css", "script.js"))
        digests = (b64encode(sha256(text.encode()).digest()).decode() for text in (style, script))
        policy = "style-src 'sha256-{}'; script-src 'sha256-{}'; img-src data:".format(*digests)

        def address(name: str) -> str:
            return f"data:image/webp;base64,{b64encode(images[name]).decode()}"

        return self._html(page, up="", here="", tabs=(), policy=policy, style=self._markup(style),
                          script=self._markup(script), address=address)  # fmt: skip

    def _html(self, page: Page, **more: object) -> bytes:
        text: str = self._template.render(page=page, version=version("dsv-data"), **more)
        return text.encode("utf-8", "backslashreplace")


class Images(dict[str, bytes]):
    """The images of a page, in place of a folder."""

    def has(self, path: str) -> bool:
        return path in self

    def file(self, path: str, data: bytes) -> None:
        self[path] = data


class SiteFolder:
    """Deletes nothing but files that are named like pages and images, in the folders `pages` and `images`.

    Raises `Conflict` if the folder has other files, or another process writes there. The caller releases the lock.
    """

    def __init__(self, root: Path, renderer: Renderer) -> None:
        self.root, self._renderer, mark = root, renderer, root / MARK
        self.pages, self._known = dict[str, list[str]](), dict[str, list[str]]()
        """By the path of a page the digest of all that it depends on, and its images; now, and at the last call."""
        self.written = self.removed = 0
        code = sorted(path for path in TEMPLATES.parent.rglob("*.*") if path.suffix in (".py", ".html"))
        self._made_by = blake3(b"".join(path.read_bytes() for path in code)).hexdigest()
        with about(root):
            root.mkdir(parents=True, exist_ok=True)
            if not mark.is_file() and any(root.iterdir()):
                text = f"{root} has other files, and is no site of dsv"
                raise Conflict(text, subject=str(root), hint="name a new folder")
            lock = Lock.take(root / ".dsv-site.lock", "dsv site")
            if isinstance(lock, LockHeld):
                raise lock.refusal(root)
            self.lock = lock
            for folder in ("pages", "images"):
                (root / folder).mkdir(exist_ok=True)
            try:
                self._known = msgspec.json.decode(mark.read_bytes(), type=dict[str, list[str]])
            except (FileNotFoundError, msgspec.DecodeError):
                replace_file(mark, b"{}", sync=False)

    def has(self, path: str) -> bool:
        return (self.root / path).is_file()

    def page(self, path: str, make: Callable[[], Page], key: object) -> None:
        """Write a page, unless the one that is there was made of the same. key: all on which it depends; None for the
        page itself."""
        page = make() if key is None else None
        digest = blake3(msgspec.json.encode((self._made_by, page or key), enc_hook=str)).hexdigest()[:32]
        kept = self._known.get(path, [""])
        if kept[0] != digest or not all(map(self.has, (path, *kept[1:]))):
            page = page or make()
            rows = (row for block in page.blocks if block.kind == "pictures" for row in block.rows)
            images = [cell.image for row in rows for cell in row if cell.image]
            kept = ["" if page.broken else digest, *images]
            self.file(path, self._renderer.html(page, path))
        self.pages[path] = kept

    def file(self, path: str, data: bytes) -> None:
        target = self.root / path
        with about(target):
            if not target.is_file() or target.read_bytes() != data:
                replace_file(target, data, sync=False)
                self.written += 1

    def finish(self) -> None:
        """Delete what is no longer named, and remember what is there."""
        for name in STATIC:
            self.file(name, (TEMPLATES / name).read_bytes())
        with about(self.root):
            self._remove("pages", self.pages)
            self._remove("images", {image for kept in self.pages.values() for image in kept[1:]})
            replace_file(self.root / MARK, msgspec.json.encode(self.pages), sync=False)

    def _remove(self, folder: str, used: Collection[str]) -> None:
        for path in sorted((self.root / folder).iterdir()):
            if f"{folder}/{path.name}" not in used and _OWN.fullmatch(path.name) and not path.is_dir():
                path.unlink()
                self.removed += 1
