"""The memory that an adaptation takes, and what is left of one for which there was not enough."""

import copy
import random

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import integrations
from actcore import Compressed
from integrations.api.handle import adapt
from integrations.planner.sensitivity.errors import Error
from integrations.planner.sensitivity.graph import derive_backward
from integrations.planner.sensitivity.probe import Probe

from .nets import assert_nothing_active, mlp, normal

ROWS, WIDTH, DEPTH = 4, 256, 8
LAYER = 4 * (WIDTH * WIDTH + WIDTH)
GRADIENTS = DEPTH * LAYER
ACTIVATION = 4 * ROWS * WIDTH


def storages(values):
    return [value.untyped_storage() for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


class Peak(TorchDispatchMode):
    """The most bytes alive at once of what operators have made since."""

    def __init__(self):
        super().__init__()
        self.alive, self.most = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = {storage._cdata for storage in storages((args, kwargs))}
        for storage in storages(result):
            if storage._cdata not in given:
                self.alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.alive = {key: known for key, known in self.alive.items() if not known[0].expired()}
        self.most = max(self.most, sum(nbytes for _, nbytes in self.alive.values()))
        return result


@pytest.mark.parametrize("passes", [1, 2])
def test_g09_an_adaptation_holds_one_more_copy_of_the_gradients(passes):
    """GACT held three and temporaries besides, 4 to 6 times the parameters.

    More than the closure's gradients there is, of one layer at a time, its gradient with noise and the difference to
    the one without. Of activations' size, in each of 24 nodes (linear, ReLU and a weight's transposition), there are at
    most the values or noise for it, a gradient, and an error followed.
    """
    torch.manual_seed(0)
    layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = integrations.compress_model(nn.Sequential(*layers), "L2", min_bytes=0)
    x = normal(ROWS, WIDTH)

    def closure():
        model.zero_grad()
        model(x).square().mean().backward()

    closure()
    with Peak() as peak:
        integrations.compression(model).adapt(closure, passes)
    assert GRADIENTS < peak.most <= GRADIENTS + 2 * LAYER + 3 * 24 * ACTIVATION


def test_the_errors_that_are_followed_wait_in_8_bits(monkeypatch):
    """Each node of a chain has the errors of up to 16 above it to hand on, and with them of all that these saved: in 32
    bits that took nearly as much memory as a plain step of an 8-layer BERT."""
    torch.manual_seed(0)
    error, part = Error(0), torch.randn(64, 256)
    error.add(0, part, 1)
    assert isinstance(error._parts[0], Compressed)
    assert error._parts[0].nbytes < 0.27 * part.nbytes  # with 8 bytes of bounds for 256 elements
    # Half a step either way is the most that nearest rounding would do, a step what stochastic rounding can: for 256
    # normal numbers a step is 6 / 255 of the deviation, so that its square adds at most 6e-4 to the energy, and less
    # by its sign than twice its root over the root of 16,384 elements.
    energy = part.square().sum()
    assert abs(error.part(0).square().sum() / energy - 1) < 6e-4 + 2 * 6 / 255 / 128
    error.add(0, part, 3)
    assert abs(error.part(0).square().sum() / (4 * energy) - 1) < 2 * (6e-4 + 2 * 6 / 255 / 128)
    assert error.hops == 3
    assert error.part(1) is None
    small = torch.randn(8)
    error.add(1, small, 0)
    assert [one.shape for one in error.parts()] == [part.shape, small.shape]
    assert torch.equal(error.part(1), small)


def test_nothing_of_a_measured_step_is_kept_until_the_next(monkeypatch):
    probes, finish = [], Probe._finish
    monkeypatch.setattr(Probe, "_finish", lambda probe: [finish(probe), probes.append(probe)])
    layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    model = integrations.compress_model(layers, "L2", min_bytes=0)
    for _ in range(2):  # the second is measured
        model(normal(48, 64)).square().mean().backward()
    [probe] = probes
    assert probe.measurement is not None
    kept = probe._all, probe._stored, probe._gains, probe._errors, probe._gradient, probe._graph.edges, probe._hooks
    assert not any(kept)


class Loop:
    """A training loop with everything that an adaptation might touch."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(mlp(), nn.Dropout(0.2), nn.BatchNorm1d(64), nn.Linear(64, 64))
        integrations.compress_model(self.model, "L2.2")
        self.handle = integrations.compression(self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        for _ in range(3):
            self.step()

    def closure(self):
        self.optimizer.zero_grad()
        loss = self.model(normal(48, 64)).square().mean()
        loss.backward()
        return loss.item()

    def step(self):
        loss = self.closure()
        self.optimizer.step()
        return loss

    def state(self):
        gradients = {name: (p.grad, p.grad.clone()) for name, p in self.model.named_parameters()}
        tensors = self.model.state_dict(), self.optimizer.state_dict()["state"], torch.get_rng_state()
        return gradients, copy.deepcopy(tensors), random.getstate()


def assert_equal(one, other):
    """Gradients are the same tensors, too, with the same values."""
    for name, (tensor, values) in one[0].items():
        assert other[0][name][0] is tensor
        assert torch.equal(values, other[0][name][1])
    torch.testing.assert_close(one[1], other[1], rtol=0, atol=0)
    assert one[2] == other[2]


def no_memory(*args, **kwargs):
    raise torch.OutOfMemoryError("no memory")


def in_a_forward(loop, monkeypatch):
    return loop.model[3].register_forward_pre_hook(no_memory)


def in_a_layers_backward(loop, monkeypatch):
    return loop.model[0][2].register_full_backward_hook(no_memory)


def in_the_last_gradient(loop, monkeypatch):
    return loop.model[0][0].weight.register_hook(no_memory)


def in_a_packing(loop, monkeypatch):
    monkeypatch.setattr(integrations.tracing.storage.storage.Storages, "store", no_memory)


def in_the_plan(loop, monkeypatch):
    monkeypatch.setattr(adapt, "plan_of", no_memory)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("where", [in_a_forward, in_a_layers_backward, in_the_last_gradient, in_a_packing, in_the_plan])
def test_out_of_memory_in_an_adaptation_leaves_training_unharmed(where, passes, monkeypatch):
    """The state is as before, and so is every step that follows."""
    loop, twin = Loop(), Loop()
    random_state = torch.get_rng_state()
    before, handle = loop.state(), copy.deepcopy(loop.handle.state_dict())
    with monkeypatch.context() as patched:
        hook = where(loop, patched)
        with pytest.raises(torch.OutOfMemoryError):
            loop.handle.adapt(loop.closure, passes)
        if hook is not None:
            hook.remove()
    assert_equal(before, loop.state())
    assert loop.handle.state_dict() == handle
    assert_nothing_active()
    found = []
    for run in (loop, twin):
        torch.set_rng_state(random_state)
        found.append([run.step() for _ in range(3)])
    assert found[0] == found[1]
    assert loop.handle.adapt(loop.closure).step == 6


def test_out_of_memory_in_the_measurement_is_no_failure(monkeypatch):
    """What could not be run once more is taken for a usual tensor, and the plan says so."""

    def failing(*args):
        no_memory(derive_backward(*args))

    loop = Loop()
    before = loop.state()
    with monkeypatch.context() as patched:
        patched.setattr("integrations.planner.sensitivity.probe.derive_backward", failing)
        plan = loop.handle.adapt(loop.closure)
    assert all("OutOfMemoryError" in entry.why for entry in plan.allotments)
    assert_equal(before, loop.state())
