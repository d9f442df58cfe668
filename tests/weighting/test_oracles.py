"""Every loss-only method against the numbers of the reference implementations, in float64."""

import numpy as np
import pytest
import torch

import equipoise as eq

CASES = [f"K{k}__{which}" for k in (2, 3, 5, 11, 40) for which in "AB" if (k, which) != (40, "B")]
every_case = pytest.mark.parametrize("case", CASES)


def close(found, expected, rtol=1e-6):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-12)


def losses_of(oracle, case):
    return oracle("loss_cases")[f"{case}__L"]


@every_case
@pytest.mark.parametrize("method", ["ls", "si", "gls"])
def test_one_step_methods(method, case, oracle, apply):
    data, losses = oracle("ls_si_gls"), losses_of(oracle, case)
    for i, step in enumerate(data[f"{case}__steps"]):
        balancer = eq.make(method, losses.shape[1]).double()
        loss, grad = apply(balancer, losses[step])
        close(loss, data[f"{case}__{method}__loss"][i])
        close(grad, data[f"{case}__{method}__grad"][i])
        close(balancer.weights, grad)


def test_fixed_task_weights(oracle, apply):
    data = oracle("ls_si_gls")
    loss, grad = apply(eq.LS(3, weights=torch.tensor(data["weighted__w"])).double(), data["weighted__l"])
    close(loss, data["weighted__ls_loss"], 1e-7)
    close(grad, data["weighted__ls_grad"], 1e-7)


@pytest.mark.parametrize("x", [0.1, 0.01])
def test_gls_survives_where_the_product_underflows(x, oracle):
    assert not np.isfinite(oracle("ls_si_gls")[f"gls_float32_K40_all_{x:g}__grad0"])
    losses = torch.full((40,), x, requires_grad=True)
    eq.GLS(40)(losses).backward()
    close(losses.grad, np.full(40, 1 / 40), 1e-5)


def test_extreme_losses(oracle, apply):
    data = oracle("loss_edge")
    for i, losses in enumerate(data["L"]):
        loss, grad = apply(eq.FAMO(3).double(), losses)
        close(loss, data["famo__loss"][i])
        close(grad, data["famo__grad"][i])
        if (losses > 0).all():
            close(apply(eq.SI(3).double(), losses)[0], data["si__loss"][i])
            close(apply(eq.SI(3).double(), losses)[1], data["si__grad"][i])
            close(apply(eq.GLS(3).double(), losses)[1], data["gls__grad"][i])
        else:
            for name in ("si", "gls"):
                with pytest.raises(ValueError, match=f"task '{np.argmin(losses)}' must be above 0"):
                    apply(eq.make(name, 3).double(), losses)


