"""What the QM9 benchmarks share: their options, runs on a device, and how a step is timed."""

import argparse
import importlib.util
import os
import statistics
import sys
import time
import traceback
import types
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same sums on every replay

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests/suites/qm9"))


def stand_in_for_safetensors():
    """A module of that name over torch.save, for a machine that lacks the package and cannot fetch it."""
    if importlib.util.find_spec("safetensors") is not None:
        return
    import io

    class Opened:
        def __init__(self, path, framework):  # noqa: ARG002
            self.header, self.tensors = torch.load(path, weights_only=True)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def metadata(self):
            return self.header

        def keys(self):
            return self.tensors.keys()

        def get_tensor(self, name):
            return self.tensors[name]

    def save(tensors, metadata):
        file = io.BytesIO()
        torch.save((metadata, tensors), file)
        return file.getvalue()

    package, inner = types.ModuleType("safetensors"), types.ModuleType("safetensors.torch")
    package.SafetensorError, package.safe_open, inner.save = OSError, Opened, save
    sys.modules |= {"safetensors": package, "safetensors.torch": inner}


stand_in_for_safetensors()

from equipoise.runs.config import configure  # noqa: E402
from equipoise.suites.qm9 import messages  # noqa: E402
from equipoise.suites.qm9.fleet import Speed  # noqa: E402
from equipoise.suites.qm9.network import features, pack  # noqa: E402


def options(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the molecules as equipoise.suites.qm9 caches them; else the sample")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=Path("build/qm9"))
    parser.add_argument("--batch", type=int, default=120)
    parser.add_argument("--seconds", type=float, default=60.0, help="about how long, from the start of the process")
    parser.add_argument("--precision", default="half")
    return parser


def started(parser):
    """The options, with the folder made and the clock's end; nothing is computed in tf32 unless asked for."""
    args = parser.parse_args()
    args.end = time.monotonic() + args.seconds
    args.out.mkdir(parents=True, exist_ok=True)
    torch._dynamo.config.recompile_limit = 64
    args.cuda = torch.device(args.device).type == "cuda"
    return args


def speed_of(args, **changes):
    speed = Speed(precision=args.precision, fused=args.cuda, compiled=args.cuda, graph=args.cuda)
    return speed._replace(**changes)


def config(args, method, seed=0, epochs=1, **settings):
    suite = "qm9" if args.data else "qm9-sample"
    fixed = {"epochs": epochs, "batch_size": args.batch, "device": args.device}
    return configure(suite, method, seed=seed, settings={**fixed, **settings})


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


def captured(step):
    """The step as a CUDA graph, whose replay takes as long as the device does and no longer."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def step_ms(fleet):
    """The time of a training step of a fleet, which is left as it was."""
    before = fleet.state()
    fleet.begin_epoch(fleet.epoch_rows(0))
    step = fleet._replay("train", fleet.step)

    def again():
        fleet.position.zero_()
        step()

    found = milliseconds(again, fleet.device)
    fleet.load_state(before)
    return found


def choose_programs(fleet):
    """Into how many programs the kernels split their sums: the fastest for this fleet, used from here on."""
    from equipoise.suites.qm9 import launch

    runs, device = len(fleet.configs), fleet.device
    index = torch.from_numpy(fleet.epoch_rows(0)[0]).to(device)
    batch = fleet.resident.gather(index, fleet.layout, fleet.which)
    weights = pack(dict(fleet.suite(0).model().named_parameters()))
    state = torch.randn(runs, fleet.layout.rows, 64, device=device)
    kernel = weights.kernel.detach().to(device).expand(runs, -1, -1)
    two_byte = {"half": torch.float16, "bf16": torch.bfloat16}.get(fleet.speed.precision, torch.float32)
    edge = torch.randn(runs, 5, 132, device=device)
    maps = messages.spread(batch.pairs, fleet.tiles)
    rest = (kernel.to(two_byte).contiguous(), edge, maps, batch.inverse, fleet.tiles, fleet.speed.precision)
    found = {}
    for programs in (264, 396, 528, 792, 1056):
        launch.tuning = launch.tuning._replace(programs=programs)
        there = milliseconds(captured(lambda: launch.forward(state, *rest)), device, 50, 3)
        back = milliseconds(captured(lambda: launch.backward(state, state, *rest)), device, 50, 3)
        found[programs] = (there, back)
    best = min(found, key=lambda programs: sum(found[programs]))
    launch.tuning = launch.tuning._replace(programs=best)
    return {"tiles": len(fleet.tiles), "rows": fleet.layout.rows, "programs": best, "forward, backward ms": found}


def kernels_agree(args, data):
    """Whether the fused messages give about what plain products give, forward and backward."""
    net = data.suites[next(iter(data.suites))].model().to(args.device)
    rows = data.epoch_rows([next(iter(data.suites))], 0)[0]
    batch = data.resident.gather(torch.from_numpy(rows).to(args.device), data.layout)
    tiles = torch.from_numpy(messages.make_tiles(data.layout.groups)).to(args.device)
    found = []
    for place in (None, tiles):
        shared = features(pack(dict(net.named_parameters())), batch, args.precision, place)
        trunk = [p for name, p in net.named_parameters() if not name.startswith("heads.")]
        grads = torch.autograd.grad(shared.square().sum(), trunk)
        found.append(torch.cat([shared.detach().flatten(), *(g.flatten() / g.norm() for g in grads)]))
    error = float((found[1] - found[0]).norm() / found[0].norm())
    print(f"fused messages: {error:.1e} from products", flush=True)
    return error < 0.03
