"""The `equipoise` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; what the user did wrong is answered in a sentence, without a traceback."""
    try:
        from equipoise.cli.app import app
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] == "equipoise":
            raise
        sys.exit(f"The command line needs {error.name}: pip install 'equipoise[bench]'")
    from equipoise.runs.checkpoint import DamagedFile
    from equipoise.runs.store import RunLocked

    try:
        app()
    except (ValueError, TypeError, FileNotFoundError, DamagedFile, RunLocked) as error:
        sys.exit(f"equipoise: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
