"""The published network on dense batches, for R weight sets at once, with no 64 x 64 matrix for any edge.

NNConv gives every edge a matrix W(e) = sum_k r_k V_k + V_0 with r = relu(U e + b), 128 numbers, and sends
h_j W(e_ij) from j to i. The same sum in another order projects the atoms first, P_j = h_j V (all k side by side),
and is then one matrix product for each molecule: m_i = sum over (j, k) of r_ijk P_jk. Dividing the edge features by
the number of neighbours makes the sum NNConv's mean, since relu commutes with a positive factor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from .dense import NODE_FEATURES, Batch, unpack_pairs
from .messages import fused_messages, spread
from .perception import AROMATIC
from .precision import Precision, product

WIDTH = 64
EDGE_FEATURES = 6  # single, double, triple, aromatic, distance, and a one for the bias
EDGE_WIDTH = 128
_KINDS = 132  # matrices of the kernel: the 128 V_k, V_0, and three of zeros that keep rows aligned to 16 bytes
MESSAGE_STEPS = 3
SET_STEPS = 3


class Weights(NamedTuple):
    """The parameters in the order and shape the computation wants, each with a leading axis of runs."""

    node: Tensor
    node_bias: Tensor
    edge: Tensor  # [6, 128]: U of the five features, then b
    kernel: Tensor  # [64, 132 * 64]: for each input of the atom, the row of every matrix
    root: Tensor
    root_bias: Tensor
    gru_input: Tensor
    gru_input_bias: Tensor
    gru_hidden: Tensor
    gru_hidden_bias: Tensor
    lstm_input: Tensor
    lstm_input_bias: Tensor
    lstm_hidden: Tensor
    lstm_hidden_bias: Tensor
    out: Tensor
    out_bias: Tensor
    heads: Tensor
    heads_bias: Tensor


def shapes(tasks: int) -> tuple[tuple[int, int], ...]:
    """The shape of each of the weights, without the axis of runs."""
    gates, cells = 3 * WIDTH, 4 * WIDTH
    return (
        (NODE_FEATURES, WIDTH), (1, WIDTH), (EDGE_FEATURES, EDGE_WIDTH), (WIDTH, _KINDS * WIDTH),
        (WIDTH, WIDTH), (1, WIDTH), (WIDTH, gates), (1, gates), (WIDTH, gates), (1, gates),
        (2 * WIDTH, cells), (1, cells), (WIDTH, cells), (1, cells), (2 * WIDTH, WIDTH), (1, WIDTH),
        (WIDTH, tasks), (1, tasks),
    )  # fmt: skip


def pack(named: Mapping[str, Tensor]) -> Weights:
    """One run's weights from parameters under their published names; gradients flow back to them."""

    def row(name: str) -> Tensor:
        return named[name][None, None]

    def transposed(name: str) -> Tensor:
        return named[name].mT[None]

    matrices = named["conv.nn.2.weight"].view(WIDTH, WIDTH, EDGE_WIDTH).transpose(1, 2)  # [input, k, output]
    constant = named["conv.nn.2.bias"].view(WIDTH, 1, WIDTH)
    zeros = constant.new_zeros(WIDTH, _KINDS - EDGE_WIDTH - 1, WIDTH)
    tasks = sum(name.startswith("heads.") and name.endswith(".weight") for name in named)
    return Weights(
        node=transposed("lin0.weight"),
        node_bias=row("lin0.bias"),
        edge=torch.cat([named["conv.nn.0.weight"].mT, named["conv.nn.0.bias"][None]])[None],
        kernel=torch.cat([matrices, constant, zeros], dim=1).view(1, WIDTH, -1),
        root=transposed("conv.lin.weight"),
        root_bias=row("conv.bias"),
        gru_input=transposed("gru.weight_ih_l0"),
        gru_input_bias=row("gru.bias_ih_l0"),
        gru_hidden=transposed("gru.weight_hh_l0"),
        gru_hidden_bias=row("gru.bias_hh_l0"),
        lstm_input=transposed("set2set.lstm.weight_ih_l0"),
        lstm_input_bias=row("set2set.lstm.bias_ih_l0"),
        lstm_hidden=transposed("set2set.lstm.weight_hh_l0"),
        lstm_hidden_bias=row("set2set.lstm.bias_hh_l0"),
        out=transposed("lin1.weight"),
        out_bias=row("lin1.bias"),
        heads=torch.cat([named[f"heads.{k}.weight"] for k in range(tasks)]).mT[None],
        heads_bias=torch.cat([named[f"heads.{k}.bias"] for k in range(tasks)])[None, None],
    )


