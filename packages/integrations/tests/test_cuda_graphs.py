"""A compressed step that a CUDA graph captures by hand draws other noise in every replay.

Without a GPU, the capture is a record of the operators that run, and a replay runs these again: Python's part of the
step is over then, as it is on a GPU.
"""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

import actcore
import integrations
from actcore import device_streams
from integrations import checkpoint, qmodules

from .nets import EIGHT_BITS, mlp, normal

pytestmark = pytest.mark.cuda
X = normal(48, 64)


class Recorded(TorchDispatchMode):
    """The calls of actcore's operators, as a CUDA graph has their kernels."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        if func.namespace == "actcore":
            self.calls.append((func, args, kwargs or {}, results))
        return results

    def names(self):
        return [str(func) for func, *_ in self.calls]

    def replay(self):
        """What the compressing operators make when all of it runs again, on the same inputs."""
        made, new = [], {}

        def renewed(tensor):
            return new.get(id(tensor), tensor)

        for func, args, kwargs, results in self.calls:
            args, kwargs = tree_map_only(torch.Tensor, renewed, (args, kwargs))
            again = func(*args, **kwargs)
            pairs = zip(tensors(results), tensors(again), strict=True)
            new |= {id(one): other for one, other in pairs}
            if "compress" in str(func) and "decompress" not in str(func):
                made.append(tensors(again))
        return made


def tensors(results):
    return [results] if isinstance(results, torch.Tensor) else [one for one in results if isinstance(one, torch.Tensor)]


@pytest.fixture
def captured(monkeypatch):
    """Whether what runs is taken for captured."""
    state = {"on": False}
    monkeypatch.setattr(device_streams.torch.cuda, "is_initialized", lambda: state["on"])
    monkeypatch.setattr(device_streams.torch.cuda, "is_current_stream_capturing", lambda: state["on"])
    return state


def step(model):
    model(X).square().mean().backward()


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))


def hooks(model):
    forward = model.forward

    def hooked(*inputs):
        with actcore.saved_tensors(lambda saved: actcore.GroupAffine(4)):
            return forward(*inputs)

    model.forward = hooked
    return model


WAYS = {
    "L1": lambda: integrations.compress_model(net()),
    "L2": lambda: integrations.compress_model(net(), "L2"),
    "Q-layers": lambda: qmodules.QModule(net(), "L2"),
    "hooks": lambda: hooks(net()),
}


def differ(one, other):
    pairs = (pair for ours, theirs in zip(one, other, strict=True) for pair in zip(ours, theirs, strict=True))
    return any(not torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize("way", WAYS)
def test_replays_round_anew(way, captured):
    model = WAYS[way]()
    step(model)
    step(model)
    captured["on"] = True
    with Recorded() as graph:
        step(model)
    captured["on"] = False
    compressing = [name for name in graph.names() if "compress" in name and "decompress" not in name]
    assert "actcore.next_stream.default" in graph.names()
    assert compressing
    assert all(name.endswith((".tensor", ".graph")) for name in compressing if "affine" in name), compressing
    first, second = graph.replay(), graph.replay()
    assert differ(first, second)


PLANNED = {
    "L1 with a plan": lambda: integrations.compress_model(net(), checkpoint="optimal"),
    "a plan that keeps in 4 bits": lambda: checkpoint.apply(
        net(), checkpoint.plan(net(), (X,)), codec=actcore.GroupAffine(4)
    ),
}


@pytest.mark.parametrize("way", PLANNED)
def test_what_a_plan_keeps_is_rounded_anew(way, captured, monkeypatch):
    """A plan's own operators are seen by no mode, so the streams are looked at."""
    streams, compress = [], actcore.GroupAffine.compress

    def noted(self, tensor, *, seed=0, stream=0):
        streams.append(stream)
        return compress(self, tensor, seed=seed, stream=stream)

    monkeypatch.setattr(actcore.GroupAffine, "compress", noted)
    model = PLANNED[way]()
    step(model)
    assert streams
    assert all(isinstance(stream, int) for stream in streams)
    streams.clear()
    captured["on"] = True
    step(model)
    step(model)
    assert len({stream.item() for stream in streams}) == len(streams) > 1


def test_without_a_capture_a_replay_would_round_alike():
    model = WAYS["L1"]()
    step(model)
    with Recorded() as graph:
        step(model)
    assert "actcore.next_stream.default" not in graph.names()
    assert not differ(graph.replay(), graph.replay())


def test_a_captured_step_is_unbiased(captured):
    """The mean over replays is the tensor: each rounding is off by at most a step, a fifteenth of its group's range,
    and has a standard deviation of at most half of that."""
    x = normal(64, 256)
    captured["on"] = True
    with Recorded() as graph, actcore.saved_tensors(lambda saved: actcore.GroupAffine(4)):
        x.clone().requires_grad_().exp()
    captured["on"] = False
    [call] = [call for call in graph.calls if "affine_compress" in str(call[0])]
    exact, replays = call[1][0], 64
    mean = torch.zeros_like(exact)
    for _ in range(replays):
        [payload] = graph.replay()
        mean += actcore.Compressed(
            actcore.GroupAffine(4), tuple(payload), actcore.Layout.of(exact), exact.dtype
        ).decompress()
    steps = (exact.view(64, 256).amax(1) - exact.view(64, 256).amin(1)).view(64, 1) / 15
    error = (mean / replays - exact).view(64, 256) / steps
    # The mean of 16384 independent errors, each of deviation at most .5 / 8.
    assert error.mean().abs() < 5 * 0.5 / 8 / 128


def test_nothing_is_measured_in_a_capture(captured):
    model = integrations.compress_model(mlp(), "L2")
    handle = integrations.compression(model)
    step(model)
    captured["on"] = True
    step(model)  # the second, which is measured in an unchanged loop
    captured["on"] = False
    assert handle.plan is None
    step(model)
    assert handle.plan is not None


@pytest.mark.skipif(
    bool(actcore.build_info()["cuda_missing"]), reason=f"no CUDA: {actcore.build_info()['cuda_missing']}"
)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")
@pytest.mark.parametrize("level", ["L1", "L2"])
def test_on_a_gpu_the_gradient_of_each_replay_is_another(level):
    model, x = integrations.compress_model(net().cuda(), level), X.cuda()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model.zero_grad(set_to_none=True)
            model(x).square().mean().backward()
    torch.cuda.current_stream().wait_stream(side)
    model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x).square().mean().backward()
    found = []
    for _ in range(3):
        for parameter in model.parameters():
            parameter.grad.zero_()
        graph.replay()
        found.append(model[2].weight.grad.clone())
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[1], found[2])
    # Of other elements a replay has their gradient, in a parameter's own gradient, which it writes anew.
    x.copy_(normal(48, 64, seed=1))
    graph.replay()
    replayed = model[2].weight.grad.clone()
    plain = integrations.restore_model(model)
    plain.zero_grad(set_to_none=True)
    plain(x).square().mean().backward()
    exact = plain[2].weight.grad
    assert (replayed - exact).norm() < EIGHT_BITS * 255 / 15 * exact.norm()
