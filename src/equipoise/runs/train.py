"""One run: a suite trained with one balancer, resumable at any step to the same bits."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from equipoise.runs.config import RunConfig
from equipoise.runs.machine import environment
from equipoise.runs.ranks import Ranks, naming_lost_ranks
from equipoise.runs.store import RunFolder
from equipoise.runs.trackers import tracking
from equipoise.runs.training import Notify, Stopped, Training

__all__ = ["Notify", "Stopped", "train"]

_APART = 2**32  # between the seeds of ranks


def train(
    config: RunConfig,
    root: Path,
    *,
    force: bool = False,
    track: str | None = None,
    notify: Notify = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    checkpoint_seconds: float = 120.0,
    patience: float = 0.0,
) -> Mapping[str, Any]:
    """Train to the end, from the start or from the last checkpoint, and return the run's result.

    A finished run is returned as it is. `stop` is asked between steps; when it says so, a checkpoint is written
    and `Stopped` raised. The same call later goes on and ends with the numbers of a run that was never stopped.
    In an initialised torch.distributed group the ranks train together, each on its share of every batch; the first
    writes.

    track: "tensorboard", "wandb" or "mlflow" is told the run's losses, weights and metrics too.
    patience: seconds to wait for another process that writes the run.
    notify: is told ``{"kind": "note", "text": ...}`` and ``{"kind": "progress", "epoch": ..., ...}``.
    """
    ranks = Ranks()
    now = {**environment(config.device), "ranks": ranks.size}

    def say(text: str) -> None:
        notify({"kind": "note", "text": text})

    with ranks.open_folder(root / config.folder, force=force, say=say, patience=patience) as folder:
        with naming_lost_ranks():
            since, done = ranks.from_first(lambda: (folder.start(config, now), folder.finished()))
        if done is not None:
            return done
        _same_machine(since, now, notify)
        try:
            with naming_lost_ranks():
                return _train(config, folder, ranks, track, notify, stop, checkpoint_seconds)
        except Stopped:
            raise
        except Exception:
            folder.write_error(traceback.format_exc())  # while the folder is still ours
            raise


def _train(
    config: RunConfig,
    folder: RunFolder,
    ranks: Ranks,
    track: str | None,
    notify: Notify,
    stop: Callable[[], bool],
    checkpoint_seconds: float,
) -> Mapping[str, Any]:
    """From wherever the folder is to the end; the caller's random numbers are left alone."""
    state = ranks.from_first(folder.load)
    devices = [config.device] if torch.device(config.device).type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(config.seed + _APART * ranks.rank)  # ranks drop different units of their shares
        training = Training(config, folder, notify, ranks)
        if state is not None:
            training.load_state(state)
        track = track if ranks.rank == 0 else None
        with tracking(track, config, folder.path, training.position) as training.tracker:
            return training.run(stop, checkpoint_seconds)


def _same_machine(since: Mapping[str, Any], now: Mapping[str, Any], notify: Notify) -> None:
    """Use the run's own number of threads, and say what else has changed."""
    torch.set_num_threads(int(since["threads"]))
    changed = [f"{k} {now.get(k)} instead of {v}" for k, v in since.items() if now.get(k) != v and k != "threads"]
    if changed:
        notify({"kind": "note", "text": f"The run was started under other conditions: {'; '.join(changed)}."})