def unpack(weights: Weights, run: int) -> dict[str, Tensor]:
    """The parameters of a run under their published names: what `pack` took."""
    w = Weights(*(tensor[run].detach() for tensor in weights))
    kernel = w.kernel.view(WIDTH, _KINDS, WIDTH)
    named = {
        "lin0.weight": w.node.mT,
        "lin0.bias": w.node_bias[0],
        "conv.nn.0.weight": w.edge[:-1].mT,
        "conv.nn.0.bias": w.edge[-1],
        "conv.nn.2.weight": kernel[:, :EDGE_WIDTH].transpose(1, 2).reshape(-1, EDGE_WIDTH),
        "conv.nn.2.bias": kernel[:, EDGE_WIDTH].flatten(),
        "conv.lin.weight": w.root.mT,
        "conv.bias": w.root_bias[0],
        "gru.weight_ih_l0": w.gru_input.mT,
        "gru.bias_ih_l0": w.gru_input_bias[0],
        "gru.weight_hh_l0": w.gru_hidden.mT,
        "gru.bias_hh_l0": w.gru_hidden_bias[0],
        "set2set.lstm.weight_ih_l0": w.lstm_input.mT,
        "set2set.lstm.bias_ih_l0": w.lstm_input_bias[0],
        "set2set.lstm.weight_hh_l0": w.lstm_hidden.mT,
        "set2set.lstm.bias_hh_l0": w.lstm_hidden_bias[0],
        "lin1.weight": w.out.mT,
        "lin1.bias": w.out_bias[0],
    }
    for k in range(w.heads.shape[1]):
        named[f"heads.{k}.weight"] = w.heads[:, k][None]
        named[f"heads.{k}.bias"] = w.heads_bias[:, k]
    return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in named.items()}


def features(weights: Weights, batch: Batch, precision: Precision = "float32", tiles: Tensor | None = None) -> Tensor:
    """The shared representation of every molecule, ``[R, B, 64]``.

    tiles: of the batch's layout on a GPU, for messages by fused kernels; without it by plain matrix products, which
        alone know the rich features.
    """
    if batch.rich and tiles is not None:
        raise ValueError("`tiles` must be None for rich features: the fused kernels know no aromatic bonds.")
    atoms = _message_passing(weights, batch, precision, tiles)
    pooled = _set_to_set(weights, batch, atoms)
    return torch.relu(torch.baddbmm(weights.out_bias, pooled, weights.out))


def predictions(weights: Weights, shared: Tensor) -> Tensor:
    """Every task's prediction for every molecule, ``[R, B, T]``."""
    return torch.baddbmm(weights.heads_bias, shared, weights.heads)


def _message_passing(w: Weights, batch: Batch, precision: Precision, tiles: Tensor | None) -> Tensor:
    """The atoms' state after three rounds, ``[R, rows, 64]``; the rows of padding hold anything finite."""
    edge = _with_ones_column(w.edge)
    maps = None if tiles is None else spread(batch.pairs, tiles)
    if tiles is None:
        coefficients = [torch.relu(torch.bmm(group, edge)) for group in _edge_features(batch)]
    state = torch.relu(torch.baddbmm(w.node_bias, batch.nodes, w.node))
    for _ in range(MESSAGE_STEPS):
        if tiles is None or maps is None:
            received = _from_neighbours(w, batch, state, coefficients, precision)
        else:
            received = fused_messages(state, w.kernel, edge, maps, batch.inverse, tiles, precision)
        own = torch.baddbmm(w.root_bias, state, w.root)
        message = torch.relu(own + received)
        state = gru(
            torch.baddbmm(w.gru_input_bias, message, w.gru_input),
            torch.baddbmm(w.gru_hidden_bias, state, w.gru_hidden),
            state,
        )
    return state


