"""What a plan keeps may be stored through a codec: unbiased, once for all who keep it, and the rest exactly."""

import gc
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import actcore
import integrations
from integrations.capture.graphs.graph import Graph
from integrations.capture.graphs.schedule import Schedule
from integrations.checkpoint import apply, capture, plan

from .nets import EIGHT_BITS, Net, gradients, normal, relative_error
from .recompute_nets import NETS, net
from .recompute_reference import outcome, random_kept
from .recompute_run import run

EIGHT = actcore.GroupAffine(8)


class Noted:
    """A codec that notes what it is given."""

    def __init__(self, inner=EIGHT):
        self.inner, self.given, self.streams = inner, [], []

    def compress(self, tensor, *, seed=0, stream=0):
        self.given.append(tensor.clone())
        self.streams.append((seed, stream))
        return self.inner.compress(tensor, seed=seed, stream=stream)

    def decompress(self, compressed):
        return self.inner.decompress(compressed)


def made(forward, *inputs, **parameters):
    """A model of a function, and its graph with these inputs."""
    model = Net(forward, **parameters).train()
    return model, capture(model, inputs)


def value_of(graph, name, number=0):
    """What the operator of that name makes."""
    return [op.makes[0] for op in graph.ops if op.name.startswith(f"aten.{name}.")][number]


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_codec_that_is_exact_changes_nothing(name, share):
    model, args, kwargs = net(name)
    graph = capture(model, args, kwargs)
    kept = random_kept(graph, share)
    ours = outcome(run(model, graph, kept, codec=actcore.Raw()), model, args, kwargs)
    model, args, kwargs = net(name)
    assert all(map(torch.equal, ours, outcome(model, model, args, kwargs)))


@pytest.mark.parametrize("share", [0.2, 0.6, 1.0])
def test_eight_bits(share):
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.Tanh()))).train()
    x = normal(128, 64)
    graph = capture(model, x)
    noted = Noted()
    forward = run(model, graph, random_kept(graph, share, seed=1), codec=noted)
    found = gradients(model, x)
    model.forward = forward.__closure__ and forward
    assert noted.given == []
    del model.forward
    torch.manual_seed(1)
    model.zero_grad()
    forward(x).square().mean().backward()
    ours = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert noted.given
    # What is recomputed adds up the errors of at most four layers, each below that of its input.
    assert 0 < relative_error(found, ours) < 4 * EIGHT_BITS


def heads(model, x):
    """One tensor that three operators save, and that a repetition reads, too."""
    y = F.dropout(x * model.scale, 0.1)
    q, k, v = y @ model.q, y @ model.k, y @ model.v
    return (q.exp().sin() * k).tanh() @ v.t()


HEADS = {"scale": normal(32), **{name: normal(32, 32, seed=seed) / 16 for seed, name in enumerate("qkv")}}


def stored_forms():
    return [thing for thing in gc.get_objects() if type(thing) is actcore.Compressed]


def test_all_who_keep_a_tensor_share_one_stored_form():
    before = stored_forms()  # of tests that ran before this one; held, so that no number is given twice
    known = {id(form) for form in before}
    x = normal(64, 32)
    model, graph = made(heads, x, **HEADS)
    boundary = value_of(graph, "mul", 1)  # dropout's result
    noted = Noted()
    output = run(model, graph, [boundary], codec=noted)(x)
    assert [tensor.shape.numel() for tensor in noted.given] == [64 * 32]
    assert len([form for form in stored_forms() if id(form) not in known]) == 1
    output.sum().backward()
    assert len(noted.given) == 1
    del output
    assert not [form for form in stored_forms() if id(form) not in known]


def test_only_large_activations_are_stored():
    def forward(model, x, tokens):
        y = F.dropout(F.embedding(tokens, model.words) * x, 0.5)
        y = F.max_pool1d(F.relu(F.layer_norm(y, (32,))), 2)
        small = y[:1, :4].exp().sin()
        masked = y.masked_fill(y < 0.5, -1e9).softmax(-1)
        return (masked @ model.square).sort(-1).values.sum() + small.sum()

    x, tokens = normal(64, 32), torch.arange(64) % 9
    model, graph = made(forward, x, tokens, words=normal(9, 32), square=normal(16, 16))
    noted = Noted()
    run(model, graph, range(len(graph.values)), codec=noted)(x, tokens).backward()
    assert noted.given
    for tensor in noted.given:
        assert tensor.dtype is torch.float32
        assert tensor.nbytes >= 1024
        assert tensor.min() > -1e9
    names = {graph.ops[value.producer].name for value in graph.values if value.saved >= 0}
    assert {"aten.sort.default", "aten.bernoulli_.float"} <= names or len(names) > len(noted.given)


