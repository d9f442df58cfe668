"""Runs an example several times in one process, as `python examples/NAME.py ARGUMENTS` would, for each line of stdin.

One start of a trainer's library serves all of them.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def main(script: Path) -> None:
    path = list(sys.path)
    for line in sys.stdin:
        sys.path[:] = [str(script.parent), *path[1:]]
        sys.argv = [str(script), *line.split()]
        runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
