"""dsv site: what the pages say, when they are written and deleted, and what hostile names and files can do."""

from __future__ import annotations

import io
import re
import shutil
import struct
import zlib
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import cast

import pytest
from PIL import Image

from dsv.files.lock import Lock
from dsv.site.decoding import Decoder, Order
from dsv.site.folder import visible
from tests.kit.dsv import Dsv, assert_documented, made_once, write_files

pytest.importorskip("jinja2")
ELEMENTS = [
    "html",
    "head",
    "meta",
    "title",
    "link",
    "script",
    "body",
    "a",
    "header",
    "nav",
    "span",
    "main",
    "h1",
    "h2",
    "p",
    "ul",
    "li",
    "section",
    "div",
    "table",
    "thead",
    "tr",
    "th",
    "tbody",
    "td",
    "dl",
    "dt",
    "dd",
    "figure",
    "figcaption",
    "img",
    "br",
    "small",
    "pre",
    "svg",
    "path",
    "rect",
    "circle",
    "text",
    "footer",
]
HOSTILE = [
    "\u202egpj.exe", "a\u2066b\u2069.png", "</script><script>alert(1)</script>.txt", "{{ 7*7 }}.txt", "{% raw %}.txt",
    "javascript:alert(1)", "\"onload=\"alert(1)", "'onerror='alert(1)", "<img src=x onerror=alert(1)>.png", "&lt;b&gt;",
    "n" * 200 + ".txt", "../../etc".replace("/", "\u2215"), "\u200bzero.txt", "\ufeffbom.txt", "new\nline.txt",
    "tab\tname.txt", "\x1b[31mred.txt", "\u0001control", "data:text/html,x", "%3Cscript%3E",
    "<!--", "-->", "]]>", "<svg onload=alert(1)>.svg", "page.html", "{{ page }}", "${alert(1)}", "`id`", "$(id)",
    "\U000e0041tag", "\u061cmark", "é\u0301.txt", "日本.txt", "עברית.txt", "<base href=//x>",
    "<meta http-equiv=refresh>",
    "//example.org/x.png", "http:", "file:", "\u2028line\u2029.txt",
]  # fmt: skip


class Elements(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, page: Path | str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(page if isinstance(page, str) else page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))
        self.text += " "

    def handle_data(self, data: str) -> None:
        self.text += data


def png(side: int = 8, shade: int = 90) -> bytes:
    out = io.BytesIO()
    Image.new("L", (side, side), shade).save(out, "PNG")
    return out.getvalue()


@pytest.fixture
@made_once
def shapes(dsv: Dsv) -> Dsv:
    """Dataset `shapes` with the tags v1 and v2."""
    here = dsv.at(dsv.cwd, DSV_CACHE=str(dsv.home / "cache"))
    labels = [f"{label}/{at}.png" for label, count in (("circle", 4), ("square", 3)) for at in range(count)]
    images = {path: png(shade=20 + at) for at, path in enumerate(labels)}
    write_files(here.cwd, {**images, "labels.csv": b"id,size\na,1\nb,\nc,3\n", "notes.txt": b"one\ntwo\n"})
    here.ok("init", "shapes")
    here.ok("sync", "-m", "first")
    here.ok("tag", "v1")
    (here.cwd / "circle/3.png").rename(here.cwd / "square/moved.png")
    write_files(
        here.cwd,
        {"labels.csv": b"id,size\na,2\nb,\nc,3\n", "notes.txt": b"one\nthree\n", "circle/0.png": png(8, 200)},
    )
    here.ok("sync", "-m", "second")
    here.ok("tag", "v2")
    return here


def site(here: Dsv, *datasets: str) -> Path:
    here.ok("site", str(here.home / "pages"), *datasets)
    return here.home / "pages"


def page(root: Path, title: str) -> Path:
    """The page with this title."""
    [found] = [path for path in root.rglob("*.html") if f"<h1>{title}</h1>" in path.read_text("utf-8")]
    return found


