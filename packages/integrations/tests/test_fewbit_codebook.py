"""``fewbit.Codebook``: the few-bit derivative through torch's own activations, by what is stored for them alone."""

import pickle

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

import actcore
from integrations import fewbit
from integrations.policies.codebooks import codebook as codebooks
from integrations.policies.codebooks.catalogue import FUNCTIONS
from integrations.policies.codebooks.representatives import saves_one
from integrations.policies.codebooks.shipped import SMOOTH, WIDTHS

from .long_form import some_of
from .nets import normal

BY_INPUT = ("celu", "elu", "gelu", "gelu_tanh", "hardswish", "mish", "selu", "silu", "softplus")
BY_RESULT = ("sigmoid", "tanh")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def gradient(call, x):
    x = x.detach().clone().requires_grad_()
    return torch.autograd.grad(call(x), x, torch.ones_like(x))[0]


def gradient_by(codebook, call, x):
    """Of torch's own call, what it saves stored by the codebook."""
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: codebook.compress(tensor), lambda stored: stored.decompress()
    ):
        x = x.detach().clone().requires_grad_()
        output = call(x)
    return torch.autograd.grad(output, x, torch.ones_like(x))[0]


def codebook_for(name, bits, **options):
    return fewbit.Codebook(name, bits, result=name in BY_RESULT, **options)


def test_the_rule_finds_the_functions_whose_backward_reads_one_tensor():
    # logsigmoid's reads two, and those of the others are several operators'.
    assert {name: saves_one(name) for name in SMOOTH if saves_one(name)} == {
        **dict.fromkeys(BY_INPUT, "input"),
        **dict.fromkeys(BY_RESULT, "result"),
    }
    in_place = {name: saves_one(name, in_place=True) for name in SMOOTH if saves_one(name, in_place=True)}
    assert in_place == {
        **dict.fromkeys(("hardswish", "mish", "silu"), "input"),
        **dict.fromkeys(("celu", "elu", "selu", *BY_RESULT), "result"),
    }
    assert saves_one("relu") == saves_one("nothing of the kind") == ""


@pytest.mark.parametrize(("name", "dtype"), some_of(BY_INPUT + BY_RESULT, DTYPES), ids=str)
def test_every_level_is_a_slope_of_torchs_own_backward(name, dtype):
    defaults = tuple(FUNCTIONS[name].defaults.values())
    for weight in ("uniform", "normal"):
        for bits in WIDTHS:
            found = codebook_for(name, bits, weight=weight).representatives(dtype)
            elements = torch.tensor(found.elements, dtype=torch.float64)
            assert torch.equal(elements.to(dtype).double(), elements)  # of the dtype
            if name in BY_INPUT:
                slopes = gradient(lambda x: FUNCTIONS[name].call(x, *defaults), elements)
                apart = (slopes - torch.tensor(found.levels, dtype=torch.float64)).abs().max()
                # Half of what two neighbours' slopes are apart; seven digits of a level.
                assert apart <= max(torch.finfo(dtype).eps / 2, 1e-7)


def test_a_level_in_a_jump_of_the_derivative_is_no_slope():
    # Beyond a threshold of 2 softplus has the slope 1, below it at most sigmoid(2) = 0.88.
    assert fewbit.Codebook("softplus", 1, (1.0, 2.0)).representatives(torch.float32) is None
    assert fewbit.Codebook("softplus", 4, (1.0, 2.0)).representatives(torch.float32) is not None
    with pytest.raises(
        ValueError, match="only levels that torch's own backward of softplus can produce from its input"
    ):
        fewbit.Codebook("softplus", 1, (1.0, 2.0)).compress(normal(64))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bits", [1, 3, 8])
@pytest.mark.parametrize("name", BY_INPUT + BY_RESULT)
def test_the_gradient_is_that_of_the_few_bit_layer(name, bits, dtype):
    x = 3 * normal(2000, dtype=dtype)
    codebook = codebook_for(name, bits)
    even = codebook.representatives(dtype).even
    table = fewbit.table(name, bits, parity=None if even else "none")
    found = gradient_by(codebook, FUNCTIONS[name].call, x)
    own = getattr(fewbit.functional, name.removesuffix("_tanh"))
    options = {"approximate": "tanh"} if name == "gelu_tanh" else {}
    expected = gradient(lambda x: own(x, table=table, **options), x)
    # A slope takes some roundings in float32, each of eps / 2, and levels have seven digits.
    exact = max(4 * torch.finfo(torch.float32).eps, 2 * torch.finfo(dtype).eps) * max(map(abs, table.levels))
    crossed = (found - expected).abs().double() > exact
    if name in BY_INPUT:
        assert not crossed.any()
    else:
        # A result is rounded, by eps / 2, which may take it across one of fewer than 256 boundaries, of a range of 1.
        assert crossed.double().mean() <= 256 * torch.finfo(dtype).eps


