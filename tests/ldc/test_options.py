"""Bad options and bad losses get a sentence; presets are the published forms."""

import warnings

import pytest
import torch
from torch import nn

import equipoise as eq
from ldc.helpers import step

BAD = [
    ({"penalty": 2.0, "discrepancy": 0.1}, "give `discrepancy`.*or `penalty`.*not both; found discrepancy=0.1 and pen"),
    ({"discrepancy": -1.0}, "`discrepancy` must be from 0 to 1e[+]30; found -1.0"),
    ({"penalty": 0.0}, "`penalty` must be above 0 and at most 1e[+]30; found 0.0"),
    ({"router": "softmx"}, "no router 'softmx'; did you mean 'softmax'?"),
    ({"router": "sigmoid_free"}, "did you mean 'sigmoid-free'?"),
    ({"router_objective": "uper"}, "`router_objective` must be one of.*found 'uper': did you mean 'upper'?"),
    ({"tau": "ones"}, "`router_objective='upper'` needs tau='weights'.*found tau='ones'.*router_objective='both'"),
    ({"tau": (1.0, 1.0, 1.0)}, "needs tau='weights'"),
    ({"tau": "weight"}, "`tau` must be one of"),
    ({"tau": (1.0, 2.0), "router_objective": "both"}, "`tau` must be 3 numbers, each 0 or more"),
    ({"normalize": "logs"}, "`normalize` must be one of.*did you mean 'log'?"),
    ({"normalize": (1.0, 0.0, 1.0)}, "`normalize` must be 3 numbers, each above 0"),
    ({"min_losses": (1.0, float("nan"), 0.0)}, "`min_losses` must be 3 numbers, each finite"),
    ({"pairs": "chains"}, "`pairs` must be one of.*did you mean 'chain'?"),
    ({"pairs": [(0, 3)]}, r"`pairs` must hold pairs of two different tasks from 0 to 2; found \(0, 3\)"),
    ({"pairs": [(1, 1)]}, "two different tasks"),
    ({"pairs": [(0, 1, 2)]}, "two different tasks"),
    ({"pairs": None}, "`pairs` must be one of.*or a list of pairs; found None"),
    ({"pairs": [3]}, "two different tasks"),
    ({"smooth": -1.0}, "`smooth` must be 0 or a finite number of at least 1e-30; found -1.0"),
    ({"floor": 1.0}, "`floor` must be at least 0 and below 1; found 1.0"),
    ({"floor": 0.1, "router": "sigmoid"}, "`floor` is for router='softmax'"),
    ({"divide": "none"}, "`divide` must be one of"),
    ({"router": eq.FeatureRouter(4, 2)}, "`router` must have num_tasks=3; found 2"),
]


@pytest.mark.parametrize(("options", "sentence"), BAD, ids=[str(list(o)) for o, _ in BAD])
def test_bad_options(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        eq.LDC(3, **options)


def test_bad_feature_router():
    for options, sentence in [
        ({"in_features": 0}, "`in_features` must be at least 1; found 0"),
        ({"hidden": 0}, "`hidden` must be at least 1"),
        ({"output": "relu"}, "`output` must be 'softmax' or 'sigmoid'; found 'relu'"),
        ({"bounds": (0.8, 0.2)}, "`bounds` must be .*found \\(0.8, 0.2\\)"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            eq.FeatureRouter(**{"in_features": 4, "num_tasks": 2, **options})


def test_small_penalty_warns():
    with pytest.warns(UserWarning, match="0.01 to 0.1, multiply the discrepancy: that is `discrepancy`"):
        eq.LDC(2, penalty=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        eq.LDC(2, penalty=1.0)


def test_zero_first_loss():
    balancer = eq.LDC(tasks=("seg", "depth"))
    with pytest.raises(ValueError, match=r"task 'depth' must be at least 1e-12 in size at first.*found 0"):
        step(balancer, [1.0, 0.0])
    step(balancer, [1.0, 1.0], present=[True, False])
    with pytest.raises(ValueError, match="task 'depth' must be at least 1e-12"):
        step(balancer, [1.0, 1e-13])
    step(balancer, [1.0, -1.0])
    total, _, _ = step(balancer, [0.0, 0.0])  # later on zero is a loss like another
    assert total == 0


def test_nonpositive_loss_under_a_logarithm_or_ratio():
    for how in ("log", "ratio"):
        with pytest.raises(ValueError, match=r"task '1' must be above 0 for LDC.*found -1"):
            step(eq.LDC(2, normalize=how), [1.0, -1.0])
        balancer = eq.LDC(2, normalize=how, min_losses=(-2.0, 1.0))
        step(balancer, [-1.0, 2.0])
        with pytest.raises(ValueError, match=f"task '1' must be above its `min_losses` for normalize='{how}'; found 1"):
            step(balancer, [-1.0, 1.0])
        step(balancer, [-1.0, 0.0], present=[True, False])  # an absent loss is no loss


PUBLISHED = {
    "qm9": ("sigmoid", "log", "weights", 0.05, "detached"),
    "celeba": ("sigmoid-free", None, "weights", 0.01, "detached"),
    "cityscapes": ("features", None, "ones", 0.1, None),
    "nyuv2": ("features", None, "ones", 0.05, None),
    "nyuv2-code": ("features", "ratio", "weights", 0.05, "attached"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets(name):
    router, normalize, tau, discrepancy, divide = PUBLISHED[name]
    balancer = eq.LDC.preset(name, num_tasks=3)
    assert (balancer.normalize, balancer.tau, balancer.f_factor, balancer.g_factor, balancer.divide) == (
        normalize,
        tau,
        discrepancy,
        1.0,
        divide,
    )
    assert balancer.router_objective == "both" and balancer.pairs.kind == "chain"
    if router == "features":
        assert isinstance(balancer.router, eq.FeatureRouter) and isinstance(balancer.router.network, nn.Linear)
        assert balancer.router.in_features == 192 and balancer.router.bounds == (0.2, 0.8)
        assert not balancer.detach_features and balancer.needs_shared
    elif router == "sigmoid":
        logits = balancer.router.logits
        assert balancer.router.relu and logits.min() >= 0.2 and logits.max() <= 1.0 and logits.std() > 0
    else:
        assert not balancer.router.relu and (balancer.router.logits == 1).all()


def test_preset_overrides_and_unknown_names():
    balancer = eq.LDC.preset("qm9", tasks=("a", "b"), penalty=20.0, normalize=None)
    assert (balancer.g_factor, balancer.f_factor, balancer.normalize) == (20.0, 1.0, None)
    assert isinstance(eq.LDC.preset("nyuv2", 3, router="softmax-clamped").router.logits, torch.Tensor)
    double = eq.DoubleLoopLDC.preset("celeba", 3, inner_lr=0.1)
    assert isinstance(double, eq.DoubleLoopLDC) and double.inner_lr == 0.1
    with pytest.raises(ValueError, match=r"no preset 'nyu'; did you mean 'nyuv2'\?"):
        eq.LDC.preset("nyu", 3)


def test_registry_knows_both():
    assert isinstance(eq.make("ldc", 3, router="sigmoid", pairs="all"), eq.LDC)
    assert isinstance(eq.make("ldc-double", 3, inner_lr=0.1, tau="ones"), eq.DoubleLoopLDC)
    with pytest.raises(TypeError, match=r"LDC has no option `routr`; did you mean 'router'\?"):
        eq.make("ldc", 3, routr="softmax")
