"""Carrying out a list of runs on the ranks that torchrun started: one run after the other, each on all of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.runs.config import RunConfig
from equipoise.runs.engine import PATIENCE, Outcome, StopFlag, Watch
from equipoise.runs.ranks import process_group
from equipoise.runs.train import Stopped, train


def run_ranks(
    configs: Sequence[RunConfig],
    root: Path,
    *,
    watch: Watch,
    force: bool = False,
    track: str | None = None,
) -> list[Outcome]:
    """Carry out runs on all the ranks together; only the first rank's `watch` is called.

    An error ends this process, and torchrun the others: ranks that went on alone would wait for it for ever.
    SIGTERM to any of them stops all at the same step, with a checkpoint.
    """
    outcomes = [Outcome(config) for config in configs]
    devices = {config.device for config in configs}
    if len(devices) > 1:
        raise ValueError(f"`device` must be the same for all runs of one torchrun; found {', '.join(sorted(devices))}.")
    # Started again by torchrun itself: what the first attempt did since --force is not thrown away.
    force = force and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    parent = os.getppid()
    with process_group(devices.pop() if devices else "cpu") as ranks, StopFlag() as stop:
        for at, config in enumerate(configs):
            run = _Run(at, watch if ranks.rank == 0 else lambda *_: None, stop, parent)
            run.tell({"kind": "started"})
            try:
                result = train(
                    config, root, force=force, track=track, notify=run.tell, stop=run.stop, patience=PATIENCE
                )
            except Stopped:
                run.tell({"kind": "stopped"})
                break
            except Exception as error:
                run.tell({"kind": "failed", "text": f"{type(error).__name__}: {error}"})
                raise
            run.tell({"kind": "finished", "result": dict(result)})
            outcomes[at] = Outcome(config, result)
    return outcomes


class _Run:
    """What a run tells, and whether it is to stop."""

    def __init__(self, at: int, watch: Watch, asked: StopFlag, parent: int) -> None:
        self.at, self.watch, self.asked, self.parent = at, watch, asked, parent
        self.stopping = False

    def tell(self, event: Mapping[str, Any]) -> None:
        self.watch(self.at, event)

    def stop(self) -> bool:
        asked = self.asked() or os.getppid() != self.parent  # torchrun is gone: nobody minds the ranks
        if asked and not self.stopping:
            self.stopping = True
            self.tell({"kind": "stopping"})
        return asked
