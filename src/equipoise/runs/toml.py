"""The little TOML that run configurations need: reading with the standard library, writing tables of plain values."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def dumps(table: Mapping[str, Any]) -> str:
    """Plain values first, then one section for each mapping; None is left out, as TOML has no such value.

    >>> print(dumps({"suite": "toy", "lr": 1e-3, "options": {"weights": [0.5, 1.0]}}))
    suite = "toy"
    lr = 0.001
    <BLANKLINE>
    [options]
    weights = [0.5, 1.0]
    <BLANKLINE>
    """
    lines = [f"{_key(k)} = {_value(v)}" for k, v in table.items() if v is not None and not isinstance(v, Mapping)]
    for name, section in table.items():
        if isinstance(section, Mapping) and section:
            lines += ["", f"[{_key(name)}]"]
            lines += [f"{_key(k)} = {_value(v)}" for k, v in section.items() if v is not None]
    return "\n".join(lines) + "\n"


def load(path: Path) -> dict[str, Any]:
    """The table in a file; a file that is no TOML is named."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a TOML file: {error}") from None


def parse_value(text: str) -> Any:
    """What a person types after `key=`: a number, true, a list, "none" (None), or else the text itself.

    >>> parse_value("0.1"), parse_value("[1, 2]"), parse_value("none"), parse_value("softmax")
    (0.1, [1, 2], None, 'softmax')
    """
    if text.lower() == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        pass
    try:
        return float(text)  # 1e-3 and the like, which TOML takes too; .5 and 5., which it does not
    except ValueError:
        return text


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else _string(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if math.isnan(value):
            return "nan"
        return repr(value) if math.isfinite(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None) + "}"
    raise TypeError(f"a configuration holds numbers, texts, truth values and lists of them; found {value!r}.")


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
