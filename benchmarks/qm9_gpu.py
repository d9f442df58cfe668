"""QM9 on a GPU: is it right, how fast is it, and training fleets of runs.

    python benchmarks/qm9_gpu.py check --data FILE             against PyTorch Geometric's modules, in every precision
    python benchmarks/qm9_gpu.py time --data FILE --out DIR    steps, kernels, and the reference step, in one run
    python benchmarks/qm9_gpu.py train --data FILE --out DIR --plan PLAN --minutes 9

FILE holds the molecules as `equipoise.suites.qm9` caches them. Needs PYTHONPATH=src where nothing is installed.
Every command also works on a CPU (--device cpu), where it shows nothing but that it runs.
"""

import argparse
import json
import os
import statistics
import sys
import tarfile
import time
import traceback
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same sums on every replay

import torch

from equipoise.registry import make
from equipoise.runs.config import configure
from equipoise.suites.qm9.dense import plan_layout
from equipoise.suites.qm9.fleet import Fleet, Speed, adam
from equipoise.suites.qm9.messages import make_tiles
from equipoise.suites.qm9.network import Weights, features, pack, predictions
from equipoise.suites.qm9.suite import QM9
from equipoise.suites.qm9.training import FleetTraining

sys.path.insert(0, str(Path(__file__).parent.parent / "tests/suites/qm9"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("check", "time", "train"))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--batch", type=int, default=120)
    parser.add_argument("--plan", type=Path)
    parser.add_argument("--fleet", default="", help="train only the plan's fleet of this name")
    parser.add_argument("--checkpoints", type=Path, default=Path("build/qm9"), help="kept between calls, not sent back")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--precision", default="half")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--no-graph", action="store_true")
    parser.add_argument("--no-fused", action="store_true")
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 4, 11, 16])
    parser.add_argument("--tuning", default="", help="for instance programs=528,forward_warps=8")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch._dynamo.config.recompile_limit = 64
    if args.tuning:
        use_tuning(**{key: int(value) for key, value in (pair.split("=") for pair in args.tuning.split(","))})
    {"check": check, "time": measure, "train": train}[args.command](args)


def use_tuning(**changes):
    from equipoise.suites.qm9 import kernels

    kernels.tuning = kernels.Tuning()._replace(**changes)


def speed_of(args, **changes):
    cuda = torch.device(args.device).type == "cuda"
    speed = Speed(
        precision=args.precision,
        fused=cuda and not args.no_fused,
        compiled=cuda and not args.no_compile,
        graph=cuda and not args.no_graph,
    )
    return speed._replace(**changes)


def config(method, seed=0, batch=120, **settings):
    return configure("qm9", method, seed=seed, settings={"epochs": 1, "batch_size": batch, **settings})


def attempt(label, work):
    """Run a part; what fails is told and does not stop the rest."""
    start = time.perf_counter()
    try:
        result = work()
    except Exception:  # the point is to go on
        print(f"FAILED {label}", flush=True)
        traceback.print_exc(limit=-6)
        return None
    print(f"{label}: {result} [{time.perf_counter() - start:.1f} s]", flush=True)
    return result


# Right?


def check(args):
    """Every precision against float64 by PyTorch Geometric's modules; then graph against eager."""
    suite = QM9(data=args.data, device=args.device, batch_size=args.batch)
    rows = suite.training_rows(0)[:1]
    attempt("network against PyTorch Geometric", lambda: compare_network(args, suite, rows[0]))
    attempt("fleets: eager, graph, compiled", lambda: compare_fleets(args))


def compare_network(args, suite, row):
    import warnings

    import qm9_reference as reference

    warnings.simplefilter("ignore")
    row = row[row != suite.resident.empty]
    net = suite.model()
    graphs = reference.pyg_batch(suite.molecules, row).to(args.device)
    published = reference.pyg_network().to(args.device)
    published.load_state_dict(net.state_dict())
    layout = plan_layout(suite.resident.sizes[row][None])
    index = torch.from_numpy(row[None]).to(args.device)
    batch = suite.resident.gather(index, layout)
    exact = outcome(published.double(), lambda m: m(graphs_as(graphs, torch.float64))[0], batch)
    table = {"pyg float32": outcome(published.float(), lambda m: m(graphs_as(graphs, torch.float32))[0], batch)}
    for precision in ("float32", "split", "tf32", "half", "bf16"):
        for fused in (False, True):
            if fused and torch.device(args.device).type != "cuda":
                continue
            tiles = torch.tensor(make_tiles(layout.groups), dtype=torch.int32, device=args.device) if fused else None

            def ours(model, precision=precision, tiles=tiles):
                weights = pack(dict(model.named_parameters()))
                return predictions(weights, features(weights, batch, precision, tiles))[0]

            label = f"{precision} {'fused' if fused else 'products'}"
            attempt(label, lambda ours=ours, label=label: table.update({label: outcome(net, ours, batch)}))
    for label, (found, gradients) in table.items():
        errors = {name: distance(g, exact[1][name]) for name, g in gradients.items()}
        name = max(errors, key=errors.get)
        print(
            f"  {label:18s} predictions {distance(found, exact[0]):.1e}  gradients {errors[name]:.1e} at worst ({name})"
        )
    return "compared"


