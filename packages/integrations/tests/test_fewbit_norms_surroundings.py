"""Norms that save their output, among what else there is: changes in place, autocast, torch.compile, convert."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from integrations.fewbit.convert import convert, restore_model, summary
from integrations.fewbit.modules import LayerNorm, RMSNorm

from .graph_tensors import saved_bytes, saved_tensors
from .test_fewbit_norms import PAIRS, WIDTH, every_norm, gradients_of, normal, saves_output, trained


class Block(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.norms = nn.ModuleList([kind(WIDTH), kind(WIDTH)])
        self.mix, self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.mix(self.norms[0](x))
        return x + self.down(torch.relu(self.up(self.norms[1](x))))


def blocks(kind=nn.LayerNorm):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), Block(kind), Block(kind))


def step(model, x):
    model.zero_grad()
    output = model(x)
    output.square().sum().backward()
    return output.detach(), [parameter.grad.clone() for parameter in model.parameters()]


def assert_near(found, expected):
    """Two steps of float32: what they add up takes thousands of roundings, whose errors mostly cancel."""
    for mine, theirs in zip(found[1], expected[1], strict=True):
        assert (mine - theirs).norm() <= 1e-5 * theirs.norm()


def test_the_next_linear_layer_saves_the_same_tensor():
    for torchs, ours in PAIRS:
        for views in (lambda y: y, lambda y: y.view(2, 4, WIDTH)):
            x = normal(8, WIDTH).requires_grad_()
            linear = nn.Linear(WIDTH, WIDTH)

            def saved(norm, x=x, linear=linear, views=views):
                large = [t for t in saved_tensors(linear(views(norm(x)))) if t.numel() == 8 * WIDTH]
                return len(large)

            assert saved(torchs(WIDTH)) >= 2
            assert saved(ours(WIDTH)) == 1


@every_norm
def test_a_change_in_place_makes_backward_raise(torchs, ours):
    output = ours(WIDTH)(normal(5, WIDTH).requires_grad_())
    loss = output.sum()
    output.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@every_norm
def test_without_a_gradient_it_is_torchs(torchs, ours):
    plain = trained(torchs)
    norm, x = ours.from_module(plain), normal(5, WIDTH)
    with torch.no_grad():
        assert norm(x).grad_fn is None
    assert not saves_output(norm.eval()(x.clone().requires_grad_()))
    norm.train().requires_grad_(False)
    assert norm(x).grad_fn is None
    if torchs is nn.LayerNorm:  # the bias's gradient reads nothing
        norm.bias.requires_grad_()
        assert not saves_output(norm(x))


@every_norm
def test_the_graph_may_be_kept_and_gone_through_again(torchs, ours):
    x = normal(5, WIDTH).requires_grad_()
    loss = ours(WIDTH)(x).square().sum()
    first = torch.autograd.grad(loss, x, retain_graph=True)
    assert torch.equal(first[0], torch.autograd.grad(loss, x)[0])


@every_norm
def test_inside_torch_func_it_is_torchs(torchs, ours):
    norm, plain, x = ours(WIDTH), torchs(WIDTH), normal(5, WIDTH)
    for transform in (torch.func.vmap, lambda f: torch.func.vmap(torch.func.grad(lambda row: f(row).square().sum()))):
        assert torch.equal(transform(norm)(x), transform(plain)(x))
    assert torch.equal(*(torch.func.jvp(kind, (x,), (x,))[1] for kind in (norm, plain)))


@every_norm
def test_autocast_that_casts_what_comes_next_shares_nothing(torchs, ours):
    plain, model, x = blocks(torchs), blocks(ours), normal(32, WIDTH).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        # x in float32 makes the residual stream float32, and each linear layer saves a copy of its input.
        assert not saves_output(model[1].norms[0](x))
        assert saved_bytes(model[1:](x)) == saved_bytes(plain[1:](x))
        # A stream in autocast's dtype, which the linear layer in front makes: what comes next takes it as it is.
        assert saves_output(model[1].norms[0](model[0](x)))
        assert saved_bytes(plain(x)) - saved_bytes(model(x)) >= 4 * 32 * WIDTH * 2
        assert torch.equal(model(x), plain(x))


@every_norm
def test_a_checkpoint_computes_the_same(torchs, ours):
    model, x = blocks(ours), normal(32, WIDTH)
    expected = step(model, x)
    found = step(lambda_module(model), x)
    assert torch.equal(found[0], expected[0])
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found[1], expected[1], strict=True))


def lambda_module(model):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return checkpoint(self.model, x, use_reentrant=False)

    return Checkpointed()


@every_norm
def test_copies_and_pickles(torchs, ours):
    norm = ours.from_module(trained(torchs))
    x, gradient = normal(5, WIDTH), normal(5, WIDTH, seed=1)
    expected = gradients_of(norm, x, gradient)[1]
    for twin in (copy.deepcopy(norm), pickle.loads(pickle.dumps(norm))):
        assert type(twin) is ours
        found = gradients_of(twin, x, gradient)[1]
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))


@every_norm
def test_from_module_shares_parameters_and_refuses_subclasses(torchs, ours):
    plain = trained(torchs).double()
    norm = ours.from_module(plain)
    assert norm.weight is plain.weight
    assert norm.state_dict().keys() == plain.state_dict().keys()
    assert repr(norm) == repr(plain)

    class Mine(torchs):
        pass

    with pytest.raises(TypeError, match=f"module must be a torch.nn.{torchs.__name__}, not a subclass, got Mine"):
        ours.from_module(Mine(WIDTH))


def test_compiled():
    """Without looking: 1/32 of the channels is kept always. The compiler alone shares nothing."""
    x, saved = normal(32, WIDTH), []
    for norms in zip(*PAIRS, strict=True):
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *map(Block, norms))
        expected = step(model, x)
        compiled = torch.compile(model, backend="aot_eager_decomp_partition", fullgraph=True)
        assert_near(step(compiled, x), expected)
        saved.append(saved_bytes(compiled(x)))
    # Four norms: a tensor less for each, and beside its output two channels and one number a row.
    assert saved[0] - saved[1] >= 4 * 32 * (WIDTH - 4) * 4


class Norm(nn.Module):
    """As Llama has it."""

    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.variance_epsilon = eps

    def forward(self, x):
        wide = x.float()
        return self.weight * (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + self.variance_epsilon)).to(
            x.dtype
        )


class LlamaRMSNorm(Norm):
    pass


class GemmaRMSNorm(Norm):
    def forward(self, x):
        return super().forward(x) + super().forward(x) / self.weight


class ClampedRMSNorm(Norm):
    """Llama's wherever epsilon does not matter."""

    def forward(self, x):
        wide = x.float()
        least = (wide * wide).mean(-1, keepdim=True).clamp_min(self.variance_epsilon)
        return self.weight * (wide * torch.rsqrt(least)).to(x.dtype)


