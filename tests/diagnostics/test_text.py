"""A diagnosis as text, in a terminal of 80 columns."""

import torch
from torch import nn

import equipoise as eq


def test_it_fits_a_terminal_with_ten_tasks_of_long_names():
    w = nn.Parameter(torch.randn(10, generator=torch.Generator().manual_seed(0)))
    losses = {f"a_task_whose_name_is_long_{i}": (w[: i + 1].sum() - i) ** 2 for i in range(10)}
    text = str(eq.diagnose(losses, [w], costs=False))
    assert "Cosines" in text and max(map(len, text.splitlines())) <= 80
