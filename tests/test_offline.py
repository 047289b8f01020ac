"""The documentation's search when the site is opened as files: its worker runs in a frame, and nothing is fetched."""

import shutil
from pathlib import Path

import pytest
import yaml

from tests.test_docs import DOCS, ROOT

driver = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pip install playwright")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SHIM = "assets/iframe-worker.js"


def test_the_site_has_its_own_shim() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert "offline" in settings["plugins"]
    assert settings["extra"]["polyfills"] == [SHIM], "otherwise the plugin would load one from the network"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: apt-get install chromium")
def test_a_worker_runs_in_a_page_that_was_opened_as_a_file(tmp_path: Path) -> None:
    shutil.copy(DOCS / SHIM, tmp_path / "shim.js")
    (tmp_path / "two.js").write_text("self.k = 2;")
    (tmp_path / "worker.js").write_text(
        'addEventListener("message", async ({ data }) => { await importScripts("two.js"); postMessage(data * k); });'
    )
    (tmp_path / "page.html").write_text(
        '<!doctype html><body><script src="shim.js"></script><script>const worker = new Worker("worker.js"); '
        'worker.addEventListener("message", ({ data }) => { document.title = data; }); worker.postMessage(21);</script>'
    )
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--headless", "--no-sandbox"])
        page = browser.new_page()
        page.goto((tmp_path / "page.html").as_uri())
        page.wait_for_function("document.title === '42'", timeout=20_000)
        browser.close()
