"""Every example of the documentation runs, and every command in it is one that exists."""

import re

import pytest

from docs import pages

ids = [str(page.relative_to(pages.ROOT)) for page in pages.PAGES]


@pytest.mark.parametrize("page", pages.PAGES, ids=ids)
def test_python_blocks_run_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = [block for block in pages.blocks(page) if block.kind == "python"]
    left_out = [block for block in blocks if block.left_out]
    sessions = [block for block in blocks if block.text.lstrip().startswith(">>>")]
    assert pages.run(page) == len(blocks) - len(left_out) - len(sessions)


@pytest.mark.parametrize("page", pages.PAGES, ids=ids)
def test_commands_exist(page):
    wrong = [(line, words, found) for line, words in pages.commands(page) if (found := pages.complaint(words))]
    assert not wrong


@pytest.mark.parametrize("page", pages.PAGES, ids=ids)
def test_commands_and_scripts_named_in_the_text_exist(page):
    text = page.read_text()
    for script in re.findall(r"(?:benchmarks|examples)/[\w/-]+\.py", text):
        assert (pages.ROOT / script).is_file(), script
    known = [command.name or command.callback.__name__ for command in _app().registered_commands]
    for name in re.findall(r"`equipoise ([a-z][a-z-]*)", text):
        assert name in known, f"equipoise {name}"


def _app():
    from equipoise.cli.app import app

    return app


PAGE = """\
# A page

```python
x = 2
print(x * 1.001)
```

```text title="prints"
{shown}
```

- in a list

    ```python title="needs a GPU"
    1 / 0
    ```

    ```python
    assert x == {x}
    ```

```
$ OMP_NUM_THREADS=1 equipoise compare toy --methods ls,{method} --set epochs=2 | tail
make {target}
```
"""


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "PAGES", [])

    def write(shown="2.0", x=2, method="famo", target="demo"):
        path = tmp_path / "page.md"
        path.write_text(PAGE.format(shown=shown, x=x, method=method, target=target))
        monkeypatch.setattr(pages, "ROOT", tmp_path)
        (tmp_path / "Makefile").write_text("demo:\n\ttrue\n")
        return path

    return write


def test_a_good_page_passes(page):
    good = page()
    assert pages.run(good) == 2
    assert [pages.complaint(words) for _, words in pages.commands(good)] == [None, None, None]


def test_mistakes_in_a_page_are_found(page):
    with pytest.raises(AssertionError) as failed:
        pages.run(page(x=3))
    assert failed.traceback[-1].lineno + 1 == 19  # the page's own line
    for shown in ("3.0", "two"):
        with pytest.raises(AssertionError, match="It is"):
            pages.run(page(shown=shown))
    complaints = [pages.complaint(words) for _, words in pages.commands(page(method="fmao", target="demos"))]
    assert "did you mean 'famo'" in complaints[0] and complaints[1:] == [None, "there is no make demos"]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("equipoise compare toy --methods ls --sets a=1", "No such option"),
        ("equipoise compares toy", "No such command"),
        ("equipoise compare toy --methods ldc:discrepance=1", "discrepancy"),
        ("equipoise run toys", "toy"),
        ("equipoise data qm", "qm9"),
        ("python benchmarks/steps.py --quick", "there is no benchmarks/steps.py"),
    ],
)
def test_wrong_commands_are_found(command, said):
    assert said in pages.complaint(command.split())