def _edge_features(batch: Batch) -> list[Tensor]:
    """For each group ``[R, molecules * n * n, 6]``, over the number of neighbours; zeros where there is no edge."""
    groups, start = [], 0
    runs = len(batch.pairs)
    for _, rows, count, capacity in batch.layout.slices():
        length = count * capacity * capacity
        distance, bond = unpack_pairs(batch.pairs[:, start : start + length], batch.rich)
        # The fourth class, aromatic, is empty in PyTorch Geometric's QM9: it reads Kekule structures.
        kinds = [(bond == kind).float() for kind in (1, 2, 3, AROMATIC)]
        features = torch.stack([*kinds, distance, (distance > 0).float()], dim=-1)
        share = batch.inverse[:, rows].view(runs, -1, 1).expand(-1, -1, capacity).reshape(runs, length, 1)
        groups.append(features * share)
        start += length
    return groups


def _with_ones_column(edge: Tensor) -> Tensor:
    """Further columns of the edge network: the first gives the factor of V_0 (1 / neighbours), the others 0."""
    more = edge.new_zeros(len(edge), EDGE_FEATURES, _KINDS - EDGE_WIDTH)
    more[:, -1, 0] = 1
    return torch.cat([edge, more], dim=2)


def _from_neighbours(
    w: Weights, batch: Batch, state: Tensor, coefficients: list[Tensor], precision: Precision
) -> Tensor:
    """The mean of the neighbours' messages, ``[R, rows, 64]``."""
    runs = len(state)
    parts = []
    for (_, rows, count, capacity), coefficient in zip(batch.layout.slices(), coefficients, strict=True):
        projected = product(state[:, rows], w.kernel, precision)
        message = product(
            coefficient.view(runs * count, capacity, capacity * _KINDS),
            projected.view(runs * count, capacity * _KINDS, WIDTH),
            precision,
        )
        parts.append(message.view(runs, count * capacity, WIDTH))
    return torch.cat(parts, dim=1)


def gru(from_input: Tensor, from_hidden: Tensor, hidden: Tensor) -> Tensor:
    """PyTorch's GRU cell, after its two linear maps."""
    input_reset, input_update, input_new = from_input.chunk(3, -1)
    hidden_reset, hidden_update, hidden_new = from_hidden.chunk(3, -1)
    reset = torch.sigmoid(input_reset + hidden_reset)
    update = torch.sigmoid(input_update + hidden_update)
    new = torch.tanh(input_new + reset * hidden_new)
    return new + update * (hidden - new)


def _set_to_set(w: Weights, batch: Batch, state: Tensor) -> Tensor:
    """Set2Set: three times, an LSTM asks a question of the molecule and attends to its atoms, ``[R, B, 128]``."""
    widest = batch.layout.groups[-1][1]
    runs = len(state)
    blocks = [
        functional.pad(state[:, rows].view(runs, count, capacity, WIDTH), (0, 0, 0, widest - capacity))
        for _, rows, count, capacity in batch.layout.slices()
    ]
    atoms = torch.cat(blocks, dim=1)
    outside = torch.arange(widest, device=state.device) >= batch.atoms[..., None]
    # The LSTM's input begins with its own hidden state, so that both maps of it are one.
    recurrent = w.lstm_input + functional.pad(w.lstm_hidden, (0, 0, 0, WIDTH))
    bias = w.lstm_input_bias + w.lstm_hidden_bias
    gates = bias.expand(-1, batch.layout.molecules, -1)
    cell = torch.zeros_like(gates[..., :WIDTH])
    asked = cell
    for step in range(SET_STEPS):
        if step:
            gates = torch.baddbmm(bias, asked, recurrent)
        enter, forget, new, leave = gates.chunk(4, -1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(new)
        question = torch.sigmoid(leave) * torch.tanh(cell)
        score = (atoms * question[:, :, None]).sum(-1).masked_fill(outside, -1e30)
        answer = (atoms * torch.softmax(score, -1)[..., None]).sum(2)
        asked = torch.cat([question, answer], dim=-1)
    return asked
