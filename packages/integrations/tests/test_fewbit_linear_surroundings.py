"""``RandomizedLinear`` in what training puts around a layer: its noise, autocast, checkpoints, copies, compilation."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from integrations.fewbit import GELU, LayerNorm, LinearCRS, RandomizedLinear, RMSNorm, SwiGLU, functional
from integrations.fewbit.sketches import KINDS, operators

from .libraries import TORCH
from .nets import normal
from .qnets import kept_bytes
from .two_ranks import run_two_ranks

X, Y = normal(40, 12), normal(40, 6, seed=3)
MAKERS = {
    **{
        kind: lambda kind=kind, **options: RandomizedLinear(12, 6, matmul=kind, proj_dim=10, **options)
        for kind in KINDS
    },
    "crs": lambda **options: LinearCRS(12, 6, proj_dim=4, **options),
}


def made(kind, **options):
    torch.manual_seed(0)
    return MAKERS[kind](**options)


def gradient(module, x=X, y=Y):
    return torch.autograd.grad(module(x), module.weight, y)[0]


@pytest.mark.parametrize("kind", MAKERS)
def test_noise_differs_by_layer_and_forward_and_follows_manual_seed(kind):
    one, two = made(kind), made(kind)  # the same weights
    torch.manual_seed(1)
    found = [gradient(one), gradient(one), gradient(two)]
    assert not any(torch.equal(found[a], found[b]) for a, b in ((0, 1), (0, 2), (1, 2)))
    torch.manual_seed(1)
    assert all(map(torch.equal, found, [gradient(one), gradient(one), gradient(two)]))


def test_generator_and_seed_decide_in_torchs_place():
    module = made("gaussian", generator=torch.Generator().manual_seed(5))
    found = [gradient(module), gradient(module)]
    module.generator.manual_seed(5)
    torch.manual_seed(99)
    assert all(map(torch.equal, found, [gradient(module), gradient(module)]))
    # Layers with one seed, copies among them, count on one counter.
    seeded = made("gaussian", seed=7)
    again, state = copy.deepcopy(seeded), torch.get_rng_state()
    found = [gradient(seeded), gradient(again), gradient(seeded)]
    assert not any(torch.equal(found[a], found[b]) for a, b in ((0, 1), (0, 2), (1, 2)))
    assert torch.equal(torch.get_rng_state(), state)


def test_functions_with_equal_seeds_and_streams_are_equal():
    weight = made("gaussian").weight
    for function, size in ((functional.linear_grp, {"proj_dim": 10}), (functional.linear_crs, {"nopairs": 3})):

        def found(seed, stream, function=function, size=size):
            return torch.autograd.grad(function(X, weight, **size, seed=seed, stream=stream), weight, Y)[0]

        assert torch.equal(found(1, 2), found(1, 2))
        assert not torch.equal(found(1, 2), found(2, 2))
        assert not torch.equal(found(1, 2), found(1, 3))
        assert torch.equal(found(2**64 + 1, -1), found(1, 2**64 - 1))  # any int: the low 64 bits


@pytest.mark.parametrize("kind", MAKERS)
def test_copies_pickles_and_states(kind):
    module = made(kind, generator=torch.Generator().manual_seed(5))
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert repr(other) == repr(module)
        module.generator.manual_seed(5)
        other.generator.manual_seed(5)
        assert torch.equal(gradient(other), gradient(module))
    plain = nn.Linear(12, 6)
    plain.load_state_dict(module.state_dict())
    module.load_state_dict(plain.state_dict())
    assert module.state_dict().keys() == plain.state_dict().keys()


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints(kind, reentrant):
    module, x = made(kind), X.clone().requires_grad_()
    torch.manual_seed(1)
    expected = torch.autograd.grad(module(x), [x, module.weight], Y)
    torch.manual_seed(1)
    module.zero_grad()
    x.grad = None
    checkpoint(module, x, use_reentrant=reentrant).backward(Y)
    assert all(map(torch.equal, expected, [x.grad, module.weight.grad]))


@pytest.mark.parametrize("kind", MAKERS)
def test_backward_twice_and_a_changed_weight(kind):
    module = made(kind)
    output = module(X.clone().requires_grad_())
    found = [torch.autograd.grad(output, module.weight, Y, retain_graph=True)[0] for _ in range(2)]
    assert torch.equal(*found)
    with torch.no_grad():
        module.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.backward(Y)


def test_an_input_changed_after_forward_does_not_matter():
    """Of the input nothing is kept but its sketch."""
    module, x = made("gaussian", seed=None), X.clone()
    torch.manual_seed(1)
    expected = gradient(module)
    torch.manual_seed(1)
    output = module(x)
    x.zero_()
    assert torch.equal(torch.autograd.grad(output, module.weight, Y)[0], expected)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(kind, dtype):
    module, x = made(kind), X.clone().requires_grad_()
    with torch.autocast("cpu", dtype):
        output, expected = module(x), nn.functional.linear(x, module.weight, module.bias)
        assert torch.equal(output, expected)
        factors = 10 * 4 if dtype is torch.float16 else 0  # of float16, one for each row
        noise = 10 * 8 if kind == "rows" else 16
        sizes = 40 * 4 * 2 + 4 * 8 if kind == "crs" else 10 * 12 * 2 + factors + noise
        assert kept_bytes(module(X), X) == sizes
    by_input, by_weight = torch.autograd.grad(output, [x, module.weight], Y.to(dtype))
    assert torch.equal(by_input, torch.autograd.grad(expected, x, Y.to(dtype))[0])
    assert by_weight.dtype == torch.float32
    # Backward under autocast, too, computes in forward's dtypes.
    torch.manual_seed(1)
    expected = gradient(module)
    torch.manual_seed(1)
    output = module(X)
    with torch.autocast("cpu", dtype):
        assert torch.equal(torch.autograd.grad(output, module.weight, Y)[0], expected)


@pytest.mark.parametrize("kind", MAKERS)
def test_gradients_of_several_outputs_at_once(kind):
    layer, x = made(kind), X.clone().requires_grad_()
    wanted, output = (layer.weight, layer.bias, x), layer(x)
    several = normal(3, 40, 6, seed=4)
    batched = torch.autograd.grad(output, wanted, several, is_grads_batched=True, retain_graph=True)
    for one, together in zip(several, zip(*batched, strict=True), strict=True):
        apart = torch.autograd.grad(output, wanted, one, retain_graph=True)
        # The same products, in sums of another order: of 40 numbers at most, whose sum of magnitudes is below 400.
        torch.testing.assert_close(together, apart, rtol=0, atol=40 * 400 * 2**-24)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("bits", [None, 8])
def test_double_backward_is_that_of_the_sketched_gradient(kind, bits):
    """For a given sketch the weight's gradient is a bilinear function of input and output gradient, whose derivatives
    are these. With the exact layer only what goes through the sketch differs."""
    if bits and kind in ("rows", "crs"):
        pytest.skip("rows are stored in bits as other sketches are; a sample of features is not")
    module = made(kind, **({"bits": bits} if bits else {})).double()
    plain = module.to_linear()
    x, y = X.double().requires_grad_(), Y.double().requires_grad_()

    def first(layer):
        torch.manual_seed(1)
        return torch.autograd.grad(layer(x), [x, layer.weight], y, create_graph=True)

    # By the input's gradient: exact.
    direction = normal(40, 12, seed=6, dtype=torch.float64)
    for found, expected in zip(
        torch.autograd.grad(first(module)[0], [y, module.weight], direction),
        torch.autograd.grad(first(plain)[0], [y, plain.weight], direction),
        strict=True,
    ):
        torch.testing.assert_close(found, expected)
    # By the weight's gradient: bilinear, so Euler's identity gives the gradient back, along x and along y. With bits
    # the stored sketch takes the place of the exact one in the derivative along y, which is what was computed.
    by_weight = first(module)[1]
    direction = normal(6, 12, seed=7, dtype=torch.float64)
    value = (by_weight * direction).sum()
    along_x, along_y = torch.autograd.grad(value, [x, y], retain_graph=True)
    torch.testing.assert_close((along_y * y).sum(), value)
    if bits is None:
        torch.testing.assert_close((along_x * x).sum(), value)
    else:  # 8 bits round each number by half a 255th of its group's range at most
        assert abs((along_x * x).sum() / value - 1) < 0.05
    assert not torch.allclose(along_x, torch.zeros_like(x))


@pytest.mark.parametrize("kind", ["gaussian", "dct", "rows", "crs"])
def test_torch_func_takes_the_exact_gradient(kind):
    module = made(kind)
    parameters = dict(module.named_parameters())

    def loss(parameters, x):
        return functional_call(module, parameters, (x,)).square().sum()

    found = torch.func.grad(loss)(parameters, X)
    expected = torch.func.grad(lambda p: nn.functional.linear(X, p["weight"], p["bias"]).square().sum())(parameters)
    torch.testing.assert_close(found, expected)
    assert torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, X)["weight"].shape == (40, 6, 12)


@pytest.mark.parametrize(
    "make",
    [*(MAKERS[kind] for kind in ("gaussian", "rows", "crs")), lambda: LayerNorm(12), lambda: RMSNorm(12), GELU, SwiGLU],
    ids=["gaussian", "rows", "crs", "LayerNorm", "RMSNorm", "GELU", "SwiGLU"],
)
def test_torch_func_inside_torch_compile(make, fresh_compiler):
    module = make()

    def per_sample(x):
        return torch.func.vmap(torch.func.grad(lambda row: module(row).square().sum()))(x.view(5, 8, 12))

    module.eval()  # torch's own, where there are no few bits to be had
    expected = per_sample(X)
    module.train()
    # Of the same operators, one call for all samples or one for each: eight roundings of numbers below 50.
    torch.testing.assert_close(torch.compile(per_sample, backend="eager")(X), expected, rtol=0, atol=8 * 50 * 2**-24)


@pytest.mark.parametrize("kind", MAKERS)
def test_compiles_without_a_break(kind, fresh_compiler):
    module, x = made(kind, seed=None), X.clone().requires_grad_()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.manual_seed(1)
    output = module(x)
    expected = torch.autograd.grad(output, [x, module.weight], Y)
    torch.manual_seed(1)
    found = compiled(x)
    torch.testing.assert_close(found, output)
    found = torch.autograd.grad(found, [x, module.weight], Y)
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1])
    assert not torch.equal(torch.autograd.grad(compiled(x), module.weight, Y)[0], found[1])  # new noise each time


@pytest.mark.parametrize("kind", ["gaussian", "rows", "crs"])
def test_compiles_for_all_numbers_of_tokens(kind, fresh_compiler):
    if TORCH < (2, 11) and kind != "crs":
        pytest.skip("with dynamic=True torch 2.10 has proj_dim_ratio for a symbol, of which a Function gets no number")
    module = RandomizedLinear(12, 6, matmul=kind, proj_dim_ratio=0.25) if kind != "crs" else made(kind)
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    for tokens in (16, 40):
        x, y = normal(2, tokens, 12).requires_grad_(), normal(2, tokens, 6)
        torch.manual_seed(1)
        expected = torch.autograd.grad(module(x), [x, module.weight], y)
        torch.manual_seed(1)
        torch.testing.assert_close(torch.autograd.grad(compiled(x), [x, module.weight], y), expected)


def test_a_compiled_layers_backward_has_forwards_sketch(fresh_compiler):
    """Inductor's, too, which decides what is kept and what is computed again; in 8 bits, rounded by the sketch's key.
    What inductor computes a last bit otherwise may be rounded otherwise, by a 255th of its group's range."""
    module = made("gaussian", bits=8)
    compiled = torch.compile(module, fullgraph=True)
    torch.manual_seed(1)
    expected = gradient(module)
    torch.manual_seed(1)
    assert (gradient(compiled.train()) - expected).norm() < 8 / 255 * expected.norm()
    seeded = torch.compile(made("gaussian", seed=3), fullgraph=True, backend="aot_eager")
    assert not torch.equal(gradient(seeded), gradient(seeded))


def test_cross_device_generators_and_meta():
    module = RandomizedLinear(12, 6, device="meta", proj_dim=4)
    assert module(torch.empty(40, 12, device="meta")).shape == (40, 6)


def test_no_whole_sketch_is_ever_there(monkeypatch):
    """Tiles of at most 1,024 rows and tokens, whatever the block."""
    seen = []
    tile = operators.Tiles.tile

    def noting(*arguments):
        seen.append(tile(*arguments))
        return seen[-1]

    monkeypatch.setattr(operators.Tiles, "tile", noting)
    module = RandomizedLinear(2, 2, proj_dim_ratio=0.5, matmul="rademacher", block_size=None)
    gradient(module, normal(4096, 2), normal(4096, 2))
    assert len(seen) == 2 * 2 * 4
    assert max(part.numel() for part in seen) == 1024 * 1024


def test_ranks_sketch_independently(tmp_path):
    found = run_two_ranks("fewbit_linear_child.py", tmp_path / "meet")
    assert found[0]["own"] != found[1]["own"]
    assert found[0]["seeded"] != found[1]["seeded"]
    assert found[0]["shared"] == found[1]["shared"]  # DistributedDataParallel's mean
    assert found[0]["outputs"] == found[1]["outputs"]
