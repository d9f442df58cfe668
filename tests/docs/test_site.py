"""The built site: no warning, nothing fetched from anywhere, and no page wider than a phone."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from report import browser

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    find_spec("material") is None, reason="the site's generator is not installed: pip install '.[docs]'"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0 and "WARNING" not in built.stderr, built.stderr
    return folder


def test_the_site_names_nothing_to_fetch(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        fetched = re.findall(
            r'<(?:script|img|link|iframe)\b[^>]*?(?:src|href)="?((?:https?:)?//[^" >]+)', page.read_text()
        )
        assert not fetched, page
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", styles)


@pytest.mark.slow
@pytest.mark.skipif(browser.CHROMIUM is None, reason="no chromium here")
def test_pages_on_a_phone_and_a_desk_in_light_and_dark(site):
    tab = browser.Browser()
    try:
        for page in sorted(set(site.rglob("*.html")) - {site / "404.html"}):
            for width, dark in ((390, False), (390, True), (1280, False), (1280, True)):
                tab.open(page, width=width, dark=dark)
                assert tab.complaints == [], page  # errors, and whatever is asked of the network
                assert tab.run("document.documentElement.scrollWidth") == width, (
                    page
                )  # nothing is wider than the window
                scheme = tab.run("document.body.dataset.mdColorScheme")
                assert scheme == ("slate" if dark else "default"), page
    finally:
        tab.close()
