"""The vision suites on one GPU: real runs written row by row, and what a step costs.

    python benchmarks/vision_gpu.py celeba --data celeba.npz --methods ls,ldc --seeds 0,1,2 --minutes 8 --out results
    python benchmarks/vision_gpu.py time celeba --data celeba.npz --methods ls,ldc,fairgrad --out results
    python benchmarks/vision_gpu.py subset celeba.npz small.npz --images 5000

`stl` among the methods stands for one run a task. With --rates every other method is tried with each of them on the
first seed, and the one with the best validation score trains the other seeds. Runs found in OUT/runs.csv, or in
--resume, are not run again; a row is written after every run, so what is cut off is one run at most. Needs Pillow for
packs of encoded images; `subset` writes already decoded ones.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equipoise.suites import suite_class
from equipoise.suites.celeba.data import Faces
from equipoise.suites.suite import Suite
from harness import compare, environment, table
from vision_trainer import Mode, Rate, Result, Trainer

KEY = ("suite", "method", "task", "seed", "epochs", "mode", "rate")
SUITES = ("celeba", "cityscapes", "cityscapes-offset", "nyuv2")


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    options.run(options)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = found.add_subparsers(required=True)
    for name in SUITES:
        command = commands.add_parser(name, help=f"train {name}")
        command.set_defaults(run=train, suite=name)
        common(command)
        command.add_argument("--seeds", default="0", type=numbers)
        command.add_argument("--stl-seeds", default="0", type=numbers, help="seeds of the single-task runs")
        command.add_argument("--stl-tasks", default=None, type=numbers, help="indices; all by default")
        command.add_argument(
            "--rates", default=[], type=rates, help="to try: 3e-4,1e-3/3x0.3 (1e-3, times 0.3 every 3 epochs)"
        )
        command.add_argument("--epochs", type=int, help="fewer than published; the schedule is scaled")
        command.add_argument("--minutes", type=float, default=8.0, help="start no run that would end later")
        command.add_argument("--resume", type=Path, help="rows of an earlier runs.csv to keep and not to run again")
    command = commands.add_parser("time", help="what a step costs")
    command.set_defaults(run=time_steps)
    command.add_argument("suite", choices=SUITES)
    common(command)
    command.add_argument("--rounds", type=int, default=25)
    command = commands.add_parser(
        "subset", help="decode a few images of CelebA's pack into a file that needs no Pillow"
    )
    command.set_defaults(run=subset)
    command.add_argument("pack", type=Path)
    command.add_argument("out", type=Path)
    command.add_argument("--images", type=int, default=5000)
    return found


def common(command: argparse.ArgumentParser) -> None:
    command.add_argument("--data", type=Path, required=True)
    command.add_argument("--methods", default="ls", type=lambda text: text.split(","))
    command.add_argument("--out", type=Path, required=True)
    command.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    command.add_argument("--batch-size", type=int)
    command.add_argument("--shared", choices=("features", "parameters"), help="by default what the suite can share")
    for name in ("bf16", "channels_last", "compile", "graph"):
        flag = name.replace("_", "-")
        command.add_argument(f"--no-{flag}", dest=name, action="store_false")


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def rates(text: str) -> list[Rate]:
    return [Rate.read(part) for part in text.split(",")]


def open_suite(options: argparse.Namespace) -> Suite:
    """The suite with its data decoded and, on a GPU, resident."""
    start = time.perf_counter()
    if options.data.is_file() and options.suite in ("celeba", "nyuv2"):
        options.suite += "-pack"
    suite = suite_class(options.suite)(device=options.device, data=options.data, batch_size=options.batch_size)
    decoded = options.data.is_file() and "images" in np.load(options.data).files
    if decoded:
        with np.load(options.data) as file:
            suite.faces = Faces(file["images"], file["attributes"], file["part"])
    else:
        try:
            import PIL  # noqa: F401
        except ImportError:
            sys.exit("Pillow is missing here: carry it, or a file of decoded images (`subset`) as --data.")
    suite.seed = 0
    next(iter(suite.batches(0)))
    print(f"{options.suite}: {len(suite.batches(0))} steps an epoch, ready in {time.perf_counter() - start:.1f} s; "
          f"{environment()}", flush=True)  # fmt: skip
    return suite


def subset(options: argparse.Namespace) -> None:
    """The same share of each part, spread over it, so that what is kept is a fair small copy."""
    from equipoise.suites.celeba.data import load_pack

    faces = load_pack(options.pack)
    share = options.images / len(faces.part)
    rows = [np.flatnonzero(faces.part == part) for part in range(3)]
    kept = np.sort(np.concatenate([r[np.linspace(0, len(r) - 1, round(len(r) * share)).astype(int)] for r in rows]))
    np.savez_compressed(
        options.out, images=faces.images[kept], attributes=faces.attributes[kept], part=faces.part[kept]
    )
    print(f"{options.out}: {len(kept):,} images, {options.out.stat().st_size / 2**20:.1f} MiB")


def the_mode(options: argparse.Namespace) -> Mode:
    return Mode(options.bf16, options.channels_last, options.compile, options.graph)


def train(options: argparse.Namespace) -> None:
    end = time.monotonic() + 60 * options.minutes
    suite, mode = open_suite(options), the_mode(options)
    if options.rates and suite.protocol.report != "best-validation":
        sys.exit(f"--rates needs validation images to choose by. {suite.name} has none.")
    epochs = options.epochs or suite.protocol.epochs
    options.out.mkdir(parents=True, exist_ok=True)
    runs = options.out / "runs.csv"
    done = keep_rows(runs, options.resume)
    lasted: dict[str, float] = {}
    for method in options.methods:
        trainer = None
        for task, seed, rate in plan(options, method, suite, done):
            guess = lasted.get(method, max(lasted.values(), default=0.0))
            if time.monotonic() + guess > end:
                print(f"stopped before {method} seed {seed}: {guess:.0f} s a run, and the time is up", flush=True)
                break
            if trainer is None:
                suite.batch_size = options.batch_size or batch_size(suite, method)
                trainer = Trainer(suite, method, mode, epochs=epochs, shared=options.shared or suite.protocol.shared)
            name = "" if task is None else suite.tasks[task]
            key = {"suite": suite.name, "method": method, "task": name, "seed": seed, "epochs": epochs, "mode": mode,
                   "rate": rate or trainer.own_rate}  # fmt: skip
            kept = done.get(tuple(str(key[k]) for k in KEY))
            if kept is None:
                result = trainer.run(seed, task, rate)
                lasted[method] = result.wall_seconds
                kept = record(runs, key, trainer, result, task)
                done[tuple(str(key[k]) for k in KEY)] = kept
                print(f"{method} {name} seed {seed} at {key['rate']}: {kept['score']} at epoch {result.epoch}, "
                      f"{1e3 * result.seconds_per_step:.2f} ms a step, {result.wall_seconds:.1f} s {trainer.note}",
                      flush=True)  # fmt: skip
        del trainer


def batch_size(suite: Suite, method: str) -> int:
    """The one the method was published with on this suite."""
    preset = suite.presets.get(method)
    return (preset and preset.batch_size) or suite.protocol.batch_size


def plan(
    options: argparse.Namespace, method: str, suite: Suite, done: Mapping[tuple[str, ...], Mapping[str, Any]]
) -> Iterator[tuple[int | None, int, Rate | None]]:
    """Task, seed and rate of a method's runs; the rate of later seeds is chosen when the first seed's are done."""
    if method == "stl":
        tasks = range(len(suite.tasks)) if options.stl_tasks is None else options.stl_tasks
        yield from ((task, seed, None) for seed in options.stl_seeds for task in tasks)
        return
    first, *others = options.seeds
    tried = options.rates or [None]
    yield from ((None, first, rate) for rate in tried)
    if len(tried) > 1:
        scores = {row["rate"]: float(row["score"]) for row in done.values()
                  if row["suite"] == suite.name and row["method"] == method and int(row["seed"]) == first}  # fmt: skip
        tried = [max(tried, key=lambda rate: scores[str(rate)])]
    yield from ((None, seed, tried[0]) for seed in others)


def keep_rows(runs: Path, resume: Path | None) -> dict[tuple[str, ...], dict[str, str]]:
    """The rows of runs already done, by their keys; rows of an earlier file are carried over."""
    if resume is not None and not runs.exists():
        runs.write_text(resume.read_text())
    if not runs.exists():
        return {}
    with runs.open(newline="") as file:
        return {tuple(row[name] for name in KEY): row for row in csv.DictReader(file)}


def record(runs: Path, key: dict, trainer: Trainer, result: Result, task: int | None) -> dict[str, str]:
    """One line in runs.csv, which is returned, and one an epoch in epochs.csv."""
    suite = trainer.suite
    own = {m.name for m in suite.metrics if task is None or m.task == suite.tasks[task]}
    row = {
        **key,
        "score": "" if result.score is None else round(result.score, 6),
        "best_epoch": result.epoch,
        "batch_size": suite.batch_size,
        "options": " ".join(f"{k}={v}" for k, v in trainer.preset.options.items()),
        "shared": trainer.shared,
        "milliseconds_per_step": round(1e3 * result.seconds_per_step, 4),
        "wall_seconds": round(result.wall_seconds, 2),
        "peak_mib": round(trainer.peak_mib, 1),
        "note": trainer.note,
        **{f"test:{m.name}": round(result.test[m.name], 6) if m.name in own else "" for m in suite.metrics},
    }
    append(runs, [row])
    append(runs.with_name("epochs.csv"), [{**key, "score": "", **epoch} for epoch in result.epochs])
    return {name: str(value) for name, value in row.items()}


def append(path: Path, rows: list[dict]) -> None:
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        if new:
            writer.writeheader()
        writer.writerows(rows)


def time_steps(options: argparse.Namespace) -> None:
    """LS in every mode against plain float32, then every method against LS in the fast mode; interleaved."""
    suite, fast = open_suite(options), the_mode(options)
    shared = options.shared or suite.protocol.shared
    options.out.mkdir(parents=True, exist_ok=True)
    modes = list(dict.fromkeys([Mode(), Mode(bf16=True), Mode(True, True), Mode(True, True, True), fast]))
    first = {str(mode): Trainer(suite, "ls", mode, shared=shared) for mode in modes}
    base = first[str(Mode())]
    timings = compare(base.step, {name: t.step for name, t in first.items()}, options.rounds, repeat=5)
    report(options.out / "modes.csv", f"LS, {options.suite}, batch {suite.batch_size}", timings, first)
    del first, base
    built = {method: attempt(suite, method, fast, shared) for method in dict.fromkeys(["ls", *options.methods])}
    second = {method: trainer for method, trainer in built.items() if trainer is not None}
    timings = compare(second["ls"].step, {n: t.step for n, t in second.items()}, options.rounds, repeat=5)
    report(options.out / "methods.csv", f"{fast}, K = {len(suite.tasks)}, LS = 1", timings, second)


def attempt(suite: Suite, method: str, mode: Mode, shared: str) -> Trainer | None:
    """One method that fails must not take the others' numbers with it."""
    try:
        return Trainer(suite, method, mode, shared=shared)
    except (ValueError, TypeError, RuntimeError, NotImplementedError) as error:
        print(f"{method}: {type(error).__name__}: {error}", flush=True)
        return None


def report(path: Path, title: str, timings: list, trainers: dict[str, Trainer]) -> None:
    rows = []
    for timing in timings:
        trainer, (low, high) = trainers[timing.name], timing.spread
        rows.append({
            "name": timing.name, "milliseconds": round(timing.milliseconds, 4), "ratio": round(timing.ratio, 4),
            "first_quartile": round(low, 4), "third_quartile": round(high, 4),
            "peak_mib": round(trainer.peak_mib, 1), "note": trainer.note,
        })  # fmt: skip
    path.unlink(missing_ok=True)
    append(path, rows)
    print(f"\n{title}\n{table(list(rows[0]), [list(row.values()) for row in rows])}", flush=True)


if __name__ == "__main__":
    main()
