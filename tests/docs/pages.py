"""What is in a page of the documentation: its fenced blocks, and how each is carried out or checked."""

import contextlib
import io
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<kind>[\w+-]*)(?P<rest>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```[ ]*$", re.MULTILINE | re.DOTALL
)
NUMBER = re.compile(r"-?\d[\d,]*\.?\d*(?:e[+-]?\d+)?")
CLOSE = 0.1  # what other machines' arithmetic may do to a printed number, relatively; or 1.5 of its last digit


@dataclass
class Block:
    """A fenced block: `line` is where its text begins in the page."""

    kind: str
    title: str
    text: str
    line: int

    @property
    def left_out(self):
        """Whether the block says, where the reader sees it, that it cannot run just anywhere."""
        return self.title.startswith("needs ")


def blocks(page):
    """The page's fenced blocks, those inside lists and tabs as well."""
    text = page.read_text()
    found = []
    for match in FENCE.finditer(text):
        indent = len(match["indent"])
        lines = [line[indent:] for line in match["text"].splitlines()]
        title = re.search(r'title="([^"]*)"', match["rest"])
        line = text.count("\n", 0, match.start("text")) + 1
        found.append(Block(match["kind"], title[1] if title else "", "\n".join(lines) + "\n", line))
    return found


def run(page):
    """Run a page's Python from top to bottom in one namespace; how many blocks there were.

    A block titled "prints" after a Python block is what that one prints. A block titled "needs ..." is left out.
    """
    import torch

    torch.set_num_threads(1)
    name = "page_" + re.sub(r"\W", "_", str(page.relative_to(ROOT).with_suffix("")))
    module = sys.modules[name] = ModuleType(name)
    count, said = 0, None
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            for block in blocks(page):
                if block.kind == "python" and not block.left_out and not block.text.lstrip().startswith(">>>"):
                    # Lines are numbered as in the page, so that a traceback points into it.
                    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec", dont_inherit=True)
                    with contextlib.redirect_stdout(io.StringIO()) as out:
                        exec(code, vars(module))
                    count, said = count + 1, out.getvalue()
                elif block.title == "prints":
                    assert said is not None, f"{page}:{block.line}: nothing ran that could print this"
                    problem = difference(block.text, said)
                    assert problem is None, (
                        f"{page}:{block.line}: {problem}\nThe page shows\n{block.text}\nIt is\n{said}"
                    )
    finally:
        del sys.modules[name]
    return count


def difference(shown, printed):
    """Where two outputs differ by more than the last digits of numbers and the spaces around them; None: nowhere."""
    if NUMBER.sub("#", shown).split() != NUMBER.sub("#", printed).split():
        return "the words differ"
    for one, other in zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True):
        a, b = float(one.replace(",", "")), float(other.replace(",", ""))
        if abs(a - b) > max(CLOSE * max(abs(a), abs(b)), 1.5 * _last_digit(one)):
            return f"{one} is {other}"
    return None


def _last_digit(number):
    """What one step of a number's last digit is worth; nothing where there are no decimals."""
    mantissa, _, exponent = number.partition("e")
    decimals = len(mantissa.partition(".")[2])
    return 10.0 ** (int(exponent or 0) - decimals) if decimals else 0.0


def commands(page):
    """The lines a reader would type into a shell, as (line in the page, words), without what surrounds them."""
    for block in blocks(page):
        if block.kind not in ("", "bash", "sh", "shell", "console") or block.left_out:
            continue
        lines = block.text.replace("\\\n", "  ").splitlines()
        for i, line in enumerate(lines):
            for part in re.split(r"\s(?:&&|\|\|?)\s", line.strip().removeprefix("$ ")):
                with contextlib.suppress(ValueError):  # an unclosed quote: no command
                    words = shlex.split(part, comments=True)
                    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                        words = words[1:]
                    if words:
                        yield block.line + i, words


def complaint(words):
    """What is wrong with a command of this project's, or None."""
    words = list(words)
    if words[:1] == ["python"] or words[0].endswith("/python"):
        words = words[1:]
        if words[:2] == ["-m", "equipoise"]:
            words = words[1:]
        elif words and re.match(r"(benchmarks|examples|docs)/", words[0]):
            return None if (ROOT / words[0]).is_file() else f"there is no {words[0]}"
    if words[:1] == ["make"]:
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return next((f"there is no make {word}" for word in words[1:] if word not in targets), None)
    return misuse(words[1:]) if words and words[0].split("/")[-1] == "equipoise" else None


def misuse(arguments):
    """What `equipoise` would say to its arguments, without doing anything; suites, methods and settings included."""
    from typer.main import get_command

    from equipoise.cli.app import app
    from equipoise.cli.common import all_settings, split
    from equipoise.runs.compare import plan
    from equipoise.suites import suite_class

    group = get_command(app)
    if not arguments or arguments == ["--help"]:
        return None
    try:
        context = group.make_context("equipoise", list(arguments))
        name, command, rest = group.resolve_command(context, list(arguments))
        if "--help" in rest:
            return None
        given = command.make_context(name, rest, parent=context).params
        suite = given.get("suite", "toy")
        if not suite.endswith(".toml"):
            methods = given.get("methods") or given.get("method") or "ldc"
            suite_class(suite)
            plan(suite, split(methods), [0], all_settings(given.get("settings"), given.get("device"), None))
    except SystemExit:
        return "it stops at once"
    except Exception as error:
        return f"{type(error).__name__}: {getattr(error, 'message', error)}"
    return None
