"""A counter-based generator: each draw is a hash of (seed, step, index), computed in tensor operations.

The same seed and step give the same uniform numbers on every rank and device, eager, compiled or inside a
CUDA graph, and resuming needs no more than the two counters. Made for weights and masks, not for secrets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_FEW = 64  # words that plain Python makes on a CPU: in a step for an eighth of the time of as many calls of operators


def make_seed(seed: int | None) -> Tensor:
    """The seed as a buffer to register; None draws one from torch's global generator.

    >>> from equipoise.random import make_seed
    >>> make_seed(7)
    tensor(7)
    """
    if seed is None:
        return torch.randint(2**63 - 1, ())
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ValueError(f"`seed` must be a whole number from 0 to 2**63 - 1, or None; found {seed!r}.")
    return torch.tensor(seed)


def uniform(seed: Tensor, step: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Independent draws from the open interval (0, 1), on the device of `seed`.

    The 23 random bits of each are exact in float32 and float64 alike.

    >>> import torch
    >>> from equipoise.random import uniform
    >>> seed, step = torch.tensor(0), torch.tensor(0)
    >>> bool((uniform(seed, step, (4,)) == uniform(seed, step, (4,), torch.float64)).all())
    True
    """
    return _centred(seed, step, shape, dtype).add_(0.5)


def normal(seed: Tensor, step: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Independent standard normal draws.

    >>> import torch
    >>> from equipoise.random import normal
    >>> normal(torch.tensor(0), torch.tensor(0), (2, 3)).shape
    torch.Size([2, 3])
    """
    return _centred(seed, step, shape, dtype).mul_(2.0).erfinv_().mul_(2.0**0.5)


def permutation(seed: Tensor, step: Tensor, shape: Sequence[int]) -> Tensor:
    """Random orders: each row of the last dimension is a permutation of 0, ..., shape[-1] - 1.

    >>> import torch
    >>> from equipoise.random import permutation
    >>> permutation(torch.tensor(0), torch.tensor(0), (5,)).sort().values
    tensor([0, 1, 2, 3, 4])
    """
    return _words(seed, step, shape).argsort(-1)  # the words of one step are all distinct: no ties


def _centred(seed: Tensor, step: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Uniform draws from (-1/2, 1/2): 23 bits and a half, exact in float32."""
    if _are_few(seed, shape):
        few = [((word >> 9) + 0.5) * 2.0**-23 for word in _few_words(seed, step, shape)]
        return torch.tensor(few, dtype=dtype, device="cpu").view(tuple(shape))
    return (_words(seed, step, shape) >> 9).to(dtype).add_(0.5).mul_(2.0**-23)


def _words(seed: Tensor, step: Tensor, shape: Sequence[int]) -> Tensor:
    """One 32-bit word an index, all distinct: a bijection of the index under two keys made of seed and step."""
    if _are_few(seed, shape):
        words = torch.tensor(_few_words(seed, step, shape), dtype=torch.int32, device="cpu")
    elif _on_host(seed):
        words = torch.from_numpy(_many_words(seed, step, math.prod(shape)))
    else:
        words = _tensor_words(seed, step, math.prod(shape))
    return words.view(tuple(shape))


def _on_host(seed: Tensor) -> bool:
    return seed.is_cpu and not torch.compiler.is_compiling()


def _are_few(seed: Tensor, shape: Sequence[int]) -> bool:
    return math.prod(shape) <= _FEW and _on_host(seed)


def _keys(seed: Tensor, step: Tensor) -> tuple[int, int]:
    """The two keys, on the host."""
    seeded, steps = int(seed.item()), int(step.item())
    return _mixed((seeded ^ steps) & _WORD), _mixed(((seeded >> 32) ^ steps) & _WORD)


def _tensor_words(seed: Tensor, step: Tensor, count: int) -> Tensor:
    """The words where the host may not look."""
    low, high = _mix(torch.stack([seed, seed >> 32]).to(torch.int32) ^ step.to(torch.int32))
    index = torch.arange(count, dtype=torch.int32, device=seed.device)
    return _mix(_mix(index ^ low) ^ high)


def _many_words(seed: Tensor, step: Tensor, count: int) -> npt.NDArray[np.int32]:
    """The same by numpy: it has unsigned numbers, and takes a quarter of the time of the operators on tensors."""
    low, high = _keys(seed, step)
    words = np.arange(count, dtype=np.uint32)
    shifted = np.empty_like(words)
    for key in (low, high):
        words ^= np.uint32(key)
        for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
            words ^= np.right_shift(words, shift, out=shifted)
            words *= np.uint32(factor)
        words ^= np.right_shift(words, 15, out=shifted)
    return words.view(np.int32)


def _few_words(seed: Tensor, step: Tensor, shape: Sequence[int]) -> list[int]:
    """The same as Python's integers."""
    low, high = _keys(seed, step)
    words = [_mixed(_mixed(index ^ low) ^ high) for index in range(math.prod(shape))]
    return [word - ((word & 0x80000000) << 1) for word in words]  # as a signed word


def _mixed(x: int) -> int:
    """`_mix` of one word."""
    x ^= x >> 16
    x = x * 0x21F0AAAD & _WORD
    x ^= x >> 15
    x = x * 0x735A2D97 & _WORD
    return x ^ (x >> 15)


def _mix(x: Tensor) -> Tensor:
    """Scramble fresh 32-bit words in place, one to one, so that changing one bit changes half of them.

    The multipliers and shifts are those of the two-round hash with the least bias known (Wellons' search).
    """
    x ^= (x >> 16) & 0xFFFF
    x *= 0x21F0AAAD
    x ^= (x >> 15) & 0x1FFFF
    x *= 0x735A2D97
    x ^= (x >> 15) & 0x1FFFF
    return x
