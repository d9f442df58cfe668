"""QM9: as many full runs side by side as a given time allows, on a GPU.

    python benchmarks/qm9_train.py --data FILE --out DIR --seconds 300 --runs ls si ldc ldc:router_objective=upper

A fleet of the first R of the runs named, R as large as 300 epochs of all of them fit into the time left, measured
first. About every minute DIR gets runs.tar.gz, a folder for each run, and until the last epoch is done the fleet's
checkpoint in files of 15 MB, checkpoint.0 and on: put these into a folder and name it with --resume to go on. Needs
PYTHONPATH=src where nothing is installed. Also works on a CPU (--device cpu).
"""

import itertools
import tarfile
import tempfile
import time
from pathlib import Path

import torch

from qm9_parts import attempt, choose_programs, config, kernels_agree, milliseconds, options, speed_of, started, step_ms

# what stands in for a package the others need goes first
# isort: split
from equipoise.suites.qm9.fleet_data import FleetData
from equipoise.suites.qm9.training import FleetTraining

RUNS = ("ls", "si", "ldc", "ldc:router_objective=upper", "uw", "fairgrad", "mgda", "go4align", "famo")
PART = 15_000_000
SLACK = 1.04  # of an epoch over its measured steps
COMPILING = 45.0  # seconds that another fleet takes to build


def main():
    parser = options(__doc__)
    parser.add_argument("--runs", nargs="+", default=list(RUNS), help="methods, by importance; method@SEED for a seed")
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--guess", type=int, default=4, help="how many runs to try first")
    parser.add_argument("--prepared", type=Path, help="a file to make when the first fleet is built")
    parser.add_argument("--after", type=Path, help="a file to wait for before measuring")
    parser.add_argument("--only", action="store_true", help="leave with status 3 if the first fleet does not fit")
    parser.add_argument("--resume", type=Path, help="a folder with a checkpoint's files")
    parser.add_argument("--no-compile", action="store_true")
    args = started(parser)
    args.began = time.monotonic()
    log = (args.out / "qm9_train.log").open("a")

    def say(text):
        stamped = f"{time.monotonic() - args.began:6.1f} s  {text}"
        print(stamped, file=log, flush=True)
        if not text.startswith("epoch ") or training_is_at(text) % 10 in (0, 1):
            print(stamped, flush=True)

    args.say = say
    train(args)


def training_is_at(text):
    """The epoch of a line of the training's."""
    return int(text.split()[1])


def configs_of(args, count):
    named = (run.partition("@") for run in args.runs[:count])
    return [config(args, method, int(seed or 0), args.epochs) for method, _, seed in named]


def train(args):
    checkpoint = Path(tempfile.mkdtemp()) / "fleet.safetensors"
    count = min(args.guess, len(args.runs))
    if args.resume:
        parts = sorted(args.resume.glob("checkpoint.*"))
        checkpoint.write_bytes(b"".join(part.read_bytes() for part in parts))
        count = len(args.runs)
    data = FleetData(configs_of(args, len(args.runs)), args.device, args.data)
    args.say(f"data: {len(data.resident.sizes) - 1} molecules, {data.steps} steps, {data.layout}")
    training = build(args, data, count, checkpoint)
    if args.prepared:
        args.prepared.touch()
    while args.after and not args.after.exists() and time.monotonic() < args.end:
        time.sleep(0.2)
    if args.only and not args.resume:
        judge(args, training)
    elif not args.resume:
        training = attempt("how many runs", lambda: fitting(args, data, training, checkpoint)) or training
    go_on(args, training, checkpoint)


def build(args, data, count, checkpoint):
    """The training of the first `count` runs, compiled if that works, its step captured."""
    fused = args.cuda and attempt("the kernels agree with products", lambda: kernels_agree(args, data)) is True
    for compiled in (True, False) if args.cuda and not args.no_compile else (False,):
        torch._dynamo.reset()

        def made(compiled=compiled):
            speed = speed_of(args, compiled=compiled, fused=fused)
            return FleetTraining(
                configs_of(args, count), checkpoint, device=args.device, speed=speed, data=data, say=args.say
            )

        training = attempt(f"a fleet of {count}", made)
        if training is None:
            continue
        args.say(f"R={count}, {training.fleet.speed}")
        if attempt(f"{count} runs", lambda training=training: epoch_seconds(args, training.fleet)) is not None:
            return training
    raise RuntimeError("no fleet can be built here")


def epoch_seconds(args, fleet):
    """A training epoch and both evaluations, as the sum of their steps."""
    train = step_ms(fleet)

    def test():
        fleet.position.zero_()
        with torch.no_grad():
            replay()

    replay = fleet._replay("validation", lambda: fleet._test_step("validation"))
    test_ms = milliseconds(test, fleet.device)
    held_out = sum(len(rows) for rows in fleet.held_out.values())
    seconds = (fleet.steps * train + held_out * test_ms) / 1e3
    args.say(f"R={len(fleet.configs)}: step {train} ms, test step {test_ms} ms, an epoch {seconds:.3f} s")
    return seconds


def whole_seconds(args, training):
    """How long all the epochs take, and how long there is."""
    fleet = training.fleet
    if fleet.speed.fused:
        attempt("kernels", lambda: choose_programs(fleet))
        fleet.restart(fleet.configs)  # captured anew with the programs chosen
    whole = SLACK * args.epochs * epoch_seconds(args, fleet)
    left = args.end - time.monotonic() - 5
    args.say(f"R={len(fleet.configs)}: all epochs {whole:.0f} s of {left:.0f} s left")
    return whole, left


def judge(args, training):
    whole, left = whole_seconds(args, training)
    if whole > left:
        raise SystemExit(3)


def fitting(args, data, training, checkpoint):
    """The largest fleet whose epochs fit into the time left, judged by the first one's speed."""
    whole, left = whole_seconds(args, training)
    count = len(training.runs)
    wanted = min(int(count * (left - COMPILING) / whole), len(args.runs))
    if wanted == count or (whole <= left and wanted < count):
        return training
    return build(args, data, max(wanted, 1), checkpoint)


def go_on(args, training, checkpoint):
    """Train to the end or until the time is up, handing out what there is about every minute."""
    fleet = training.fleet
    labels = [f"{c.label}@{c.seed}" for c in fleet.configs]
    args.say(f"training {labels} from epoch {training.epoch}")
    ends = (min(time.monotonic() + wait, args.end - 4) for wait in itertools.chain((15, 30), itertools.repeat(60)))
    finished = False
    while not finished and time.monotonic() < args.end - 5:
        finished = training.run(next(ends) - time.monotonic(), save_every=1e9)
        hand_out(args, training, checkpoint, finished)
    best = [(run.config.label, run.best and round(run.best["score"], 2)) for run in training.runs]
    args.say(f"{'finished' if finished else 'stopped'} after {training.epoch}: {best}")


def hand_out(args, training, checkpoint, finished):
    with tempfile.TemporaryDirectory() as folder:
        training.write_folders(Path(folder) / "runs")
        whole = args.out / "runs.tar.gz.tmp"
        with tarfile.open(whole, "w:gz") as archive:
            archive.add(Path(folder) / "runs", "runs")
        whole.rename(args.out / "runs.tar.gz")
    content = b"" if finished else checkpoint.read_bytes()
    for number, start in enumerate(range(0, max(len(content), 1), PART)):
        (args.out / f"checkpoint.{number}").write_bytes(content[start : start + PART])
    if finished:
        for part in args.out.glob("checkpoint.*"):
            part.unlink()


if __name__ == "__main__":
    main()
