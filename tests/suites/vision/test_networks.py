import pytest
import torch
from torch import nn

from equipoise.suites.vision.networks import Backbone, SegNet, seeded


def count(modules):
    return sum(p.numel() for module in modules for p in module.parameters())


@pytest.fixture(scope="module")
def mtan():
    return seeded(lambda: SegNet((5, 1, 3)), 0)


@pytest.mark.parametrize(
    ("channels", "trunk", "gates", "heads"),
    [((13, 1, 3), 44_117_184, 8_953_728, 111_889), ((7, 1), 41_132_608, 5_969_152, 74_376)],
)
def test_published_sizes(channels, trunk, gates, heads):
    with torch.device("meta"):
        net = SegNet(channels)
    assert count([net.trunk]) == trunk
    assert count([net.trunk.attention]) == gates
    assert count([net.heads]) == heads


def test_plain_has_the_same_backbone_and_no_more():
    with torch.device("meta"):
        assert count([SegNet((7, 1), attention=False).trunk]) == count([SegNet((7, 1)).trunk.backbone])


@pytest.mark.parametrize("attention", [True, False])
def test_sizes_that_do_not_halve_evenly(attention):
    net = seeded(lambda: SegNet((4, 2), attention=attention), 0)
    predictions, features = net(torch.rand(2, 3, 44, 70))
    assert [p.shape for p in predictions] == [(2, 4, 44, 70), (2, 2, 44, 70)]
    assert features.shape == (2, 128 if attention else 64, 44, 70)


def test_a_head_reads_its_own_features_alone(mtan):
    predictions, features = mtan(torch.rand(2, 3, 32, 32))
    (gradient,) = torch.autograd.grad(predictions[1].square().sum(), features)
    used = gradient.abs().sum((0, 2, 3)) > 0
    assert used[64:128].all() and not used[:64].any() and not used[128:].any()


def test_every_parameter_matters_and_gates_only_to_their_task(mtan):
    predictions, _ = mtan(torch.rand(2, 3, 64, 64))
    predictions[0].square().mean().backward()
    reached = {name for name, p in mtan.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    foreign = tuple(f"{part}.{task}." for part in ("trunk.attention", "heads") for task in (1, 2))
    # A bias before a batch normalisation has a gradient of 0, up to rounding.
    own = {name for name, _ in mtan.named_parameters() if not name.startswith(foreign) and name.endswith("weight")}
    assert own <= reached
    assert not any(name.startswith(foreign) for name in reached)
    mtan.zero_grad(set_to_none=True)


def test_unpooling_puts_values_back_where_the_maxima_were():
    backbone = seeded(Backbone, 0)
    down, up = backbone(torch.rand(1, 3, 64, 64).repeat(2, 1, 1, 1))
    top, back = down[4].exit, up[4].entry
    windows = [nn.functional.unfold(x.flatten(0, 1)[:, None], 2, stride=2) for x in (top, back)]
    assert torch.equal(windows[1].sum(1), windows[0].amax(1))
    assert torch.equal(windows[1].argmax(1)[windows[0].amax(1) > 0], windows[0].argmax(1)[windows[0].amax(1) > 0])


def test_low_precision_and_channels_last_predict_the_same():
    """Nearly the same in bfloat16, which now and then takes another of two equal maxima when it pools."""
    net = seeded(lambda: SegNet((5, 1, 3)), 0).eval()
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected, _ = net(images)
        last, _ = net(images.to(memory_format=torch.channels_last))
        with torch.autocast("cpu", torch.bfloat16):
            low, _ = net(images.to(memory_format=torch.channels_last))
    for a, b, c in zip(expected, last, low, strict=True):
        assert b.dtype == c.dtype == torch.float32
        assert (a - b).norm() < 1e-3 * a.norm()
        assert torch.nn.functional.cosine_similarity(a.flatten(), c.flatten(), 0) > 0.9


def test_compiles_as_one_graph(mtan):
    torch._dynamo.reset()
    compiled = torch.compile(mtan, backend="aot_eager", fullgraph=True)
    images = torch.rand(2, 3, 32, 32)
    mtan.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(images)[0], mtan(images)[0])
    mtan.train()
