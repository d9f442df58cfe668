"""The toy losses and gradients, against the recorded ones, with both signs."""

from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.suites.toy import BALANCED, SCALES, STARTS, pareto_front, toy_losses

ORACLE = np.load(Path(__file__).parents[2] / "oracles" / "toy.npz")


@pytest.mark.parametrize(("sign", "prefix"), [("code", ""), ("paper", "paper_")])
def test_losses_and_gradients_match_the_recorded_ones(sign, prefix):
    x = torch.tensor(ORACLE["points"], requires_grad=True)
    values = toy_losses(x, sign)
    torch.testing.assert_close(values.detach(), torch.tensor(ORACLE[prefix + "losses"]), rtol=1e-9, atol=1e-12)
    for task in range(2):
        (gradient,) = torch.autograd.grad(values[:, task].sum(), x, retain_graph=True)
        expected = torch.tensor(ORACLE[prefix + "grads"][:, task])
        torch.testing.assert_close(gradient, expected, rtol=1e-7, atol=1e-9)


def test_the_recorded_starts_are_ours():
    np.testing.assert_array_equal(ORACLE["points"][-5:], np.array(STARTS))


def test_the_origin_can_leave():
    x = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    toy_losses(x)[1].backward()
    both = ORACLE["origin_onesided_grad_right"][1] + ORACLE["origin_onesided_grad_left"][1]
    torch.testing.assert_close(x.grad, torch.tensor(both), rtol=1e-6, atol=1e-8)


def test_the_middle_of_the_front_is_the_balanced_point():
    points, front = pareto_front(101)
    assert points[50].tolist() == pytest.approx(BALANCED, abs=0.01)
    assert (front[50] / torch.tensor(SCALES)).diff().abs() < 1e-5


def test_no_sampled_point_dominates_the_front():
    _, front = pareto_front(101)
    assert (front[1:, 0] < front[:-1, 0]).all()
    assert (front[1:, 1] > front[:-1, 1]).all()
    torch.manual_seed(0)
    lower = torch.rand(20_000, 2, dtype=torch.float64) * torch.tensor([20.0, 11.0]) - torch.tensor([10.0, 12.0])
    values = toy_losses(lower)
    dominates = (values[:, None, :] < front[None] - 1e-4).all(dim=-1)
    assert not dominates.any()