def cells(path: Path) -> list[list[str]]:
    """The rows of all tables of a page."""
    rows = re.findall(r"<tr>(.*?)</tr>", path.read_text("utf-8"), re.DOTALL)
    return [
        [re.sub(r"<[^>]*>", "", cell).strip() for cell in re.findall(r"<td.*?>(.*?)</td>", row, re.DOTALL)]
        for row in rows
    ]


def test_the_pages_answer_what_a_colleague_asks(shapes: Dsv) -> None:
    job = 'echo "{\\"accuracy\\": $(echo $DSV_PARAMS | tr -dc 0-9.)}" > $DSV_OUT/metrics.json'
    for rate in ("0.5", "0.7"):
        assert shapes.process("run", "shapes@v1", "-p", f"lr={rate}", "--", "sh", "-c", job).code == 0
    shapes.ok("cache", "shapes@v2")
    shapes.ok("hold", "shapes@v2", "-m", "a paper")
    root = site(shapes)
    assert ["circle", "3", "42.9%"] in cells(page(root, "shapes@v2"))  # images of each class
    assert ["square", "4", "57.1%"] in cells(page(root, "shapes@v2"))
    difference = cells(page(root, "shapes: v1 to v2"))  # what changed
    assert ["renamed", "square/moved.png", "circle/3.png"] in [row[:3] for row in difference]
    text = Elements(page(root, "shapes: v1 to v2")).text
    assert "~ id=a  size: 1 -> 2" in text and "-two" in text and "+three" in text
    runs = cells(root / "runs.html")  # the best run, and its data
    assert [row[-1] for row in runs if row] == ["0.7 ★", "0.5"]
    assert all(row[1].startswith("shapes@v1 ") for row in runs if row)
    [cached] = [row for row in cells(root / "caches.html") if "v2" in " ".join(row[1:2])]
    assert "(a paper)" in cached[7] and cached[8].startswith("stays")
    assert ["size", "int64", "1", "1 to 3"] in cells(page(root, "shapes@v1"))  # missing values, and the range


def test_only_what_changed_is_written_and_what_is_gone_is_deleted(shapes: Dsv) -> None:
    made = shapes.ok("site", str(shapes.home / "pages"), "--json").json
    assert_documented("site", made)
    root = shapes.home / "pages"
    assert made["index"] == str(root / "index.html") and made["removed"] == 0
    again = shapes.ok("site", str(root), "--json").json
    assert again["written"] <= 1  # caches.html says how much of the disk is free
    assert (again["removed"], again["pages"]) == (0, made["pages"])
    (root / "pages" / "Of Somebody.html").write_text("mine")
    shapes.ok("tag", "v3", "shapes@v1")
    renewed = shapes.ok("site", str(root), "--json").json
    assert 0 < renewed["written"] < made["pages"] and renewed["removed"] == 0
    names = shapes.ok("ls", "--json", "shapes@v1").json["items"]
    [gone] = [item["id"][:32] for item in names if item["path"] == "circle/1.png"]
    assert list((root / "images").glob(f"{gone}*"))
    shapes.ok("erase", "shapes:circle/1.png", "--reason", "consent withdrawn", "--yes")
    shapes.ok("site", str(root))
    assert not list((root / "images").glob(f"{gone}*"))
    assert "erased, or can&#39;t be read" in page(root, "shapes@v3").read_text()
    shapes.at(shapes.home).ok("datasets", "--delete", "shapes", "--yes")
    shapes.at(shapes.home).ok("site", str(root))
    assert [path.name for path in (root / "pages").iterdir()] == ["Of Somebody.html"]
    assert not list((root / "images").iterdir())


