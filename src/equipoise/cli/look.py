"""Commands that look at what there is: report, list, data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table
from rich.text import Text

from equipoise.cli.common import console, in_one_process
from equipoise.registry import make, method_class, methods
from equipoise.report import render
from equipoise.report.collect import collect
from equipoise.report.tables import make_table
from equipoise.suites import suite_class, suites

Format = Literal["terminal", "markdown", "csv", "latex"]


def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders with runs below them.")],
    kind: Annotated[Format, typer.Option("--format", "-f", help="How the table is printed.")] = "terminal",
    html: Annotated[Path | None, typer.Option(help="Write the page here; else report.html in the folder.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Write the figures into this folder, for papers.")] = None,
    figure_format: Annotated[Literal["pdf", "svg"], typer.Option(help="What kind of files the figures are.")] = "pdf",
    published: Annotated[bool, typer.Option("--published", help="Put the published rows beside ours.")] = False,
) -> None:
    """The table of finished runs, one self-contained html page, and figures: `equipoise report runs --format latex`."""
    in_one_process("report")
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"there is no folder {folder}.")
    comparisons = collect(folders)
    if not comparisons:
        raise FileNotFoundError(f"there are no runs below {', '.join(map(str, folders))}.")
    writers = {"markdown": render.markdown, "csv": render.to_csv, "latex": render.latex}
    for comparison in comparisons:
        table = make_table(comparison, published=published)
        if kind == "terminal":
            console.print(render.for_terminal(table, console.width))
        else:
            typer.echo(writers[kind](table))
    if kind == "terminal" or html is not None:
        from equipoise.report.page import write_page

        path = html or folders[0] / "report.html"
        write_page(path, comparisons, published=published)
        console.print(f"Report: {path.resolve()}")
    if figures is not None:
        from equipoise.report.figures import write_figures

        written = write_figures(figures, comparisons, figure_format)
        console.print(f"Figures: {len(written)} in {figures.resolve()}")


def list_everything() -> None:
    """The methods and the suites there are, and what each is."""
    table = Table("method", "class", "needs", "what it does", title="Methods")
    for name in methods():
        found = method_class(name)
        built = make(name, 2, inner_lr=0.1) if name == "ldc-double" else make(name, 2)
        needs = "shared" if built.needs_shared else "a second look" if built.needs_after_step else "losses only"
        table.add_row(name, found.__name__, needs, Text(_first_sentence(found.__doc__)))
    console.print(table)
    table = Table("suite", "tasks", "epochs", "batch", "presets", "what it is", title="Suites")
    for name in suites():
        suite = suite_class(name)
        protocol = suite.protocol
        table.add_row(
            name, str(len(suite.tasks)), str(protocol.epochs), str(protocol.batch_size),
            ", ".join(suite.presets), Text(_first_sentence(suite.__doc__)),
        )  # fmt: skip
    console.print(table)


def data(
    suite: Annotated[str, typer.Argument(help="A suite's name; see `equipoise list`.")],
    folder: Annotated[Path | None, typer.Option("--data", help="Where the data are, as for `equipoise run`.")] = None,
) -> None:
    """Check that a suite's data are there and whole, and pack them where the suite does so: `equipoise data qm9`."""
    found = suite_class(suite)
    console.print(Text(_paragraphs(found.__doc__)))
    ready = found(data=folder)
    batches = ready.batches(0)
    first = next(iter(batches))
    model = ready.model()
    losses, _ = ready.losses(model, first)
    held_out = ready.protocol.report == "best-validation"
    console.print(
        f"[green]✓[/] {len(batches)} training batches of {ready.batch_size}; {len(ready.tasks)} tasks; "
        f"{sum(p.numel() for p in model.parameters()):,} parameters; "
        f"{'validation and test parts' if held_out else 'a test part'}."
    )
    console.print(f"  first losses: {_some([float(loss.detach()) for loss in losses])}")


def _first_sentence(doc: str | None) -> str:
    text = " ".join((doc or "").split("\n\n")[0].split())
    return re.split(r"\.\s+(?=[A-Z])", text)[0].rstrip(".")


def _paragraphs(doc: str | None) -> str:
    """The docstring up to its example, a line a paragraph; what explains a name begins a line of its own.

    >>> print(_paragraphs("One thing\\n    and another.\\n\\n    size: of it.\\n    "))
    One thing and another.
    <BLANKLINE>
    size: of it.
    <BLANKLINE>
    """
    text = "\n".join(line.strip() for line in (doc or "").split(">>>")[0].splitlines()).strip()
    return re.sub(r"(?<!\n)\n(?!\n|\w+: )", " ", text) + "\n"


def _some(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values[:8]) + (", …" if len(values) > 8 else "")
