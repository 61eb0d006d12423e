"""What measures with a closure leaves Q-layers as they were: training goes on bit for bit as without it."""

import itertools

import pytest
import torch
from torch import nn

import integrations
from integrations import qmodules
from integrations.qmodules import precision

from .nets import normal

X = normal(32, 3, 6, 6)
OTHER = normal(24, 3, 6, 6)


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 8)
    )


def mixed():
    """With an activation whose input the level stores."""
    model = net()
    model[2] = nn.Softplus()
    return model


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(36, 2, dropout=0.1, batch_first=True)
        self.last = nn.Linear(36, 8)

    def forward(self, x):
        x = x.flatten(2)
        return self.last(self.attention(x, x, x)[0].mean(1))


def attention():
    torch.manual_seed(0)
    return Attention()


def by_hand():
    """Return a model at a level with Q-layers that the user built. Each of them chooses its bits alone."""
    model = net()
    level = qmodules.LEVELS["L3"]
    model[3], model[5] = (qmodules.QConv2d.from_module(model[3], level), qmodules.QLinear.from_module(model[5], level))
    return model


MODELS = {
    "q": (net, {"layers": "q"}),
    "fixed": (net, {"layers": "ActNN-L2"}),
    "adaptive level": (mixed, {"layers": "q", "level": "L2", "adapt_interval": 3}),
    "by hand": (by_hand, {}),
    "attention": (attention, {"layers": "q"}),
}


class Training:
    """The training of one model, and the closure that it is measured with."""

    def __init__(self, make, options):
        self.model = integrations.compress_model(make(), **{"level": "L1", **options})
        self.handle = integrations.compression(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        self.held = []

    def closure(self, x=X):
        self.optimizer.zero_grad()
        self.held = [self.model(x)]  # a graph that is still alive afterwards, as one that a user logs
        self.model(x).square().mean().backward()

    def step(self):
        self.optimizer.zero_grad()
        self.model(X).square().mean().backward()
        self.optimizer.step()

    def weights(self):
        return [value.clone() for value in self.model.state_dict().values()]


def gradient_error(training):
    training.handle.gradient_error(training.closure)


def monitor(training):
    training.handle.monitor(training.closure, every=2, bound=10.0)


def report(training):
    training.handle.report(training.closure)


def raises(training):
    def closure():
        training.closure()
        raise MemoryError("none left")

    with pytest.raises(MemoryError):
        training.handle.gradient_error(closure)


def trained(make, options, before_third, first=False):
    restart_numbers()
    training = Training(make, options)
    if first:
        before_third(training)
    for number in range(6):
        if number == 2 and not first:
            before_third(training)
        training.step()
    return training.weights()


def restart_numbers():
    """Have layers built by hand count from 0, as in a process of their own."""
    precision._numbers = itertools.count()


def same(one, other):
    return all(map(torch.equal, one, other))


@pytest.mark.parametrize("measure", [gradient_error, monitor, report, raises])
@pytest.mark.parametrize(("make", "options"), MODELS.values(), ids=MODELS.keys())
def test_training_goes_on_as_without_it(make, options, measure):
    plain = trained(make, options, lambda training: None)
    assert same(plain, trained(make, options, lambda training: None))
    assert same(plain, trained(make, options, measure))
    assert same(plain, trained(make, options, measure, first=True))


def test_a_measurement_of_an_adaptive_level_is_no_step_of_q_layers():
    make, options = MODELS["adaptive level"]
    plain, adapted = (Training(make, options) for _ in range(2))
    adapted.handle.adapt(adapted.closure, passes=2)
    for number in range(4):
        plain.step()
        adapted.step()
        if not number:
            ours, others = plain.model[3].precision, adapted.model[3].precision
            assert (ours._forwards, ours.bits) == (others._forwards, others.bits)


def test_other_models_of_the_closure_with_q_layers():
    """Compressed ones, converted ones, and a layer that is in two of them."""

    def run(measured):
        teacher = qmodules.QModule(net(), "L3")
        second = Training(net, {"layers": "q"})
        shared = nn.Sequential(*second.model[:5], nn.Linear(128, 8))
        third = integrations.compress_model(shared, "L1")
        training = Training(net, {"layers": "q"})
        models, held = (teacher, second.model, third, training.model), []

        def closure():
            for model in models:
                model(OTHER).square().mean().backward()
            held[:] = [model(X) for model in models]  # the closure's graphs and stored tensors stay alive

        for number in range(5):
            if measured and number in (0, 3):
                training.handle.gradient_error(closure)
            for model in models:
                model.zero_grad()
            sum(model(X).square().mean() for model in models).backward()
            with torch.no_grad():
                for model in models:
                    for parameter in model.parameters():
                        parameter.sub_(0.01 * parameter.grad)
        return [value.clone() for model in models for value in model.state_dict().values()]

    torch.manual_seed(0)
    plain = run(False)
    torch.manual_seed(0)
    assert same(plain, run(True))


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("own", [True, False])
def test_batches_of_the_closure_are_not_the_trainings(own):
    """The loop names its batch, and then the monitor's closure, in front of the forward, names another one."""
    tables = []
    for measured in (False, True):
        options = {"layers": {"level": "L3", "use_gradient": True, "num_samples": 64}}
        training = Training(net, options)
        where = qmodules.model_precision(training.model) if own else qmodules.QScheme

        def closure(training=training, where=where):
            where.batch = torch.arange(40, 64)
            training.closure(OTHER)

        if measured:
            training.handle.monitor(closure, every=1, bound=10.0)
        try:
            for number in range(4):
                where.batch = torch.arange(number, number + 32)
                training.step()
        finally:
            qmodules.QScheme.batch = None
        layers = [module for module in training.model.modules() if isinstance(module, qmodules.QLayer)]
        found = [layer.precision._gradients for layer in layers]
        tables.append([*training.weights(), *(table._values for table in found if table is not None)])
    assert len(tables[0]) > len(training.weights())
    assert same(*tables)