def test_each_page_is_found_from_the_first(shapes: Dsv, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in (b"three", b"four"):
        write_files(shapes.cwd, {"notes.txt": text})
        shapes.ok("sync", "-m", text.decode())
    shapes.ok("tag", "v4")
    root = site(shapes)
    found, left = set[Path](), [root / "index.html"]
    while left:
        if (path := left.pop().resolve()) not in found:
            found.add(path)
            links = (about.get("href", "#") for tag, about in Elements(path).found if tag == "a")
            left += [path.parent / link for link in links if "#" not in link]
    assert found == {path.resolve() for path in root.rglob("*.html")}
    assert re.findall(">(since [^<]*)<", page(root, "shapes").read_text("utf-8"))[:2] == [
        "since v2",
        "since v1",
    ]
    assert page(root, "shapes: v2 to v4").exists()
    monkeypatch.setattr("dsv.site.build._NEWEST", 1)
    assert "3 of these 4 have a page." in page(site(shapes), "shapes").read_text("utf-8")


def test_a_folder_with_other_files_is_refused(shapes: Dsv) -> None:
    refused = shapes("site", str(shapes.cwd))
    assert refused.code == 4 and "has other files" in refused.err
    assert shapes("site", str(shapes.home / "new"), "nothing").code == 3
    with cast(Lock, Lock.take(shapes.home / "new/.dsv-site.lock", "dsv site")):
        held = shapes("site", str(shapes.home / "new"))
    assert held.code == 4 and "dsv site" in held.err
    shapes.ok("site", str(shapes.home / "new"))
    (shapes.home / "new/pages").rename(shapes.home / "mine")
    (shapes.home / "new/pages").symlink_to(shapes.home / "mine")
    (shapes.home / "mine/a.html").write_text("not of dsv")
    assert shapes("site", str(shapes.home / "new")).code == 4 and (shapes.home / "mine/a.html").exists()


def test_hostile_names_are_text(dsv: Dsv) -> None:
    for at, hostile in enumerate(HOSTILE):
        path = dsv.cwd / "images" / f"folder{at % 3}" / hostile.replace("/", "\u2044")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png() if at % 2 else b"<script>alert(1)</script>\n{{ 7*7 }}\n\xe2\x80\xaeleft\n")
    dsv.ok("init", "hostile")
    dsv.ok("sync", "-m", "</title><script>alert('message')</script> \u202eegassem")
    here = dsv.at(dsv.cwd, DSV_CACHE=str(dsv.home / "cache"))
    assert (
        here.process("run", "hostile", "-p", "</td><script>=\u202ex", "--name", "n", "--", "true").code == 0
    )
    root = site(here)
    for path in root.rglob("*.html"):
        text = path.read_text("utf-8")
        assert not [c for c in text if not c.isprintable() and c not in "\n\t"], path
        for tag, attributes in Elements(path).found:
            assert tag in ELEMENTS
            assert not [name for name in attributes if name.startswith("on") or name == "style"]
            target = attributes.get("href", attributes.get("src", "#"))
            assert re.fullmatch(
                r"#(content|b\d+)?|(\.\./)?((pages|images)/)?[a-z0-9-]+\.(html|css|js|svg|webp)", target
            )
        assert len(re.findall("<script", text)) == 1 and "49" not in re.findall(r"\{\{.*?\}\}", text)
    shown = page(root, "hostile@main").read_text("utf-8")
    assert "{{ 7*7 }}" in shown and r"\u202egpj.exe" in shown and "n" * 150 in shown