@every_case
@pytest.mark.parametrize("how", ["start_epoch", "epoch_steps"])
def test_dwa(how, case, oracle, apply):
    data, losses = oracle("dwa"), losses_of(oracle, case)
    balancer = eq.DWA(losses.shape[1], epoch_steps=10 if how == "epoch_steps" else None).double()
    for step, row in enumerate(losses):
        if how == "start_epoch" and step % 10 == 0:
            balancer.start_epoch()
        loss, grad = apply(balancer, row)
        close(loss, data[f"{case}__libmtl__loss"][step])
        close(grad, data[f"{case}__libmtl_epoch__w"][step // 10])
        close(balancer.weights, grad)


@every_case
@pytest.mark.parametrize(("form", "init", "every"), [("nash", 0.0, 1), ("libmtl", -0.5, 10)])
def test_uw(form, init, every, case, oracle, apply):
    data, losses = oracle("uw"), losses_of(oracle, case)
    balancer = eq.UW(losses.shape[1], init=init).double()
    optimizer = torch.optim.Adam(balancer.parameters(), lr=0.025)
    for step, row in enumerate(losses):
        if step % every == 0:
            s = data[f"{case}__{form}__s"][step // every]
            close(balancer.log_variance.detach(), s)
        optimizer.zero_grad()
        before = balancer.log_variance.detach().clone()
        loss, grad = apply(balancer, row)
        close(loss, data[f"{case}__{form}__loss"][step])
        close(grad, torch.exp(-before) / 2)
        close(balancer.weights, grad)
        optimizer.step()


@pytest.mark.parametrize("num_tasks", [2, 3, 11, 40])
def test_rlw(num_tasks, oracle):
    """2,000 steps against the moments and quantiles of 100,000 draws, to five standard errors."""
    data, steps = oracle("rlw"), 2000
    balancer = eq.RLW(num_tasks, seed=11).double()
    losses = torch.ones(num_tasks, dtype=torch.float64, requires_grad=True)
    sample = []
    for _ in range(steps):
        balancer(losses)
        sample.append(balancer.weights)
    sample = torch.stack(sample).numpy()
    close(sample.sum(1), 1.0)
    std = data[f"K{num_tasks}__std"].mean()
    assert np.abs(sample.mean(0) - 1 / num_tasks).max() < 5 * std / steps**0.5
    np.testing.assert_allclose(sample.std(0), std, rtol=0.25)
    np.testing.assert_allclose(sample.std(), std, rtol=0.1)
    levels, quantiles = data["quantile_levels"], data[f"K{num_tasks}__quantiles"]
    below = (sample[:, :, None] < quantiles).mean((0, 1))
    assert (np.abs(below - levels) < 5 * np.sqrt(levels * (1 - levels) / steps)).all()
    assert abs(np.cov(sample[:, 0], sample[:, 1])[0, 1] - data[f"K{num_tasks}__cov01"]) < 6 * std**2 / steps**0.5


@every_case
@pytest.mark.parametrize("variant", ["g0.01", "g0.001", "g0.01_min"])
def test_famo(variant, case, oracle, apply):
    data, losses = oracle("famo"), losses_of(oracle, case)
    after = oracle("loss_cases")[f"{case}__L_after"]
    least = torch.tensor(data[f"{case}__min_losses"]) if variant.endswith("min") else None
    balancer = eq.FAMO(losses.shape[1], gamma=float(variant[1:].removesuffix("_min")), min_losses=least).double()
    for step, row in enumerate(losses):
        close(balancer.logits, data[f"{case}__{variant}__w"][step])
        loss, grad = apply(balancer, row)
        close(loss, data[f"{case}__{variant}__loss"][step])
        if f"{case}__{variant}__grad" in data:
            close(grad, data[f"{case}__{variant}__grad"][step])
        close(balancer.weights, grad)
        balancer.after_step(torch.tensor(after[step]))
    close(balancer.logits, data[f"{case}__{variant}__w"][-1])


@pytest.mark.parametrize(
    ("case", "groups", "rate"),
    [
        (case, groups, rate)
        for case in CASES
        for groups, rate in ((1, "0.0001"), (2, "0.0001"), (2, "0.05"), (3, "0.0001"))
        if groups < int(case.split("__")[0][1:])  # the reference has no run with as many groups as tasks
    ],
)
def test_go4align(case, groups, rate, oracle, apply):
    data, losses = oracle("go4align"), losses_of(oracle, case)
    key = f"{case}__G{groups}_s{rate}__"
    stride = len(losses) // len(data[f"{key}w"])
    balancer = eq.GO4Align(losses.shape[1], groups=groups, step=float(rate)).double()
    for step, row in enumerate(losses):
        loss, grad = apply(balancer, row)
        close(loss, grad @ row)
        close(balancer.weights, grad)
        if groups == 1:
            close(loss, data[f"{key}loss"][step])
            if step % stride == 0:
                close(grad, np.broadcast_to(data[f"{key}w"][step // stride], len(row)))
            continue
        labels = np.searchsorted(np.unique(grad.round(12)), grad.round(12))
        np.testing.assert_array_equal(labels, data[f"{key}optimal_labels"][step])
        if data[f"{key}is_optimal"][step]:  # the reference clusters in float32
            close(loss, data[f"{key}loss"][step], 2e-6)
            if step % stride == 0:
                close(grad, data[f"{key}w"][step // stride], 2e-6)


@every_case
@pytest.mark.parametrize("variant", ["mu1_w1", "mu0.1_w1", "mu1_w4"])
def test_stch(variant, case, oracle, apply):
    data, losses = oracle("stch"), losses_of(oracle, case)
    mu, warmup = variant.removeprefix("mu").split("_w")
    balancer = eq.STCH(losses.shape[1], mu=float(mu), warmup=int(warmup), epoch_steps=10).double()
    steps = list(data[f"{case}__{variant}__steps"])
    for step, row in enumerate(losses):
        value, grad = apply(balancer, row)
        close(balancer.weights, grad)
        if step in steps:
            close(value, data[f"{case}__{variant}__value"][steps.index(step)])
            close(grad, data[f"{case}__{variant}__grad"][steps.index(step)])
    close(balancer.nadir, data[f"{case}__{variant}__nadir"])
