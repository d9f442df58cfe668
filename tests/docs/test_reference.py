"""The API reference holds every public name and says what the docstrings say; the menu holds every page."""

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

import equipoise as eq

ROOT = Path(__file__).parents[2]


def hook(name):
    """A hook of the site, loaded."""
    spec = spec_from_file_location(f"{name}_hook", ROOT / f"docs/hooks/{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def api():
    return hook("api")


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
    results = {f"results/{path.name}" for path in (ROOT / "results").glob("*.md")}
    assert menu == pages | results | set(api.pages())


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


@pytest.fixture(scope="module")
def names():
    return hook("names")


def test_formulas_in_the_text(names):
    text = "d = sum_k (max_j |P_jk|) b_k^2, (G w)_i = w_i^(-1 / alpha), num_tasks and low_memory, <code>g_i^2</code>"
    assert names.on_page_content(f'<p id="a_b">{text}</p>') == (
        '<p id="a_b">d = sum<sub>k</sub> (max<sub>j</sub> |P<sub>jk</sub>|) b<sub>k</sub><sup>2</sup>, '
        "(G w)<sub>i</sub> = w<sub>i</sub><sup>-1 / alpha</sup>, num_tasks and low_memory, <code>g_i^2</code></p>"
    )


def test_short_names_are_kept_whole(names):
    text = "<p><code>--set a</code> <code>name</code> <code>a command of more signs than fit into a line</code></p>"
    block = "<pre><code>a b</code></pre>"
    assert names.on_page_content(text + block) == text.replace("<code>--set a", '<code class="whole">--set a') + block
    heading = "<h2><code>equipoise.suites.Suite</code></h2>"
    assert names.on_page_content(heading) == "<h2><code>equipoise.<wbr>suites.<wbr>Suite</code></h2>"
