"""A compressed model is copied and pickled at any moment, and the copy goes on as a model that no step runs in."""

import copy
import os
import pickle
import warnings

import pytest
import torch
from torch import nn

import integrations

from .nets import gradients, mlp, normal

X = normal(48, 64)
COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda model: pickle.loads(pickle.dumps(model))}


def before_the_first_forward(model, make):
    return make(model)


def between_forward_and_backward(model, make):
    loss = model(X).sum()
    found = make(model)
    loss.backward()
    return found


def in_a_hook_of_the_forward(model, make):
    """The last copy: what the hook appends while a plan is made, on fake tensors, stays if another thread runs."""
    found = []
    hook = model[2].register_forward_hook(lambda *given: found.append(make(model)))
    model(X).sum().backward()
    hook.remove()
    for one in found:
        one[2]._forward_hooks.clear()
    return found[-1]


def in_backward(model, make):
    found = []
    output = model(X)
    output.register_hook(lambda gradient: found.append(make(model)) and None)
    output.sum().backward()
    return found[0]


def in_a_measurement(model, make):
    """In the closure of an adaptive level, or of any other: a trial, whose step is put back."""
    found = []

    def closure():
        model.zero_grad()
        model(X).sum().backward()
        found.append(make(model))

    handle = integrations.compression(model)
    handle.gradient_error(closure) if handle.level.adaptive is False else handle.adapt(closure)
    return found[-1]


def after_steps(model, make):
    for _ in range(3):
        model(X).sum().backward()
    return make(model)


MOMENTS = (
    before_the_first_forward,
    between_forward_and_backward,
    in_a_hook_of_the_forward,
    in_backward,
    in_a_measurement,
    after_steps,
)
OPTIONS = {"L1.2": {"level": "L1.2"}, "L2": {"level": "L2"}, "plan": {"checkpoint": "optimal", "level": "L1"}}


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.__name__)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("make", COPIES)
def test_copied_at_any_moment(moment, options, make):
    """The copy trains and has nothing of a running step; the original trains on."""
    if make == "pickle" and moment is in_a_hook_of_the_forward:
        pytest.skip("a hook that is a closure cannot be pickled, with or without this library")
    model = integrations.compress_model(mlp(depth=4), **OPTIONS[options])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        twin = moment(model, COPIES[make])
        handle = integrations.compression(twin)
        assert handle.model is twin
        assert handle._sessions == {}
        for one in (twin, model):
            assert all(gradient.isfinite().all() for gradient in gradients(one, X).values())
        assert integrations.compression(model)._sessions == {}
    integrations.restore_model(twin)
    integrations.restore_model(model)


def test_copied_inside_of_a_block():
    """What is copied there is the plain model: the block is not the model's, but its thread's."""
    model = mlp()
    for make in COPIES.values():
        with integrations.compress(model, "L1.2"):
            twin = make(model)
            model(X).sum().backward()
        with pytest.raises(ValueError, match="is not compressed"):
            integrations.compression(twin)
        with integrations.compress(twin, "L1.2") as handle:
            twin(X).sum().backward()
        assert handle.step == 1


class Drawn(torch.utils.data.Dataset):
    """A data set that computes with torch, with gradients, in its workers."""

    def __len__(self):
        return 16

    def __getitem__(self, place):
        x = torch.full((64,), float(place), requires_grad=True)
        x.sin().sum().backward()
        return x.grad


def test_workers_are_forked_while_a_graph_is_alive():
    """Forked between forward and backward, of a model whose native session has run, they load as they do without it."""
    model = integrations.compress_model(mlp(), "L1")
    for _ in range(2):
        loss = model(X).sum()
        loader = torch.utils.data.DataLoader(Drawn(), batch_size=4, num_workers=2, multiprocessing_context="fork")
        found = torch.cat(list(loader))
        loss.backward()
    assert torch.equal(found, torch.arange(16.0).cos()[:, None].expand(16, 64))
    assert integrations.compression(model).step == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_goes_on_with_a_forward():
    """A child that is forked in a forward's middle ends it there, with the gradient of the parent."""
    model = integrations.compress_model(mlp(), "L1.2")
    output, twin = model(X).square().mean(), copy.deepcopy(model)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # the engine of torch runs on this thread, and needs none of those that a fork leaves behind
        try:
            found = torch.autograd.grad(output, list(model.parameters()))
            also = torch.autograd.grad(twin(X).sum(), list(twin.parameters()))
            os.write(write, repr([one.double().sum().item() for one in (*found, *also)]).encode())
            os._exit(0)
        finally:  # an error ends this process, too: it must not run the tests that are left a second time
            os._exit(1)
    os.close(write)
    _, status = os.waitpid(child, 0)
    with os.fdopen(read) as pipe:
        told = pipe.read()
    found = torch.autograd.grad(output, list(model.parameters()))
    also = torch.autograd.grad(twin(X).sum(), list(twin.parameters()))
    assert status == 0
    assert told == repr([one.double().sum().item() for one in (*found, *also)])


def of_a_spawned_process(model, answers):
    """Trains a step of the model that it was given, whose parameters the parent shares."""
    with torch.no_grad():
        model[0].bias.fill_(0.5)
    answers.put({name: gradient.tolist() for name, gradient in gradients(model, X).items()})


def test_a_spawned_process_is_given_a_compressed_model():
    """It rounds as the original would have, and the parameters are shared."""
    context = torch.multiprocessing.get_context("spawn")
    model = integrations.compress_model(nn.Sequential(*mlp()), "L1.2")
    model(X).sum().backward()
    model.zero_grad()
    model.share_memory()
    answers = context.Queue()
    process = context.Process(target=of_a_spawned_process, args=(model, answers))
    process.start()
    found = answers.get(timeout=120)
    process.join()
    assert process.exitcode == 0
    assert (model[0].bias == 0.5).all()
    expected = gradients(model, X)
    assert {name: torch.tensor(value).equal(expected[name]) for name, value in found.items()} == dict.fromkeys(
        found, True
    )
