"""The pages in a real Chromium: wide and narrow, light and dark, with and without scripts, from disk and over HTTP.
And from disk in a real Firefox, which judges `file:` in another way."""

from __future__ import annotations

import functools
import json
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_site import HOSTILE, png
from tests.kit.dsv import Dsv, write_files
from tests.waiting import PATIENCE, until

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
IS_NEEDED = os.environ.get("DSV_REQUIRE_LABS") == "1"
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(CHROMIUM is None and not IS_NEEDED, reason="needs chromium (apt install chromium)"),
]
LOADS_ALL = "[...document.images].every((image) => image.complete && image.naturalWidth > 0)"


@pytest.fixture(scope="module")
def pages(dsv_of_the_file: Dsv) -> Path:
    here = dsv_of_the_file.at(dsv_of_the_file.cwd, DSV_CACHE=str(dsv_of_the_file.home / "cache"))
    images = {f"{label}/{at}.png": png(shade=20 * at) for label in ("circle", "square") for at in range(6)}
    hostile = {f"hostile/{each.replace('/', '-')}": b"<script>alert(1)</script>" for each in HOSTILE}
    write_files(here.cwd, {**images, **hostile, "labels.csv": b"id,size\na,1\nb,\nc,3\n"})
    here.ok("init", "shapes")
    here.ok("sync", "-m", "first")
    here.ok("tag", "v1")
    write_files(here.cwd, {"labels.csv": b"id,size\na,2\nb,\nc,3\n", "circle/0.png": png(shade=250)})
    here.ok("sync", "-m", "second")
    for rate in ("9", "10"):
        job = f"""
            echo '{{"accuracy": 0.{rate}}}' > "$DSV_OUT/metrics.json"; echo > "$DSV_OUT/model"
            for step in 1 9 3; do echo "{{\\"step\\": $step, \\"loss\\": $step}}"; done > "$DSV_OUT/metrics.jsonl"
        """
        assert (
            here.process(
                "run", "shapes@v1", "-p", f"lr={rate}", "--into", "models", "--", "sh", "-c", job
            ).code
            == 0
        )
    here.ok("site", str(here.home / "pages"))
    return here.home / "pages"


