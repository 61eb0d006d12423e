"""Complex tensors are stored as their real and imaginary parts: products alone, in rotary embeddings, and in plans."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import actcore
import integrations
from integrations.policies.complex_numbers import ComplexGroupAffine
from integrations.policies.levels import resolve_level
from integrations.policies.policy import FixedBits, Through

from .nets import EIGHT_BITS, Net, assert_same, gradients, normal, plain_and_compressed, relative_error, rows

X = normal(256, 64, seed=9)
W = {"w0": normal(64, 64, seed=1) / 8, "w1": normal(64, 64, seed=2) / 8}


def paired(h):
    """The numbers of which ``h`` has the parts."""
    return torch.view_as_complex(h.unflatten(-1, (-1, 2)))


def product(join):
    """Of two complex activations, as a real result."""
    return lambda self, x: torch.view_as_real(join(paired(F.linear(x, self.w0)), paired(F.linear(x, self.w1))))


def stored_bytes(numel, dtype, bits=8, group=256):
    """A code for each part, and two real bounds for each group of parts."""
    return 2 * numel * bits // 8 + 2 * numel // group * dtype.itemsize


PRODUCTS = {
    "product": lambda a, b: a * b,
    "conjugate": lambda a, b: a * b.conj(),
    "both conjugate": lambda a, b: a.conj() * b.conj(),
    "conjugate transposed": lambda a, b: a @ b.mH @ b / 64,
    "transposed": lambda a, b: a.T * b.T,
    "square": lambda a, b: a * a + b,
    "in double precision": lambda a, b: (a.to(torch.complex128) * b.to(torch.complex128)).to(torch.complex64),
}


@pytest.mark.parametrize("join", PRODUCTS.values(), ids=PRODUCTS.keys())
def test_gradients(join):
    plain, found, model = plain_and_compressed(Net(product(join), **W), X, level="L1.1")
    assert 0 < relative_error(plain, found) < EIGHT_BITS
    stored = [row for row in rows(model) if row.dtype.is_complex]
    assert stored
    for row in stored:
        assert row.codec.endswith("real and imaginary parts")
        assert row.stored_bytes in (0, stored_bytes(math.prod(row.shape), row.dtype))  # 0: it shares a stored form


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("conjugated", [False, True])
@pytest.mark.parametrize(
    "view",
    [
        lambda z: z,
        lambda z: z.transpose(0, 2),
        lambda z: z[:, 2:5],
        lambda z: z[:, :1].expand(-1, 8, -1),
        lambda z: z[3:3],
        lambda z: z.view(-1).unfold(0, 16, 4),
    ],
    ids=["whole", "transposed", "columns", "expanded", "empty", "windows"],
)
def test_a_tensor_comes_back_as_it_lay(view, conjugated, dtype):
    z = view(torch.view_as_complex(normal(24, 8, 64, 2)).to(dtype))
    z = z.conj() if conjugated else z
    stored = ComplexGroupAffine(8, 256).compress(z)
    found = stored.decompress()
    assert (found.shape, found.dtype, found.is_conj()) == (z.shape, dtype, conjugated and z.numel() > 0)
    if z.numel():
        parts = torch.view_as_real(z.resolve_conj())
        step = (parts.max() - parts.min()) / 255
        assert (torch.view_as_real(found.resolve_conj()) - parts).abs().max() <= step + torch.finfo(z.dtype).eps * 8
        assert found.stride() == z.stride() or not actcore.Layout.of(z).dense


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.filterwarnings("ignore:.*does not support code generation for complex")
def test_in_compiled_code(backend):
    """A product and a matrix product, with views that are lazily conjugated, and their gathered rows."""
    joins = [PRODUCTS["conjugate"], PRODUCTS["conjugate transposed"]]
    model = Net(product(lambda a, b: joins[0](a, b) + joins[1](a, b)), **W)
    plain = gradients(model, X)
    integrations.compress_model(model, "L1.1", product_bits=8)
    torch._dynamo.reset()
    found = gradients(torch.compile(model, backend=backend), X)
    assert relative_error(plain, {name.removeprefix("_orig_mod."): grad for name, grad in found.items()}) > 0
    assert relative_error(plain, {name.removeprefix("_orig_mod."): grad for name, grad in found.items()}) < EIGHT_BITS
    stored = [row for row in rows(model) if row.dtype.is_complex]
    assert stored
    assert {row.codec.partition(")")[2] for row in stored} == {", real and imaginary parts"}


# ---- plans, and measured bits ----


class Mixing(nn.Module):
    """Layers that multiply complex spectra."""

    def __init__(self, width=64):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            z = paired(layer(x))
            x = x + torch.view_as_real(z * z.roll(1, -1).conj()).flatten(-2)
        return x


def test_a_plan_rounds_them():
    options = {"memory": 0.6, "error": 0.2, "stores": ["bits"], "min_bytes": 0}
    plain = gradients(Mixing(), X)
    model = integrations.compress_model(Mixing(), **options)
    for _ in range(3):  # the plan is measured, and corrected
        found = gradients(model, X)
    handle = integrations.compression(model)
    assert relative_error(plain, found) > 0
    assert handle.plan.error <= 0.2
    stored = [row for row in rows(model) if row.dtype.is_complex and "parts" in row.codec]
    assert stored
    assert all(row.stored_bytes < math.prod(row.shape) * 8 / 2 for row in stored)


def test_bits_are_measured():
    """An adaptive level finds out how much the rounding of complex tensors changes the gradient."""
    model = integrations.compress_model(Mixing(), "L2", min_bytes=0)
    for _ in range(3):
        gradients(model, X)
    plan = integrations.compression(model).bit_plan
    assert [one.why for one in plan.allotments] == ["least error of the gradient"] * len(plan.allotments)
    assert sum(identity.operator == "mul" for one in plan.allotments for identity in one.identities) == 8


def test_a_second_derivative_is_exact_from_the_next_forward_on():
    """A plan finds out that a backward with ``create_graph=True`` reads complex tensors, and rounds nothing then."""

    def penalty(model):
        model.zero_grad()
        first = torch.autograd.grad(model(X).square().mean(), list(model.parameters()), create_graph=True)
        sum(grad.square().sum() for grad in first).backward()
        return {name: one.grad.clone() for name, one in model.named_parameters()}

    expected = penalty(Mixing())
    model = integrations.compress_model(Mixing(), error=0.2, stores=["bits"], min_bytes=0)
    with pytest.warns(UserWarning, match="differentiates gradients"):
        penalty(model)
    assert_same(expected, penalty(model))


def test_a_codec_of_ones_own_gets_no_complex_numbers():
    level = resolve_level("L1", {"min_bytes": 0})
    z = torch.zeros(64, 64, dtype=torch.complex64)
    saved = actcore.SavedTensor.of(z, operator="mul", role="input", module="", occurrence=0)
    assert isinstance(FixedBits(level).decide(saved).codec, ComplexGroupAffine)
    decision = Through(FixedBits(level), actcore.Float8()).decide(saved)
    assert (decision.codec, decision.why) == (actcore.Raw(), "complex64 is kept exactly by a codec of real numbers")
    nearest = Through(FixedBits(level), actcore.GroupAffine(4, rounding="nearest")).decide(saved).codec
    assert isinstance(nearest, ComplexGroupAffine)
    assert nearest.rounding == "nearest"


@pytest.mark.parametrize("function", [torch.abs, torch.tanh, torch.angle, torch.linalg.norm])
def test_functions_that_are_not_linear_in_what_they_save_keep_it(function):
    model = Net(lambda self, x: function(paired(F.linear(x, self.w0))).abs(), w0=W["w0"])
    plain, found, model = plain_and_compressed(model, X, level="L1", min_bytes=0)
    assert {row.codec for row in rows(model) if row.dtype.is_complex} == {"kept"}
    assert_same(plain, found)


# ---- as torchtitan's Llama had it up to 0.2 ----


def frequencies(dim, length, theta=10000.0):
    angles = torch.outer(torch.arange(length), 1 / theta ** (torch.arange(0, dim, 2).float() / dim))
    return torch.polar(torch.ones_like(angles), angles)


class Attention(nn.Module):
    def __init__(self, width=64, heads=4, length=64, indexed=False):
        super().__init__()
        self.heads, self.indexed = heads, indexed
        self.project, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.register_buffer("turns", frequencies(width // heads, length), persistent=False)

    def turned(self, x, turns):
        rotated = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2)) * turns[:, None]
        return torch.view_as_real(rotated).flatten(3).type_as(x).transpose(1, 2)

    def forward(self, x, places):
        turns = self.turns[places] if self.indexed else self.turns[: x.shape[1]]
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in self.project(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(
            self.turned(q, turns), self.turned(k, turns), v.transpose(1, 2), is_causal=True
        )
        return x + self.out(mixed.transpose(1, 2).flatten(2))


class Rotary(nn.Module):
    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Attention(**options) for _ in range(2))

    def forward(self, x, places):
        for layer in self.layers:
            x = layer(x, places)
        return x


SEQUENCES = normal(4, 64, 64, seed=3), torch.arange(64)
EVERYWHERE = {f"{name}_bits": 8 for name in ("attention", "norm", "product", "pointwise")}


@pytest.mark.parametrize("level", ["L1.1", "lean"])
def test_a_buffer_of_rotations_is_kept_by_reference(level):
    plain, found, model = plain_and_compressed(Rotary(), *SEQUENCES, level=level, bits=8, **EVERYWHERE, min_bytes=0)
    assert 0 < relative_error(plain, found) < 3 * EIGHT_BITS  # query, key and value of attention are rounded, too
    assert not [row for row in rows(model) if row.dtype.is_complex]
    turns = [row for row in rows(model, owned=True) if row.dtype.is_complex]
    assert {row.owner for row in turns} == {"buffer"}
    assert [row.stored_bytes for row in turns] == [0] * len(turns)


def test_rotations_that_each_layer_gathers_are_stored():
    options = {"level": "L1.1", **EVERYWHERE, "min_bytes": 0}
    plain, found, model = plain_and_compressed(Rotary(indexed=True), *SEQUENCES, **options)
    assert 0 < relative_error(plain, found) < 3 * EIGHT_BITS
    turns = [row for row in rows(model) if row.dtype is torch.complex64]
    numel = 64 * 8
    assert sum(row.original_bytes for row in turns) == 2 * 8 * numel
    assert sum(row.stored_bytes for row in turns) == 2 * stored_bytes(numel, torch.complex64)
