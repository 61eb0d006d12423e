"""The models of ``python -m bench checkpoint``, against the papers and the libraries that they are from."""

import sys
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from bench.errors import MissingLibrary
from bench.models import cells
from bench.models.architectures import ARCHITECTURES, QUICK
from bench.models.cells import Cell, CellNetwork, FactorizedReduction, amoebanet, darts, nasnet
from bench.models.unet import UNet


def built(name):
    """A model without elements; its library may not be there."""
    try:
        with torch.device("meta"):
            return ARCHITECTURES[name].build()
    except MissingLibrary as error:
        pytest.skip(str(error))


def millions(model):
    return sum(parameter.numel() for parameter in model.parameters()) / 1e6


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_model_is_built_in_training_mode(name):
    model, architecture = built(name), ARCHITECTURES[name]
    assert all(module.training for module in model.modules())
    blocks = architecture.blocks(model)
    inside = {id(module) for block in blocks for module in block.modules() if module is not block}
    assert len(blocks) > 2
    assert {id(block) for block in blocks} <= {id(module) for module in model.modules()} - inside
    with torch.device("meta"):
        given = architecture.inputs(3, 64)
    tensors = given.values() if isinstance(given, dict) else given
    assert all(tensor.shape[0] == 3 and tensor.shape[-1] == 64 for tensor in tensors)


@pytest.mark.parametrize("name", ["alexnet", "vgg11", "resnet50", "densenet121", "inception_v3", "swin", "bert"])
def test_a_model_runs_at_the_size_of_the_table(name):
    model, architecture = built(name), ARCHITECTURES[name]
    with torch.device("meta"):
        given = architecture.inputs(2, architecture.size)
        found = model(**given).last_hidden_state if isinstance(given, dict) else model(*given)
    assert found.shape == ((2, 256, 768) if name == "bert" else (2, 1000))
    assert found.requires_grad


def test_quick_runs_are_of_models_that_there_are():
    assert QUICK.keys() <= ARCHITECTURES.keys()


def test_the_published_cuts_are_those_of_the_table():
    cuts = [round(100 * found.published.cut) for found in ARCHITECTURES.values() if found.published is not None]
    assert cuts == [34, 22, 31, 31, 31, 35, 55, 63, 74, 81, 78, 82, 82, 85, 71, 81, 79, 80]


@pytest.mark.parametrize("name", [name for name, found in ARCHITECTURES.items() if found.library == "torchvision"])
def test_models_of_torchvision_have_the_parameters_it_documents(name):
    model = built(name)
    import torchvision

    documented = torchvision.models.get_model_weights(name).DEFAULT.meta["num_params"]
    # The auxiliary head of Inception: convolutions of 768 x 128 and 128 x 768 x 25 with norms, 1,000 classes of 768.
    head = 768 * 128 + 128 * 768 * 25 + 2 * (128 + 768) + 769 * 1000 if name == "inception_v3" else 0
    assert sum(parameter.numel() for parameter in model.parameters()) == documented - head


def test_stages_are_the_same_layers():
    model = built("vgg11")
    import torchvision

    with torch.device("meta"):
        original = torchvision.models.vgg11()
    assert [str(layer) for stage in model.features for layer in stage] == [str(layer) for layer in original.features]
    assert all(isinstance(stage[-1], nn.MaxPool2d) for stage in model.features)


# Of BERT (Devlin et al., 2019) 110 million, of which its pooling layer, left out here, is 0.6; of GPT-2 124 (OpenAI's
# own count); of Swin-T (Liu et al., 2021, table 1) 28.
@pytest.mark.parametrize(("name", "published"), [("bert", 109), ("gpt2", 124), ("swin", 28)])
def test_transformers_have_the_published_parameters(name, published):
    assert round(millions(built(name))) == published


def test_networks_of_cells_have_the_published_parameters():
    with torch.device("meta"):
        assert round(millions(darts()), 1) == 3.3  # Liu et al., table 1
        assert round(millions(amoebanet()), 1) == 3.1  # there; 3.2 in Real et al., table 1
        concatenating = replace(cells.NASNET, normal_outputs=(0, 2, 3, 4, 5, 6), reduction_outputs=(3, 4, 5, 6))
        model = CellNetwork(concatenating, channels=32)
    assert round(millions(model), 1) == 3.3  # Zoph et al., table 1: NASNet-A (6 @ 768)
    assert model.linear.in_features == 768


