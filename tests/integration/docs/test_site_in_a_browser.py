"""The built site, opened from a file system in a real browser: it can be searched, and asks no host for anything."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# In a process of its own: the browser's event loop and pytest's do not get along in one.
VISIT = """
import json, sys
from playwright.sync_api import sync_playwright
chromium, site = sys.argv[1:]
with sync_playwright() as manager:
    browser = manager.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    asked, errors = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: message.type == "error" and errors.append(message.text))
    page.goto(f"file://{site}/index.html")
    field = page.get_by_role("textbox", name="Search")
    field.click()
    page.get_by_text("Type to start searching").wait_for()  # the index is read
    field.press_sequentially("fizzle")
    page.locator(".md-search-result__link").first.wait_for()
    found = page.locator(".md-search-result__link").evaluate_all("links => links.map(link => link.href)")
    page.locator(".md-search-result__link").first.click()
    page.wait_for_url("**/*.html*")
    for name in ("architecture", "runbooks", "reference/event"):
        page.goto(f"file://{site}/{name}.html")
    page.set_viewport_size({"width": 390, "height": 844})
    wide = page.evaluate("document.documentElement.scrollWidth")
    browser.close()
print(json.dumps({"asked": asked, "errors": errors, "found": found, "wide": wide}))
"""


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium; on Debian: apt-get install chromium")
def test_the_site_is_searched_from_a_file_system_and_asks_nobody(tmp_path: Path) -> None:
    site = tmp_path / "site"
    build = [sys.executable, "-m", "mkdocs", "build", "-q", "-f", str(ROOT / "mkdocs.yml"), "-d", str(site)]
    subprocess.run(build, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, timeout=200)
    assert CHROMIUM is not None
    done = subprocess.run(
        [sys.executable, "-c", VISIT, CHROMIUM, str(site)],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert 0 == done.returncode, done.stderr[-3000:]
    seen = json.loads(done.stdout)

    assert [] == [url for url in seen["asked"] if not url.startswith(("file://", "data:", "blob:"))]
    assert [] == seen["errors"]
    assert any("concepts.html" in link for link in seen["found"])
    assert 390 >= seen["wide"]  # on a phone nothing but tables scrolls sideways
