"""A fleet trained in a process of its own, to be killed: python fleet_job.py DATA FOLDER EPOCHS"""

import sys
from pathlib import Path

from equipoise.runs.config import configure
from equipoise.suites.qm9.training import FleetTraining

METHODS = ("ldc", "famo")


def training(data, folder, epochs, say=lambda _: None):
    settings = {"epochs": epochs, "batch_size": 16, "suite.tasks": ["mu", "zpve", "cv"], "schedule.patience": 0}
    configs = [configure("qm9", method, settings=settings) for method in METHODS]
    return FleetTraining(configs, folder / "fleet.safetensors", data=data, say=say)


if __name__ == "__main__":
    data, folder, epochs = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    fleet = training(data, folder, epochs, say=lambda text: print(text, flush=True))
    fleet.run(save_every=0.0)
    fleet.write_folders(folder / "runs")
