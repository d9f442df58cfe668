"""What `import equipoise` adds to `import torch`: the median of fresh interpreters, which take turns.

python benchmarks/import_time.py --rounds 9
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

LIMIT = 0.15
TIMED = """
import time
import torch
start = time.perf_counter()
{statement}
print(time.perf_counter() - start)
"""


def seconds(statement: str) -> float:
    """How long a statement takes in a fresh interpreter that has imported torch."""
    code = TIMED.format(statement=statement)
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--peers", default="torchjd.scalarization", help="other modules to show, with commas")
    args = parser.parse_args()
    modules = ["equipoise", *filter(None, args.peers.split(","))]
    times: dict[str, list[float]] = {module: [] for module in modules}
    for module in modules:
        seconds(f"import {module}")  # compiles and warms the disk cache
    for _ in range(args.rounds):
        for module in modules:
            times[module].append(seconds(f"import {module}"))
    for module in modules:
        low, high = min(times[module]), max(times[module])
        print(f"import {module} after torch: {statistics.median(times[module]):.3f} s ({low:.3f} to {high:.3f})")
    if statistics.median(times["equipoise"]) > LIMIT:
        sys.exit(f"`import equipoise` adds more than {LIMIT} s to `import torch`.")


if __name__ == "__main__":
    main()
