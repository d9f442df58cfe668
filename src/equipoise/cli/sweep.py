"""`equipoise sweep`: lambda, fixed weights, task orders, and everything under one budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from equipoise.cli import sweep_tables as tables
from equipoise.cli.common import (
    Address,
    Data,
    Device,
    Engine,
    Force,
    Jobs,
    Out,
    Seeds,
    Settings,
    Track,
    Work,
    all_settings,
    end,
    folders,
    in_one_process,
    numbers,
    split,
    whole_numbers,
    write_report,
)
from equipoise.registry import methods as all_methods
from equipoise.report.collect import STL, Comparison, collect
from equipoise.runs.compare import NOT_IN_ALL, plan
from equipoise.runs.config import RunConfig, configure
from equipoise.runs.sweep import LAMBDAS, Over, fixed_weights, lambda_grid, order_ablation, weight_sweep
from equipoise.runs.tune import (
    LAMBDA,
    Search,
    Trial,
    check_storage,
    check_tunable,
    space_of,
    sweep_folder,
    tune,
)


def sweep(
    suite: Annotated[str, typer.Argument(help="A suite's name; see `equipoise list`.")],
    over: Annotated[Over | None, typer.Option(help="What is varied; without it LDC's lambda.")] = None,
    grid: Annotated[
        str | None, typer.Option(help="Values of lambda, or of the first of two weights, with commas between.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Let Optuna choose as many lambdas; or draw as many weightings.")
    ] = None,
    budget: Annotated[
        int | None, typer.Option(min=2, help="Tune LS's weights and every method with as many runs each.")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option("--methods", "-m", help="With stl, Δm is against our own. Without it: ldc, or all."),
    ] = None,
    seeds: Seeds = "0,1,2",
    settings: Settings = None,
    jobs: Jobs = 1,
    device: Device = "cpu",
    data: Data = None,
    out: Out = Path("runs/sweep"),
    force: Force = False,
    storage: Annotated[
        str | None, typer.Option(help="Optuna's database: sqlite:///FILE (one in the folder) or postgresql://...")
    ] = None,
    track: Track = None,
    engine: Engine = "local",
    address: Address = None,
) -> None:
    """Vary one thing, or tune everything alike.

    `equipoise sweep qm9-sample --grid 0.01,0.05,0.1`: a table of LDC's lambda, as in the paper.

    `equipoise sweep qm9-sample --trials 12`: Optuna looks for lambda, on the validation part.

    `equipoise sweep cityscapes --over weights`: LS with fixed weights beside LDC, and which of them form the front.

    `equipoise sweep celeba --over order`: LDC's chain as it is, shuffled each step, and all pairs.

    `equipoise sweep qm9-sample --budget 10 -m stl,famo,ldc`: what balancing gains over tuned fixed weights.

    Ctrl-C keeps what is done; the same command goes on from there, Optuna's trials included.
    """
    named = split(methods) if methods is not None else ["all"] if budget is not None else ["ldc"]
    this = _Sweep(
        suite,
        whole_numbers(seeds, "--seeds"),
        all_settings(settings, device, data),
        Work(out, jobs, force, track, engine, address),
        None if storage is None else check_storage(storage),
        with_single=STL in named or named == ["all"],
    )
    named = [name for name in named if name != STL]
    if budget is not None:
        for option, value in (("--over", over), ("--grid", grid), ("--trials", trials)):
            if value is not None:
                raise ValueError(f"--budget tunes by itself and takes no {option}; found {value!r}.")
        this.under_one_budget(budget, named)
    elif over == "order":
        if grid is not None or trials is not None:
            raise ValueError("--over order has nothing to choose: leave --grid and --trials out.")
        this.order(_one(named))
    elif over == "weights":
        this.weights(named, None if grid is None else numbers(grid, "--grid"), trials)
    else:
        if grid is not None and trials is not None:
            raise ValueError("--grid says which values, --trials lets Optuna choose them: give one of the two.")
        this.lambdas(_one(named), numbers(grid, "--grid") if grid else LAMBDAS, trials)


@dataclass(frozen=True)
class _Sweep:
    """What all kinds of sweeps need to know."""

    suite: str
    seeds: list[int]
    settings: dict[str, Any]
    work: Work
    storage: str | None
    with_single: bool  # whether single-task learning is to be the base of delta-m

    def lambdas(self, method: str, values: Sequence[float], trials: int | None) -> None:
        if trials is None:
            configs = lambda_grid(self.suite, method, values, self.seeds, self.settings)
            self._run_and_finish(configs, lambda found: tables.lambdas(found, method))
            return
        check_tunable(self.suite)
        base = configure(self.suite, method, settings=self.settings)
        if base.method != "ldc":
            raise ValueError(f"lambda is LDC's; found {method!r}, which is {base.method!r}.")
        search = Search(self.suite, method, tuple(self.seeds), LAMBDA, self.settings)
        found = self._tune([search], trials)[0]
        configs = [config for trial in found for config in trial.configs]
        self._run_and_finish(configs, lambda comparison: tables.lambdas(comparison, method), done=True)

    def weights(self, beside: Sequence[str], first: Sequence[float] | None, draws: int | None) -> None:
        count = len(configure(self.suite, "ls", settings=self.settings).tasks)
        if count == 2 and draws is not None:
            raise ValueError(
                "the weights of two tasks are a line: choose them by --grid, the first task's, not --trials."
            )
        if count > 2 and first is not None:
            raise ValueError(f"--grid fixes the weights of two tasks; {self.suite} has {count}: draw some by --trials.")
        points = fixed_weights(count, first) if draws is None else fixed_weights(count, draws=draws)
        configs = weight_sweep(self.suite, beside, points, self.seeds, self.settings)
        self._run_and_finish(configs, tables.front)

    def order(self, method: str) -> None:
        configs = order_ablation(self.suite, method, self.seeds, self.settings)
        self._run_and_finish(configs, tables.orders)

    def under_one_budget(self, budget: int, named: list[str]) -> None:
        check_tunable(self.suite)
        if named == ["all"]:
            named = [name for name in all_methods() if name not in (*NOT_IN_ALL, STL)]
        tuned = list(dict.fromkeys(["ls", *named]))
        searches = [
            Search(self.suite, method, (seed,), space_of(self.suite, method, self.settings), self.settings)
            for seed in self.seeds
            for method in tuned
        ]
        found = self._tune(searches, budget)
        of = {(search.method, search.seeds[0]): trials for search, trials in zip(searches, found, strict=True)}
        configs = [config for trials in found for trial in trials for config in trial.configs]

        def show(comparison: Comparison) -> Comparison:
            return tables.gains(comparison, of, budget)

        self._run_and_finish(configs, show, done=True)

    def _tune(self, searches: Sequence[Search], trials: int) -> list[list[Trial]]:
        in_one_process("tuning, by --trials or --budget,")
        with sweep_folder(self.work.out) as prefix:
            return tune(
                searches,
                trials,
                storage=self.storage or f"sqlite:///{self.work.out.resolve() / 'sweep.db'}",
                prefix=prefix,
                carry_out=self.work.carry_out,
                force=self.work.force,
            )

    def _run_and_finish(
        self, configs: Sequence[RunConfig], show: Callable[[Comparison], Comparison | None], *, done: bool = False
    ) -> None:
        """What is not done yet, then the sweep's own table, and the page of what it shows."""
        single = plan(self.suite, [STL], self.seeds, self.settings) if self.with_single else []
        missing = single if done else [*single, *configs]
        outcomes = self.work.carry_out(missing) if missing else []
        for comparison in collect(folders(self.work.out, [*single, *configs])):
            write_report(self.work.out / "report.html", [show(comparison) or comparison])
        end(outcomes)


def _one(named: list[str]) -> str:
    """The form of LDC whose options are varied."""
    if len(named) != 1:
        raise ValueError(f"--methods must name one form of LDC here; found {', '.join(named) or 'none'}.")
    return named[0]
