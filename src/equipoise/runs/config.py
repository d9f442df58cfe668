"""What one run is: suite, method, seed and every number that decides its result."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from equipoise.losses import nearest
from equipoise.registry import method_class, methods, option_names
from equipoise.runs.toml import parse_value
from equipoise.suites import suite_class
from equipoise.suites.suite import Preset, Suite

NONE = "none"  # how None is written where TOML has no such value

#: Uncertainty weighting's own parameters run at this rate in the lineage that published the tables.
_BALANCER_LR = {"uw": 0.025}


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run's numbers; two runs with equal configurations end equal.

    label: the method's name in tables; runs that share it are seeds of one row.
    shared: what gradient methods take the tasks' gradients at.
    schedule: of the learning rate: its `kind`, "plateau" or "step", and its options; empty for a constant rate.
    options: the method's options; suite_options: the suite's, besides seed, device, data and batch size.
    """

    suite: str
    method: str
    seed: int = 0
    label: str = ""
    epochs: int = 1
    batch_size: int = 1
    lr: float = 1e-3
    balancer_lr: float = 1e-3
    shared: Literal["features", "parameters"] = "features"
    device: str = "cpu"
    data: str | None = None
    schedule: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    suite_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 1), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"`{name}` must be a whole number of at least {least}; found {value!r}.")
        for name in ("lr", "balancer_lr"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
                raise ValueError(f"`{name}` must be a number above 0; found {value!r}.")
        if self.schedule and self.schedule.get("kind") not in ("plateau", "step"):
            raise ValueError(f"`schedule.kind` must be 'plateau' or 'step'; found {dict(self.schedule)!r}.")
        if self.shared not in ("features", "parameters"):
            raise ValueError(f"`shared` must be 'features' or 'parameters'; found {self.shared!r}.")

    @property
    def folder(self) -> str:
        """The run's folder below the root: suite / label / seed, in characters every file system takes."""
        task = "/" + slug(f"task-{self.options['task']}") if self.method == "stl" else ""
        return f"{slug(self.suite)}/{slug(self.label)}{task}/seed-{self.seed}"

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks: some suites take a part of theirs."""
        return tuple(self.suite_options.get("tasks", suite_class(self.suite).tasks))

    def to_table(self) -> dict[str, Any]:
        """The configuration as plain values for a TOML file."""
        table = asdict(self)
        table["options"] = {k: NONE if v is None else _plain(v) for k, v in self.options.items()}
        table["suite_options"] = {k: NONE if v is None else _plain(v) for k, v in self.suite_options.items()}
        return table

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> RunConfig:
        """The configuration in a TOML file's table; sections that are not ours are passed over."""
        known = {f.name for f in fields(cls)}
        values = {k: v for k, v in table.items() if k in known}
        missing = {"suite", "method"} - values.keys()
        if missing:
            raise ValueError(f"a run's configuration must name its `{missing.pop()}`; found only {sorted(table)}.")
        for section in ("options", "suite_options"):
            values[section] = {k: None if v == NONE else v for k, v in values.get(section, {}).items()}
        return cls(**values)

    def differences(self, other: RunConfig) -> list[str]:
        """What another configuration has otherwise, in words."""
        mine, theirs = self.to_table(), other.to_table()
        return [f"{name} {theirs[name]!r} instead of {mine[name]!r}" for name in mine if mine[name] != theirs[name]]


def configure(suite: str, method: str, *, seed: int = 0, settings: Mapping[str, Any] | None = None) -> RunConfig:
    """The full configuration of a run: the suite's protocol, the method's preset, and over them the settings.

    method: a method's name, or a preset's of the suite, with its own options behind colons:
        ``"ldc:discrepancy=0.05:router=sigmoid"``.
    settings: fields of `RunConfig`, options of the method (as ``method.<name>`` where a field has the name too: FAMO's
        `lr`), of the schedule as ``schedule.<name>`` (``schedule``
        None for a constant rate), and of the suite as ``suite.<name>``.

    >>> configure("toy", "ls", settings={"epochs": 2, "weights": [0.5, 1.0]}).options
    {'weights': [0.5, 1.0]}
    """
    found = suite_class(suite)
    name, *inline = method.split(":")
    given = {**(settings or {}), **dict(setting(text) for text in inline)}
    preset = _preset(found, name)
    options = dict(preset.options)
    known = option_names(method_class(preset.method))
    fixed: dict[str, Any] = {
        "label": method,
        "epochs": found.protocol.epochs,
        "batch_size": preset.batch_size or found.protocol.batch_size,
        "lr": preset.lr or found.protocol.lr,
        "shared": found.protocol.shared,
    }
    suite_options: dict[str, Any] = {}
    kind, rates = preset.schedule or found.protocol.schedule or ("", {})
    schedule = {"kind": kind, **rates} if kind else {}
    own = {f.name for f in fields(RunConfig)} - {"suite", "method", "seed", "options", "suite_options", "schedule"}
    for key, value in given.items():
        option = key.removeprefix("method.")
        if key in own:
            fixed[key] = value
        elif key == "schedule" and value is None:
            schedule = {}
        elif key.startswith("schedule."):
            schedule[key.removeprefix("schedule.")] = value
        elif key.startswith("suite."):
            suite_options[key.removeprefix("suite.")] = value
        elif option in known and option not in ("shared", "process_group", "tasks"):
            options[option] = value
        else:
            raise ValueError(f"there is no setting `{key}` for {preset.method!r}; {nearest(key, [*own, *known])}")
    lr = float(fixed.pop("lr"))
    balancer_lr = fixed.pop("balancer_lr", None) or preset.balancer_lr or _BALANCER_LR.get(preset.method, lr)
    config = RunConfig(
        suite, preset.method, seed, lr=lr, balancer_lr=float(balancer_lr), schedule=schedule,
        options=options, suite_options=suite_options, **fixed,
    )  # fmt: skip
    return replace(config, label=_label(config, method, settings))


def from_file(table: Mapping[str, Any]) -> RunConfig:
    """The run a TOML file tells of: the file of a run's folder as it is, a smaller one completed as by `configure`.

    A small file names the suite and the method and whatever else is to be so; [options] are the method's,
    [suite_options] the suite's, [schedule] the learning rate's.

    >>> from_file({"suite": "toy", "method": "ldc", "epochs": 2, "options": {"discrepancy": 0.1}}).label
    'ldc:discrepancy=0.1'
    """
    sections = {"options": "method.", "suite_options": "suite.", "schedule": "schedule."}
    always = {f.name for f in fields(RunConfig)} - {"data", *sections}  # what every stored file says
    if always <= table.keys():
        return RunConfig.from_table(table)
    rest = {key: value for key, value in table.items() if key != "environment"}
    for name in ("suite", "method"):
        if not isinstance(rest.get(name), str):
            raise ValueError(f"a run's file must name its `{name}`; found {sorted(table)}.")
    suite, method, seed = rest.pop("suite"), rest.pop("method"), rest.pop("seed", 0)
    settings: dict[str, Any] = {}
    for key, value in rest.items():
        if key in sections and isinstance(value, Mapping):
            settings.update({sections[key] + k: None if v == NONE else v for k, v in value.items()})
        else:
            settings[key] = None if value == NONE else value
    return configure(suite, method, seed=seed, settings=settings)


def setting(text: str) -> tuple[str, Any]:
    """``key=value`` as a pair, the value read as TOML where it is some.

    >>> setting("discrepancy=0.05")
    ('discrepancy', 0.05)
    """
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"a setting must read key=value; found {text!r}.")
    return key.strip(), parse_value(value.strip())


