"""Kinds of modules: lazy ones, shallow copies, wrapped forwards, sharded parameters, compiled parts."""

import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations
from integrations import compress_model, compression, restore_model

from .nets import assert_same, gradients, mlp, normal, rows

X = normal(64, 64, seed=9)


def test_lazy_modules_make_their_parameters_in_the_first_forward():
    """The parameters that appear are parameters: nothing of them is compressed."""
    torch.manual_seed(0)
    model = compress_model(nn.Sequential(nn.LazyLinear(64), nn.ReLU(), nn.LazyLinear(64)))
    model(X).sum().backward()
    assert {row.owner for row in rows(model, "linear", owned=True)} <= {"parameter", "input of the model"}
    assert [row.module for row in rows(model, "linear")] == ["2"]  # its input


def test_parameters_put_in_place_for_one_forward():
    """As sharded training does: the module that the handle met had others."""

    class Sharded(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            gathered = nn.Parameter(torch.full((64, 64), 0.1).clone())
            return F.linear(F.linear(x, gathered), gathered.t())

    model = compress_model(Sharded())
    model(X).sum().backward()
    assert {row.shape for row in rows(model)} == {(64, 64)}
    assert len(rows(model)) == 1, "only the second layer's input is an activation"


def test_a_shallow_copy_runs_its_own_forward_uncompressed():
    """``nn.DataParallel`` makes such replicas: they share the dictionary's entries, with weights of their own."""
    model = compress_model(mlp())
    replica = model._replicate_for_data_parallel()
    assert compression(model).step == 0
    twin = copy.copy(model)
    for holder in (replica, twin):
        with pytest.warns(UserWarning, match="shallow copy of the compressed Sequential"):
            holder(X)
        assert compression(model).step == 0
    with pytest.raises(ValueError, match="shallow copy"):
        compression(twin)


def test_a_replica_uses_its_own_weights():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x):
            return x * self.weight

    model = compress_model(Scale())
    replica = model._replicate_for_data_parallel()
    replica.weight = torch.zeros(1)
    with pytest.warns(UserWarning, match="shallow copy"):
        assert replica(X).eq(0).all()


def test_a_forward_wrapped_by_others_is_still_found_and_undone():
    """As Accelerate does for mixed precision."""
    model = compress_model(mlp())
    inner = model.forward
    model.forward = lambda *args: inner(*args)
    assert compression(model).level_name == "L1"
    with pytest.raises(ValueError, match="compressed already"):
        compress_model(model)
    model(X).sum().backward()
    assert compression(model).step == 1
    restore_model(model)
    expected = gradients(copy.deepcopy(mlp()), X)
    assert_same(expected, gradients(model, X))


class Wrapped(nn.Module):
    """Has a forward of its own: up to torch 2.11 ``compile()`` of torch's own containers compiles nothing."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize("compile_part", [lambda part, backend: torch.compile(part, backend=backend), None])
def test_a_compiled_part_stays_compiled(compile_part):
    """Its graph is built once and runs in every step; what it saves is kept, since no operator is known for it."""
    graphs, runs = [], []

    def backend(graph, example):
        graphs.append(graph)

        def run(*args):
            runs.append(1)
            return graph(*args)

        return run

    part = Wrapped(mlp())
    if compile_part is None:
        part.compile(backend=backend)
        compiled = part
    else:
        compiled = compile_part(part, backend)
    model = compress_model(nn.Sequential(nn.Linear(64, 64), compiled, nn.Linear(64, 64)))
    for _ in range(3):
        model(X).sum().backward()
    assert (len(graphs), len(runs)) == (1, 3)


def test_modules_carry_no_hooks():
    """A hook costs every ``eval()`` forward, and turns torch's fused inference paths off."""
    model = compress_model(nn.TransformerEncoderLayer(64, 2))
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_outputs_fed_back_are_activations():
    """In a block, a model's second input is its first output, which only autograd keeps alive."""
    model = mlp()
    with integrations.compress(model) as handle:
        y = X
        for _ in range(3):
            y = model(y)
        y.sum().backward()
    inputs = [row for row in handle.report().rows if (row.module, row.operator, row.role) == ("0", "linear", "input")]
    assert [bool(row.owner) for row in inputs] == [True, False, False]


def test_noise_goes_on_over_blocks_and_threads():
    """No two forwards of a model round alike, until it is restored."""
    model, steps = mlp(), []
    barrier = threading.Barrier(2)

    def train():
        barrier.wait()
        for _ in range(20):
            with integrations.compress(model) as handle:
                model(X).sum().backward()
            steps.append(handle.step - 1)

    threads = [threading.Thread(target=train) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    compress_model(model)(X).sum().backward()
    steps.append(compression(model).step - 1)
    assert sorted(steps) == list(range(41))
    assert compression(compress_model(restore_model(model))).step == 0


def test_a_block_inside_a_block_of_the_same_model_is_refused():
    model = mlp()
    with integrations.compress(model):
        with pytest.raises(ValueError, match=r"in a block of integrations\.compress already"):
            integrations.compress(model).__enter__()
        with pytest.raises(ValueError, match=r"in a block of integrations\.compress already"):
            compress_model(model)
    compress_model(model)


def test_blocks_of_two_models_keep_to_their_levels():
    """A tensor belongs to the model that runs, and the loss to the innermost block."""
    first, second = mlp(), mlp()
    with integrations.compress(first, level="L1.1") as outer, integrations.compress(second, level="L1.2") as inner:
        (first(X) + second(X)).square().sum().backward()
        assert outer.report().rows, "a block reports what it has saved so far"
    for handle, bits in ((outer, "bits=8"), (inner, "bits=2")):
        found = [row for row in handle.report().rows if row.operator == "linear" and not row.owner]
        assert [row.module for row in found] == ["2", "4"]
        assert all(bits in row.codec for row in found)


def test_a_report_names_what_was_changed_of_a_level():
    model = compress_model(mlp(), "L1", bits=6, seed=3)
    assert compression(model).report().level == "L1 with bits=6, seed=3"
    off = compress_model(mlp(), "L1", bits=None)
    off(X).sum().backward()
    assert "is off" in str(compression(off).report())


def test_a_device_without_operators_is_left_alone(monkeypatch):
    monkeypatch.setattr(integrations.tracing.storage.store, "missing_on", lambda device: "no operators here")
    model = compress_model(mlp())
    expected = gradients(mlp(), X)
    assert_same(expected, gradients(model, X))
    assert {row.why for row in rows(model, "linear")} == {"kept exactly: no operators here"}
