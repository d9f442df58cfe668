"""Pages that are made while the site is built: the API reference, from the docstrings, and the stored results.

MkDocs calls `on_files`. Nothing is copied: the pages cannot be older than the code. A public name that belongs to no
page stops the build.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Collection, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import equipoise as eq
from equipoise.balancer import CommonOptions
from equipoise.gradient.base import GradientOptions

#: Page, title, what it says first, and the modules whose public names it holds.
PAGES = (
    ("balancer", "The contract", "What every method is, and how to build one by name.", ("balancer", "registry")),
    ("ldc", "LDC", "Loss discrepancy control. [What its options do, in pictures](../ldc.md).", ("ldc",)),
    ("losses", "Loss methods", "They look at the losses alone and cost what a sum costs.", ("weighting",)),
    ("gradients", "Gradient methods", "They look at the tasks' gradients and need `shared`. "
     "[How they compare](../gradient-methods.md).", ("gradient",)),
    ("metrics", "Metrics", "What a multi-task model is worth; classes that add up over batches and ranks.",
     ("metrics",)),
    ("diagnostics", "Diagnostics", "What goes on between the tasks of any model. [How to read them](../diagnose.md).",
     ("diagnostics",)),
)  # fmt: skip
#: Names that are not in `equipoise` itself, since they need the `[bench]` extra or are for those who extend it.
FURTHER = {
    "balancer": ("balancer.CommonOptions", "losses.Batch"),
    "gradients": ("gradient.base.GradientBalancer", "gradient.base.GradientOptions", "gradient.base.Game",
                  "gradient.base.Combination"),
    "diagnostics": ("diagnostics.discrepancy", "diagnostics.Discrepancy", "diagnostics.conflict",
                    "diagnostics.Conflict", "diagnostics.stationarity", "diagnostics.pareto_stationarity",
                    "diagnostics.Stationarity", "diagnostics.lower_level", "diagnostics.LowerLevel"),
    "suites": ("suites.suites", "suites.suite_class", "suites.suite.Suite", "suites.suite.Metric",
               "suites.suite.Protocol", "suites.suite.Preset", "runs.config.RunConfig", "runs.config.configure",
               "runs.compare.plan", "runs.train.train", "report.collect.collect", "report.tables.make_table"),
}  # fmt: skip
#: Pages of `FURTHER` names alone.
MORE_PAGES = (("suites", "Suites and runs", "Benchmarks, runs and tables, as the command line uses them."),)
OPTION = re.compile(r"([a-z_]+(?:, [a-z_]+)*): (.+)", re.DOTALL)
SIGNS = re.compile(r"[*_\[\]\\<]")  # what Markdown would take for its own
WIDTH = 88  # of a signature
DOCS = Path(__file__).parents[1]
RESULTS = DOCS.parent / "results"


def on_files(files: Any, config: Any) -> Any:
    """Add the pages to the site's files."""
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    for path in RESULTS.glob("*.md"):
        files.append(File.generated(config, f"results/{path.name}", abs_src_path=str(path)))
    return files


def pages() -> dict[str, str]:
    """Every page's path and Markdown."""
    homeless = set(eq.__all__)
    found = {}
    for page, title, intro, modules in PAGES:
        names = [name for name in _public() if _module(getattr(eq, name)).split(".")[1] in modules]
        homeless -= set(names)
        things = [(f"eq.{name}", getattr(eq, name)) for name in names]
        things += _metrics() if page == "metrics" else []
        found[f"api/{page}.md"] = _page(title, intro, [*things, *_further(page)])
    for page, title, intro in MORE_PAGES:
        found[f"api/{page}.md"] = _page(title, intro, list(_further(page)))
    if homeless:
        raise RuntimeError(f"no page of the API reference holds {', '.join(sorted(homeless))}: see {__file__}")
    return found


def _public() -> list[str]:
    """The public names; the contract's class first, then as a reader looks names up."""
    return sorted(eq.__all__, key=lambda name: (name != "Balancer", name != "LDC", name.lower()))


def _module(thing: Any) -> str:
    return str(thing.__module__)


def _further(page: str) -> Iterator[tuple[str, Any]]:
    for path in FURTHER.get(page, ()):
        module, _, name = path.rpartition(".")
        yield f"equipoise.{path}", getattr(import_module(f"equipoise.{module}"), name)


