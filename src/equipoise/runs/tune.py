"""Tuning with Optuna: what each method may vary, and trials that are ordinary runs, chosen on validation alone."""

from __future__ import annotations

import fcntl
import math
import statistics
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from equipoise.runs import toml
from equipoise.runs.checkpoint import write_whole
from equipoise.runs.config import RunConfig, configure
from equipoise.runs.engine import Outcome
from equipoise.runs.store import RunLocked
from equipoise.runs.sweep import validation_score
from equipoise.suites import suite_class

STARTUP = 10  # trials drawn at random before Optuna learns from them; they can run side by side
_SCHEMES = ("sqlite", "postgresql", "postgresql+psycopg2", "postgresql+psycopg")


class Span(NamedTuple):
    """From one number to another, evenly in the logarithm or not."""

    low: float
    high: float
    log: bool = True


Space: TypeAlias = "Mapping[str, Span | tuple[Any, ...]]"

LAMBDA: Space = {"discrepancy": Span(1e-3, 1.0)}

#: What is tuned of a method besides the learning rate, which is tuned of every one.
_OPTIONS: Mapping[str, Space] = {
    "ldc": LAMBDA,
    "dwa": {"temperature": Span(0.5, 8.0)},
    "uw": {"balancer_lr": Span(1e-3, 0.1)},
    "famo": {"gamma": Span(1e-4, 0.1)},
    "go4align": {"groups": (1, 2, 3, 4)},
    "stch": {"mu": Span(0.05, 5.0)},
    "cagrad": {"c": Span(0.05, 0.95, log=False)},
    "graddrop": {"leak": Span(0.0, 0.9, log=False)},
    "moco": {"beta": Span(0.1, 1.0), "gamma": Span(0.01, 1.0)},
    "nash-mtl": {"max_norm": Span(0.1, 10.0)},
    "fairgrad": {"alpha": Span(0.5, 10.0)},
    "gradnorm": {"alpha": Span(0.1, 3.0)},
    "dbmtl": {"beta": Span(0.1, 0.99, log=False)},
    "mgda": {"normalize": ("none", "l2", "loss")},
    "aligned-mtl": {"scale": ("min", "median", "rmse")},
}


@dataclass(frozen=True)
class Search:
    """One method of one suite, tuned on some seeds together; its first trial is the method as it is."""

    suite: str
    method: str
    seeds: tuple[int, ...]
    space: Space
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.suite} {self.method} seeds {','.join(map(str, self.seeds))}"

    def configs(self, params: Mapping[str, Any]) -> list[RunConfig]:
        """The runs of a trial, one a seed."""
        method = ":".join([self.method, *(f"{name}={value}" for name, value in _options(params).items())])
        return [configure(self.suite, method, seed=seed, settings=self.settings) for seed in self.seeds]


@dataclass(frozen=True)
class Trial:
    """What a trial found: its runs, and the mean of their validation scores."""

    number: int
    score: float
    configs: Sequence[RunConfig]


def space_of(suite: str, method: str, settings: Mapping[str, Any]) -> Space:
    """What is tuned of a method: the learning rate within a factor of 3, and its options; of LS its weights.

    >>> sorted(space_of("qm9-sample", "ls", {"suite.tasks": ["mu", "cv"]}))
    ['lr', 'weight 0', 'weight 1']
    """
    config = configure(suite, method, settings=settings)
    rate = {"lr": Span(config.lr / 3, config.lr * 3)}
    if config.method == "ls":
        return {**rate, **{f"weight {task}": Span(0.01, 1.0) for task in range(len(config.tasks))}}
    return {**rate, **_OPTIONS.get(config.method, {})}


def check_tunable(suite: str) -> None:
    """Refuse a suite without a part to choose on, or without numbers to weigh its tasks by."""
    found = suite_class(suite)
    if found.protocol.report != "best-validation":
        raise ValueError(
            f"tuning chooses on a validation part, and {suite} has none: its protocol reports the test part's last "
            "epochs, and choosing on those would be cheating. A grid shows every value instead."
        )
    if not found.stl:
        raise ValueError(f"tuning weighs tasks by published single-task numbers, and {suite} has none.")


def check_storage(url: str) -> str:
    """The address of a database Optuna may keep trials in; anything else is refused in a sentence.

    >>> check_storage("redis://localhost")
    Traceback (most recent call last):
    ValueError: --storage must be sqlite:///FILE or postgresql://USER@HOST/NAME; found 'redis'. Stores that keep \
pickled objects are not taken.
    """
    parts = urlsplit(url)
    rule = "--storage must be sqlite:///FILE or postgresql://USER@HOST/NAME; found "
    if parts.scheme not in _SCHEMES:
        known = f"{parts.scheme!r}" if parts.scheme else "no scheme"
        raise ValueError(f"{rule}{known}. Stores that keep pickled objects are not taken.")
    if parts.scheme == "sqlite":
        if parts.netloc or len(parts.path) < 2:
            raise ValueError(f"{rule}{url!r}: a file needs three slashes, an absolute path four.")
        return url
    if not parts.hostname or len(parts.path) < 2:
        raise ValueError(f"{rule}an address without {'a host' if not parts.hostname else 'a database'}.")
    driver = parts.scheme.partition("+")[2] or "psycopg2"
    if find_spec(driver) is None:
        package = {"psycopg2": "psycopg2-binary", "psycopg": "psycopg[binary]"}[driver]
        raise ValueError(f"{parts.scheme}:// needs a driver: pip install '{package}'")
    return url


