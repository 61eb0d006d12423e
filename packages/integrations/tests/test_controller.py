"""GACT's interface: ``Controller``, and the settings that later ones begin with."""

import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import actcore
import integrations
from integrations import saved as gact
from integrations.saved import Controller
from integrations.saved.controller import Config

from .nets import EIGHT_BITS, assert_nothing_active, assert_same, gradients, mlp, normal, relative_error, rows

X = normal(48, 64)


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    """Settings of each test's own."""
    monkeypatch.setattr("integrations.saved.controller.config", Config())


def installed(level, model=None):
    gact.set_optimization_level(level)
    controller = Controller(mlp() if model is None else model)
    controller.install_hook()
    return controller


def test_iterate_runs_the_step_once_and_leaves_its_gradients():
    controller = installed("L1.1")
    model, calls = controller.model, []

    def backprop():
        calls.append(1)
        model.zero_grad()
        loss = model(X).square().mean()
        loss.backward()
        return loss.item()

    loss = controller.iterate(backprop)
    found = {name: p.grad for name, p in model.named_parameters()}
    plain = gradients(mlp(), X)
    assert len(calls) == 1
    assert loss == mlp()(X).square().mean().item()
    assert relative_error(plain, found) < EIGHT_BITS
    assert len(rows(model)) == 5


@pytest.mark.parametrize("level", integrations.LEVELS)
@pytest.mark.parametrize("inside", [True, False], ids=["step inside", "step outside"])
def test_the_optimizer_steps_inside_the_closure_or_outside(level, inside):
    """README's closure does one, the maintainers ask for the other: once an iteration, in both, at every level."""
    controller = installed(level)
    model = controller.model
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    steps = []
    optimizer.register_step_post_hook(lambda *args: steps.append(1))
    losses = []

    def backprop():
        optimizer.zero_grad()
        loss = (model(X) - 1).square().mean()
        loss.backward()
        losses.append(loss.item())
        if inside:
            optimizer.step()

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sequential at .*(offloaded|fewer bytes)")
        for _ in range(5):
            controller.iterate(backprop)
            if not inside:
                optimizer.step()
    assert len(steps) == 5
    assert losses[-1] < losses[0]


def test_hooks_that_are_installed_and_uninstalled_twice():
    controller = Controller(mlp())
    controller.uninstall_hook()
    controller.install_hook()
    handle = integrations.compression(controller.model)
    controller.install_hook()
    assert integrations.compression(controller.model) is handle
    controller.uninstall_hook()
    controller.uninstall_hook()
    assert "forward" not in vars(controller.model)
    assert_same(gradients(mlp(), X), gradients(controller.model, X))
    controller.install_hook()
    assert integrations.compression(controller.model) is not handle


def test_uninstalling_what_others_undid_or_did():
    controller = installed("L1")
    integrations.restore_model(controller.model)
    integrations.compress_model(controller.model, "L1.2")
    controller.uninstall_hook()
    assert integrations.compression(controller.model).level_name == "L1.2"


def test_installing_on_what_others_compress():
    model = integrations.compress_model(mlp())
    with pytest.raises(ValueError, match="Sequential is compressed already"):
        Controller(model).install_hook()


def test_a_controller_that_is_dropped_leaves_its_model_compressed():
    model = mlp()
    Controller(model).install_hook()
    gradients(model, X)
    assert len(rows(model)) == 5


def test_two_models_at_two_levels():
    first, second = installed("L1.2"), installed("L1.1")
    gact.set_optimization_level("L0")
    for controller in (first, second):
        gradients(controller.model, X)
    codecs = [{row.codec for row in rows(controller.model, "linear")} for controller in (first, second)]
    assert ["bits=2" in codecs[0].pop(), "bits=8" in codecs[1].pop()] == [True, True]
    first.uninstall_hook()
    gradients(second.model, X)
    assert len(rows(second.model)) == 5


# ---- settings ----


def test_what_settings_there_are():
    from integrations.saved.controller import config

    assert {"bit", "auto_prec", "swap", "bits", "seed", "adapt_interval", "choose"} <= set(dir(config))
    assert all(hasattr(config, name) for name in dir(config))


def test_a_level_begins_anew():
    """GACT's levels left what the one before had set."""
    gact.set_optimization_level("L3")
    from integrations.saved.controller import config

    config.bit = 7
    gact.set_adapt_interval(20)
    gact.set_optimization_level("L1")
    level = Controller(mlp()).level
    assert level == integrations.Level(bits=4, adapt_interval=20)


def test_names_of_settings():
    config = Config()
    assert (config.bit, config.auto_prec, config.swap, config.adapt_interval, config.group_size) == (
        4, True, False, 1000, 256,
    )  # fmt: skip
    config.bit, config.swap, config.min_bytes = 3, True, 0
    assert (config.bits, config.offload, config.min_bytes) == (3, True, 0)
    assert repr(config) == "Config('L2', bits=3, offload=True, min_bytes=0)"


