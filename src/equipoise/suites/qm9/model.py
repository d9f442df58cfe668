"""The published QM9 network as a module, with the published parameters under their published names."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .dense import NODE_FEATURES, Batch
from .network import EDGE_WIDTH, WIDTH, features, pack
from .precision import Precision

_GRAPH_EDGE_FEATURES = 5  # four bond classes and the distance


class Network(nn.Module):
    """NNConv and GRU three times over with shared weights, Set2Set, one linear layer and a linear head for each task.

    617,675 parameters with eleven tasks. The submodules hold the parameters (and initialise them as PyTorch does);
    the arithmetic is `features` and `predictions`, on dense batches.
    """

    def __init__(self, tasks: int = 11, precision: Precision = "float32") -> None:
        super().__init__()
        self.precision: Precision = precision
        self.lin0 = nn.Linear(NODE_FEATURES, WIDTH)
        self.conv = _EdgeConvolution()
        self.gru = nn.GRU(WIDTH, WIDTH)
        self.set2set = nn.ModuleDict({"lstm": nn.LSTM(2 * WIDTH, WIDTH)})
        self.lin1 = nn.Linear(2 * WIDTH, WIDTH)
        self.heads = nn.ModuleList(nn.Linear(WIDTH, 1) for _ in range(tasks))

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Predictions ``[B, T]`` and the shared representation ``[B, 64]`` of a batch for one run."""
        shared = self.features(batch)
        return self.predictions(shared), shared

    def features(self, batch: Batch) -> Tensor:
        """The shared representation ``[B, 64]``."""
        return features(pack(dict(self.named_parameters())), batch, self.precision)[0]

    def predictions(self, shared: Tensor) -> Tensor:
        """Predictions ``[B, T]`` from the shared representation."""
        return torch.cat([head(shared) for head in self.heads], dim=-1)


class _EdgeConvolution(nn.Module):
    """The parameters of NNConv."""

    def __init__(self) -> None:
        super().__init__()
        self.nn = nn.Sequential(
            nn.Linear(_GRAPH_EDGE_FEATURES, EDGE_WIDTH), nn.ReLU(), nn.Linear(EDGE_WIDTH, WIDTH * WIDTH)
        )
        self.lin = nn.Linear(WIDTH, WIDTH, bias=False)
        self.bias = nn.Parameter(torch.zeros(WIDTH))
