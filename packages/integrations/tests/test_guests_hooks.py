"""Libraries that set saved-tensor hooks of their own: torch's and TRL's offloading, and torch_remat's regions."""

import warnings
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

import actcore
import integrations

from .guest_nets import DRAWS, IDS, assert_averages_out, language_step, llama, whole_error
from .libraries import library_or_skip
from .nets import EIGHT_BITS, assert_same, gradients, normal, relative_error, rows

X = normal(256, 64)


class Block(nn.Module):
    """Of a transformer, without attention; in the regions of torch_remat where it is given that.

    Args:
        remat: the library, or None.
        saves: whether the first layer's result is saved, and not computed again.
        options: of ``remat.checkpoint``.
    """

    def __init__(self, remat=None, saves=False, **options):
        super().__init__()
        self.norm, self.one, self.two = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)
        self.remat, self.saves, self.options = remat, saves, options

    def forward(self, x):
        if self.remat is None:
            return self.inner(x, self.one)
        one = self.remat.region(self.one, "one", recompute=not self.saves)
        return self.remat.checkpoint(region_name="block", **self.options)(self.inner)(x, one)

    def inner(self, x, one):
        y = one(self.norm(x))
        if self.remat is not None and self.saves:
            self.remat.recompute_needs_tensor(y)
        return x + self.two(F.gelu(y))


def net(remat=None, **options):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), *(Block(remat, **options) for _ in range(2)), nn.Linear(64, 8)).train()


# ---- around the model, and inside ----


def trl_offloading():
    """As ``activation_offloading=True`` of TRL's trainers, which takes a GPU: here the CPU is taken for one."""
    library_or_skip("datasets")
    library_or_skip("trl")
    module = library_or_skip("trl.models.activation_offloading")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cpu"))
        return module.OffloadActivations(use_pin_memory=False, use_streams=False)


OFFLOADERS = {"torch's": save_on_cpu, "TRL's": trl_offloading}


def itself(tensor):
    return tensor


class Inside(nn.Module):
    """Its second part runs under the hooks of others."""

    def __init__(self, hooks):
        super().__init__()
        self.net, self.hooks = net(), hooks

    def forward(self, x):
        x = self.net[:2](x)
        with self.hooks():
            return self.net[2:](x)


@pytest.mark.parametrize("offloader", OFFLOADERS)
def test_offloading_around_the_model_moves_nothing_and_is_told_of(offloader):
    """Torch asks the innermost hooks, which are ours: what they store is what waits, on the device."""
    context = OFFLOADERS[offloader]()
    expected = gradients(integrations.compress_model(net(), "lean"), X)
    model = integrations.compress_model(net(), "lean")
    with pytest.warns(UserWarning, match=r"(save_on_cpu|OffloadActivations) around the forward has no effect"), context:
        assert_same(expected, gradients(model, X))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with context:  # it is told of once
            gradients(model, X)
        gradients(integrations.compress_model(net(), "lean"), X)
        with saved_tensors_hooks(itself, itself):  # who only looks is not told
            gradients(integrations.compress_model(net(), "lean"), X)


@pytest.mark.parametrize("offloader", OFFLOADERS)
def test_bits_before_the_bus(lane, offloader):
    """With offload=True, what is sent to the host is what was stored, whoever's hooks are around."""
    expected = gradients(integrations.compress_model(net(), "lean"), X)
    model = integrations.compress_model(net(), "lean", offload=True)
    with warnings.catch_warnings(), OFFLOADERS[offloader]():
        warnings.simplefilter("error")
        assert_same(expected, gradients(model, X))
    report = integrations.compression(model).report()
    assert report.host_bytes == sum(lane.sent) < report.original_bytes / 6
    assert report.stored_bytes - report.host_bytes < report.original_bytes / 100  # the norms' statistics


@pytest.mark.parametrize("offloader", OFFLOADERS)
def test_offloading_inside_of_the_model_has_what_is_saved_there(offloader):
    """As it is: those hooks are the innermost, and ours store what is saved around them."""
    context = OFFLOADERS[offloader]()
    expected = gradients(Inside(lambda: context), X)
    model = integrations.compress_model(Inside(lambda: context), "L1.1")
    found = gradients(model, X)
    exact = {name: value for name, value in expected.items() if name.startswith(("net.2", "net.3"))}
    assert_same(exact, {name: found[name] for name in exact})
    assert 0 < relative_error(expected, found) < EIGHT_BITS
    assert {row.module for row in rows(model)} == {"net.1.norm", "net.1.one", "net.1", "net.1.two"}


def test_checkpoints_that_transformers_offloads(monkeypatch):
    """``activation_checkpointing_enable(offload=True)``: its hooks are around each layer, and get the layer's input."""
    modeling = library_or_skip("transformers.modeling_utils")
    moved = []

    class Unpinned(save_on_cpu):  # pinned memory takes a GPU
        def __init__(self, **options):
            super().__init__()
            pack = self.pack_hook
            self.pack_hook = lambda tensor: moved.append(tensor.shape) or pack(tensor)

    monkeypatch.setattr(modeling, "save_on_cpu", Unpinned)
    _, expected = language_step(llama())
    model = llama()
    if not hasattr(model, "activation_checkpointing_enable"):
        pytest.skip("this transformers offloads no checkpoints")
    model.activation_checkpointing_enable(offload=True)
    found = language_step(integrations.compress_model(model, "lean", loss={"head": "lm_head"}))[1]
    # Up to torch 2.11 a checkpoint saves an empty tensor beside its inputs.
    assert [shape for shape in moved if shape.numel()] == 2 * [(*IDS.shape, 64)]
    # Layers are recomputed from exact inputs: what is left is the last norm's error.
    assert 0 < whole_error(expected, found) < EIGHT_BITS
    assert {row.module for row in rows(model) if row.codec.startswith("GroupAffine")} == {"model.norm"}


# ---- torch_remat ----


def remat():
    return library_or_skip("torch_remat")


@pytest.mark.parametrize("saves", [False, True], ids=["recomputed", "saved"])
@pytest.mark.parametrize("level", ["L1", "lean"])
def test_regions_of_torch_remat(level, saves):
    """Their inputs are stored as a checkpoint's, and what a region saves is kept, of which no call tells the use."""
    expected = gradients(net(), X)
    assert_same(expected, gradients(net(remat(), saves=saves), X))
    model = integrations.compress_model(net(remat(), saves=saves), level)
    found = [gradients(model, X) for _ in range(DRAWS)]
    # Inputs of checkpoints have 8 bits, and a group of its own for each row.
    assert whole_error(expected, found[0]) < 2 * EIGHT_BITS
    assert_averages_out(expected, found)
    inside = [
        (row.operator, row.codec.partition("(")[0], row.original_bytes) for row in rows(model) if row.module != "3"
    ]
    saved = [("", "kept", X.nbytes * 4)] if saves else []
    assert inside == 2 * [("checkpoint", "GroupAffine", X.nbytes), *saved]


def test_codecs_in_regions_of_torch_remat():
    """Without a compressed model: hooks of actcore, which torch_remat calls for what its regions hold."""
    expected = gradients(net(), X)
    hooks = partial(actcore.hooks, actcore.GroupAffine(bits=8))
    pairs = [hooks(seed=seed) for seed in range(DRAWS)]
    found = [gradients(net(remat(), saves=True, saved_tensors_hooks=pair), X) for pair in pairs]
    assert 0 < whole_error(expected, found[0]) < EIGHT_BITS
    assert_averages_out(expected, found)
