"""What allocates bits leaves others alone: copies, threads, failed and nested backwards, captured graphs, the host."""

import copy
import pickle
import threading

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from integrations import qmodules
from integrations.qmodules import scheme
from integrations.qmodules.levels import LEVELS, resolve_level
from integrations.qmodules.precision import LayerPrecision
from integrations.qmodules.scheme import ModelPrecision

from .qprecision_nets import InBackward, batch, bits, convolutions, parts, step, tell


def test_gradients_stay_unbiased():
    """The mean of 60 gradients lies within its own scatter of the exact one, in every layer: per-sample and per-layer
    bits depend on the data and on earlier steps, never on this step's noise."""
    model = convolutions(4, 8, 8)
    exact = copy.deepcopy(model)
    step(exact, batch())
    model = qmodules.QModule(model, "L3")
    for _ in range(2):
        step(model, batch())
    found = [[] for _ in exact.parameters()]
    for _ in range(60):
        step(model, batch())
        for seen, parameter in zip(found, model.parameters(), strict=True):
            seen.append(parameter.grad.clone())
    for (name, parameter), seen in zip(exact.named_parameters(), found, strict=True):
        stack = torch.stack(seen).double()
        distance = (stack.mean(0) - parameter.grad).square().sum()
        scatter = stack.var(0).sum() / 60
        # The expected distance is the scatter; of sums of 8 and more elements, six times that is beyond any chance.
        # What rounding to float32 makes, 1e-6 of the norm, is all there is for biases.
        assert distance <= 6 * scatter + 1e-12 * parameter.grad.square().sum(), name


def test_two_models_and_copies_do_not_feel_each_other():
    model = qmodules.QModule(convolutions(4, 16, 8), "L3")
    step(model, batch())
    twin, loaded = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    before = bits(model)
    assert bits(twin) == bits(loaded) == before
    for other in (twin, loaded):
        precisions = {id(layer.precision.model) for layer in other.modules() if hasattr(layer, "precision")}
        assert len(precisions) == 1
        assert id(model[0].precision.model) not in precisions
        step(other, batch(seed=3) ** 5)  # of wider ranges for their deviation
        assert bits(other) != before
    assert bits(model) == before


def test_a_copy_of_a_layer_alone_leaves_the_model_behind():
    model = qmodules.QModule(convolutions(4, 16, 8), "L3")
    step(model, batch())
    layer = copy.deepcopy(model[0])
    assert layer.precision.bits == model[0].precision.bits
    assert len(pickle.dumps(layer)) < len(pickle.dumps(model))


def test_layers_built_by_hand_draw_noise_of_their_own():
    """Two layers, and a copy of one, never share a stream, or their errors would add up."""
    first, second = qmodules.QConv2d(4, 4, 1), qmodules.QConv2d(4, 4, 1)
    streams = [first.precision.stream()]
    first.precision._forwards = 0
    third = copy.deepcopy(first)
    streams += [layer.precision.stream() for layer in (second, third)]
    assert len(set(streams)) == 3


def test_a_backward_that_raises_leaves_the_next_one_alone():
    model = qmodules.QModule(convolutions(4, 16, 8), "L3")

    def fail():
        raise RuntimeError("on purpose")

    x = batch().requires_grad_()
    with pytest.raises(RuntimeError, match="on purpose"):
        model(InBackward.apply(x, fail)).square().mean().backward()
    assert set(bits(model).values()) == {2.0}
    for _ in range(12):
        with pytest.raises(RuntimeError, match="on purpose"):
            model(InBackward.apply(x, fail)).square().mean().backward()
    assert len(model[0].precision.model._observed) <= 8
    step(model, batch())
    assert len(set(bits(model).values())) > 1


def test_an_overflow_keeps_the_bits():
    """GradScaler skips such a step, and so does the allocation."""
    model = qmodules.QModule(convolutions(4, 16, 8), "L3")
    step(model, batch())
    before = bits(model)
    for factor in (torch.inf, torch.nan):
        model.zero_grad()
        (model(batch()).mean() * factor).backward()
        assert bits(model) == before