@pytest.mark.parametrize("network", [nasnet, amoebanet, darts])
def test_cells_at_a_third_and_two_thirds_reduce(network):
    model = network(channels=4, cells=6)
    sizes = []
    for cell in model.cells:
        cell.register_forward_hook(
            lambda cell, args, made: sizes.append((made.shape[-1], made.shape[1], cell.channels))
        )
    assert model(torch.randn(2, 3, 16, 16)).shape == (2, 10)
    assert [size for size, _, _ in sizes] == [16, 16, 8, 8, 4, 4]
    assert all(made == stated for _, made, stated in sizes)


def test_a_cell_sums_pairs_of_operations():
    class Named(nn.Module):
        """An operation that tells itself from others."""

        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def forward(self, x):
            return self.factor * x

    cell = Cell(cells.NASNET, 4, 4, 4, reduction=True, reduced=False)
    cell.older, cell.previous = Named(1), Named(10)
    cell.operations = nn.ModuleList(Named(100**at) for at in range(10))
    one = torch.ones(1, 4, 2, 2, dtype=torch.float64)
    states = [1, 10]
    for at, (left, right) in enumerate(cells.NASNET.reduction):
        states.append(100 ** (2 * at) * states[left[1]] + 100 ** (2 * at + 1) * states[right[1]])
    assert cell(one, one)[0, ::4, 0, 0].tolist() == [states[4], states[5], states[6]]


def test_a_factorized_reduction_sees_even_and_odd_pixels():
    reduction = FactorizedReduction(1, 2)
    nn.init.ones_(reduction.even.weight)
    nn.init.ones_(reduction.odd.weight)
    reduction.norm = nn.Identity()
    x = torch.arange(16.0).reshape(1, 1, 4, 4)
    assert torch.equal(reduction(x), torch.cat([x[..., ::2, ::2], x[..., 1::2, 1::2]], 1))


def test_the_unet_is_the_papers():
    with torch.device("meta"):
        model = UNet()
        assert model(torch.randn(1, 1, 572, 572)).shape == (1, 2, 388, 388)
    kinds = (nn.Conv2d, nn.ConvTranspose2d)
    assert sum(isinstance(module, kinds) for module in model.modules()) == 23
    assert UNet(width=2, channels=3, classes=5)(torch.randn(1, 3, 204, 204)).shape == (1, 5, 20, 20)


@pytest.mark.parametrize("name", ["resnet18", "densenet121", "darts", "unet"])
def test_blocks_can_be_checkpointed_one_by_one(name):
    if ARCHITECTURES[name].library == "torchvision":
        pytest.importorskip("torchvision")
    torch.manual_seed(0)
    architecture = ARCHITECTURES[name]
    model = {"darts": lambda: darts(4, 3), "unet": lambda: UNet(2)}.get(name, architecture.build)()
    given = architecture.inputs(2, 188 if name == "unet" else 32)
    counts, gradients = [], []
    for _ in range(2):
        torch.manual_seed(1)
        model.zero_grad()
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, kept=kept: kept.append(x) or x, lambda x: x):
            loss = model(*given).square().mean()
        counts.append(len(kept))
        loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
        for block in architecture.blocks(model):
            block.forward = _checkpointed(block.forward)
    assert all(torch.equal(plain, repeated) for plain, repeated in zip(*gradients, strict=True))
    assert counts[1] < counts[0] / 2  # all that is within blocks, whose inputs autograd does not see


def _checkpointed(forward):
    return lambda *args: checkpoint(forward, *args, use_reentrant=False)


def test_a_missing_library_is_said_in_one_line(monkeypatch):
    for library, name in (("torchvision", "resnet50"), ("timm", "swin"), ("transformers", "gpt2")):
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(MissingLibrary, match=rf"{library} cannot be imported.*actcore-bench\[models\]"):
            ARCHITECTURES[name].build()
