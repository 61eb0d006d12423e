"""Forwards that no plan can be made of: the first one raises, and later ones run without a plan."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _len_torch_dispatch_stack

import integrations
from integrations import checkpoint
from integrations.api.handle import plan_manager
from integrations.planner import plans
from integrations.planner.plan_with_stores import planned

from .nets import assert_same, gradients, mlp, normal

X = normal(48, 64)
LARGER = normal(96, 64)

WAYS = {
    "apply": lambda model: checkpoint.apply(model, checkpoint.plan(model, (X,))),
    "L1": lambda model: integrations.compress_model(model, checkpoint="optimal"),
}
every_way = pytest.mark.parametrize("way", WAYS)


def frozen(model):
    return model.requires_grad_(False)


@every_way
def test_a_model_of_which_nothing_is_trained_runs_with_any_inputs(way):
    plain, model = mlp(), WAYS[way](mlp())
    model(X).sum().backward()
    frozen(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".* at L1: nothing is stored in fewer bytes: no parameter")
        for x in (LARGER, X):
            assert torch.equal(model(x), plain(x))
    with pytest.raises(ValueError, match="requires a gradient"):
        checkpoint.plan(frozen(mlp()), (X,))


def test_compression_of_a_model_of_which_nothing_is_trained_yet():
    model = integrations.compress_model(frozen(mlp()), checkpoint="optimal")
    with pytest.warns(UserWarning, match="no parameter of the model requires a gradient"):
        assert torch.equal(model(X), mlp()(X))
    with pytest.raises(ValueError, match="has no plan yet"):
        checkpoint.plan_of(model)
    model.requires_grad_(True)
    model(X).sum().backward()  # plans now
    assert checkpoint.plan_of(model).plain_peak > 0


@every_way
def test_a_capture_that_fails_warns_once_and_the_forward_runs(way, monkeypatch):
    plain = mlp()
    model = WAYS[way](copy.deepcopy(plain))
    model(X).sum().backward()
    captures = []

    def capture(*args, **options):
        captures.append(args)
        raise RuntimeError("operators that no capture knows")

    monkeypatch.setattr(plans, "capture", capture)
    monkeypatch.setattr("integrations.planner.plan_with_stores.capture_reaching", capture)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = gradients(model, LARGER)
        gradients(model, LARGER)
        gradients(model, normal(128, 64))
    [message] = [str(one.message) for one in seen if "plan" in str(one.message)]
    assert message.startswith("no plan can be made of Sequential for inputs 96x64")
    assert message.endswith("RuntimeError: operators that no capture knows")
    assert len(captures) == 2  # one for each of the two
    if way == "apply":
        assert_same(found, gradients(plain, LARGER))


def test_it_is_not_tried_for_ever(monkeypatch):
    model = WAYS["apply"](mlp())
    captures = []

    def capture(*args, **options):
        captures.append(args)
        raise RuntimeError

    monkeypatch.setattr(plans, "capture", capture)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for rows in range(60, 80):
            model(normal(rows, 64)).sum().backward()
    assert len(captures) == 8


def test_shapes_without_a_gradient_do_not_stop_others(monkeypatch):
    """A model in training mode that is only looked at, and then is a part of something that is trained."""
    model = integrations.compress_model(frozen(mlp()), checkpoint="optimal")
    captures = []

    def noted(*args, **options):
        captures.append(args)
        return planned(*args, **options)

    monkeypatch.setattr(plan_manager, "planned", noted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for rows in range(60, 80):
            model(normal(rows, 64))
    assert len(captures) == 8
    model(normal(48, 64).requires_grad_()).sum().backward()
    assert checkpoint.plan_of(model).plain_peak > 0


class Failing(nn.Linear):
    """Raises in its first forwards, captures included."""

    error: BaseException | None = None

    def forward(self, x):
        if self.error is not None:
            raise self.error
        return super().forward(x)


@every_way
def test_a_failure_that_passes_is_forgotten(way):
    model = WAYS[way](nn.Sequential(Failing(64, 256), nn.GELU(), nn.Linear(256, 64)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows in range(96, 108):  # more shapes than are tried where no plan can be made
            model[0].error = RuntimeError("a file that is not there yet")
            with pytest.raises(RuntimeError, match="not there yet"):
                model(normal(rows, 64))
        model[0].error = None
        model(LARGER).sum().backward()
    assert checkpoint.plan_of(model).graph.inputs.shapes == ((96, 64),)


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_a_capture_without_memory_is_repeated(error, monkeypatch):
    model = WAYS["apply"](mlp())
    failing = [error("none left")] * 3

    def capture(*args, **options):
        if failing:
            raise failing.pop()
        return captured(*args, **options)

    captured = plans.capture
    monkeypatch.setattr(plans, "capture", capture)
    with pytest.warns(UserWarning, match="no plan can be made") as seen:
        [model(LARGER).sum().backward() for _ in range(4)]
    assert len(seen) == 1
    assert checkpoint.plan_of(model).graph.inputs.shapes == ((96, 64),)


class Picky(nn.Linear):
    def forward(self, x):
        if len(x) == 96:
            raise KeyError("ninety-six")
        return super().forward(x)


@every_way
@pytest.mark.filterwarnings("ignore:no plan can be made")
def test_what_the_model_raises_comes_through(way):
    model = WAYS[way](nn.Sequential(Picky(64, 64), nn.ReLU()))
    model(X).sum().backward()
    for _ in range(2):
        with pytest.raises(KeyError, match="ninety-six"):
            model(LARGER)
    model(X).sum().backward()


# ---- the first forward ----


class Unseen(nn.Linear):
    """Raise if a dispatch mode sees the operators, as in a capture, on fake and on real tensors."""

    def forward(self, x):
        if _len_torch_dispatch_stack():
            raise AssertionError("sdpa_flop_count: query/key/value shapes are incompatible")
        return super().forward(x)


def unseen():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ModuleDict({"inner": Unseen(256, 64)})["inner"], nn.BatchNorm1d(64))


ASKED = [
    {"memory": 0.3},
    {"memory": "1MiB", "error": 0.1},
    {"time": 1.2},
    {"error": 0.1},
    {"checkpoint": "optimal"},
    {"checkpoint": 0.5},
    {"level": "L1", "memory": 0.3},
    {"level": "L1", "checkpoint": "optimal"},
]


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_what_was_asked_for_is_a_promise(asked):
    """``memory=0.3`` was ignored with a warning, and the model trained with the memory of the plain step."""
    plain = unseen()
    model = integrations.compress_model(copy.deepcopy(plain), **asked)
    handle = integrations.compression(model)
    for _ in range(2):  # nor does the second one train uncompressed
        random = torch.get_rng_state()
        with pytest.raises(ValueError, match=r"^no plan can be made of Sequential .* in 1 \(Unseen\)") as raised:
            model(X)
        for words in ("AssertionError: sdpa_flop_count", "level='L1'", "torch.utils.checkpoint", "checkpoint= needs"):
            assert words in str(raised.value)
        assert isinstance(raised.value.__cause__, AssertionError)
        assert any("restore_model(model) first" in note for note in raised.value.__notes__)
        assert torch.equal(random, torch.get_rng_state())
    assert handle.step == 0
    assert all(parameter.grad is None for parameter in model.parameters())
    for name, value in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)
    with torch.no_grad():
        model(X)
    model.eval()(X)
    model.load_state_dict(plain.state_dict())
    integrations.restore_model(model.train())
    assert_same(gradients(model, X), gradients(plain, X))


@pytest.mark.parametrize("plan", [integrations.plan, checkpoint.plan])
def test_a_plan_by_hand_says_the_same(plan):
    with pytest.raises(ValueError, match=r"no plan can be made of .* in 1 \(Unseen\), AssertionError") as raised:
        plan(unseen(), (X,))
    assert isinstance(raised.value.__cause__, AssertionError)
    with pytest.raises(KeyError, match="ninety-six"):  # that is the model's own
        plan(nn.Sequential(Picky(64, 64), nn.ReLU()), (LARGER,))


def test_a_plan_is_made_once_the_obstacle_is_gone(monkeypatch):
    model = integrations.compress_model(unseen(), memory=1.0, error=0)
    with pytest.raises(ValueError, match="no plan can be made"):
        model(X)
    monkeypatch.setattr(Unseen, "forward", nn.Linear.forward)
    model(X).sum().backward()
    assert checkpoint.plan_of(model).peak > 0


def test_a_failure_behind_the_capture_says_so_too(monkeypatch):
    def broken(*args, **kwargs):
        raise KeyError("a menu")

    monkeypatch.setattr("integrations.planner.plan_with_stores.storage_candidates", broken)
    model = integrations.compress_model(mlp(), memory=0.5)
    with pytest.raises(ValueError, match="no plan can be made of Sequential for inputs 48x64: KeyError: 'a menu'"):
        model(X)


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_memory_that_runs_out_for_the_first_plan_is_said_as_such(error, monkeypatch):
    """Loops that try smaller batches catch these errors."""
    model = integrations.compress_model(mlp(), memory=1.0, error=0)

    def short(*args, **kwargs):
        raise error("none left")

    with monkeypatch.context() as patch:
        patch.setattr("integrations.planner.plan_with_stores.capture_reaching", short)
        with pytest.raises(error, match="none left") as raised:
            model(X)
    assert any("another attempt plans again" in note for note in raised.value.__notes__)
    model(X).sum().backward()
    assert checkpoint.plan_of(model).peak > 0


class Result:
    """An output class that torch does not traverse."""

    def __init__(self, energy):
        self.energy = energy


class Hiding(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = mlp()

    def forward(self, x):
        return Result(self.net(x).square().mean())


def test_a_loss_that_is_hidden_in_an_object_is_asked_for():
    """Nothing seemed to require a gradient, and the model trained without a plan, silently."""
    model = integrations.compress_model(Hiding(), memory=0.9, error=0)
    with pytest.raises(ValueError, match=r"no tensor that requires a gradient, but autograd holds \d+ bytes"):
        model(X)
    integrations.restore_model(model)
    plan = integrations.plan(model, (X,), memory=1.0, error=0, loss=lambda output: output.energy)
    integrations.apply(model, plan)
    model(X).energy.backward()
    assert checkpoint.plan_of(model).peak <= plan.plain_peak


def test_under_torch_func_there_is_no_first_plan():
    model = integrations.compress_model(mlp(), memory=1.0, error=0)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"no plan can be made of a forward under torch\.func"):
            torch.func.grad(lambda x: model(x).sum())(X)
    model(X).sum().backward()
    with pytest.warns(UserWarning, match=r"under torch\.func"):
        torch.func.grad(lambda x: model(x).sum())(X)
    torch.func.grad(lambda x: model.eval()(x).sum())(X)


# ---- cases that can be planned for ----


def test_a_budget_that_cannot_be_met_is_still_refused():
    model = integrations.compress_model(mlp(), checkpoint="1B")
    with pytest.raises(ValueError, match="checkpoint must be a budget of at least"):
        model(X)