def _metrics() -> list[tuple[str, Any]]:
    """The torchmetrics classes, wherever in the package they are."""
    import torchmetrics

    import equipoise.metrics as package

    found = []
    for module in pkgutil.iter_modules(package.__path__):
        name = f"{package.__name__}.{module.name}"
        classes = [thing for thing in vars(import_module(name)).values() if inspect.isclass(thing)]
        found += [
            (f"{name}.{thing.__name__}", thing)
            for thing in classes
            if issubclass(thing, torchmetrics.Metric) and _module(thing) == name
        ]
    return found


def _page(title: str, intro: str, things: list[tuple[str, Any]]) -> str:
    return "\n\n".join([f"# {title}", intro, *(_entry(path, thing) for path, thing in things)]) + "\n"


def _entry(path: str, thing: Any) -> str:
    """One name: where it is, how it is called, what its docstring says, and its own methods."""
    label = "" if path.startswith("eq.") else f" data-toc-label='{thing.__name__}'"  # what fits beside the text
    parts = [f"## `{path}` {{: #{thing.__name__}{label} }}", *_called(path, thing), _doc(thing)]
    for name, member in _members(thing):
        what = member.fget if isinstance(member, property) else member
        heading = f"### `{name}` {{: #{thing.__name__}.{name} }}"
        signature = [] if isinstance(member, property) else _called(f"{_instance(thing)}.{name}", what)
        parts += [heading, *signature, _doc(what)]
    return "\n\n".join(part for part in parts if part)


def _doc(thing: Any) -> str:
    try:
        options = list(inspect.signature(thing.__init__ if inspect.isclass(thing) else thing).parameters)
    except (TypeError, ValueError):
        options = []
    return markdown(inspect.getdoc(thing) or "", options)


def _members(thing: Any) -> Iterator[tuple[str, Any]]:
    """The public methods and properties a class defines itself and describes."""
    if not inspect.isclass(thing):
        return
    extended = thing.__name__.endswith("Balancer")  # what a new method fills in is of interest there alone
    for name in vars(thing):
        member = (
            inspect.getattr_static(thing, name) if isinstance(vars(thing)[name], property) else getattr(thing, name)
        )
        if (
            name.startswith("_")
            or name == "extra_repr"
            or (name in ("objective", "combine", "update") and not extended)
        ):
            continue
        described = member.fget if isinstance(member, property) else member
        if (isinstance(member, property) or inspect.isroutine(member)) and (described.__doc__ or "").strip():
            yield name, member


def _instance(thing: Any) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", thing.__name__).lower()


def _called(path: str, thing: Any) -> list[str]:
    """The signature as a block of code; nothing for what is not called."""
    if inspect.isclass(thing) and issubclass(thing, dict):
        fields = "\n".join(f"{name}: {_text(kind)}" for name, kind in thing.__annotations__.items())
        return [f"```python\n{fields}\n```"]
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return []
    if inspect.isclass(thing) and inspect.isabstract(thing):
        signature = inspect.signature(thing.__init__)
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    texts = [_parameter(parameter) for parameter in signature.parameters.values() if parameter.name != "self"]
    texts = _with_star(signature, texts)
    returned = "" if inspect.isclass(thing) or signature.return_annotation is signature.empty else (
        f" -> {_text(signature.return_annotation)}"
    )  # fmt: skip
    one = f"{path}({', '.join(texts)}){returned}"
    if len(one) > WIDTH:
        inner = "".join(f"    {text},\n" for text in texts)
        one = f"{path}(\n{inner}){returned}"
    return [f"```python\n{one}\n```", *_packed(signature)]


def _with_star(signature: inspect.Signature, texts: list[str]) -> list[str]:
    """The bare star where keywords begin."""
    kinds = [parameter.kind for parameter in signature.parameters.values() if parameter.name != "self"]
    keyword = inspect.Parameter.KEYWORD_ONLY
    if keyword in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        texts = [*texts[: kinds.index(keyword)], "*", *texts[kinds.index(keyword) :]]
    return texts


