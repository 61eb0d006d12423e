"""Q-layers in what training puts around a layer: autocast, higher derivatives, checkpoints, compilation, transforms."""

import copy

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from integrations import qmodules
from integrations.qmodules import LEVELS, QLevel

from .nets import EIGHT_BITS, normal
from .qnets import EIGHT, Residual, errors, kept_bytes, q_layer, step


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1, groups=4),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.LayerNorm(256),
        nn.Linear(256, 10),
    )


X = normal(8, 3, 16, 16)


def grid(*shape):
    """Values that 8 bits hold exactly: every group of 256 has 256 of them, one step apart."""
    numel = torch.Size(shape).numel()
    assert numel % 256 == 0
    order = torch.randperm(256, generator=torch.Generator().manual_seed(0))
    return ((order.repeat(numel // 256).view(shape) - 127) / 64).double()


DIFFERENTIABLE = [
    (nn.Conv2d(4, 6, 3, padding=1, stride=2), grid(4, 4, 8, 8)),
    (nn.ConvTranspose1d(4, 6, 3), grid(4, 4, 16)),
    (nn.Linear(32, 6), grid(8, 32)),
    # Each channel has all of the grid, and so has each sample, which is a group: channels are normalised alike.
    (nn.BatchNorm2d(4), torch.stack([sample.roll(at, 0) for at, sample in enumerate(grid(4, 4, 8, 8))])),
    (nn.LayerNorm(32), grid(8, 32)),
    (nn.GroupNorm(2, 4), grid(4, 4, 8, 8)),
    (nn.RMSNorm(32), grid(8, 32)),
    (nn.MaxPool2d(2), grid(4, 4, 8, 8)),
    (nn.AvgPool2d(2), grid(4, 4, 8, 8)),
    (nn.ReLU(), grid(4, 64)),
]


@pytest.mark.parametrize(("layer", "x"), DIFFERENTIABLE, ids=lambda value: type(value).__name__)
def test_double_backward_is_torchs_at_the_stored_values(layer, x):
    """The stored values are exact here, so the derivatives are torch's but for the order of sums in float64."""
    layer = copy.deepcopy(layer).double()
    found = []
    for module in (layer, q_layer(layer)):
        given = x.clone().requires_grad_()
        output = module(given)
        direction = normal(*output.shape, seed=3, dtype=torch.float64).requires_grad_()
        wanted = [given, *module.parameters()]
        first = torch.autograd.grad(output, wanted, direction, create_graph=True)
        penalty = sum(gradient.square().sum() for gradient in first)
        found.append([*first, *torch.autograd.grad(penalty, [*wanted, direction], materialize_grads=True)])
    for expected, value in zip(*found, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_computes_and_stores_what_torchs_does(dtype):
    """Gradients in 16 bits: those of a value differ by 2**-9 of it in bfloat16, and that goes on through six layers;
    three times the error of 8 bits covers both."""
    plain, model = net(), qmodules.QModule(net(), EIGHT)
    found = []
    for module in (plain, model):
        with torch.autocast("cpu", dtype):
            output = module(X)
        assert output.dtype == dtype
        output.float().square().mean().backward()
        found.append((output, [p.grad for p in module.parameters()]))
    (expected, gradients), (output, rounded) = found
    assert torch.equal(output, expected)
    assert [g.dtype for g in rounded] == [torch.float32] * len(gradients)
    # The convolution's bias below a norm has a gradient of rounding errors alone.
    pairs = [(a, b) for a, b in zip(gradients, rounded, strict=True) if a.norm() > 1e-4]
    assert max(errors(*zip(*pairs, strict=True))) <= 3 * EIGHT_BITS


def test_autocast_stores_16_bits_less():
    """Bounds are of the dtype in which the layer computes."""
    with torch.autocast("cpu", torch.bfloat16):
        layer, x = q_layer(nn.Linear(256, 8)), normal(16, 256)
        assert kept_bytes(layer(x), x) == 16 * 256 + 16 * 2 * 2 + 8 * 256 * 2  # codes, bounds, the weight's cast


def test_backward_under_autocast_is_in_forwards_dtypes():
    layer, x = q_layer(nn.Linear(64, 8)), normal(16, 64).requires_grad_()
    output = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        output.sum().backward()
    expected = layer.weight.sum(0).expand(16, 64)
    torch.testing.assert_close(x.grad, expected)


def test_grad_scaler():
    model = qmodules.QModule(net(), "L2")
    scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=2.0**10), torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for _ in range(4):
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.cross_entropy(model(X), torch.arange(8))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_retain_graph_reads_what_was_stored_again():
    model = qmodules.QModule(net(), "L3")
    loss = model(X).square().sum()
    found = []
    for retain in (True, False):
        model.zero_grad()
        loss.backward(retain_graph=retain)
        found.append([p.grad.clone() for p in model.parameters()])
    assert all(map(torch.equal, *found))
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    """Of a block whose input two layers save, in 8 and in 4 bits. The recomputation, in which the first one's is still
    there when the second asks, has to save what the forward did, which dropped it."""
    plain, block = Residual(), Residual()
    block.conv1 = q_layer(block.conv1)
    block.short = q_layer(block.short, QLevel(bits=(4,), per_sample=False, per_layer=False))
    x = normal(4, 8, 8, 8).requires_grad_()
    found = []
    for module in (plain, block):
        output = checkpoint(module, x * 1, use_reentrant=reentrant)
        (output * normal(*output.shape, seed=2)).sum().backward()
        found.append([p.grad for p in module.conv1.parameters()])
    assert max(errors(*found)) <= EIGHT_BITS


def test_compiled():
    torch.compiler.reset()
    plain, model = net(), qmodules.QModule(net(), EIGHT)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    found = []
    for module in (plain, compiled):
        for _ in range(2):
            module.zero_grad()
            output = module(X)
            (output * normal(*output.shape, seed=2)).sum().backward()
        found.append([p.grad.clone() for p in module.parameters()])
    torch.compiler.reset()
    assert max(errors(*found)) <= 2 * EIGHT_BITS  # the errors of a layer go on into those below


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (nn.Conv2d(3, 8, 3, padding=1, padding_mode="replicate"), X),
        (nn.ConvTranspose2d(3, 8, 3), X),
        (nn.GroupNorm(1, 3), X),
        (nn.RMSNorm(16), X),
        (nn.LeakyReLU(inplace=True), X),
        (nn.Dropout(), X),
        (nn.AdaptiveAvgPool2d(5), X),
        (nn.Embedding(20, 8), torch.arange(20)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_layer_compiles_without_a_graph_break(layer, x):
    torch.compiler.reset()
    layer = q_layer(layer)
    compiled = torch.compile(lambda x: layer(x * 1), backend="aot_eager", fullgraph=True)
    x = x.clone().requires_grad_() if x.is_floating_point() else x
    compiled(x).square().sum().backward()
    torch.compiler.reset()
    assert all(tensor.grad is not None for tensor in (x, *layer.parameters()) if tensor.requires_grad)


def test_under_torch_func_layers_are_torchs():
    plain = net()
    del plain[1]  # the count of a norm's batches cannot change there
    model = qmodules.QModule(copy.deepcopy(plain), "L2")
    parameters = {name: p.detach() for name, p in plain.named_parameters()}

    def loss(module):
        return lambda parameters: functional_call(module, parameters, (X,)).square().mean()

    expected, found = (torch.func.grad(loss(module))(parameters) for module in (plain, model))
    for name, gradient in expected.items():
        assert torch.equal(found[name], gradient)


def test_forward_mode_differentiates_torchs_layers():
    plain = net()
    del plain[1]
    model, tangents = qmodules.QModule(copy.deepcopy(plain), "L2"), []
    for module in (plain, model):
        with forward_ad.dual_level():
            output = module(forward_ad.make_dual(X, normal(*X.shape, seed=1)))
            tangents.append(forward_ad.unpack_dual(output).tangent)
    assert torch.equal(*tangents)


@pytest.mark.parametrize(
    ("plain", "level"), [(nn.Conv2d(3, 8, 3), "L4"), (nn.Conv2d(3, 8, 3), "swap"), (nn.GELU(), "swap")]
)
def test_offload(plain, level, lane):
    """What is stored goes to the host, and comes back; swap's is exact. Softsign makes an input that is nobody's."""
    layers = [nn.Sequential(nn.Softsign(), layer) for layer in (plain, q_layer(plain, LEVELS[level]))]
    (expected, gradients), (output, found) = (step(layer, X) for layer in layers)
    assert lane.sent
    assert torch.equal(output, expected)
    assert all(map(torch.equal, gradients, found)) == (level == "swap")


def test_two_forwards_round_independently_and_a_rerun_alike():
    def run():
        model = qmodules.QModule(nn.Sequential(nn.Linear(64, 4)), "L2")
        model.load_state_dict({"0.weight": normal(4, 64), "0.bias": normal(4)})
        return [step(model, normal(32, 64))[1][1] for _ in range(2)]

    first, second = run()
    assert not torch.equal(first, second)
    assert all(map(torch.equal, run(), [first, second]))