def graphs_as(graphs, dtype):
    graphs.x, graphs.edge_attr = graphs.x.to(dtype), graphs.edge_attr.to(dtype)
    return graphs


def outcome(model, forward, batch):
    """Predictions, and gradients of the summed losses by parameter."""
    model.zero_grad()
    found = forward(model)
    (found - batch.targets[0].to(found.dtype)).square().mean(0).sum().backward()
    return found.detach(), {name: p.grad.detach().clone() for name, p in model.named_parameters()}


def distance(found, exact):
    return float((found.double() - exact).norm() / exact.norm().clamp(min=1e-30))


def compare_fleets(args):
    """Ten steps of five runs, computed in every way, from the same start."""
    configs = [config(m, seed, args.batch) for seed, m in enumerate(("ls", "ldc", "uw", "famo", "fairgrad"))]
    ways = {"eager": {"compiled": False, "graph": False}}
    if torch.device(args.device).type == "cuda":
        ways |= {"graph": {"compiled": False}, "graph again": {"compiled": False}, "compiled graph": {}}
    found = {}
    for way, changes in ways.items():
        torch._dynamo.reset()

        def run(changes=changes, way=way):
            fleet = Fleet(configs, args.device, speed_of(args, **changes), args.data)
            fleet.begin_epoch(fleet.epoch_rows(0))
            step = fleet._replay("train", fleet.step)
            if way == "eager" and fleet.device.type == "cuda":
                fleet.step()
                torch.cuda.set_sync_debug_mode("error")
            for _ in range(min(10, fleet.steps) - (way == "eager" and fleet.device.type == "cuda")):
                step()
            if fleet.device.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")
            found[way] = (fleet.trunk.detach().double(), fleet.losses_sum.double())
            return [round(x, 4) for x in (fleet.losses_sum.mean(1) / 10).tolist()]

        attempt(f"  {way}", run)
    for way, (trunk, losses) in found.items():
        same = bool((trunk == found["graph"][0]).all()) if "graph" in found else None
        print(
            f"  {way}: trunk {distance(trunk, found['eager'][0]):.1e} losses {distance(losses, found['eager'][1]):.1e} "
            f"from eager; same bits as graph: {same}"
        )
    return "compared"


# Fast?


def measure(args):
    results = {"device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu", "batch": args.batch}
    suite = QM9(data=args.data, batch_size=args.batch)

    def keep(label, work):
        value = attempt(label, work)
        if value is not None:
            results[label] = value
            (args.out / "qm9_time.json").write_text(json.dumps(results, indent=1))

    if args.device == "cuda" and not args.no_fused:
        for runs in (1, 16):
            keep(f"kernels, R={runs}", lambda runs=runs: tune(args, runs))
    for runs in args.runs:
        keep(f"LS, R={runs}", lambda runs=runs: fleet_ms(args, ["ls"] * runs))
    for method in ("ldc", "uw", "famo", "fairgrad", "mgda", "cagrad", "nash-mtl", "pcgrad", "imtl-g", "graddrop"):
        keep(f"{method}, R=1", lambda method=method: fleet_ms(args, [method]))
    mix = ["ls", "si", "uw", "ldc"] * (max(args.runs) // 4 or 1)
    keep(f"LS SI UW LDC, R={len(mix)}", lambda: fleet_ms(args, mix))
    for precision in ("tf32", "split", "float32"):
        keep(f"LS, R=1, {precision}", lambda p=precision: fleet_ms(args, ["ls"], precision=p))
    keep("LS, R=1, eager", lambda: fleet_ms(args, ["ls"], graph=False, compiled=False))
    keep("LS, R=1, graph, not compiled", lambda: fleet_ms(args, ["ls"], compiled=False))
    for precision in ("tf32", "float32"):
        keep(
            f"LS, R=1, {precision}, products, graph, not compiled",
            lambda p=precision: fleet_ms(args, ["ls"], compiled=False, fused=False, precision=p),
        )
    for method in ("ls", "fairgrad"):
        keep(f"{method}, R=1, exact parameters", lambda method=method: parameters_ms(args, suite, method))
    keep("PyTorch Geometric", lambda: reference_ms(args, suite))
    print(json.dumps(results, indent=1))


def milliseconds(step, device, steps=20, rounds=7):
    """The median over rounds of the mean time of a step."""
    cuda = torch.device(device).type == "cuda"
    if not cuda:
        steps, rounds = 1, 1
    times = []
    for _ in range(rounds + cuda):
        if cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        if cuda:
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start) / steps)
    return round(statistics.median(times[int(cuda) :]), 4)


