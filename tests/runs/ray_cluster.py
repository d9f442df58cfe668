"""What test_engine_ray runs in a process of its own: python ray_cluster.py SCENARIO ROOT; the last line is JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from equipoise.runs.config import configure
from equipoise.runs.engine_ray import run_ray

CONFIGS = [
    configure("toy", "famo", seed=seed, settings={"epochs": 8, "suite.steps_per_epoch": 300}) for seed in range(3)
]
FAR = 2 * 300  # a step after which there are two checkpoints


class Watch:
    """Keeps what it is told, and does something once when a run has come far."""

    def __init__(self, once, when=lambda told: True):
        self.told, self.once, self.when, self.done = [], once, when, False

    def __call__(self, at, event):
        self.told.append([at, event["kind"], event.get("step"), event.get("text")])
        far = {index for index, _, step, _ in self.told if step and step > FAR}
        if not self.done and len(far) >= self.when(self.told):
            self.done = True
            self.once(at)


def node_killed(root):
    """Two nodes of one processor each; the one that the driver is not on dies with a run on it."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    other = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    watch = Watch(lambda _: cluster.remove_node(other, allow_graceful=False), when=lambda _: 2)
    outcomes = run_ray(CONFIGS, root, jobs=2, watch=watch, address=cluster.address)
    assert not ray.is_initialized()
    cluster.shutdown()
    return outcomes, watch


def worker_killed(root):
    """On a cluster of its own, the process that writes a run is killed."""

    def kill(at):
        os.kill(int((root / CONFIGS[at].folder / ".lock").read_text()), signal.SIGKILL)

    watch = Watch(kill, when=lambda _: 1)
    return run_ray(CONFIGS, root, jobs=2, watch=watch), watch


def stopped(root):
    """The driver is told to stop."""
    watch = Watch(lambda _: os.kill(os.getpid(), signal.SIGTERM), when=lambda _: 1)
    return run_ray(CONFIGS, root, jobs=2, watch=watch), watch


def driver_killed(root):
    """The driver is killed; nobody is left to print anything."""
    watch = Watch(lambda _: os.kill(os.getpid(), signal.SIGKILL), when=lambda _: 1)
    return run_ray(CONFIGS, root, jobs=2, watch=watch), watch


def unbroken(root):
    """Nothing happens."""
    watch = Watch(lambda _: None)
    return run_ray(CONFIGS, root, jobs=2, watch=watch), watch


if __name__ == "__main__":
    found, seen = globals()[sys.argv[1]](Path(sys.argv[2]))
    print(
        json.dumps({"problems": [o.problem for o in found], "stopped": [o.stopped for o in found], "told": seen.told})
    )
