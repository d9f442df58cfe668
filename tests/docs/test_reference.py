"""The API reference holds every public name, says what the docstrings say, and the site it is part of stands alone."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

import equipoise as eq

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def api():
    spec = spec_from_file_location("api_hook", ROOT / "docs/hooks/api.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_public_name_is_in_the_reference(api):
    text = "".join(api.pages().values())
    missing = [name for name in eq.__all__ if f"## `eq.{name}` {{: #{name} }}" not in text]
    assert not missing
    assert all(f"`{option}`\n:   " in text for option in ("discrepancy", "router_objective", "second_look", "max_norm"))


def test_a_name_without_a_page_stops_the_build(api, monkeypatch):
    class Stray:
        """Belongs nowhere."""

    Stray.__module__ = "equipoise.elsewhere"
    monkeypatch.setattr(eq, "Stray", Stray, raising=False)
    monkeypatch.setattr(eq, "__all__", [*eq.__all__, "Stray"])
    with pytest.raises(RuntimeError, match="no page of the API reference holds Stray"):
        api.pages()


def test_every_page_is_in_the_menu(api):
    menu = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text().split("\nnav:")[1]))
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert menu == pages | set(api.pages())


def test_a_docstring_as_markdown(api):
    doc = """A sum: l_1 * l_2 of [K] losses, <b> too.

    size: how large,
        in metres.  color: which; mood: "calm"
    of: no option, since nothing takes it
        and prose of a kind.

        x = 1

    >>> 1 + 1  # doctest: +SKIP
    2
    """
    doc = "\n".join(line.removeprefix("    ") for line in doc.splitlines())
    assert api.markdown(doc, ["size", "color", "mood"]) == "\n\n".join([
        "A sum: l\\_1 \\* l\\_2 of \\[K\\] losses, &lt;b> too.",
        "`size`\n:   how large, in metres.",
        "`color`\n:   which",
        '`mood`\n:   "calm"',
        "`of`\n:   no option, since nothing takes it and prose of a kind.",
        "```python\nx = 1\n```",
        "```pycon\n>>> 1 + 1\n2\n```",
    ])  # fmt: skip
    assert api.markdown("Prose that ends. \nballast: heavy.", ["ballast"]).count("\n:   ") == 0
    assert api.markdown("It weighs.\nballast: heavy.", ["ballast"]) == "It weighs.\n\n`ballast`\n:   heavy."


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="the site's generator is not installed: pip install '.[docs]'")
def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0 and "WARNING" not in built.stderr, built.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        fetched = re.findall(
            r'<(?:script|img|link|iframe)\b[^>]*?(?:src|href)="?((?:https?:)?//[^" >]+)', page.read_text()
        )
        assert not fetched, page
    styles = "".join(path.read_text() for path in tmp_path.rglob("*.css"))
    assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", styles)