@pytest.fixture(scope="module")
def served(pages: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(pages)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.parametrize("over_http", [False, True], ids=["file", "http"])
@pytest.mark.parametrize("scripts", [True, False], ids=["scripts", "plain"])
def test_every_page_loads_all_of_itself_and_nothing_else(
    pages: Path, served: str, chromium: Any, over_http: bool, scripts: bool
) -> None:
    base, wrong = served if over_http else pages.as_uri(), list[str]()
    for scheme, width in (("light", 1280), ("dark", 390)):
        context = chromium.new_context(
            color_scheme=scheme, viewport={"width": width, "height": 800}, java_script_enabled=scripts
        )
        tab = context.new_page()
        tab.on("console", lambda message: wrong.append(message.text))
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.on("dialog", lambda dialog: wrong.append(dialog.message))
        tab.on("request", lambda request: request.url.startswith(base) or wrong.append(request.url))
        for path in sorted(pages.rglob("*.html")):
            tab.goto(f"{base}/{path.relative_to(pages)}")
            assert (
                tab.evaluate("getComputedStyle(document.querySelector('header')).borderBottomStyle")
                == "solid"
            ), path
            assert tab.evaluate("document.documentElement.scrollWidth") <= width, path
            for image in tab.locator("img").all():
                image.scroll_into_view_if_needed()
            tab.wait_for_function(LOADS_ALL) if scripts else None
            assert (
                tab.locator("th button").count() > 0 or not scripts or not tab.locator("table.table").count()
            )
        context.close()
    assert wrong == []


def test_tables_are_sorted_filtered_and_narrowed_by_keyboard(pages: Path, chromium: Any) -> None:
    tab = chromium.new_page()
    tab.goto((pages / "runs.html").as_uri())

    def column(at: int) -> list[str]:
        return [str(text) for text in tab.locator(f"tbody tr:visible td:nth-child({at})").all_inner_texts()]

    at = 1 + tab.locator("th").all_inner_texts().index("lr")
    head = tab.locator(f"th:nth-child({at})")
    head.locator("button").focus()
    tab.keyboard.press("Enter")
    assert column(at) == ["10", "9"] and head.get_attribute("aria-sort") == "descending"  # as numbers
    tab.keyboard.press("Enter")
    assert column(at) == ["9", "10"] and head.get_attribute("aria-sort") == "ascending"
    tab.get_by_label("Filter the rows").fill("0.9")
    assert column(at) == ["9"] and tab.get_by_role("status").inner_text() == "1 of 2"
    tab.get_by_text("Columns", exact=True).click()
    tab.get_by_label("lr").uncheck()
    assert not head.is_visible()
    tab.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(pages: Path, chromium: Any, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    context = chromium.new_context(color_scheme=scheme, bypass_csp=True)
    tab = context.new_page()
    for path in sorted(pages.rglob("*.html")):
        tab.goto(path.as_uri())
        found = axe.run(tab).response["violations"]
        assert not found, (path.name, [(each["id"], each["nodes"][0]["html"]) for each in found])
    context.close()


class Firefox:
    """A Firefox without a window, by the protocol that is built into it."""

    def __init__(self, profile: Path) -> None:
        self._port = profile / "MarionetteActivePort"
        (profile / "user.js").write_text('user_pref("marionette.port", 0);')
        argv = ["firefox-esr", "--headless", "--no-remote", "--marionette", "--profile", str(profile)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(argv, env={**os.environ, "HOME": str(profile)}, **quiet)  # type: ignore[call-overload]
        self._sent = 0

    def begin(self) -> None:
        until(lambda: self._port.exists() and self._port.read_text(), "Firefox")
        self._socket = socket.create_connection(("127.0.0.1", int(self._port.read_text())), PATIENCE)
        self._answers = self._socket.makefile("rb")
        self._answer()
        self.ask("WebDriver:NewSession")

    def _answer(self) -> Any:
        length = b""
        while (digit := self._answers.read(1)) != b":":
            length += digit
        return json.loads(self._answers.read(int(length)))

    def ask(self, command: str, **values: object) -> Any:
        self._sent += 1
        order = json.dumps([0, self._sent, command, values])
        self._socket.sendall(f"{len(order)}:{order}".encode())
        _, _, error, answer = self._answer()
        assert error is None, error
        return answer

    def run(self, script: str) -> Any:
        return self.ask("WebDriver:ExecuteAsyncScript", script=script, args=[])["value"]

    def end(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)


@pytest.fixture
def firefox(tmp_path: Path) -> Iterator[Firefox]:
    if shutil.which("firefox-esr") is None and not IS_NEEDED:
        pytest.skip("needs firefox (apt install firefox-esr)")
    started = Firefox(tmp_path)
    try:
        started.begin()
        yield started
    finally:
        started.end()


LOADED = """
const [done] = arguments, images = [...document.images].map((image) => (image.loading = "eager", image.decode()));
Promise.all(images).then(() => done([
  getComputedStyle(document.querySelector("header")).borderBottomStyle,
  document.querySelectorAll("table.table").length === 0 || document.querySelectorAll("th button").length > 0,
  document.documentElement.scrollWidth <= innerWidth,
]), (error) => done(String(error)));
"""
FORBIDDEN = """
const [done] = arguments, seen = [];
document.addEventListener("securitypolicyviolation", (event) => {
  seen.push(event.effectiveDirective);
  if (seen.length === 2) done([...seen, document.title]);
});
const add = (name, fields) => document.body.append(Object.assign(document.createElement(name), fields));
add("script", { textContent: "document.title = 'changed'" });
add("img", { src: "http://127.0.0.1:9/image.png" });
"""


def test_firefox_shows_the_same_and_keeps_the_policy(pages: Path, firefox: Firefox) -> None:
    firefox.ask("WebDriver:SetWindowRect", width=390, height=800)
    for path in sorted(pages.rglob("*.html")):
        firefox.ask("WebDriver:Navigate", url=path.as_uri())
        assert firefox.run(LOADED) == ["solid", True, True], path
    assert sorted(firefox.run(FORBIDDEN)) == sorted(["script-src-elem", "img-src", "Runs"])
