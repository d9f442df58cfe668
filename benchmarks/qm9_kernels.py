"""QM9: which GPU kernels a training step spends its time in, by method.

    python benchmarks/qm9_kernels.py --data FILE --out DIR --methods ls mgda

Ten replays of each method's step under torch's profiler, written to DIR/qm9_kernels.txt. "in kernels" is their sum;
the wall time has the profiler's own cost in it. Needs PYTHONPATH=src where nothing is installed, and a GPU.
"""

from collections import defaultdict

import torch

from qm9_parts import choose_programs, config, options, speed_of, started

# what stands in for a package the others need goes first
# isort: split
from equipoise.suites.qm9.fleet import Fleet
from equipoise.suites.qm9.fleet_data import FleetData

REPLAYS = 10
SHOWN = 28


def main():
    parser = options(__doc__)
    parser.add_argument("--methods", nargs="+", default=["ls", "mgda", "fairgrad"])
    args = started(parser)
    data = FleetData([config(args, args.methods[0])], args.device, args.data)
    fleet = Fleet([config(args, args.methods[0])], args.device, speed_of(args), data)
    parts = [str(choose_programs(fleet))]
    for method in args.methods:
        fleet.restart([config(args, method)])
        parts.append(kernels_of(method, fleet))
        print(parts[-1], flush=True)
    (args.out / "qm9_kernels.txt").write_text("\n".join(parts) + "\n")


def kernels_of(method, fleet):
    """The kernels of a step, those that take most first."""
    fleet.begin_epoch(fleet.epoch_rows(0))
    step = fleet._replay("train", fleet.step)

    def replay(times):
        for _ in range(times):
            fleet.position.zero_()
            step()
        torch.cuda.synchronize()

    replay(5)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        replay(REPLAYS)
    total, count = defaultdict(float), defaultdict(int)
    for event in profile.events():
        total[event.name] += event.device_time / REPLAYS
        count[event.name] += 1 / REPLAYS
    ranges = [event.time_range for event in profile.events()]
    wall = (max(r.end for r in ranges) - min(r.start for r in ranges)) / REPLAYS
    inside, number = sum(total.values()) / 1e3, sum(count.values())
    head = f"== {method}: {wall / 1e3:.3f} ms a step, {inside:.3f} ms in {number:.0f} kernels"
    most = sorted(total, key=total.__getitem__, reverse=True)[:SHOWN]
    return "\n".join([head, *(f"  {total[name]:8.1f} us {count[name]:6.1f} x  {name[:95]}" for name in most)])


if __name__ == "__main__":
    main()
