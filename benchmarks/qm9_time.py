"""QM9: how fast is a training step? Needs torch_geometric for the reference step.

    python benchmarks/qm9_time.py --data FILE --out DIR

Steps of every method, of several runs in one step and in every precision, the exact-parameter form of some methods, and
PyTorch Geometric's step and collation, all in one process; the times so far are in DIR/qm9_time.json after every part.
Parts that would begin after --seconds are left out. Needs PYTHONPATH=src where nothing is installed. Also works on a
CPU (--device cpu), where it shows nothing but that it runs.
"""

import json
import os
import time
import warnings
from pathlib import Path

import torch

from qm9_parts import attempt, captured, choose_programs, config, milliseconds, options, speed_of, started, step_ms

# what stands in for a package the others need goes first
# isort: split
from equipoise.registry import make
from equipoise.suites.qm9.dense import plan_layout
from equipoise.suites.qm9.fleet import Fleet, adam
from equipoise.suites.qm9.fleet_data import FleetData
from equipoise.suites.qm9.messages import make_tiles
from equipoise.suites.qm9.network import Weights, features, pack, predictions

METHODS = ("fairgrad", "mgda", "ldc", "si", "uw", "famo", "nash-mtl", "cagrad", "pcgrad", "imtl-g", "go4align", "dwa")


def main():
    parser = options(__doc__)
    parser.add_argument("--after", type=Path, nargs="+", default=[], help="files to wait for, at most --wait seconds")
    parser.add_argument("--wait", type=float, default=60.0)
    parser.add_argument("--runs", type=int, nargs="+", default=[4, 8, 16])
    args = started(parser)
    results = {"device": torch.cuda.get_device_name() if args.cuda else "cpu", "cores": os.cpu_count()}
    results |= {"torch": torch.__version__, "batch": args.batch, "precision": args.precision}
    data = FleetData([config(args, "ls")], args.device, args.data)
    results["steps in an epoch"] = data.steps

    def keep(label, work):
        if time.monotonic() > args.end:
            print(f"left out: {label}", flush=True)
            return
        value = attempt(label, work)
        if value is not None:
            results[label] = value
            (args.out / "qm9_time.json").write_text(json.dumps(results, indent=1))

    def fleet(runs=1, **changes):
        return Fleet([config(args, "ls")] * runs, args.device, speed_of(args, **changes), data)

    plain = fleet(compiled=False)
    if args.cuda:
        keep("kernels, R=1", lambda: choose_programs(plain))
    compiled = fleet()
    attempt("compile", lambda: step_ms(compiled))
    waited = time.monotonic()
    while not all(file.exists() for file in args.after) and time.monotonic() - waited < args.wait:
        time.sleep(0.2)
    keep("PyTorch Geometric", lambda: reference_ms(args, data))
    keep("ls, R=1", lambda: step_ms(compiled))
    keep("ls, R=1, not compiled", lambda: step_ms(plain))
    for runs in args.runs:
        keep(f"ls, R={runs}, not compiled", lambda runs=runs: step_ms(fleet(runs, compiled=False)))
    for method in METHODS:
        keep(f"{method}, R=1", lambda method=method: method_ms(args, compiled, method))
    for precision in ("tf32", "split", "float32"):
        if args.precision != precision:
            changes = {"precision": precision, "compiled": False}
            keep(f"ls, R=1, {precision}, not compiled", lambda changes=changes: step_ms(fleet(**changes)))
    for method in ("ls", "fairgrad", "mgda"):
        keep(f"{method}, R=1, exact parameters, not compiled", lambda method=method: parameters_ms(args, data, method))
    keep("ls, R=1, eager", lambda: step_ms(fleet(graph=False, compiled=False)))
    print(json.dumps(results), flush=True)


def method_ms(args, fleet, method):
    fleet.restart([config(args, method)])
    return step_ms(fleet)


def parameters_ms(args, data, method):
    """A step that takes the tasks' gradients of all trunk parameters: K backwards through the network."""
    device, suite = args.device, data.suites[0]
    weights = [w.detach().to(device) for w in pack(dict(suite.model().named_parameters()))]
    sizes = [w.numel() for w in weights]
    flat = torch.cat([w.flatten() for w in weights])
    trunk = flat[: sum(sizes[:-2])].clone().requires_grad_()
    heads = flat[sum(sizes[:-2]) :].clone().requires_grad_()
    row = data.epoch_rows([0], 0)[0]
    layout = plan_layout(data.resident.sizes[row])
    tiles = torch.from_numpy(make_tiles(layout.groups)).to(device) if args.cuda else None
    index = torch.from_numpy(row).to(device)
    balancer = make(method, num_tasks=len(suite.tasks)).to(device)
    moments = [torch.zeros_like(x) for x in (trunk, trunk, heads, heads)]
    clock, rate = torch.zeros((), dtype=torch.float64, device=device), torch.tensor(1e-3, device=device)

    def step():
        batch = data.resident.gather(index, layout)
        parts = [*trunk.split(sizes[:-2]), *heads.split(sizes[-2:])]
        named = Weights(*(part.view(w.shape) for part, w in zip(parts, weights, strict=True)))
        shared = features(named, batch, args.precision, tiles)
        errors = (predictions(named, shared) - batch.targets)[0].square() * batch.share[0][:, None]
        scalar = balancer(errors.sum(0), shared=[trunk] if balancer.needs_shared else None)
        gradients = torch.autograd.grad(scalar, (trunk, heads))
        clock.add_(1)
        for i, (x, gradient) in enumerate(zip((trunk, heads), gradients, strict=True)):
            adam(x.detach(), gradient, *moments[2 * i : 2 * i + 2], rate, clock)

    return milliseconds(captured(step) if args.cuda else step, device)


def reference_ms(args, data):
    """The published step by PyTorch Geometric's modules on a batch that is on the device, and its collation."""
    import qm9_reference as reference
    from torch_geometric.data import Batch

    warnings.simplefilter("ignore")
    suite = data.suites[0]
    model = reference.pyg_network().to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    targets = data.resident.targets[0]
    prepared = []
    for row in data.epoch_rows([0], 0)[:2, 0]:
        row = row[row != data.resident.empty]
        whole = reference.pyg_batch(suite.molecules, row)
        graphs = whole.to_data_list()
        prepared.append((graphs, Batch.from_data_list(graphs).to(args.device), targets[torch.from_numpy(row)]))
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

    def timed_collation():
        for _ in range(3):
            collate()
        times = []
        for _ in range(15):
            start = time.perf_counter()
            collate()
            times.append(1e3 * (time.perf_counter() - start))
        return round(sorted(times)[len(times) // 2], 4)

    return {"step": milliseconds(step, args.device, 5, 5), "collation": timed_collation()}


if __name__ == "__main__":
    main()
