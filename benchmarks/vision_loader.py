"""How many images a second CelebA's loader hands over out of its cache, on a CPU: batches as training gets them.

python benchmarks/vision_loader.py --data PACK_OR_FOLDER [--threads 2] [--epochs 3]
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch

from equipoise.suites import suite_class
from harness import environment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    suite = suite_class("celeba" if options.data.is_dir() else "celeba-pack")(data=options.data)
    start = time.perf_counter()
    next(iter(suite.batches(0)))
    print(f"{len(suite.faces.part):,} images, ready in {time.perf_counter() - start:.1f} s")
    rates = []
    for epoch in range(options.epochs):
        start, images = time.perf_counter(), 0
        for batch in suite.batches(epoch):
            scaled = batch.images.float() / 255  # as the losses begin
            images += len(scaled)
        rates.append(images / (time.perf_counter() - start))
    print(f"images a second, epoch by epoch: {', '.join(f'{rate:,.0f}' for rate in rates)}")
    print(f"median {statistics.median(rates):,.0f}, batches of {suite.batch_size}; {environment()}")


if __name__ == "__main__":
    main()
