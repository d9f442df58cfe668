"""The commands. Each is a few lines: the work is in `runs` and `report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.common import (
    CORES,
    Address,
    Data,
    Device,
    Engine,
    Force,
    Jobs,
    Methods,
    Out,
    Seeds,
    Settings,
    Track,
    Work,
    all_settings,
    console,
    end,
    folders,
    in_one_process,
    show,
    split,
    whole_numbers,
)
from equipoise.cli.look import data, list_everything, report
from equipoise.cli.speed import speed
from equipoise.cli.sweep import sweep
from equipoise.runs import toml
from equipoise.runs.compare import plan
from equipoise.runs.config import configure, expand, from_file

app = typer.Typer(
    help="Which loss balancing method is worth it? One command from nothing to an answer.\n\n"
    "Begin with `equipoise demo`. `equipoise list` names the methods and the suites; every command has `--help`. "
    "Ctrl-C keeps what is done, and the same command goes on from there.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
DEMO_METHODS = ["stl", "ls", "si", "uw", "famo", "fairgrad", "ldc"]
DEMO_SETTINGS = {"epochs": 3, "batch_size": 20, "suite.tasks": ["mu", "homo", "r2", "U0"]}


@app.command()
def demo(out: Out = Path("runs/demo"), jobs: Jobs = CORES, force: Force = False) -> None:
    """Compare methods on real molecules, two seeds each, in a few minutes on two cores.

    Ctrl-C keeps what is done; the same command goes on from there.
    """
    outcomes = Work(out, jobs, force).carry_out(plan("qm9-sample", DEMO_METHODS, [0, 1], DEMO_SETTINGS))
    show(out, html=out / "report.html")
    end(outcomes)


@app.command()
def run(
    suite: Annotated[str, typer.Argument(help="A suite's name (see `equipoise list`), or a run's .toml file.")],
    method: Annotated[
        str | None, typer.Option("--method", "-m", help="A method or preset; options behind colons. Without it: ldc.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Without it: 0.")] = None,
    settings: Settings = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N. Without it: cpu.")] = None,
    data: Data = None,
    out: Out = Path("runs"),
    force: Force = False,
    track: Track = None,
) -> None:
    """Train one run, or go on with it: `equipoise run toy --method ldc:discrepancy=0.1 --set epochs=10`.

    A run's folder holds its whole configuration as config.toml, which this command takes too. A small file will do:
    what it leaves out is as the suite's protocol and the method's preset have it.
    """
    if suite.endswith(".toml"):
        said = {"--method": method, "--seed": seed, "--set": settings, "--device": device, "--data": data}
        for option, value in said.items():
            if value is not None:
                raise ValueError(f"a run's file says everything about the run: write what {option} says into {suite}.")
        config = from_file(toml.load(Path(suite)))
    else:
        config = configure(suite, method or "ldc", seed=seed or 0, settings=all_settings(settings, device, data))
    configs = expand(config)
    outcomes = Work(out, force=force, track=track).carry_out(configs)
    show(*folders(out, configs))
    end(outcomes)


@app.command()
def compare(
    suite: Annotated[str, typer.Argument(help="A suite's name; see `equipoise list`.")],
    methods: Methods = "all",
    seeds: Seeds = "0,1,2",
    settings: Settings = None,
    jobs: Jobs = 1,
    device: Device = "cpu",
    data: Data = None,
    out: Out = Path("runs"),
    force: Force = False,
    published: Annotated[bool, typer.Option("--published", help="Put the published rows beside ours.")] = False,
    track: Track = None,
    engine: Engine = "local",
    address: Address = None,
) -> None:
    """Train every method with every seed and print the table: `equipoise compare toy --methods ls,famo,ldc`.

    Runs that are done are not done again: another method or seed costs its own runs only.
    """
    configs = plan(suite, split(methods), whole_numbers(seeds, "--seeds"), all_settings(settings, device, data))
    outcomes = Work(out, jobs, force, track, engine, address).carry_out(configs)
    show(*folders(out, configs), published=published, html=out / "report.html")
    end(outcomes)


@app.command()
def toy(
    methods: Annotated[str, typer.Option("--methods", "-m", help="all, or names with commas between.")] = "",
    steps: Annotated[int, typer.Option(min=1, help="Steps of Adam.")] = 50_000,
    lr: Annotated[float, typer.Option(help="The rate of Adam, also for balancers' own parameters.")] = 1e-3,
    sign: Annotated[str, typer.Option(help="Of the second loss: code, as all ran it, or paper, as printed.")] = "code",
    jobs: Jobs = CORES,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page with the figure.")] = Path("runs/toy.html"),
    force: Force = False,
) -> None:
    """The paper's first figure: two losses, five starts, where each method ends, and how fast.

    By default LS, MGDA, FAMO and LDC, and LDC without a router. What is stopped keeps the methods that had ended; the
    same command goes on from there.
    """
    from equipoise.cli.toy import show_toy

    in_one_process("toy")
    show_toy(split(methods), steps=steps, lr=lr, sign=sign, jobs=jobs, out=out, force=force, console=console)


app.command()(sweep)
app.command()(speed)
app.command()(report)
app.command("list")(list_everything)
app.command()(data)