class GatedRMSNorm(Norm):
    def forward(self, x, gate=None):
        return super().forward(x) if gate is None else super().forward(x * gate)


def test_convert_exchanges_norms_and_restore_brings_them_back():
    model, x = blocks(), normal(32, WIDTH)
    model[1].norms[1], model[2].norms[0] = nn.RMSNorm(WIDTH), LlamaRMSNorm(WIDTH)
    modules, expected = dict(model.named_modules()), step(model, x)
    parameters, before = list(model.parameters()), saved_bytes(model(x))
    convert(model, functions=(), calls=False)
    assert dict(model.named_modules()) == modules  # not without being asked to
    restore_model(model)
    assert convert(model, functions=(), calls=False, norms=True) is model
    assert [type(norm).__name__ for norm in (*model[1].norms, *model[2].norms)] == [
        *("LayerNorm", "RMSNorm", "RoundedRMSNorm", "LayerNorm")
    ]
    assert summary(model).converted["1.norms.0"] == ("LayerNorm", "fewbit.LayerNorm")
    assert isinstance(model[1].norms[0], LayerNorm)
    assert isinstance(model[1].norms[1], RMSNorm)
    assert all(mine is theirs for mine, theirs in zip(model.parameters(), parameters, strict=True))
    found = step(model, x)
    assert torch.equal(found[0], expected[0])
    assert_near(found, expected)
    assert before - saved_bytes(model(x)) >= 4 * 32 * WIDTH * 4
    twin = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    assert_near(step(twin, x), expected)
    model.double()
    restore_model(model)
    assert dict(model.named_modules()) == modules
    assert all(parameter.dtype == torch.float64 for parameter in model.parameters())


def test_convert_keeps_norms_that_compute_something_else():
    class Mine(nn.LayerNorm):
        pass

    model = nn.ModuleDict(
        {
            "gemma": GemmaRMSNorm(8),
            "clamped": ClampedRMSNorm(8, eps=1e-8),
            "gated": GatedRMSNorm(8),
            "mine": Mine(8),
            "replaced": nn.LayerNorm(8),
            "skipped": nn.LayerNorm(8),
            "ours": LayerNorm(8),
        }
    )
    model["replaced"].forward = lambda x: x
    modules = dict(model.named_modules())
    convert(model, norms=True, skip="skipped", calls=False)
    assert dict(model.named_modules()) == modules
    assert dict(summary(model).kept) == {
        "gemma": "GemmaRMSNorm computes another norm than Llama's",
        "clamped": "ClampedRMSNorm computes another norm than Llama's",
        "gated": "GatedRMSNorm computes another norm than Llama's",
        "mine": "Mine is a subclass of LayerNorm",
        "replaced": "its forward was replaced",
        "skipped": "skipped",
        "ours": "LayerNorm saves its output already",
    }
    restore_model(model)
    with pytest.raises(TypeError, match="norms must be True or False, got 1"):
        convert(model, norms=1)


def test_a_rounded_norm_of_another_dtype_is_the_layer_that_was_there():
    plain = LlamaRMSNorm(WIDTH)
    model = convert(nn.Sequential(plain), norms=True, calls=False)
    x = normal(5, WIDTH, dtype=torch.bfloat16).requires_grad_()
    assert not saves_output(model(x))
    model.bfloat16()
    assert saves_output(model(x))
    assert torch.equal(model(x), plain(x))
    assert not saves_output(model.eval()(x))