def test_costs_that_have_not_arrived_are_not_waited_for(monkeypatch):
    """On CUDA a copy to the host is under way. A forward that comes before it keeps the bits; a later one has them."""

    class Event:
        arrived = False

        def query(self):
            return self.arrived

    model, layers = parts(resolve_level("L3"), 0, 0)
    event = Event()
    monkeypatch.setattr(scheme, "_to_host", lambda costs, inputs: (costs, inputs, event))
    tell(model, (layers[0], [1.0], 64), (layers[1], [1e5], 64))
    layers[0].codec(torch.randn(4, 256))
    assert [layer.bits for layer in layers] == [2, 2]
    event.arrived = True
    layers[0].codec(torch.randn(4, 256))
    assert [layer.bits for layer in layers] == [1, 3]


def test_levels_without_allocation_look_at_nothing():
    """L1 and L2 quantise alike everywhere: no token, so that backward computes no norms."""
    for level in ("L1", "L2"):
        precision = LayerPrecision(LEVELS[level], "linear")
        precision.codec(batch())
        assert precision.token() is None


def test_nested_backwards_of_reentrant_checkpoints():
    model = qmodules.QModule(convolutions(4, 16, 8), "L3")
    x = batch().requires_grad_()
    out = checkpoint(model[3:], checkpoint(model[:3], x, use_reentrant=True), use_reentrant=True)
    out.square().mean().backward()
    assert len(set(bits(model).values())) > 1
    assert not model[0].precision.model._observed


def test_on_the_meta_device_there_is_nothing_to_allocate_by():
    model = qmodules.QModule(convolutions(4, 16, 8).to("meta"), "L3")
    step(model, batch().to("meta"))
    assert set(bits(model).values()) == {2.0}
    assert model[0].weight.grad.is_meta


def test_a_checkpoint_stores_the_same_bytes_again():
    """The backward of the first forward allocates bits before the second's recomputation, which checkpointing compares
    with what that forward stored."""
    model = qmodules.QModule(convolutions(4, 16, 8), "L3")
    step(model, batch())
    before = bits(model)
    assert len(set(before.values())) > 1
    outputs = [checkpoint(model, batch().requires_grad_(), use_reentrant=False) for _ in range(2)]
    step(model, batch() ** 5)  # of wider ranges for their deviation
    for output in outputs:
        output.square().mean().backward()
    assert bits(model) != before  # of the step in between, which is none of the checkpoint's


def test_replicas_in_threads_keep_their_tokens_apart():
    """``nn.DataParallel`` runs copies of a layer that share its precision."""
    precision = LayerPrecision(resolve_level("L3", {"use_gradient": False}), "linear")
    precision.model = ModelPrecision(precision.level)
    precision.codec(batch(samples=8))

    def other():
        precision.codec(batch(samples=4))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert precision.token().samples == 8
    assert precision.token() is None


def test_what_goes_to_the_host_is_the_same(lane):
    """L4 is L3 with the stored form on the host; the widths travel with it."""
    gradients = []
    for level in ("L3", "L4"):
        model = qmodules.QModule(convolutions(4, 16, 8), level)
        for _ in range(3):
            step(model, batch())
        gradients.append([parameter.grad for parameter in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


def test_a_graph_that_is_captured_asks_no_event(monkeypatch):
    model, layers = parts(resolve_level("L3"), 0, 0)

    class Event:
        def query(self):
            raise AssertionError("asked while a graph is captured")

    monkeypatch.setattr(scheme, "_to_host", lambda costs, inputs: (costs, inputs, Event()))
    monkeypatch.setattr(scheme.actcore, "in_cuda_graph", lambda: True)
    tell(model, (layers[0], [1.0], 64), (layers[1], [1e5], 64))
    layers[0].codec(torch.randn(4, 256))
    assert [layer.bits for layer in layers] == [2, 2]