def _parameter(parameter: inspect.Parameter) -> str:
    star = {parameter.VAR_KEYWORD: "**", parameter.VAR_POSITIONAL: "*"}.get(parameter.kind, "")
    text = f"{star}{parameter.name}"
    if parameter.annotation is not parameter.empty and "Unpack" not in _text(parameter.annotation):
        text += f": {_text(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        spaced = " = " if ":" in text else "="
        shown = repr(parameter.default)
        text += spaced + ("..." if " at 0x" in shown or shown.startswith("<") else shown)
    return text


def _packed(signature: inspect.Signature) -> list[str]:
    """Where the options behind `**` are described."""
    homes = {CommonOptions: ("balancer.md#CommonOptions", "every method"),
             GradientOptions: ("gradients.md#GradientOptions", "every gradient method")}  # fmt: skip
    for parameter in signature.parameters.values():
        for options, (link, whose) in homes.items():
            if options.__name__ in _text(parameter.annotation):
                names = ", ".join(f"`{name}`" for name in options.__annotations__)
                return [f"`**{parameter.name}`: the options of [{whose}]({link}): {names}."]
    return []


def _text(annotation: Any) -> str:
    """An annotation as it stands in the code."""
    text = getattr(annotation, "__forward_arg__", None) or (
        annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    )
    return str(text).strip("\"'")


def markdown(doc: str, options: Collection[str] = ()) -> str:
    """A docstring as Markdown: options become a list of definitions, sessions and indented lines blocks of code.

    options: the names of what is called; a line that begins with one of them and a colon is no prose.
    """
    blocks = [block for block in re.split(r"\n\s*\n", doc.strip("\n")) if block.strip()]
    return "\n\n".join(_block(block.splitlines(), options) for block in blocks)


def _block(lines: list[str], options: Collection[str]) -> str:
    for i in range(1, len(lines)):
        if _begins_anew(lines[i], lines[0], lines[i - 1], options):
            return _block(lines[:i], options) + "\n\n" + _block(lines[i:], options)
    if lines[0].startswith(">>>"):
        shown = [re.sub(r"\s*# doctest: .*", "", line) for line in lines]
        return "```pycon\n" + "\n".join(shown) + "\n```"
    if all(line.startswith("    ") for line in lines):
        return "```python\n" + "\n".join(line[4:] for line in lines) + "\n```"
    if OPTION.match(lines[0]):
        return "\n\n".join(_option(text) for text in _options(lines, options))
    if lines[0].startswith("- "):
        return "\n".join(_escaped(line) for line in lines)
    return _escaped(" ".join(line.strip() for line in lines))


def _begins_anew(line: str, first: str, above: str, options: Collection[str]) -> bool:
    """Whether a session, or a list of options after prose, begins at a line that no empty one sets off."""
    if first.startswith(">>>"):
        return False
    match = OPTION.match(line)
    named = match is not None and match[1].split(", ")[0] in options
    return line.startswith(">>>") or (named and above.endswith(".") and not OPTION.match(first))


def _options(lines: list[str], options: Collection[str]) -> Iterator[str]:
    """One text an option: an indented line goes on with the one above; a line may hold several."""
    texts: list[str] = []
    for line in lines:
        if line.startswith(" ") and texts:
            texts[-1] += " " + line.strip()
        else:
            texts.append(line)
    names = "|".join(map(re.escape, options)) or "(?!)"
    for text in texts:
        yield from re.split(rf"(?:\s{{2,}}|; )(?=(?:{names}): )", text)


def _option(text: str) -> str:
    match = OPTION.match(text)
    if match is None:
        return _escaped(text)
    names = ", ".join(f"`{name}`" for name in match[1].split(", "))
    return f"{names}\n:   {_escaped(match[2])}"


def _escaped(text: str) -> str:
    """Prose whose signs mean themselves; what stands between backticks is left alone, and pages are linked."""
    pieces = re.split(r"(``.*?``|`[^`]*`)", text)
    return "".join(piece if piece.startswith("`") else _linked(SIGNS.sub(_sign, piece)) for piece in pieces)


def _sign(match: re.Match[str]) -> str:
    return "&lt;" if match[0] == "<" else f"\\{match[0]}"


def _linked(text: str) -> str:
    return re.sub(r"docs/([a-z-]+)\.md", lambda found: _page_link(found[1], found[0]), text)


def _page_link(page: str, said: str) -> str:
    return f"[{page.replace('-', ' ')}](../{page}.md)" if (DOCS / f"{page}.md").is_file() else said