@contextmanager
def sweep_folder(out: Path) -> Iterator[str]:
    """The name a folder's studies go by in any database, for one process at a time."""
    out.mkdir(parents=True, exist_ok=True)
    kept = out / "sweep.id"
    with (out / ".sweep.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunLocked(f"another process is sweeping in {out}.") from None
        if not kept.exists():
            write_whole(kept, uuid.uuid4().hex.encode())
        yield kept.read_text("utf-8").strip()


def tune(
    searches: Sequence[Search],
    trials: int,
    *,
    storage: str,
    prefix: str,
    carry_out: Callable[[Sequence[RunConfig]], Sequence[Outcome]],
    force: bool = False,
) -> list[list[Trial]]:
    """Give every search the same number of trials; returns each one's, those that failed left out.

    Trials that an earlier call began are finished first, with the values they had. What a search samples depends on
    its name and on its finished trials only, so a sweep that was stopped ends as one that was not.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    store = _open(storage)
    studies = [_study(store, f"{prefix} {search.name}", search, force) for search in searches]
    while True:
        batch = [
            (search, study, number, params)
            for search, study in zip(searches, studies, strict=True)
            for number, params in _next(search, study, trials)
        ]
        if not batch:
            break
        configs = [config for search, _, _, params in batch for config in search.configs(params)]
        outcomes = iter(carry_out(configs))
        for search, study, number, _ in batch:
            score = _mean_score([next(outcomes) for _ in search.seeds])
            if score is None:
                study.tell(number, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(number, score)
    return [_finished(search, study) for search, study in zip(searches, studies, strict=True)]


def _open(url: str, attempts: int = 5) -> Any:
    """The database, with Optuna's tables in it."""
    import optuna
    from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

    try:
        return optuna.storages.RDBStorage(url)
    except OperationalError as error:
        raise ValueError(f"--storage: the database cannot be opened: {error.orig}") from error
    except (IntegrityError, ProgrammingError):  # another process makes the tables at this moment
        if attempts == 1:
            raise
    time.sleep(1.0)
    return _open(url, attempts - 1)


def _study(store: Any, name: str, search: Search, force: bool) -> Any:
    import optuna

    known = {study.study_name for study in optuna.get_all_study_summaries(store, include_best_trial=False)}
    if force and name in known:
        optuna.delete_study(study_name=name, storage=store)
    study = optuna.create_study(storage=store, study_name=name, direction="minimize", load_if_exists=True)
    now = toml.dumps(
        {"settings": dict(sorted(search.settings.items())), "space": {k: list(v) for k, v in search.space.items()}}
    )
    if study.user_attrs.setdefault("search", now) != now:
        raise ValueError(
            f"the sweep of {search.name} was begun with other settings: choose another --out, or --force to begin "
            f"again. It had\n{study.user_attrs['search']}"
        )
    study.set_user_attr("search", now)
    return study


def _next(search: Search, study: Any, trials: int) -> list[tuple[int, dict[str, Any]]]:
    """Trials begun and not finished; else new ones: all of the random ones at once, then one by one."""
    import optuna

    known = study.get_trials(deepcopy=False)
    begun = [(t.number, t.params) for t in known if t.state == optuna.trial.TrialState.RUNNING]
    if begun:
        return begun
    count = min(trials - len(known), max(1, STARTUP - len(known)))
    return [_ask(search, study, len(known) + more) for more in range(count)]


def _ask(search: Search, study: Any, number: int) -> tuple[int, dict[str, Any]]:
    """A new trial, sampled by a sampler of its own: what it draws does not depend on who ran before."""
    import optuna

    seed = zlib.crc32(f"{search.name} {number}".encode())
    study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP)
    trial = study.ask({} if number == 0 else {name: _distribution(where) for name, where in search.space.items()})
    return trial.number, trial.params


def _distribution(where: Span | tuple[Any, ...]) -> Any:
    import optuna

    if isinstance(where, Span):
        return optuna.distributions.FloatDistribution(where.low, where.high, log=where.log)
    return optuna.distributions.CategoricalDistribution(where)


def _options(params: Mapping[str, Any]) -> dict[str, str]:
    """A trial's values as settings are written, to three digits; weights with mean 1."""
    weights = [value for name, value in params.items() if name.startswith("weight ")]
    options = {
        name: f"{value:.3g}" if isinstance(value, float) else str(value)
        for name, value in params.items()
        if not name.startswith("weight ")
    }
    if weights:
        mean = statistics.fmean(weights)
        options["weights"] = f"[{','.join(f'{weight / mean:.3g}' for weight in weights)}]"
    return options


def _mean_score(outcomes: Sequence[Outcome]) -> float | None:
    """The mean of the runs' scores; None when one has none, or no number."""
    scores = [None if o.result is None else validation_score(o.config, o.result) for o in outcomes]
    found = [score for score in scores if score is not None and math.isfinite(score)]
    return statistics.fmean(found) if len(found) == len(outcomes) else None


def _finished(search: Search, study: Any) -> list[Trial]:
    return [Trial(t.number, t.value, search.configs(t.params)) for t in study.get_trials() if t.value is not None]