@pytest.mark.parametrize(
    ("name", "parameters"), [("softplus", (5.0, 20.0)), ("elu", (0.5,)), ("celu", (0.3,)), ("softplus", (1.0, 3.0))]
)
def test_parameters_of_the_function(name, parameters):
    x = 2 * normal(2000)
    found = gradient_by(fewbit.Codebook(name, 4, parameters), lambda x: FUNCTIONS[name].call(x, *parameters), x)
    expected = gradient(lambda x: getattr(fewbit.functional, name)(x, *parameters, bits=4), x)
    torch.testing.assert_close(found, expected, rtol=0, atol=4 * torch.finfo(torch.float32).eps)


@pytest.mark.parametrize("numel", [0, 1, 1023, 1024, 5000])
def test_its_bytes_are_the_codes_and_one_for_each_1024_elements(numel):
    codebook = fewbit.Codebook("gelu", 3)
    stored = codebook.compress(normal(numel))
    assert stored.nbytes == codebook.stored_bytes(numel) == -(-3 * numel // 8) + -(-numel // 1024)
    assert stored.decompress().shape == (numel,)


@pytest.mark.parametrize("bits", [1, 3, 5, 8])
def test_a_large_tensor_is_restored_in_parts(bits, monkeypatch):
    x = normal(70 * 1024 + 37)
    x[50_000] = torch.nan
    stored = fewbit.Codebook("silu", bits).compress(x)
    whole = stored.decompress()
    monkeypatch.setattr(codebooks, "_PART", 2048)
    parts = stored.decompress()
    assert torch.equal(parts.isnan(), whole.isnan())
    assert torch.equal(parts.nan_to_num(), whole.nan_to_num())


def test_the_stretch_of_an_element_that_is_not_finite_has_no_gradient():
    x = normal(3000)
    x[1500] = torch.inf
    found = gradient_by(fewbit.Codebook("gelu", 3), F.gelu, x)
    assert torch.equal(found.isnan().nonzero().flatten(), torch.arange(1024, 2048))


def test_layouts_come_back():
    x = normal(4, 8, 16, 16)
    for tensor in (
        x,
        x.to(memory_format=torch.channels_last),
        x.transpose(0, 3),
        x[:, ::2],
        x[:1].expand(5, -1, -1, -1),
    ):
        stored = fewbit.Codebook("gelu", 4).compress(tensor)
        restored = stored.decompress()
        assert restored.shape == tensor.shape
        assert restored.stride() == tensor.stride()
        assert torch.equal(restored, fewbit.Codebook("gelu", 4).compress(tensor.contiguous()).decompress())


def test_fake_tensors_and_pickles():
    codebook = fewbit.Codebook("mish", 2)
    assert pickle.loads(pickle.dumps(codebook)) == codebook
    assert str(codebook) == "2-bit derivative"
    with FakeTensorMode():
        stored = codebook.compress(torch.empty(64, 64, dtype=torch.bfloat16))
        assert stored.nbytes == codebook.stored_bytes(64 * 64)
        assert stored.decompress().dtype is torch.bfloat16


def test_what_it_does_not_take_says_so():
    with pytest.raises(TypeError, match=r"takes floating-point numbers, got torch\.int64"):
        fewbit.Codebook("gelu", 3).compress(torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"use fewbit\.functional\.logsigmoid, whose own backward supports them"):
        fewbit.Codebook("logsigmoid", 3).compress(normal(8))
    with pytest.raises(ValueError, match="bits must be from 1 to 8, got 9"):
        fewbit.Codebook("gelu", 9)
    with pytest.raises(ValueError, match="function must be one of"):
        fewbit.Codebook("sine", 3)
    stored = fewbit.Codebook("gelu", 3).compress(normal(64))
    truncated = actcore.Compressed(stored.codec, (stored.payload[0][:-1],), stored.layout, stored.dtype)
    with pytest.raises(ValueError, match="must hold 25 bytes, got 24"):
        truncated.decompress()


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize(
    ("name", "spread"),
    [("gelu", 0.3), ("gelu", 1.0), ("silu", 0.3), ("silu", 1.0), ("softplus", 1.0), ("tanh", 1.0), ("sigmoid", 1.0)],
)
def test_slope_noise_does_the_harm_of_the_table(name, bits, spread):
    x = spread * normal(1 << 17, dtype=torch.float64)
    call = FUNCTIONS[name].call
    exact = gradient(call, x)
    parity = "none" if name == "sigmoid" else None
    table = fewbit.table(name, bits, parity=parity)
    few = gradient(lambda x: getattr(fewbit.functional, name)(x, table=table), x)
    saved = call(x) if name in BY_RESULT else x
    noise = fewbit.slope_noise(name, bits, spread=spread) * saved.square().mean()
    noisy = saved + noise.sqrt() * normal(1 << 17, seed=1, dtype=torch.float64)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: None, lambda packed: noisy):
        leaf = x.clone().requires_grad_()
        output = call(leaf)
    moved = torch.autograd.grad(output.sum(), leaf)[0]
    harm, same = (float((each - exact).square().mean()) for each in (few, moved))
    # The noise is at most 0.7 of what is saved, and counts by the first order alone.
    assert harm == pytest.approx(same, rel=0.15)
    assert fewbit.slope_error(name, bits, spread=spread) == pytest.approx(harm / float(exact.square().mean()), rel=0.02)
