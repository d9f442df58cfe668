"""QM9: is what a GPU computes right? Needs torch_geometric.

    python benchmarks/qm9_check.py --data FILE --out DIR

Predictions and gradients in every precision against PyTorch Geometric's modules in float64; then ten steps of a fleet,
computed eagerly, as a CUDA graph twice, and compiled. Needs PYTHONPATH=src where nothing is installed. Also works on a
CPU (--device cpu), where it shows nothing but that it runs.
"""

import json
import time
import warnings

import torch

from qm9_parts import attempt, config, options, speed_of, started

# what stands in for a package the others need goes first
# isort: split
from equipoise.suites.qm9.dense import plan_layout
from equipoise.suites.qm9.fleet import Fleet
from equipoise.suites.qm9.fleet_data import FleetData
from equipoise.suites.qm9.messages import make_tiles
from equipoise.suites.qm9.network import features, pack, predictions
from equipoise.suites.qm9.precision import PRECISIONS


def main():
    parser = options(__doc__)
    parser.add_argument("--compile", action="store_true", help="compare a compiled fleet too, which takes a minute")
    args = started(parser)
    methods = ("ls", "ldc", "uw", "famo", "fairgrad")
    data = FleetData([config(args, method) for method in methods], args.device, args.data)
    found = {
        "network": attempt("network against PyTorch Geometric", lambda: compare_network(args, data)),
        "fleets": attempt("fleets", lambda: compare_fleets(args, data, methods)),
    }
    (args.out / "qm9_check.json").write_text(json.dumps(found, indent=1))


def compare_network(args, data):
    """Relative errors of the predictions, and of the worst parameter's gradient, by precision."""
    import qm9_reference as reference

    warnings.simplefilter("ignore")
    suite = data.suites[0]
    row = data.epoch_rows([0], 0)[0, 0]
    row = row[row != data.resident.empty]
    net = suite.model().to(args.device)
    graphs = reference.pyg_batch(suite.molecules, row).to(args.device)
    published = reference.pyg_network().to(args.device)
    published.load_state_dict(net.state_dict())
    layout = plan_layout(data.resident.sizes[row][None])
    batch = data.resident.gather(torch.from_numpy(row[None]).to(args.device), layout)
    exact = outcome(published.double(), lambda m: m(graphs_as(graphs, torch.float64))[0], batch)
    table = {"pyg float32": outcome(published.float(), lambda m: m(graphs_as(graphs, torch.float32))[0], batch)}
    tiles = torch.from_numpy(make_tiles(layout.groups)).to(args.device)
    for fused in (True, False) if args.cuda else (False,):
        for precision in PRECISIONS:

            def ours(model, precision=precision, fused=fused):
                weights = pack(dict(model.named_parameters()))
                return predictions(weights, features(weights, batch, precision, tiles if fused else None))[0]

            label = f"{precision} {'fused' if fused else 'products'}"
            if time.monotonic() < args.end:
                attempt(label, lambda ours=ours, label=label: keep(table, label, outcome(net, ours, batch)))
    errors = {}
    for label, (found, gradients) in table.items():
        by_name = {name: distance(g, exact[1][name]) for name, g in gradients.items()}
        name = max(by_name, key=by_name.get)
        errors[label] = {"predictions": distance(found, exact[0]), "gradients": by_name[name], "worst": name}
        print(f"  {label:18s} predictions {errors[label]['predictions']:.1e} gradients {by_name[name]:.1e} ({name})")
    return errors


def keep(table, label, found):
    table[label] = found
    return "computed"


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


def compare_fleets(args, data, methods):
    """Ten steps of five runs, computed in every way, from the same start: differences from the eager one."""
    configs = [config(args, method) for method in methods]
    ways = {"eager": {"compiled": False, "graph": False}}
    if args.cuda:
        ways |= {"graph": {"compiled": False}, "graph again": {"compiled": False}}
    if args.compile:
        ways["compiled graph"] = {"graph": args.cuda, "compiled": True}
    found = {}
    for way, changes in ways.items():
        if time.monotonic() < args.end:
            attempt(
                f"  {way}", lambda changes=changes, way=way: keep(found, way, ten_steps(args, data, configs, changes))
            )
    told = {}
    if "eager" not in found:
        return told
    for way, (trunk, losses) in found.items():
        told[way] = {
            "trunk": distance(trunk, found["eager"][0]),
            "losses": distance(losses, found["eager"][1]),
            "bits of graph": bool((trunk == found["graph"][0]).all()) if "graph" in found else None,
        }
    return told


def ten_steps(args, data, configs, changes):
    fleet = Fleet(configs, args.device, speed_of(args, **changes), data)
    fleet.begin_epoch(fleet.epoch_rows(0))
    step = fleet._replay("train", fleet.step)
    for number in range(min(10, fleet.steps)):
        if args.cuda and not fleet.speed.graph and number:  # the first step compiles kernels
            torch.cuda.set_sync_debug_mode("error")  # a step asks nothing of the device
        step()
    if args.cuda:
        torch.cuda.set_sync_debug_mode("default")
    return fleet.trunk.detach().double(), fleet.losses_sum.double()


if __name__ == "__main__":
    main()
