"""The folder of a site: pages are written if they have changed, and deleted if nothing names them any more."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Collection, Mapping
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
MOST_FILES: Final = 15_000
STATIC: Final = ("style.css", "script.js", "icon.svg")
_OWN = re.compile(r"[a-z0-9-]+\.(html|webp)", re.ASCII)
TEMPLATES = Path(__file__).parent / "templates"
_TABS = ((INDEX, "Overview"), (RUNS, "Runs"), (CACHES, "Caches"))


class Kept(msgspec.Struct):
    """A page that was written before. key: the digest of all that it depends on."""

    key: str
    images: list[str] = []


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
            import markupsafe
        except ImportError as error:
            text = f"pages are made with {error.name}, which is not installed"
            raise Unsupported(text, subject=error.name, hint="pip install 'dsv-data[site]'") from error

        def finalized(value: object) -> object:
            return value if isinstance(value, markupsafe.Markup) else visible(str(value))

        self._template = jinja2.Environment(
            loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, finalize=finalized,
            undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        ).get_template("page.html")  # fmt: skip
        files = [path for path in TEMPLATES.parent.rglob("*.*") if path.suffix in (".py", ".html")]
        self.digest = blake3(b"".join(path.read_bytes() for path in sorted(files))).hexdigest()

    def html(self, page: Page, path: str) -> bytes:
        """path: of the page in its site, from which links lead on."""
        up, here = "../" * path.count("/"), "'self' file:"
        policy = f"style-src {here}; script-src {here}; img-src {here}"
        return self._html(page, up=up, here=path, tabs=_TABS, policy=policy, style="", address=up.__add__)

    def one_file(self, page: Page, images: Mapping[str, bytes]) -> bytes:
        """Return a page with all that it needs."""
        from markupsafe import Markup

        style, script = ((TEMPLATES / name).read_text("utf-8") for name in ("style.css", "script.js"))
        policy = f"style-src {_hash(style)}; script-src {_hash(script)}; img-src data:"

        def address(name: str) -> str:
            return f"data:image/webp;base64,{b64encode(images[name]).decode()}"

        return self._html(page, up="", here="", tabs=(), policy=policy, style=Markup(style), script=Markup(script),
                          address=address)  # fmt: skip

    def _html(self, page: Page, **more: object) -> bytes:
        return self._template.render(page=page, version=version("dsv-data"), **more).encode(
            "utf-8", "backslashreplace"
        )


def _hash(text: str) -> str:
    """Return how a policy names an element of a page by its content."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


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
        self.root, self._renderer = root, renderer
        self.pages = dict[str, Kept]()
        self.written = self.removed = 0
        mark, self._known = root / MARK, dict[str, Kept]()
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
                self._known = msgspec.json.decode(mark.read_bytes(), type=dict[str, Kept])
            except (FileNotFoundError, msgspec.DecodeError):
                replace_file(mark, b"{}", sync=False)

    def has(self, path: str) -> bool:
        return (self.root / path).is_file()

    def page(self, path: str, make: Callable[[], Page], key: object = None) -> None:
        """Write a page, unless the one that is there was made of the same. key: all on which it depends; None for the
        page itself."""
        page = make() if key is None else None
        encoded = msgspec.json.encode((self._renderer.digest, page or key), enc_hook=str)
        kept, digest = self._known.get(path), blake3(encoded).hexdigest()[:32]
        if kept is None or kept.key != digest or not all(map(self.has, (path, *kept.images))):
            page = page or make()
            kept = Kept("" if page.broken else digest, page.images)
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
            self._remove("images", {image for kept in self.pages.values() for image in kept.images})
            replace_file(self.root / MARK, msgspec.json.encode(self.pages), sync=False)

    def _remove(self, folder: str, used: Collection[str]) -> None:
        for path in sorted((self.root / folder).iterdir()):
            if f"{folder}/{path.name}" not in used and _OWN.fullmatch(path.name) and not path.is_dir():
                path.unlink()
                self.removed += 1
