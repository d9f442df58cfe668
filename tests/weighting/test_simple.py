"""What the oracles and the numpy references do not reach: options, epochs, seeds, invariances, compiled state."""

import pytest
import torch

import equipoise as eq


def run(balancer, rows):
    """The weights of each step."""
    trace = []
    for row in rows:
        balancer(torch.tensor(row, dtype=torch.float64, requires_grad=True))
        trace.append(balancer.weights)
    return torch.stack(trace)


ROWS = [[1.0, 3.0, 2.0], [0.8, 3.1, 1.5], [0.7, 2.9, 1.4], [0.5, 2.8, 1.3], [0.4, 2.9, 1.2], [0.4, 2.7, 1.1]]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("stl", {"task": 3}, "`task` must be a task's name or an index below 3; found 3"),
        ("stl", {"task": -1}, "`task` must be a task's name or an index below 3; found -1"),
        ("stl", {"task": "deptj"}, "`task` must be one of the tasks; found 'deptj'; did you mean 'depth'"),
        ("dwa", {"temperature": 0.0}, "`temperature` must be above 0; found 0.0"),
        ("uw", {"init": float("inf")}, "`init` must be from -80 to 80; found inf"),
        ("stch", {"mu": 0.0}, "`mu` must be from 1e-30 to 1e[+]30; found 0.0"),
        ("stch", {"warmup": -1}, "`warmup` must be a whole number of at least 0; found -1"),
        ("rlw", {"seed": -1}, "`seed` must be a whole number from 0"),
    ],
)
def test_options(name, options, message):
    with pytest.raises(ValueError, match=message):
        eq.make(name, tasks=("seg", "depth", "normal"), **options)


@pytest.mark.parametrize("name", ["si", "gls", "go4align", "stch"])
@pytest.mark.parametrize("value", [0.0, -1.0])
def test_methods_that_need_positive_losses_say_so(name, value):
    balancer = eq.make(name, tasks=("seg", "depth"))
    with pytest.raises(ValueError, match=rf"task 'depth' must be above 0 for .*; found {value:g}"):
        balancer(torch.tensor([1.0, value], requires_grad=True))


@pytest.mark.parametrize("name", ["ls", "rlw", "dwa", "uw", "stl"])
def test_the_others_take_any_loss(name):
    assert torch.isfinite(
        run(eq.make(name, 2, **({"epoch_steps": 1} if name == "dwa" else {})), [[0.0, -1.0]] * 4)
    ).all()


def test_rlw_seeds():
    first, again, other = eq.RLW(3, seed=1), eq.RLW(3, seed=1), eq.RLW(3, seed=2)
    trace = run(first, ROWS)
    assert torch.equal(trace, run(again, ROWS)) and not torch.allclose(trace, run(other, ROWS))
    assert trace.unique(dim=0).shape == trace.shape  # a new draw each step
    torch.manual_seed(3)
    drawn = eq.RLW(3)
    torch.manual_seed(3)
    assert drawn.seed == eq.RLW(3).seed != eq.RLW(3).seed


def test_dwa_by_hand():
    """T = 1, epochs of two steps: epoch 2 weighs by the means of epochs 1 and 0."""
    trace = run(eq.DWA(3, temperature=1.0, epoch_steps=2).double(), ROWS)
    means = torch.tensor(ROWS, dtype=torch.float64).view(3, 2, 3).mean(1)
    assert torch.equal(trace[:4], torch.ones(4, 3))
    torch.testing.assert_close(trace[4], 3 * torch.softmax(means[1] / means[0], 0))
    assert torch.equal(trace[5], trace[4])


@pytest.mark.parametrize("name", ["dwa", "stch"])
def test_start_epoch_equals_epoch_steps(name):
    counted, told = eq.make(name, 3, epoch_steps=2), eq.make(name, 3)
    trace = run(counted, ROWS)
    parts = []
    for i in range(0, len(ROWS), 2):
        told.start_epoch()
        parts.append(run(told, ROWS[i : i + 2]))
    assert torch.equal(torch.cat(parts), trace)


def test_dwa_running_mean_is_exact_over_scales():
    """The mean of an epoch starts from its own first loss, whatever the last epoch held."""
    balancer = eq.DWA(1, epoch_steps=1)
    run(balancer, [[1e8], [1e-3], [1e-3]])
    assert balancer.last.item() == pytest.approx(1e-3, rel=1e-6)


def test_dwa_forgets_last_epoch_of_a_task_absent_when_the_next_begins():
    """Its mean of the new epoch is of the losses seen in it."""
    balancer = eq.DWA(2, epoch_steps=2)
    for losses in ([3.0, 8.0], [3.0, 8.0], [3.0, None], [3.0, 2.0]):
        balancer([None if loss is None else torch.tensor(loss, requires_grad=True) for loss in losses])
    assert balancer.current.tolist() == [3.0, 2.0] and balancer.seen.tolist() == [2.0, 1.0]


def test_uw_learns_the_variance():
    """At the optimum s = log l: each weighted loss is one half."""
    balancer = eq.UW(2).double()
    optimizer = torch.optim.Adam(balancer.param_groups(lr=0.05))
    for _ in range(600):
        optimizer.zero_grad()
        balancer(torch.tensor([4.0, 0.25], dtype=torch.float64, requires_grad=True)).backward()
        optimizer.step()
    torch.testing.assert_close(balancer.log_variance.exp(), torch.tensor([4.0, 0.25], dtype=torch.float64))


def test_uw_absent_task_has_no_gradient():
    balancer = eq.UW(2)
    balancer([torch.tensor(2.0, requires_grad=True), None]).backward()
    assert balancer.log_variance.grad.tolist() == [-0.5, 0.0]


@pytest.mark.parametrize(("name", "options"), [("si", {}), ("stch", {"warmup": 0, "epoch_steps": 2})])
def test_scale_invariance(name, options):
    scale = torch.tensor([1e-4, 7.0, 1e5], dtype=torch.float64)
    plain = run(eq.make(name, 3, **options).double(), ROWS)
    scaled = run(eq.make(name, 3, **options).double(), [(torch.tensor(row) * scale).tolist() for row in ROWS])
    torch.testing.assert_close(scaled * scale, plain, rtol=1e-6, atol=0)
    assert eq.make(name, 3, **options).scale_invariant


def test_stch_small_mu_is_the_worst_task_alone():
    balancer = eq.STCH(3, mu=1e-3, warmup=0, epoch_steps=1).double()
    weights = run(balancer, [[1.0, 1.0, 1.0], [0.5, 0.9, 0.7]])[1]
    torch.testing.assert_close(weights, torch.tensor([0.0, 3 / 0.9, 0.0], dtype=torch.float64))


def test_famo_second_look_compiles_whole():
    balancer, twin = eq.FAMO(3), eq.FAMO(3)
    look = torch.compile(lambda losses: balancer.after_step(losses), fullgraph=True, backend="aot_eager")
    for row in ROWS[:3]:
        run(balancer, [row]), run(twin, [row])
        look(torch.tensor(row) * torch.tensor([0.5, 0.9, 0.8]))
        twin.after_step(torch.tensor(row) * torch.tensor([0.5, 0.9, 0.8]))
    torch.testing.assert_close(balancer.logits, twin.logits)