def fleet_ms(args, methods, **changes):
    torch._dynamo.reset()
    configs = [config(method, 0, args.batch) for method in methods]
    fleet = Fleet(configs, args.device, speed_of(args, **changes), args.data)
    fleet.begin_epoch(fleet.epoch_rows(0))
    step = fleet._replay("train", fleet.step)

    def again():
        fleet.position.zero_()
        step()

    return milliseconds(again, args.device)


def tune(args, runs):
    """The time of each kernel alone under each tuning; the best is used from here on."""
    from equipoise.suites.qm9 import kernels

    device = args.device
    fleet = Fleet([config("ls", 0, args.batch)] * runs, device, Speed(args.precision, fused=True), args.data)
    rows = torch.from_numpy(fleet.epoch_rows(0)[0]).to(device)
    batch = fleet.resident.gather(rows, fleet.layout, fleet.which)
    state = torch.randn(runs, fleet.layout.rows, 64, device=device)
    kernel = torch.randn(runs, 64, 132 * 64, device=device) * 0.1
    two_byte = {"half": torch.float16, "bf16": torch.bfloat16}.get(args.precision, torch.float32)
    edge = torch.randn(runs, 6, 132, device=device)
    rest = (kernel.to(two_byte), edge, batch.pairs, batch.inverse, fleet.tiles, args.precision)
    grad = torch.randn_like(state)
    best = {}
    for part in ("forward", "backward", "kernel"):
        for programs in (264, 528) if runs == 1 else (264,):
            for warps in (4, 8):
                for stages in (1, 2, 3):
                    changes = {f"{part}_warps": warps, f"{part}_stages": stages, "programs": programs}
                    kernels.tuning = kernels.Tuning()._replace(**changes)
                    try:
                        if part == "forward":
                            ms = milliseconds(lambda: kernels.forward(state, *rest), device, 10, 3)
                        else:
                            ms = milliseconds(lambda: kernels.backward(grad, state, *rest), device, 10, 3)
                    except Exception as error:
                        print(f"  {part} {changes}: {type(error).__name__}: {str(error)[:100]}", flush=True)
                        continue
                    print(f"  {part} programs={programs} warps={warps} stages={stages}: {ms} ms", flush=True)
                    if part not in best or ms < best[part][0]:
                        best[part] = (ms, changes)
    chosen = {key: value for ms, changes in best.values() for key, value in changes.items() if key != "programs"}
    chosen["programs"] = best["forward"][1]["programs"]
    kernels.tuning = kernels.Tuning()._replace(**chosen)
    tuned = ",".join(f"{key}={value}" for key, value in chosen.items())
    return {
        "rows": fleet.layout.rows,
        "tiles": len(fleet.tiles),
        "ms": {k: v[0] for k, v in best.items()},
        "tuning": tuned,
    }


