"""The toy problem where there is torch and numpy and nothing else; `equipoise toy` then shows what this ran.

PYTHONPATH=src python benchmarks/toy.py --methods all --sign paper --out runs/toy.html
equipoise toy --methods all --sign paper --out runs/toy.html    # where that folder was copied to: runs nothing again
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from equipoise.runs.toy import Way, carry_out, toy_methods
from equipoise.suites.toy.starts import Trajectories


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="", help="all, or names with commas between")
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--sign", choices=["code", "paper"], default="code")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=Path("runs/toy.html"), help="what is kept lies beside it")
    asked = parser.parse_args()
    names = toy_methods([name for name in asked.methods.split(",") if name])

    def told(name: str, found: Trajectories | str) -> None:
        said = found if isinstance(found, str) else f"{sum(found.reached)} of 5, {found.seconds:.1f} s"
        print(f"{name}: {said}", flush=True)

    carry_out(names, Way(asked.steps, asked.lr, asked.sign), asked.out, jobs=asked.jobs, told=told)


if __name__ == "__main__":
    main()
