"""A command as a scheduler runs it, for tests: python job.py ROOT JOBS SUITE METHOD... [KEY=VALUE...], events as JSON.

Ends with 0, with 1 when a run failed, with 130 when it was stopped.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from twin import SUITES

from equipoise import suites
from equipoise.runs.config import configure, setting
from equipoise.runs.engine import run_local
from equipoise.runs.ranks import launched, leaving_at_once

suites._SUITES.update(SUITES)  # in every process that is started for the job, too


def main() -> int:
    root, jobs, suite, *rest = sys.argv[1:]
    methods = [word for word in rest if "=" not in word.split(":")[0]]
    settings = dict(setting(word) for word in rest if word not in methods)
    places = settings.pop("places", "")
    names = [f"{method}:shared={place}" if place else method for method in methods for place in places.split(",")]
    configs = [configure(suite, name, settings=settings) for name in names]
    engine = run_local
    if jobs.startswith("ray"):
        from equipoise.runs.engine_ray import run_ray as engine

        jobs = jobs.removeprefix("ray")

    def watch(at, event):
        print(json.dumps({"at": at, "rank": os.environ.get("RANK"), **event}), flush=True)

    outcomes = engine(configs, Path(root), jobs=int(jobs), watch=watch)
    return 1 if any(o.problem for o in outcomes) else 130 if any(o.stopped for o in outcomes) else 0


if __name__ == "__main__":
    with leaving_at_once() if launched() else nullcontext():
        sys.exit(main())
