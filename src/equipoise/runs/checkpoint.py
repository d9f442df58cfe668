"""A training state as one safetensors file: tensors as they are, everything else as JSON in its header, all hashed.

Nothing in the file can execute code, and a file that was cut short or altered is refused by name.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

UNFINISHED = ".writing-"  # how the names of files begin that a kill in mid-write leaves behind
_FORMAT = "equipoise-checkpoint-1"


class DamagedFile(ValueError):
    """A file that is not what was written."""


def write_checkpoint(path: Path, tree: Mapping[str, Any]) -> None:
    """Write nested dictionaries, lists and tuples of tensors and plain values; all of the file appears, or none."""
    from safetensors.torch import save  # here: `write_whole` serves where torch is alone

    tensors: dict[str, Tensor] = {}
    skeleton = json.dumps(_strip(tree, "", tensors))
    header = {"format": _FORMAT, "tree": skeleton, "sha256": _digest(skeleton, tensors)}
    write_whole(path, save(tensors, metadata=header))


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What `write_checkpoint` wrote, tensors on the CPU; `DamagedFile` names a file that is anything else."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, OSError, ValueError) as error:
        if not path.exists():
            raise FileNotFoundError(path) from None
        raise DamagedFile(f"{path} is damaged: {error}.") from None
    if header.get("format") != _FORMAT:
        raise DamagedFile(f"{path} is no checkpoint of this program.")
    if header.get("sha256") != _digest(header.get("tree", ""), tensors):
        raise DamagedFile(f"{path} is damaged: its content does not match its checksum.")
    try:  # a checksum proves no good will: whoever made the file made that too
        tree = _restore(json.loads(header["tree"]), tensors)
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise DamagedFile(f"{path} is damaged: its tree cannot be read ({type(error).__name__}).") from None
    if not isinstance(tree, dict):
        raise DamagedFile(f"{path} is damaged: it must hold a mapping; found {type(tree).__name__}.")
    return tree


def write_whole(path: Path, data: bytes) -> None:
    """A reader sees the old file or the new one, never a part, whatever happens in between."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=UNFINISHED, delete=False) as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames inside a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _strip(node: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The tree without its tensors, which are left under their paths; tuples and mappings are marked as such."""
    if isinstance(node, Tensor):
        tensors[name] = node.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(node, Mapping):
        return {
            "map": [[key, _strip(value, f"{name}/{key}" if name else str(key), tensors)] for key, value in node.items()]
        }
    if isinstance(node, (list, tuple)):
        items = [_strip(value, f"{name}/{index}", tensors) for index, value in enumerate(node)]
        return {"tuple" if isinstance(node, tuple) else "list": items}
    if node is None or isinstance(node, (bool, int, float, str)):
        return node
    raise TypeError(f"`{name}` must be a tensor or a plain value to be stored; found {type(node).__name__}.")


def _restore(node: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(node, dict):
        return node
    ((kind, content),) = node.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "map":
        return {key: _restore(value, tensors) for key, value in content}
    items = [_restore(value, tensors) for value in content]
    return tuple(items) if kind == "tuple" else items


def _digest(skeleton: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(skeleton.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