def bomb() -> bytes:
    """A PNG of a few kilobytes that has 30,000 × 30,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes(30_001 * 1_000), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_hostile_files_end_no_page(dsv: Dsv) -> None:
    import pyarrow
    from pyarrow import parquet

    large = pyarrow.table({"text": ["x" * (100 << 20)], "n": [1]})
    (dsv.cwd / "a").mkdir()  # the first folder: a page shows few tables
    parquet.write_table(large, dsv.cwd / "a/large.parquet", compression="zstd")
    write_files(dsv.cwd, {
        "bomb.png": bomb(), "not.png": b"<svg onload=alert(1)>", "drawn.svg": b"<svg onload='alert(1)'/>",
        "good.png": png(),
        "page.html": b"<script>alert(1)</script>", "bad.csv": b'a,b\n"1,2\n3',
        "bad.parquet": b"PAR1" + bytes(100) + b"PAR1",
        "a-wide.csv": ",".join(f"c{at}" for at in range(500)).encode() + b"\n" + b"1," * 499 + b"1\n",
        "long.csv": b"a\n" + b"y" * 300_000 + b"\n",
    })  # fmt: skip
    dsv.ok("init", "files")
    dsv.ok("sync", "-m", "all")
    root = site(dsv)
    path = page(root, "files@main")
    text = Elements(path).text
    assert path.stat().st_size < 400_000
    assert len(list((root / "images").iterdir())) == 1  # good.png
    assert "it has 30,000" in text or "pixels" in text
    assert "40 of 500 columns" in text
    assert "cannot identify image file" in text and "<_io" not in text  # an address would be new each time
    assert "Its first row group is not read: it has more than 67.1 MB" in text
    assert ["text", "string", "–", ""] in cells(path)
    assert "<script>alert(1)</script>" in text and ("script", {}) not in Elements(path).found


def test_a_decoder_that_ends_is_started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsv.site.decoding._MEMORY", 300 << 20)
    with Decoder() as decoder:
        enormous = io.BytesIO()
        Image.new("RGB", (6_000, 6_000)).save(enormous, "PNG")
        assert "memory" in decoder.ask(Order("image", b"a.png", [enormous.getvalue()])).error
        made = decoder.ask(Order("image", b"b.png", [png()]))
        assert Image.open(io.BytesIO(made.image)).size == (128, 128)  # enlarged


def test_a_run_shows_the_curves_of_its_metrics(shapes: Dsv) -> None:
    steps = [(1, 0.5), (9, 0.25), (3, 0.125)]  # it went back
    lines = "".join(f'{{"step": {step}, "loss": {loss}, "\\u202ex": 1}}\n' for step, loss in steps)
    job = f"printf %s '{lines}' > \"$DSV_OUT/metrics.jsonl\""
    assert shapes.process("run", "shapes@v1", "--name", "fit", "--", "sh", "-c", job).code == 0
    fit = page(site(shapes), "fit")
    labels = [about["aria-label"] for tag, about in Elements(fit).found if tag == "svg"]
    assert labels[0] == "loss: from 0.5 (1) to 0.125 (3), least 0.125, most 0.5"
    assert labels[1].startswith(r"&#39;\u202ex&#39;: ") or labels[1].startswith(r"'\u202ex': ")
    [way] = re.findall(r'class="line" d="M([^"]*)"', fit.read_text("utf-8"))[:1]
    assert way == "2.0 2.0L438.0 60.0L111.0 89.0", "each point is in the drawing"
    fit.unlink()
    shapes.ok("runs", "fit", "--html", str(fit))
    assert "loss: from 0.5" in fit.read_text("utf-8")
    assert shapes.process("run", "shapes@v2", "-p", "lr=3", "--name", "other", "--", "true").code == 0
    shapes.ok("runs", "--compare", "fit", "other", "--html", str(fit))
    assert ["params.lr", "–", "3"] in cells(fit)
    assert re.search("dsv diff shapes@[0-9a-f]{12} shapes@[0-9a-f]{12}", fit.read_text("utf-8"))


@pytest.mark.parametrize("form", ["I;16", "RGBA", "P", "1", "F", "CMYK", "LA"])
def test_each_kind_of_image_has_a_thumbnail(form: str) -> None:
    out = io.BytesIO()
    Image.new(form, (300, 200)).save(out, "TIFF")
    with Decoder() as decoder:
        made = decoder.ask(Order("image", b"a.tif", [out.getvalue()]))
    assert made.image, made.error
    assert Image.open(io.BytesIO(made.image)).size == (128, 85)


def test_what_turns_text_around_is_shown() -> None:
    assert visible("a\u202eb\u200b\x1b\n\té日") == "a\\u202eb\\u200b\\x1b\n\té日"


def test_one_file_has_all_of_a_page(shapes: Dsv) -> None:
    assert shapes.process("run", "shapes@v1", "-p", "lr=0.1", "--", "true").code == 0
    shown, changed, ran = (shapes.home / f"{what}.html" for what in ("show", "diff", "runs"))
    shapes.ok("show", "shapes@v2", "--html", str(shown))
    shapes.ok("diff", "shapes@v1", "shapes@v2", "--html", str(changed))
    shapes.ok("runs", "--html", str(ran))
    assert ["circle", "3", "42.9%"] in cells(shown) and "~ id=a  size: 1 -> 2" in Elements(changed).text
    assert any("shapes@v1" in " ".join(row) for row in cells(ran))
    for path in (shown, changed, ran):
        page = Elements(path)
        policy = next(attributes["content"] for _, attributes in page.found if "http-equiv" in attributes)
        assert "file:" not in policy and "'self'" not in policy and "unsafe" not in policy
        for element in ("style", "script"):
            [content] = re.findall(rf"<{element}>(.*?)</{element}>", path.read_text("utf-8"), re.DOTALL)
            assert f"{element}-src 'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'" in policy
        leads = [attributes.get("href", attributes.get("src", "#")) for _, attributes in page.found]
        assert all(lead.startswith(("#", "data:image/webp;base64,")) for lead in leads)
    for refused in (["show", "shapes@v2:circle"], ["diff", "shapes@v1", "shapes@v2", "--stat"], ["diff"]):
        assert shapes(*refused, "--html", str(shown)).code == 2


def test_markdown_of_a_difference(dsv: Dsv) -> None:
    write_files(dsv.cwd, {"a|b/`one`.txt": b"1", "<b>.txt": b"2", "c/old.txt": b"a long text of its own"})
    dsv.ok("init", "marks")
    dsv.ok("sync", "-m", "first")
    (dsv.cwd / "c/old.txt").rename(dsv.cwd / "c/new.txt")
    write_files(dsv.cwd, {"a|b/`one`.txt": b"11", "<b>.txt": b"22"})
    dsv.ok("sync", "-m", "second")
    lines = dsv.ok("diff", "marks@main~1", "marks@main", "--markdown").lines
    assert lines[:3] == ["**2 changed, 1 renamed; +2 B**", "", "```"]
    assert lines[-4:] == [
        "changed   <b>.txt  1 B -> 2 B", "changed   a|b/`one`.txt  1 B -> 2 B",
        "renamed   c/old.txt => c/new.txt", "```"
    ]  # fmt: skip
    (dsv.cwd / "c/new.txt").rename(dsv.cwd / "c/```.txt")
    dsv.ok("sync", "-m", "third")
    assert dsv.ok("diff", "marks@main~1", "marks@main", "--markdown").lines[-2:] == [
        "renamed   c/new.txt => c/```.txt", "````"
    ]  # fmt: skip


def test_what_is_damaged_is_said_and_comes_back(shapes: Dsv) -> None:
    pages = shapes.home / "pages"
    store = next(path for path in shapes.home.rglob("packs") if path.is_dir())
    packs = sorted(
        (path for path in store.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size
    )
    shapes.ok("site", str(pages))
    whole = {path.name: path.read_bytes() for path in (pages / "pages").iterdir()}
    packs[-1].rename(shapes.home / "gone")
    shutil.rmtree(pages)
    damaged = shapes("site", str(pages))
    assert damaged.code == 5 and "can't be read" in damaged.err
    text = "".join(path.read_text("utf-8") for path in pages.rglob("*.html"))
    assert "can&#39;t be" in text and (pages / "runs.html").exists()
    (shapes.home / "gone").rename(packs[-1])
    shapes.ok("site", str(pages))
    assert {path.name: path.read_bytes() for path in (pages / "pages").iterdir()} == whole
