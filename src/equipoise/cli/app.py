"""The commands. Each is a few lines: the work is in `runs` and `report`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from equipoise.cli.live import Live
from equipoise.cli.look import console, data, list_everything, report
from equipoise.report.collect import collect
from equipoise.report.render import for_terminal
from equipoise.report.tables import make_table
from equipoise.runs import toml
from equipoise.runs.compare import plan
from equipoise.runs.config import RunConfig, configure, expand, setting
from equipoise.runs.engine import Outcome, run_local

app = typer.Typer(
    help="Which loss balancing method is worth it? One command from nothing to an answer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
DEMO_METHODS = ["stl", "ls", "si", "uw", "famo", "fairgrad", "ldc"]

Out = Annotated[Path, typer.Option("--out", "-o", help="Folder of the runs.", show_default=True)]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="epochs=20, lr=3e-4, an option of the method, or suite.OPTION."),
]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, help="Runs side by side, each with its share of threads.")]
Force = Annotated[bool, typer.Option("--force", help="Start finished and unfinished runs again from nothing.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N; with several jobs, one GPU each in turns.")]
Data = Annotated[Path | None, typer.Option(help="Where the suite's data are; see `equipoise data`.")]


@app.command()
def demo(out: Out = Path("runs/demo"), jobs: Jobs = CORES, force: Force = False) -> None:
    """Compare methods on real molecules, two seeds each, in a few minutes on two cores.

    Ctrl-C keeps what is done; the same command goes on from there.
    """
    from equipoise.registry import methods

    names = [method for method in DEMO_METHODS if method in methods()]
    settings = {"epochs": 3, "batch_size": 20, "suite.tasks": ["mu", "homo", "r2", "U0"]}
    configs = plan("qm9-sample", names, [0, 1], settings)
    _carry_out(configs, out, jobs, force)
    _show(out, html=out / "report.html")


@app.command()
def run(
    suite: Annotated[str, typer.Argument(help="A suite's name (see `equipoise list`), or a run's .toml file.")],
    method: Annotated[str, typer.Option("--method", "-m", help="A method or preset; options behind colons.")] = "ldc",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    settings: Settings = None,
    device: Device = "cpu",
    data: Data = None,
    out: Out = Path("runs"),
    force: Force = False,
) -> None:
    """Train one run, or go on with it: `equipoise run toy --method ldc:discrepancy=0.1 --set epochs=10`."""
    if suite.endswith(".toml"):
        configs = expand(RunConfig.from_table(toml.load(Path(suite))))
    else:
        configs = expand(configure(suite, method, seed=seed, settings=_settings(settings, device, data)))
    _carry_out(configs, out, 1, force)
    _show(*{out / config.folder for config in configs})


@app.command()
def compare(
    suite: Annotated[str, typer.Argument(help="A suite's name; see `equipoise list`.")],
    methods: Annotated[str, typer.Option("--methods", "-m", help="all, or names with commas between.")] = "all",
    seeds: Annotated[str, typer.Option(help="Seeds with commas between.")] = "0,1,2",
    settings: Settings = None,
    jobs: Jobs = 1,
    device: Device = "cpu",
    data: Data = None,
    out: Out = Path("runs"),
    force: Force = False,
    published: Annotated[bool, typer.Option("--published", help="Put the published rows beside ours.")] = False,
) -> None:
    """Train every method with every seed and print the table: `equipoise compare toy --methods ls,famo,ldc`."""
    configs = plan(suite, _split(methods), _seeds(seeds), _settings(settings, device, data))
    _carry_out(configs, out, jobs, force)
    _show(*dict.fromkeys(out / config.folder for config in configs), published=published, html=out / "report.html")


@app.command()
def toy(
    methods: Annotated[str, typer.Option("--methods", "-m", help="all, or names with commas between.")] = "",
    steps: Annotated[int, typer.Option(min=1, help="Steps of Adam.")] = 50_000,
    lr: Annotated[float, typer.Option(help="The rate of Adam, also for balancers' own parameters.")] = 1e-3,
    sign: Annotated[str, typer.Option(help="Of the second loss: code, as all ran it, or paper, as printed.")] = "code",
    jobs: Jobs = CORES,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page with the figure.")] = Path("runs/toy.html"),
) -> None:
    """The paper's first figure: two losses, five starts, where each method ends, and how fast.

    By default LS, MGDA, FAMO and LDC, and LDC without a router.
    """
    from equipoise.cli.toy import show_toy

    show_toy(_split(methods), steps=steps, lr=lr, sign=sign, jobs=jobs, out=out, console=console)


app.command()(report)
app.command("list")(list_everything)
app.command()(data)


def _carry_out(configs: list[RunConfig], out: Path, jobs: int, force: bool) -> list[Outcome]:
    """Run everything with live progress; a stop ends the command, with what to type to go on."""
    with Live(configs, console) as live:
        outcomes = run_local(configs, out, jobs=jobs, force=force, watch=live)
    if any(outcome.result is None and outcome.problem is None for outcome in outcomes):
        done = sum(outcome.result is not None for outcome in outcomes)
        console.print(f"Stopped: {done} of {len(outcomes)} runs are done. The same command goes on from here.")
        raise typer.Exit(130)
    return outcomes


def _show(*folders: Path, published: bool = False, html: Path | None = None) -> None:
    """The tables of everything finished below the folders, and the page."""
    comparisons = collect(folders)
    for comparison in comparisons:
        console.print(for_terminal(make_table(comparison, published=published), console.width))
    if html is not None:
        from equipoise.report.page import write_page

        write_page(html, comparisons, published=published)
        console.print(f"Report: {html.resolve()}")


def _settings(texts: list[str] | None, device: str, data: Path | None) -> dict[str, Any]:
    given = dict(setting(text) for text in texts or [])
    return {"device": device, **({"data": str(data)} if data else {}), **given}


def _split(text: str) -> list[str]:
    """Names with commas between; commas inside brackets belong to a value.

    >>> _split("ls:weights=[1,2],ldc")
    ['ls:weights=[1,2]', 'ldc']
    """
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _seeds(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--seeds must be whole numbers with commas between; found {text!r}.") from None
