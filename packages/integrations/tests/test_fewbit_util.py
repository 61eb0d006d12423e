"""``map_module`` and ``convert_linear``: FewBit's way of rebuilding a model, without its defects (reference, A7)."""

import copy
import re

import pytest
import torch
from torch import nn

from integrations.fewbit import RandomizedLinear
from integrations.fewbit.util import convert_linear, map_module

from .nets import normal


class Tree(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.inner = nn.ModuleDict({"act": nn.ReLU(), "last": nn.Linear(4, 2)})
        self.again = self.first
        self.nothing = None

    def forward(self, x):
        return self.inner["last"](self.inner["act"](self.again(self.first(x))))


def test_the_example_of_the_readme():
    old_model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
    weights = [layer.weight for layer in (old_model[0], old_model[2])]

    converter = lambda x: convert_linear(x, RandomizedLinear, proj_dim_ratio=0.1)  # noqa: E731
    new_model = map_module(old_model, converter)

    assert new_model is old_model
    assert [type(layer) for layer in new_model] == [RandomizedLinear, nn.GELU, RandomizedLinear]
    assert [new_model[0].weight, new_model[2].weight] == weights
    new_model(normal(40, 16)).square().sum().backward()
    assert new_model[0].weight.grad.isfinite().all()


def test_each_module_is_visited_once_with_its_path_children_first():
    seen = []

    def note(module, path):
        seen.append((path, type(module).__name__))
        return module

    tree = Tree()
    assert map_module(tree, note) is tree
    assert seen == [
        ("/first", "Linear"),
        ("/inner/act", "ReLU"),
        ("/inner/last", "Linear"),
        ("/inner", "ModuleDict"),
        ("/", "Tree"),
    ]


def test_shared_modules_stay_shared():
    tree = map_module(Tree(), lambda module: nn.Identity() if isinstance(module, nn.Linear) else module)
    assert type(tree.first) is nn.Identity
    assert tree.first is tree.again


@pytest.mark.parametrize("pattern", ["/inner/", re.compile("/inner/")])
def test_a_pattern_chooses_paths_from_their_beginning(pattern):
    tree = map_module(Tree(), lambda module: nn.Identity(), pattern)
    assert [type(module).__name__ for module in tree.modules()] == ["Tree", "Linear", "ModuleDict", *["Identity"] * 2]


def test_a_pattern_may_fit_any_of_a_shared_modules_paths():
    seen = []
    map_module(Tree(), lambda module, path: seen.append(path) or module, "/again")
    assert seen == ["/again"]


def test_the_root_may_be_replaced():
    assert type(map_module(nn.ReLU(), lambda module: nn.Identity())) is nn.Identity


def test_a_function_may_take_a_path_or_not():
    def with_default(module, ratio=0.5):
        assert ratio == 0.5
        return module

    def with_path(module, path="nowhere"):
        assert path.startswith("/")
        return module

    class Object:
        def __call__(self, module, where):
            assert where.startswith("/")
            return module

    for function in (with_default, with_path, Object(), lambda *args: args[len(args) - 2]):
        map_module(Tree(), function)


def test_modules_below_themselves_are_no_trouble():
    tree = Tree()
    tree.inner["up"] = tree
    seen = []
    map_module(tree, lambda module, path: seen.append(path) or module)
    assert seen == ["/first", "/inner/act", "/inner/last", "/inner", "/"]


def test_errors_of_map_module():
    with pytest.raises(ValueError, match=r"func must return a module, .* got NoneType for the Linear at '/first'"):
        map_module(Tree(), lambda module: None)
    with pytest.raises(TypeError, match=r"root must be a torch.nn.Module, got int"):
        map_module(3, lambda module: module)
    with pytest.raises(TypeError, match=r"func must be a function of a module, .* got 3"):
        map_module(Tree(), 3)


def test_what_a_linear_layer_has_survives():
    linear = nn.Linear(8, 4, dtype=torch.float64).eval()
    linear.weight.requires_grad_(False)
    calls = []
    handle = linear.register_forward_hook(lambda *args: calls.append(1))
    state = torch.get_rng_state()
    layer = convert_linear(linear, RandomizedLinear, proj_dim=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert layer.weight is linear.weight
    assert layer.bias is linear.bias
    assert not layer.weight.requires_grad
    assert not layer.training
    layer(normal(5, 8, dtype=torch.float64))
    handle.remove()
    layer(normal(5, 8, dtype=torch.float64))
    assert calls == [1]
    assert layer.sketching.proj_dim == 3


def test_tied_weights_stay_tied():
    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20, bias=False))
    model[1].weight = model[0].weight
    map_module(model, lambda module: convert_linear(module, RandomizedLinear, proj_dim_ratio=0.5))
    assert model[1].weight is model[0].weight
    assert model[1].bias is None
    model.to(torch.float64)
    assert model[1].weight.dtype == torch.float64


def test_a_weight_that_hooks_compute_stays_computed():
    linear = torch.nn.utils.spectral_norm(nn.Linear(8, 4))
    layer = convert_linear(copy.deepcopy(linear), RandomizedLinear, proj_dim_ratio=0.5)
    assert layer.state_dict().keys() == linear.state_dict().keys()
    assert torch.equal(layer(normal(5, 8)), linear(normal(5, 8)))


def test_what_is_not_converted():
    class Own(nn.Linear):
        pass

    attention = nn.MultiheadAttention(8, 2)
    out = attention.out_proj
    map_module(attention, lambda module: convert_linear(module, RandomizedLinear, proj_dim_ratio=0.5))
    assert attention.out_proj is out
    for module in (Own(2, 2), nn.ReLU(), RandomizedLinear(4, 4, proj_dim=2), nn.LazyLinear(3)):
        assert convert_linear(module, RandomizedLinear, proj_dim_ratio=0.5) is module


def test_a_layer_with_tensors_of_its_own_has_them_on_the_device():
    class Scaled(nn.Linear):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.register_buffer("scale", torch.ones(1, device=kwargs["device"]))

    linear = nn.Linear(4, 4)
    state = torch.get_rng_state()
    layer = convert_linear(linear, Scaled)
    assert torch.equal(torch.get_rng_state(), state)
    assert layer.weight is linear.weight
    assert layer.scale.item() == 1
    assert "scale" not in dict(linear.named_buffers())


def test_errors_of_convert_linear():
    with pytest.raises(TypeError, match=r"module must be a torch.nn.Module, got str"):
        convert_linear("linear", RandomizedLinear)
    with pytest.raises(ValueError, match=r"a weight of shape \(4, 8\), got \(8, 4\) in Linear"):
        convert_linear(nn.Linear(8, 4), lambda i, o, **kwargs: nn.Linear(o, i))
    with pytest.raises(ValueError, match=r"a weight of shape \(4, 8\), got none in Identity"):
        convert_linear(nn.Linear(8, 4), nn.Identity)