def chain(model, x):
    """Linear in what is kept, whatever is recomputed from it."""
    y = F.dropout((x * model.scale) @ model.q, 0.1)
    return ((y * 2) @ model.k).roll(1, 0) @ model.v


SEEDS = 48


def test_the_mean_over_seeds_is_the_exact_gradient():
    """As in ``test_gradients_mean.py``, in 3 bits."""
    x = normal(32, 32)
    model, graph = made(chain, x, **HEADS)
    kept = [value_of(graph, "mul")]

    def gradient(codec, step=0):
        torch.manual_seed(1)
        model.zero_grad()
        forward = run(model, graph, kept, codec)
        forward.handle.step = step
        output = forward(x)
        output.backward(normal(*output.shape, seed=9))
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).double()

    exact = gradient(None)
    errors = torch.stack([gradient(actcore.GroupAffine(3), step) for step in range(SEEDS)]) - exact
    spread = errors.std(0)
    noisy = spread > 1e-6 * exact.abs().max()
    assert noisy.sum() > 1000
    assert (errors[:, ~noisy].abs() <= 1e-5 * exact.abs().max()).all()  # float32 sums in another order
    errors = errors[:, noisy] / spread[noisy]
    products = (errors @ errors.T)[~torch.eye(SEEDS, dtype=torch.bool)]
    assert (products.mean() / (2 * products.square().mean() / products.numel()).sqrt()).item() < 4.5


def test_every_tensor_and_every_step_has_noise_of_its_own():
    x = normal(64, 32)
    model, graph = made(heads, x, **HEADS)
    found = []
    for _ in range(2):
        noted = Noted()
        forward = run(model, graph, range(len(graph.values)), codec=noted)
        for _ in range(2):
            torch.manual_seed(0)
            forward(x).sum().backward()
        assert len(set(noted.streams)) == len(noted.streams) > 4
        found.append(noted.streams)
    assert found[0] == found[1]  # and two runs the same


def test_what_is_changed_in_place_after_it_was_saved_raises_as_in_torch():
    def forward(model, x):
        y = (x * model.scale).exp()  # saves its result
        z = y.sin()
        y.add_(1)
        return z

    model, graph = made(forward, normal(16, 32), scale=normal(32))
    noted = Noted()
    output = run(model, graph, range(len(graph.values)), codec=noted)(normal(16, 32))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@pytest.mark.parametrize("again", [False, True])  # saved by autograd, and read by a repetition
@pytest.mark.parametrize("stored", [False, True])
def test_what_the_caller_changes_in_place(again, stored):
    """What is kept as it is raises as in torch; what is stored was so before the change, and is right."""

    def forward(model, x):
        y = (x @ model.q) * 2
        return y, F.silu(y.exp() if again else y)

    x = normal(16, 32)
    model, graph = made(forward, x, q=normal(32, 32))
    found = gradients(model, x, loss=lambda outputs: outputs[1].sum())
    model.zero_grad()
    noted = Noted()
    y, output = run(model, graph, [value_of(graph, "mul")], codec=noted if stored else None)(x)
    assert bool(noted.given) == stored
    with torch.no_grad():
        y.add_(1)
    if not stored:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.sum().backward()
    else:
        output.sum().backward()
        assert relative_error(found, {"q": model.q.grad}) < 4 * EIGHT_BITS


def test_memory_that_is_written_part_by_part_is_kept_as_it_is():
    """A stored form after each part would be wrong for the next, or as many forms as parts."""

    def forward(model, x):
        buffer = torch.zeros(8, 16, 32)
        y = x * model.scale
        for step in range(8):
            y = (y @ model.q).tanh()
            buffer[step] = y
        return buffer.exp().sum()

    model, graph = made(forward, normal(16, 32), **HEADS)
    plain = gradients(model, normal(16, 32), loss=lambda loss: loss)
    noted = Noted(actcore.Raw())
    model.zero_grad()
    run(model, graph, range(len(graph.values)), codec=noted)(normal(16, 32)).backward()
    assert all(
        torch.equal(plain[name], parameter.grad) for name, parameter in model.named_parameters() if name in plain
    )
    assert all(tensor.numel() == 16 * 32 or (tensor > 0).all() for tensor in noted.given)


def by_shape(model, x):
    y = (x @ model.q) * 2
    chosen = y[y > 0.01]
    return chosen.exp().sin().sum()


