"""Converted models under checkpointing, ``torch.compile`` and ``DistributedDataParallel``."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from integrations import fewbit

from .fewbit_nets import Net, X, equal, kept_bytes, step
from .nets import normal


class Checkpointed(Net):
    """``Net`` with its tail in a checkpoint."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, x):
        return checkpoint(self.tail, self.block(x), **self.options)


class Nested(Net):
    """The outer checkpoint makes no call of its own."""

    def forward(self, x):
        def inner(x):
            return checkpoint(self.tail, x, use_reentrant=False, preserve_rng_state=False, determinism_check="none")

        return checkpoint(inner, self.block(x), use_reentrant=False)


class Broken(Net):
    """A graph break amid calls."""

    def forward(self, x):
        x = F.gelu(self.block(x))
        torch._dynamo.graph_break()
        return self.tail(F.silu(x))


NON_REENTRANT, REENTRANT = {"use_reentrant": False}, {"use_reentrant": True}


@pytest.mark.parametrize(
    "make",
    [lambda: Checkpointed(**NON_REENTRANT), lambda: Checkpointed(**REENTRANT), Nested],
    ids=["non-reentrant", "reentrant", "nested"],
)
def test_a_checkpoint_computes_the_same_calls_again(make):
    expected = step(fewbit.convert(Net()))
    model = fewbit.convert(make())
    assert equal(step(model), expected)
    assert equal(step(model), expected)
    assert fewbit.summary(model).calls == {"block": ("gelu",), "blocks.0": ("gelu",), "": ("softplus",)}
    fewbit.restore_model(model)
    assert equal(step(model), step(Net()))


def test_a_segment_is_computed_again_as_it_was_whatever_happened_since():
    model = fewbit.convert(Checkpointed(**NON_REENTRANT))
    x = X.clone().requires_grad_()
    loss = model(x).sum()
    fewbit.restore_model(model)
    model.eval()
    loss.backward()
    twin = fewbit.convert(Net())
    other = X.clone().requires_grad_()
    twin(other).sum().backward()
    assert torch.equal(x.grad, other.grad)  # torch's layers are back; what they call is exchanged


def test_a_checkpoint_around_the_model():
    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = fewbit.convert(Net())

        def forward(self, x):
            return F.gelu(checkpoint(self.net, x, use_reentrant=False))

    class By(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = fewbit.convert(Net())

        def forward(self, x):
            return F.gelu(self.net(x))

    assert equal(step(Around()), step(By()))


def test_skipped_and_foreign_modules_stay_so_when_they_are_computed_again():
    model = fewbit.convert(Checkpointed(**NON_REENTRANT), skip="blocks.0")
    assert equal(step(model), step(fewbit.convert(Net(), skip="blocks.0")))


def test_memory_of_a_checkpoint_is_freed(no_garbage_collection):
    """What computes a segment again is held by its checkpoint alone."""
    import weakref

    model = fewbit.convert(Checkpointed(**NON_REENTRANT))
    hidden = []
    model.blocks.register_forward_hook(lambda module, args, output: hidden.append(weakref.ref(args[0])))
    output = model(X)
    assert hidden[0]() is not None
    del output
    assert hidden[0]() is None


@pytest.mark.parametrize("make", [Net, lambda: Checkpointed(**NON_REENTRANT)], ids=["plain", "checkpointed"])
def test_a_compiled_model_is_one_graph(make, fresh_compiler):
    model = fewbit.convert(make(), skip="blocks.0")
    expected = step(fewbit.convert(Net(), skip="blocks.0"))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert equal(step(compiled), expected)
    assert equal(step(compiled), expected)
    found = fewbit.summary(compiled)
    assert found.calls == {"block": ("gelu",), "": ("softplus",)}
    assert found.kept_calls == {"blocks.0": ("gelu: skipped",)}
    model.eval()
    assert torch.equal(compiled(X), expected[0])
    model.train()
    with torch.no_grad():
        assert torch.equal(compiled(X), expected[0])
    fewbit.restore_model(compiled)
    assert equal(step(compiled), step(Net()))
    fewbit.convert(compiled, skip="blocks.0")
    assert equal(step(compiled), expected)


def test_a_graph_break_changes_nothing(fresh_compiler):
    model = fewbit.convert(Broken())
    expected = step(model)
    compiled = torch.compile(model, backend="aot_eager")
    assert equal(step(compiled), expected)
    assert equal(step(compiled), expected)


def test_a_compiled_part_of_a_converted_model(fresh_compiler):
    model = fewbit.convert(Net())
    expected = step(model)
    model.block.compile(backend="aot_eager", fullgraph=True)
    assert equal(step(model), expected)
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert equal(step(model), expected)


def test_two_models_compiled_beside_each_other(fresh_compiler):
    one, two = fewbit.convert(Net(), bits=1), fewbit.convert(Net(), bits=6)
    expected = step(one), step(two)
    compiled = [torch.compile(model, backend="aot_eager", fullgraph=True) for model in (one, two)]
    for _ in range(2):
        assert all(equal(step(model), wanted) for model, wanted in zip(compiled, expected, strict=True))


def test_distributed_data_parallel(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = fewbit.convert(Net())
        expected = step(model)
        assert equal(step(nn.parallel.DistributedDataParallel(model)), expected)
    finally:
        torch.distributed.destroy_process_group()


def test_saved_bytes_fall_to_what_the_codes_take():
    """Torch keeps the inputs of three calls and three layers, all of them smooth functions, and that of the second
    linear layer (the first one's is the caller's). In place of the six, 3 bits an element are kept, a byte a stretch
    of 1024 elements, and the 8 levels of each of the four functions."""
    model, elements = Net(), X.numel()
    assert kept_bytes(model, X) == 4 * elements * 7
    assert kept_bytes(fewbit.convert(model), X) == 4 * elements + 6 * (elements * 3 // 8 + 1) + 4 * (4 * 8)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_traced_by_jit_it_runs_as_it_is(training, rounding):
    model = fewbit.convert(Net(), rounding=rounding, linear=0.5).train(training)
    traced = torch.jit.trace(model, X, check_trace=not training)  # gradients of sketches differ from run to run
    assert torch.equal(traced(X), model(X))
    with pytest.raises(Exception, match=r"fewbit.restore_model brings it back"):
        torch.jit.script(fewbit.convert(nn.Sequential(nn.ReLU())))


def test_masks_of_dropouts_are_the_plain_models_where_the_sketches_have_a_seed():
    """And others where they draw from torch's generator, which the docstring says."""

    def output(**options):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.5))
        if options:
            fewbit.convert(net, **options)
        torch.manual_seed(1)
        return net(normal(32, 16).requires_grad_())

    plain = output()
    assert torch.equal(output(bits=2), plain)
    assert torch.equal(output(linear={"proj_dim_ratio": 0.5, "seed": 3}), plain)
    assert not torch.equal(output(linear=0.5), plain)
    assert not torch.equal(output(rounding="stochastic"), plain)
