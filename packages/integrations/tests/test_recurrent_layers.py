"""Plans count what recurrent and bilinear layers hold within their operators, which fake tensors do not show."""

import copy

import pytest
import torch
from torch import nn

import integrations
from integrations.capture.costs.operator_costs import count_scratch
from integrations.capture.dispatch.fakes import Fakes

from .nets import check_steps_and_peak, profiled_bytes

aten = torch.ops.aten
ONEDNN = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")

SIZES = (
    *((1, 3, 5, 7), (2, 4, 16, 64), (9, 8, 128, 128), (30, 5, 20, 30), (12, 3, 64, 192)),
    *((10, 64, 300, 32), (10, 64, 32, 300), (7, 5, 256, 64), (11, 7, 100, 50)),
)
"""Of oneDNN's layer: steps, batch, features of the input, features of the state."""


def arguments(steps, batch, inner, hidden):
    """The tensors of oneDNN's layer, and all that comes behind them."""
    weights = [torch.randn(4 * hidden, inner), torch.randn(4 * hidden, hidden), *torch.randn(2, 4 * hidden)]
    states = [torch.zeros(1, batch, hidden) for _ in range(2)]
    return [torch.randn(steps, batch, inner), *weights, *states], (False, [], 2, hidden, 1, True, False, False, True)


def backward_arguments(tensors, rest, out):
    reverse, sizes, mode, hidden, layers, has_biases, bidirectional, batch_first, train = rest
    gradients = torch.randn_like(out[0]), torch.zeros_like(out[1]), torch.zeros_like(out[2])
    options = reverse, mode, hidden, layers, has_biases, train, bidirectional, sizes, batch_first
    return (*tensors, *out[:3], *gradients, *options, out[3])


def beside_results(function, args):
    """The bytes that an operator allocates and frees while it runs."""
    found = []
    most, left = profiled_bytes(lambda: found.append(function(*args)))
    return most - left


@ONEDNN
@pytest.mark.parametrize("sizes", SIZES)
def test_the_workspace_on_fake_tensors_is_that_of_real_ones(sizes):
    tensors, rest = arguments(*sizes)
    real = aten.mkldnn_rnn_layer(*tensors, *rest)[3].untyped_storage().nbytes()
    assert real > 0
    mode = Fakes()
    fake = aten.mkldnn_rnn_layer(*map(mode.from_tensor, tensors), *rest)[3]
    assert fake.untyped_storage().nbytes() == real
    evaluated = (*rest[:-1], False)
    assert aten.mkldnn_rnn_layer(*tensors, *evaluated)[3].untyped_storage().nbytes() == real
    assert aten.mkldnn_rnn_layer(*map(mode.from_tensor, tensors), *evaluated)[3].untyped_storage().nbytes() == real
    with torch.no_grad():
        assert aten.mkldnn_rnn_layer(*tensors, *rest)[3] is None
        assert aten.mkldnn_rnn_layer(*map(mode.from_tensor, tensors), *rest)[3] is None


@ONEDNN
@pytest.mark.parametrize("sizes", SIZES)
def test_bytes_that_a_layer_takes_while_it_runs(sizes):
    tensors, rest = arguments(*sizes)
    out = aten.mkldnn_rnn_layer(*tensors, *rest)
    calls = {
        aten.mkldnn_rnn_layer.default: (*tensors, *rest),
        aten.mkldnn_rnn_layer_backward.default: backward_arguments(tensors, rest, out),
    }
    for function, args in calls.items():
        real = beside_results(function, args)
        assert count_scratch(function, args, ()) == real, function


def test_a_layer_of_a_gpus_library_is_captured_on_real_tensors():
    with Fakes():
        tensors, _ = arguments(*SIZES[0])
        weights, (hx, cx) = tensors[1:5], tensors[5:]
        options = (2, 7, 0, 1, False, 0.0, True, False, [], None)
        with pytest.raises(
            NotImplementedError, match=r"torch does not tell how many bytes _cudnn_rnn in torch\.float32 keeps"
        ):
            aten._cudnn_rnn(tensors[0], weights, 4, None, hx, cx, *options)


class Recurrent(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(32, 64), layer, nn.LazyLinear(8)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return self.last(self.layer(h)[0] if isinstance(self.layer, nn.RNNBase) else self.layer(h, h))


class WithoutGradient(nn.LSTM):
    """A teacher, or an extractor of features."""

    def forward(self, *args):
        with torch.no_grad():
            return super().forward(*args)


LAYERS = {
    "LSTM in eval()": lambda: nn.LSTM(64, 64, 2).eval(),
    "LSTM without gradient": lambda: WithoutGradient(64, 64, 2),
    "LSTM": lambda: nn.LSTM(64, 64, 2),
    "LSTM, both directions": lambda: nn.LSTM(64, 64, 2, bidirectional=True, dropout=0.1),
    "LSTM, batch first": lambda: nn.LSTM(64, 64, batch_first=True),
    "GRU": lambda: nn.GRU(64, 64),
    "RNN": lambda: nn.RNN(64, 64),
    "bilinear": lambda: nn.Bilinear(64, 64, 32),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("memory", [1.0, "least"])
@pytest.mark.filterwarnings("error:.*not the one that was captured:UserWarning")
def test_steps_keep_to_the_plan_and_to_the_plain_gradients(name, memory):
    torch.manual_seed(0)
    model, x = Recurrent(LAYERS[name]()), torch.randn(16, 16, 32)
    model(x)
    plain = copy.deepcopy(model)
    integrations.compress_model(model, memory=memory)

    def step(net, seed):
        torch.manual_seed(seed)
        net(x).square().mean().backward()
        return [one.grad for one in net.parameters() if one.grad is not None]

    check_steps_and_peak(model, plain, step)
    plan = integrations.compression(model).plan
    if memory == "least" and isinstance(model.layer, nn.RNNBase) and not isinstance(model.layer, WithoutGradient):
        assert plan.peak < plan.plain_peak