@pytest.mark.parametrize("codec", [None, actcore.GroupAffine(2)])
def test_shapes_that_follow_from_values_are_the_forwards(codec):
    """What is rounded decides nothing anew, and what a mask goes with is kept exactly."""
    model = Net(by_shape, q=normal(32, 32)).train()
    x = normal(64, 32)
    graph = capture(model, x, real=True)
    plain = gradients(model, x, loss=lambda loss: loss)
    model.zero_grad()
    run(model, graph, [value_of(graph, "mul")], codec=codec)(x).backward()
    assert torch.equal(plain["q"], model.q.grad)


def test_shapes_that_come_out_otherwise_raise(monkeypatch):
    """Of an operator that decides without anybody's knowledge."""
    monkeypatch.setattr(Schedule, "where_rounded", property(lambda schedule: schedule))
    monkeypatch.setattr(Graph, "where_rounded", property(lambda graph: graph))
    model, x = Net(by_shape, q=normal(32, 32)).train(), normal(64, 32)
    graph = capture(model, x, real=True)
    graph = replace(graph, values=tuple(replace(value, exact=False) for value in graph.values))
    loss = run(model, graph, [value_of(graph, "mul")], codec=actcore.GroupAffine(2))(x)
    with pytest.raises(RuntimeError, match=r"depend on values .* stored in fewer bits. Store them exactly"):
        loss.backward()


def test_a_retained_graph_reads_the_same():
    x = normal(64, 32)
    model, graph = made(heads, x, **HEADS)
    loss = run(model, graph, [value_of(graph, "mul", 1)], codec=EIGHT)(x).sum()
    found = []
    for _ in range(2):
        model.zero_grad()
        loss.backward(retain_graph=True)
        found.append([parameter.grad for parameter in model.parameters()])
    assert all(map(torch.equal, *found))


def test_what_is_no_codec():
    x = normal(64, 32)
    model, _ = made(heads, x, **HEADS)
    with pytest.raises(TypeError, match=r"codec must be a codec, .* got <class 'actcore.*GroupAffine'>"):
        apply(model, plan(model, x), codec=actcore.GroupAffine)
    with pytest.raises(TypeError, match=r"codec must be a codec, such as actcore.GroupAffine\(bits=8\), got 8"):
        apply(model, plan(model, x), codec=8)


def with_codec(codec, **options):
    """A model with a plan whose kept values are stored by a codec, after a step."""
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.GELU()))).train()
    x = normal(256, 64)
    apply(model, plan(model, x), codec=codec, **options)
    model(x).sum().backward()
    return model, x


def test_what_the_handle_says_of_a_codec():
    """Its error is measured, since no plan knows it: many times float32's rounding, of which exact gradients have some
    1e-7."""
    model, x = with_codec(actcore.GroupAffine(2))
    handle = integrations.compression(model)
    with pytest.raises(ValueError, match=r"closure must be given for a plan with codec="):
        handle.gradient_error()

    def closure():
        model.zero_grad()
        model(x).square().mean().backward()

    assert handle.gradient_error(closure).relative > 0.001
    assert "kept tensors stored by GroupAffine(bits=2" in handle.report().caption
    handle.monitor(closure, every=1)
    for _ in range(2):
        model(x).sum().backward()
    assert handle.last_error.relative > 0.001
    exact = integrations.compression(with_codec(actcore.Raw())[0])
    with pytest.raises(ValueError, match="gradients are exact"):
        exact.monitor(closure)


def test_a_state_has_the_shapes_and_says_what_codec_it_was_of():
    model, _ = with_codec(EIGHT, shapes="refuse")
    state = integrations.compression(model).state_dict()
    same, _ = with_codec(EIGHT)
    integrations.compression(same).load_state_dict(state)
    assert integrations.compression(same)._plan_manager.codec == EIGHT
    with pytest.raises(ValueError, match="inputs must be of the shapes"):
        same(normal(300, 64))
    other, _ = with_codec(None)
    with pytest.warns(UserWarning, match=r"stored kept tensors with codec=GroupAffine\(bits=8.*pass codec= to .*apply"):
        integrations.compression(other).load_state_dict(state)
    assert integrations.compression(other)._plan_manager.codec is None
    with pytest.raises(ValueError, match="the state's shapes must be 'replan' or 'refuse', got 'any'"):
        integrations.compression(other).load_state_dict(
            {**state, "recomputing": {**state["recomputing"], "shapes": "any"}}
        )


@pytest.mark.parametrize("around", [False, True])  # the model itself is compiled, or a function that calls it
def test_compiled_code_says_that_it_uses_no_codec(around):
    torch._dynamo.reset()
    model, x = with_codec(EIGHT)
    forward = torch.compile((lambda x: model(x) * 2) if around else model, backend="aot_eager")
    with pytest.warns(UserWarning, match="codec has no effect"):
        forward(x).sum().backward()
