"""Batched runs equal single ones, and LDC finds the balanced middle where LS and MGDA do not."""

import pytest
import torch

from equipoise.registry import make, methods
from equipoise.runs.config import configure
from equipoise.suites.toy import BALANCED, STARTS, toy_losses
from equipoise.suites.toy.starts import run_starts

STEPS = 30
LOSSES_ABOVE_ZERO = {"si", "gls", "go4align", "stch", "dbmtl", "gradnorm"}
NAMES = [name for name in methods() if name not in LOSSES_ABOVE_ZERO | {"stl", "ldc-double"}]


@pytest.mark.parametrize("name", NAMES)
def test_all_starts_at_once_equal_each_alone(name):
    config = configure("toy", name)
    together = run_starts(config.method, config.options, steps=STEPS).points[-1]
    for index, start in enumerate(STARTS):
        if start == (0.0, 0.0):
            continue  # the gradient along x1 is rounding there, of which Adam makes whole steps
        torch.manual_seed(0)
        x = torch.nn.Parameter(torch.tensor(start))
        balancer = [make(config.method, 2, **config.options) for _ in STARTS][index]
        optimizer = torch.optim.Adam([x, *balancer.parameters()], lr=1e-3, fused=True)
        for _ in range(STEPS):
            optimizer.zero_grad()
            balancer(toy_losses(x), shared=[x] if balancer.needs_shared else None).backward()
            optimizer.step()
            if balancer.needs_after_step:
                with torch.no_grad():
                    balancer.after_step(toy_losses(x))
        torch.testing.assert_close(together[index], x.detach(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", sorted(LOSSES_ABOVE_ZERO & set(methods())))
def test_methods_of_positive_losses_say_so(name):
    with pytest.raises(ValueError, match="must be above 0"):
        run_starts(name, {}, steps=1)


@pytest.mark.parametrize("name", ["ldc", "ldc-no-router"])
def test_ldc_reaches_the_balanced_middle_from_every_start(name):
    config = configure("toy", name)
    found = run_starts(config.method, config.options, steps=5000, lr=1e-2)
    assert found.reached == [True] * 5
    assert found.points[-1, 4].tolist() == pytest.approx(BALANCED, abs=0.02)  # from (10, -8), the nearest start


def test_ls_and_mgda_do_not():
    assert not any(run_starts("ls", {}, steps=5000, lr=1e-2).reached)
    assert not all(run_starts("mgda", {}, steps=1500, lr=3e-2).reached)


def test_the_paper_s_sign_changes_the_way():
    code, paper = (run_starts("ls", {}, steps=1, sign=sign).losses[0] for sign in ("code", "paper"))
    assert code[0, 1] != paper[0, 1]
    assert torch.equal(code[4], paper[4])  # below x2 = 0 the second loss does not see the sign
