"""Plans count the gradients that autograd sums, such as those of a weight that each step of a recurrent layer reads.

Autograd sums in place only where nothing else refers to the memory of the first part. A part that is a view, such as
the transposed gradient of a linear call's weight, keeps its base alive, so its sum takes new memory.
"""

import copy

import pytest
import torch
from torch import nn

import integrations

from .nets import check_steps_and_peak, profiled_bytes


class Net(nn.Module):
    """``forward`` calls ``run`` with the module ``body`` and its input of 64 features, and returns a scalar loss."""

    def __init__(self, body, run, width=64):
        super().__init__()
        self.body, self.run = body, run
        self.last = nn.Linear(width, 8)

    def forward(self, x):
        return self.last(self.run(self.body, x)).square().mean()


def run_layer(layer, x):
    return layer(x)[0]


def run_packed(layer, x):
    lengths = [max(1, x.shape[0] - 2 * place) for place in range(x.shape[1])]
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths)
    return nn.utils.rnn.pad_packed_sequence(layer(packed)[0])[0]


def run_cell(cell, x):
    state, found = None, []
    for step in x:
        state = cell(step, state)
        found.append(state[0] if isinstance(state, tuple) else state)
    return torch.stack(found)


def run_repeatedly(layer, x):
    for _ in range(8):
        x = torch.tanh(layer(x))
    return x


class Product(nn.Module):
    """A weight whose gradients are new tensors and no views."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64) / 8)

    def forward(self, x):
        return x @ self.weight


CASES = {
    "GRU of 2 steps": (lambda: nn.GRU(64, 128), run_layer, 2),
    "GRU of 16 steps": (lambda: nn.GRU(64, 128), run_layer, 16),
    "LSTM, packed": (lambda: nn.LSTM(64, 128), run_packed, 12),
    "LSTM in double": (lambda: nn.LSTM(64, 128).double(), run_layer, 12),
    "LSTM in bfloat16": (lambda: nn.LSTM(64, 128).bfloat16(), run_layer, 12),
    "LSTM cell": (lambda: nn.LSTMCell(64, 128), run_cell, 12),
    "RNN cell": (lambda: nn.RNNCell(64, 128), run_cell, 12),
    "linear": (lambda: nn.Linear(64, 64), run_repeatedly, 2),
    "linear without bias": (lambda: nn.Linear(64, 64, bias=False), run_repeatedly, 2),
    "product": (Product, run_repeatedly, 2),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("memory", [1.0, "between", "least"])
@pytest.mark.filterwarnings("error:.*not the one that was captured:UserWarning")
def test_a_step_takes_no_more_than_its_plan(name, memory):
    make, run, steps = CASES[name]
    torch.manual_seed(0)
    body = make()
    dtype = next(body.parameters()).dtype
    width = getattr(body, "hidden_size", 64)
    model, x = Net(body, run, width).to(dtype), torch.randn(steps, 4, 64, dtype=dtype)
    plain = copy.deepcopy(model)
    if memory == "between":
        least = integrations.plan(model, (x,), memory="least")
        memory = (least.peak + least.plain_peak) // 2
    integrations.compress_model(model, memory=memory)

    def step(net, seed):
        torch.manual_seed(seed)
        net(x).backward()
        return [one.grad for one in net.parameters()]

    check_steps_and_peak(model, plain, step)
    plan = integrations.compression(model).plan
    model.zero_grad()
    plain_most, plain_left = profiled_bytes(lambda: step(plain, 5))
    assert plan.plain_peak == pytest.approx(plain_most - plain_left, rel=0.05)
