"""The `equipoise` command."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path


def main() -> None:
    """Run the command; what the user did wrong is answered in a sentence, without a traceback."""
    try:
        from equipoise.cli.app import app
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] == "equipoise":
            raise
        sys.exit(f"The command line needs {error.name}: pip install 'equipoise[bench]'")
    from equipoise.runs.checkpoint import DamagedFile
    from equipoise.runs.ranks import RankLost, launched, leaving_at_once, onlooking
    from equipoise.runs.store import DiskFull, RunLocked

    if onlooking():
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 (for good: the first rank speaks for all)
    with leaving_at_once() if launched() else nullcontext():
        try:
            app()
        except (ValueError, TypeError, FileNotFoundError, DamagedFile, DiskFull, RankLost, RunLocked) as error:
            sys.exit(f"equipoise: {error}")
        except KeyboardInterrupt:
            sys.exit(130)