@pytest.mark.parametrize("name", ["check_dup", "max_bit", "debug", "work_dir", "bitt"])
def test_settings_that_would_change_nothing(name):
    config = Config()
    with pytest.raises(AttributeError, match=f"settings of config are bit, .*, got '{name}'"):
        setattr(config, name, 1)
    assert not hasattr(config, name)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: gact.set_optimization_level("L4"),
            ValueError,
            "level must be one of L0, L1, .*, L4bit-swap, got 'L4'",
        ),
        (lambda: gact.set_optimization_level(2), TypeError, "level must be a string"),
        (lambda: gact.set_adapt_interval(0), ValueError, "adapt_interval must be 1 step or more, got 0"),
        (lambda: gact.set_adapt_interval("often"), TypeError, "adapt_interval must be an int, got 'often'"),
        (lambda: Controller(torch.relu), TypeError, r"model must be a torch\.nn\.Module, got builtin"),
        (lambda: Controller(mlp()).iterate(3), TypeError, "backprop must be a function .*, got 3; pass it without"),
    ],
)
def test_wrong_input(call, error, text):
    with pytest.raises(error, match=text):
        call()
    assert Controller(mlp()).level_name == "L2"


def test_settings_from_many_threads():
    """Each change is whole: none is lost, and no Controller sees half of one."""
    config, errors = Config(), []

    def work(level):
        try:
            for _ in range(200):
                config.choose(level)
                name, options = config.begin()
                assert name in ("L1", "L2.2")
                assert options == {}
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(level,)) for level in ("L1", "L2.2", "L1", "L2.2")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


# ---- never silent ----


@pytest.mark.parametrize(
    "forward", [lambda model: F.linear(X, model[0].weight), lambda model: model.eval()(X)], ids=["part", "eval"]
)
def test_a_closure_that_compresses_nothing(forward):
    controller = installed("L1")
    with pytest.warns(UserWarning, match="backprop ran no compressed forward of Sequential"):
        controller.iterate(lambda: forward(controller.model).sum().backward())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        controller.iterate(lambda: forward(controller.model).sum().backward())


def test_iterating_before_the_hooks_are_installed():
    controller = Controller(mlp())
    with pytest.warns(
        UserWarning, match=r"compresses nothing of Sequential yet: call install_hook\(\) before"
    ) as caught:
        controller.iterate(lambda: controller.model(X).sum().backward())
    assert [found.filename for found in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        controller.iterate(lambda: controller.model(X).sum().backward())


@pytest.mark.parametrize("level", ["L0", "L1"])
def test_a_closure_without_level_or_after_the_hooks_are_off(level):
    controller = installed(level)
    if level == "L1":
        controller.uninstall_hook()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        controller.iterate(lambda: controller.model(X).sum().backward())


# ---- the pair of functions ----


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)
        self.norm, self.dropout = nn.LayerNorm(64), nn.Dropout(0.5)

    def forward(self, x):
        h = F.gelu(self.norm(self.first(x)))
        return self.last(torch.where(h > 0.1, h, h * 0.5))


def test_quantize_and_dequantize():
    """Backward reads weights and statistics exactly, and its own sums of what 8 bits make of the rest."""
    model = Net()
    plain = gradients(model, X)
    controller = Controller(model)
    packed = []

    def pack(tensor):
        packed.append((tensor.dtype, controller.quantize(tensor)))
        return packed[-1][1]

    model.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(pack, controller.dequantize):
        loss = model(X).square().mean()
    loss.backward()
    assert relative_error(plain, {name: p.grad for name, p in model.named_parameters()}) < 3 * EIGHT_BITS
    stored = [form for _, form in packed if hasattr(form, "nbytes")]
    assert {str(form.codec) for form in stored} == {
        "GroupAffine(bits=8, group_size=256, rounding='stochastic')",
        "BitMask(values=(0, 1))",
    }
    assert not any(form.shape == (64, 64) for form in stored)  # no weight
    kept = [form.tensor.data_ptr() for _, form in packed if isinstance(form, actcore.Kept)]
    assert X.data_ptr() in kept
    assert_nothing_active()


def test_the_pair_at_level_0_keeps():
    gact.set_optimization_level("L0")
    controller, model = Controller(mlp()), mlp()
    plain = gradients(mlp(), X)
    with torch.autograd.graph.saved_tensors_hooks(controller.quantize, controller.dequantize):
        assert_same(plain, gradients(model, X))


def test_the_pair_checks_versions_of_what_it_keeps():
    controller = Controller(mlp())
    with torch.autograd.graph.saved_tensors_hooks(controller.quantize, controller.dequantize):
        h = (X[:1] * torch.ones(64, requires_grad=True)).exp()
    h.detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        h.sum().backward()
