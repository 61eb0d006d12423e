"""What is known of a compiled region lives as long as its code."""

import gc
import weakref

import pytest
import torch
from torch import nn

import integrations
from integrations._utils.torch_internals import top_saved_tensors_default_hooks
from integrations.runtime.compiled.hooks import _Inlineable, _pair
from integrations.runtime.compiled.regions import entries

from .nets import mlp, normal

X = normal(48, 64)
pytestmark = pytest.mark.usefixtures("fresh_compiler")


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])  # the one keeps the graphs, the other its own code
def test_a_region_that_is_gone_is_forgotten(backend):
    before = set(entries)
    model = integrations.compress_model(mlp(depth=2))
    function = torch.compile(model, backend=backend)
    for _ in range(2):
        function(X).sum().backward()
        assert len(entries) == len(before) + 3  # the region's input, which is the caller's, and two activations
        assert len(integrations.compression(model).report().rows) >= 2
    del model, function
    torch.compiler.reset()
    gc.collect()
    assert set(entries) == before


def test_a_region_whose_backend_fails_is_forgotten():
    from torch._dynamo.backends.common import aot_autograd

    def failing(graph, inputs):
        raise ValueError("mine")

    before = set(entries)
    function = torch.compile(integrations.compress_model(mlp()), backend=aot_autograd(fw_compiler=failing))
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="mine"):
        function(X)
    del function
    torch.compiler.reset()
    gc.collect()
    assert set(entries) == before


def test_what_was_begun_before_its_code_went():
    """Backward needs no entry: what it takes to restore is in its graph."""
    before = set(entries)
    function = torch.compile(integrations.compress_model(mlp()), backend="aot_eager")
    x = X.clone().requires_grad_()
    loss = function(x).sum()
    del function
    torch.compiler.reset()
    gc.collect()
    assert set(entries) == before
    loss.backward()
    assert x.grad.abs().sum() > 0


def test_what_was_compiled_under_a_handle_goes_with_it():
    """Dynamo keeps it by code object, and it leads back to that object, into which no collector looks: regions, graphs
    and tensors of every handle that a compiled model ever had stayed."""
    before = set(entries)
    function = torch.compile(mlp(depth=2), backend="aot_eager")
    for _ in range(3):
        integrations.compress_model(function, "L1")
        function(X).sum().backward()
        assert len(entries) == len(before) + 3
        function.eval()(X)
        function.train()
        integrations.restore_model(function)
        gc.collect()
        assert set(entries) == before


def test_hooks_of_levels_are_not_kept_without_end():
    """A seed is a part of the level, and a run may take another one for each block."""
    model = mlp()
    for seed in range(20):
        with integrations.compress(model, "L1", seed=seed):
            model(X).sum().backward()
    gc.collect()
    kinds = [one for one in gc.get_objects() if isinstance(one, type) and issubclass(one, _Inlineable)]
    assert len(kinds) <= 1 + 2 * _pair.cache_info().maxsize  # the class itself, and of each pair two


def test_hooks_stay_with_the_code_that_inlines_them():
    """Dynamo knows hooks by their ids: code of hooks that are gone would run for others that lie where they lay, at a
    level that is not theirs."""
    inlined = []

    class Helped(torch.nn.Linear):  # as a library that compiles a part of its own
        def forward(self, x):
            inlined.append(weakref.ref(top_saved_tensors_default_hooks(True)[0]))
            return helpers[0](super().forward(x))

    helpers = [torch.compile(lambda x: torch.tanh(x).sin(), backend="aot_eager")]
    model = Helped(64, 64)
    for seed in range(20):
        with integrations.compress(model, "L1", seed=seed):
            model(X).sum().backward()
    gc.collect()
    alive = [hooks() is not None for hooks in inlined]
    assert alive[0], "the first is that of code which still runs"
    helpers.clear()
    torch.compiler.reset()
    _pair.cache_clear()
    gc.collect()
    assert not any(hooks() is not None for hooks in inlined)


def test_hooks_leave_no_source_behind():
    """Torch keeps the source of each module of a graph for as long as the process runs."""
    from torch.fx.graph_module import _loader

    model = mlp()
    before = len(_loader.eval_cache)
    for seed in range(3):
        with integrations.compress(model, "L1", seed=seed):
            model(X).sum().backward()
    assert len(_loader.eval_cache) == before


def test_models_of_many_levels_have_the_same_hooks_in_each_forward():
    """Or each forward would make two modules, whose source torch keeps, and compile its regions anew."""
    seen = []
    layer = nn.Linear(8, 8)
    layer.register_forward_hook(
        lambda *given: seen.append(torch._C._autograd._top_saved_tensors_default_hooks(True)[0])
    )
    count = _pair.cache_info().maxsize + 1
    models = [integrations.compress_model(nn.Sequential(layer), "L1", seed=seed) for seed in range(count)]
    for _ in range(2):
        for model in models:
            model(torch.ones(2, 8))
    assert all(one is other for one, other in zip(seen[:count], seen[count:], strict=True))
    assert len(set(map(id, seen))) == count