def expand(config: RunConfig) -> list[RunConfig]:
    """The runs behind one row and seed: K of them for single-task learning, else the run itself."""
    if config.method != "stl" or "task" in config.options:
        return [config]
    return [replace(config, options={**config.options, "task": task}) for task in range(len(config.tasks))]


def slug(text: str) -> str:
    """A name as a folder's name: what is not plain is replaced, and a short hash keeps names distinct.

    >>> slug("ldc"), slug("../ldc").startswith("-ldc.")
    ('ldc', True)
    """
    plain = re.sub(r"[^A-Za-z0-9_=,+.-]", "-", text)[:80].lstrip(".") or "run"
    return plain if plain == text else f"{plain}.{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _preset(suite: type[Suite], name: str) -> Preset:
    if name in suite.presets:
        return suite.presets[name]
    try:
        method_class(name)
    except ValueError:
        raise ValueError(
            f"there is no method or preset {name!r} for the suite {suite.name!r}; "
            f"{nearest(name, [*methods(), *suite.presets])}"
        ) from None
    return Preset(name)


def _label(config: RunConfig, method: str, settings: Mapping[str, Any] | None) -> str:
    """The method as it was named, and the method options that settings added to it."""
    if settings and "label" in settings:
        return str(settings["label"])
    added = [key for key in config.options if settings and (key in settings or f"method.{key}" in settings)]
    return ":".join([method, *(f"{key}={_short(config.options[key])}" for key in added)])


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(_plain(value), separators=(",", ":"))


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
