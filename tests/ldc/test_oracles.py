"""LDC against the numbers of the authors' code and of the paper's formulas, in float64 to 1e-6."""

import numpy as np
import pytest
import torch

import equipoise as eq
from ldc.helpers import close, make, step

OFFICIAL = {
    "qm9": {"router": "sigmoid", "normalize": "log"},
    "celeba": {"router": "sigmoid-free", "normalize": None},
    "cityscapes": {"router": "softmax-clamped", "normalize": None, "tau": "ones"},
    "nyuv2": {"router": "softmax-clamped", "normalize": "ratio", "divide": "attached"},
}
CASES = [(name, k) for name in ("qm9", "celeba") for k in (2, 3, 5, 11, 40)] + [("cityscapes", 2), ("nyuv2", 3)]


@pytest.mark.parametrize(("name", "k"), CASES)
def test_official(name, k, oracle):
    data = {key.split("__")[1]: v for key, v in oracle("ldc_official").items() if key.startswith(f"{name}_K{k}__")}
    for row in range(24):
        balancer = make(k, data["w"][row], router_objective="both", discrepancy=data["lamb"][row], **OFFICIAL[name])
        step(balancer, data["l0"][row])
        total, dl, dw = step(balancer, data["l"][row])
        close(total, data["total"][row])
        close(dl, data["dl"][row])
        close(dw, data["dw"][row])
        close(balancer.weights, data["sigma"][row])


@pytest.mark.parametrize("case", ["qm9_K11_A", "qm9_K11_B", "celeba_K40_A", "celeba_K11_A"])
def test_official_trajectory(case, oracle):
    """Sixty Adam steps of the router; the presets are the authors' forms."""
    name, k, which = case.split("_")
    data = {key.split("__")[1]: v for key, v in oracle("ldc_official").items() if key.startswith(f"traj_{case}__")}
    losses = oracle("loss_cases")[f"{k}__{which}__L"]
    balancer = eq.LDC.preset(name, losses.shape[1], discrepancy=float(data["lamb"])).double()
    with torch.no_grad():
        balancer.router.logits.copy_(torch.as_tensor(data["w"][0]))
    optimizer = torch.optim.Adam(balancer.parameters(), lr=float(data["lr"]))
    for t, row in enumerate(losses):
        if t % 10 == 0:
            balancer.start_epoch()
        close(step(balancer, row)[0], data["total"][t])
        optimizer.step()
        close(balancer.router.logits.detach(), data["w"][t + 1])


def test_epoch_steps_count_epochs(oracle):
    losses = oracle("loss_cases")["K11__B__L"]
    told = eq.LDC.preset("qm9", 11).double()
    counting = eq.LDC.preset("qm9", 11, epoch_steps=10).double()
    counting.load_state_dict(told.state_dict())
    for t, row in enumerate(losses):
        if t % 10 == 0:
            told.start_epoch()
        assert step(told, row)[0] == step(counting, row)[0]


@pytest.mark.parametrize(("k", "smooth"), [(k, s) for k in (2, 3, 5, 11, 40) for s in (False, True) if k < 40 or not s])
@pytest.mark.parametrize("norm", ["none", "rescale", "log"])
@pytest.mark.parametrize("tau", ["one", "sigma"])
def test_paper(k, norm, tau, smooth, oracle):
    data = oracle("ldc_paper")
    case = f"K{k}__{tau}_{norm}" + ("_smooth" if smooth else "")
    for row in range(8):
        balancer = make(
            k,
            data[f"K{k}__W"][row],
            router_objective="both",
            tau={"one": "ones", "sigma": "weights"}[tau],
            normalize=None if norm == "none" else norm,
            penalty=data[f"K{k}__lamb"][row],
            smooth=float(data["smooth_gamma"]) if smooth else 0.0,
        )
        step(balancer, data[f"K{k}__l0"][row])
        total, dl, dw = step(balancer, data[f"K{k}__l"][row])
        close(total, data[f"{case}__total_f_g"][row, 0])
        close(dl, data[f"{case}__dl"][row])
        close(dw, data[f"{case}__dW"][row])


def quadratics(data, k):
    A, c, off = (torch.tensor(data[f"K{k}__{name}"]) for name in ("A", "c", "off"))

    def losses(x):
        return [0.5 * (x - c[i]) @ A[i] @ (x - c[i]) + off[i] for i in range(k)]

    return losses


@pytest.mark.parametrize("k", [2, 3, 5])
@pytest.mark.parametrize("tau", ["one", "sigma"])
@pytest.mark.parametrize("algorithm", ["alg2", "alg1_text", "alg1_appendix"])
def test_algorithms(k, tau, algorithm, oracle):
    data = oracle("ldc_algorithms")
    alpha, beta, lam, steps, inner = data["alpha_beta_lambda_T_N"]
    options = {"normalize": None, "tau": {"one": "ones", "sigma": "weights"}[tau], "penalty": lam}
    losses = quadratics(data, k)
    x = torch.tensor(data[f"K{k}__x0"], requires_grad=True)
    if algorithm == "alg2":
        balancer = make(k, data[f"K{k}__W0"], router_objective="both", **options)
    else:
        inner_lr = beta if algorithm == "alg1_text" else beta * lam
        balancer = make(k, data[f"K{k}__W0"], eq.DoubleLoopLDC, inner_lr=inner_lr, inner_steps=int(inner), **options)
    optimizer = torch.optim.SGD([x, *balancer.parameters()], lr=alpha)
    key = f"K{k}__{algorithm}_{tau}"
    for t in range(int(steps)):
        optimizer.zero_grad()
        if algorithm == "alg2":
            objective = balancer(losses(x))
            objective.backward()
        else:
            objective = balancer.backward(lambda p: losses(p["x"]), {"x": x})
        f, g = data[f"{key}__f_g"][t]
        close(objective.detach(), f + lam * g)
        optimizer.step()
        close(x.detach(), data[f"{key}__x"][t + 1])
        close(balancer.router.logits.detach(), data[f"{key}__W"][t + 1])
    assert np.abs(data[f"{key}__W"][-1] - data[f"K{k}__W0"]).max() > 1e-6  # the router did move