def parameters_ms(args, suite, method):
    """A step that takes the tasks' gradients of all trunk parameters: K backwards through the network."""
    device = args.device
    suite = QM9(data=args.data, device=device, batch_size=args.batch, tasks=suite.tasks)
    weights = [w.detach() for w in pack(dict(suite.model().named_parameters()))]
    sizes = [w.numel() for w in weights]
    flat = torch.cat([w.flatten() for w in weights])
    trunk = flat[: sum(sizes[:-2])].clone().requires_grad_()
    heads = flat[sum(sizes[:-2]) :].clone().requires_grad_()
    row = suite.training_rows(0)[:1]
    layout = plan_layout(suite.resident.sizes[row])
    fused = torch.device(device).type == "cuda" and not args.no_fused
    tiles = torch.tensor(make_tiles(layout.groups), dtype=torch.int32, device=device) if fused else None
    index = torch.from_numpy(row).to(device)
    balancer = make(method, num_tasks=len(suite.tasks)).to(device)
    moments = [torch.zeros_like(x) for x in (trunk, trunk, heads, heads)]
    clock, rate = torch.zeros((), dtype=torch.float64, device=device), torch.tensor(1e-3, device=device)

    def step():
        batch = suite.resident.gather(index, layout)
        parts = [*trunk.split(sizes[:-2]), *heads.split(sizes[-2:])]
        named = Weights(*(part.view(w.shape) for part, w in zip(parts, weights, strict=True)))
        shared = features(named, batch, args.precision, tiles)
        errors = (predictions(named, shared) - batch.targets)[0].square() * batch.share[0][:, None]
        scalar = balancer(errors.sum(0), shared=[trunk] if balancer.needs_shared else None)
        gradients = torch.autograd.grad(scalar, (trunk, heads))
        clock.add_(1)
        for i, (x, gradient) in enumerate(zip((trunk, heads), gradients, strict=True)):
            adam(x.detach(), gradient, *moments[2 * i : 2 * i + 2], rate, clock)

    if torch.device(device).type == "cuda" and not args.no_graph:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return milliseconds(graph.replay, device)
    return milliseconds(step, device)


def reference_ms(args, suite):
    """The published step by PyTorch Geometric's modules on a batch that is on the device, and its collation."""
    import warnings

    import qm9_reference as reference
    from torch_geometric.data import Batch

    warnings.simplefilter("ignore")
    model = reference.pyg_network().to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    targets = suite.resident.targets[0].to(args.device)
    prepared = []
    for row in suite.training_rows(0)[:2]:
        row = row[row != suite.resident.empty]
        whole = reference.pyg_batch(suite.molecules, row)
        prepared.append((whole.to_data_list(), whole.to(args.device), targets[torch.from_numpy(row).to(args.device)]))
    turn = [0]

    def step():
        _, graphs, wanted = prepared[turn[0] % len(prepared)]
        turn[0] += 1
        losses = (model(graphs)[0] - wanted).square().mean(0)
        optimizer.zero_grad()
        losses.sum().backward()
        optimizer.step()

    def collate():
        Batch.from_data_list(prepared[0][0])

    return {"step": milliseconds(step, args.device, 5, 5), "collation": milliseconds(collate, "cpu")}


# Training.


def train(args):
    plan = json.loads(args.plan.read_text())
    until = time.monotonic() + 60 * args.minutes
    for fleet in plan["fleets"]:
        if args.fleet and fleet["name"] != args.fleet:
            continue
        left = until - time.monotonic()
        if left < 30:
            break
        done = args.checkpoints / f"{fleet['name']}.done"
        if done.exists():
            continue
        attempt(
            f"fleet {fleet['name']}", lambda fleet=fleet, left=left, done=done: train_fleet(args, fleet, left, done)
        )
    with tarfile.open(args.out / "runs.tar.gz", "w:gz") as archive:
        if (args.checkpoints / "runs").exists():
            archive.add(args.checkpoints / "runs", "runs")


def train_fleet(args, fleet, seconds, done):
    configs = [
        configure(fleet.get("suite", "qm9"), run["method"], seed=run.get("seed", 0), settings={
            "epochs": fleet.get("epochs", 300), "batch_size": args.batch, "device": args.device,
            **run.get("settings", {}),
        })
        for run in fleet["runs"]
    ]  # fmt: skip
    torch._dynamo.reset()
    log = (args.out / f"{fleet['name']}.log").open("a")

    def say(text):
        print(f"{fleet['name']} {text}", flush=True)
        print(text, file=log, flush=True)

    began = time.monotonic()
    speed = speed_of(args, precision=fleet.get("precision", args.precision))
    path = args.checkpoints / f"{fleet['name']}.safetensors"
    training = FleetTraining(configs, path, device=args.device, speed=speed, data=args.data, say=say)
    say(f"{len(configs)} runs, {speed}, {training.fleet.layout}, set up in {time.monotonic() - began:.1f} s")
    finished = training.run(seconds - (time.monotonic() - began) - 10)
    training.write_folders(args.checkpoints / "runs")
    if finished:
        done.write_text("")
    return "finished" if finished else f"stopped after epoch {training.epoch}"


if __name__ == "__main__":
    main()
