"""The monitor: the gradient's error every so many steps, and what is done where it is too large."""

import copy
import io
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import integrations

from .nets import mlp, normal

X = normal(48, 64)
TINY, HUGE = 1e-6, 10.0  # no error is below the one, none above the other


class Trainer:
    def __init__(self, level="L1", **options):
        torch.manual_seed(0)
        net = nn.Sequential(mlp(), nn.BatchNorm1d(64), nn.Dropout(0.2), nn.Linear(64, 8))
        self.model = integrations.compress_model(net, level, **options)
        self.handle = integrations.compression(self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.01)
        self.calls = 0

    def closure(self):
        self.calls += 1
        self.optimizer.zero_grad()
        self.model(X).square().mean().backward()

    def train(self, steps):
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(X).square().mean().backward()
            self.optimizer.step()

    def snapshot(self):
        state = copy.deepcopy([self.model.state_dict(), self.optimizer.state_dict()["state"]])
        return [value for part in state for value in flat(part)] + [torch.get_rng_state()]


def flat(value):
    return [leaf for entry in value.values() for leaf in flat(entry)] if isinstance(value, dict) else [value]


def caption(handle):
    return " ".join(str(handle.report()).split())


def test_it_measures_every_so_many_steps_and_tells_what_gradient_error_tells():
    trainer = Trainer()
    trainer.handle.monitor(trainer.closure, every=3, bound=HUGE)
    trainer.train(3)
    assert (trainer.calls, trainer.handle.last_error) == (0, None)
    assert "error is not known yet" in caption(trainer.handle)
    expected = trainer.handle.gradient_error(trainer.closure)
    trainer.train(1)
    assert trainer.handle.last_error == expected
    assert (expected.measured, trainer.calls) == (True, 4)
    trainer.train(3)
    assert trainer.calls == 6
    assert "every 3 steps; in step 6, relative error" in caption(trainer.handle)
    trainer.handle.monitor(every=None)
    assert trainer.handle.last_error is None
    trainer.train(4)
    assert trainer.calls == 6


@pytest.mark.parametrize("level", ["L1", "L2"])
def test_training_is_as_without_it(level):
    """Weights, statistics, noise, dropout and the adaptive schedule, bit for bit."""
    ends = []
    for monitored in (False, True):
        trainer = Trainer(level, adapt_interval=3)
        if monitored:
            trainer.handle.monitor(trainer.closure, every=1, bound=HUGE)
        trainer.train(6)
        assert trainer.handle.step == 6
        ends.append((trainer.snapshot(), trainer.handle.plan))
    assert ends[0][1] == ends[1][1]
    assert all(map(same, ends[0][0], ends[1][0]))


def same(one, other):
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_it_warns_when_the_bound_is_passed_and_again_after_it_was_not():
    trainer = Trainer("L1")
    trainer.handle.monitor(trainer.closure, every=1, bound=TINY)
    with pytest.warns(UserWarning, match=r"step 1: relative error .* measured in one step; the bound is 1e-06"):
        trainer.train(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.train(2)
    assert "above the bound" in caption(trainer.handle)
    trainer.handle.level = integrations.LEVELS["L0"]  # no error at all
    trainer.train(1)
    trainer.handle.level = integrations.LEVELS["L1"]
    trainer.handle.monitor(trainer.closure, every=1, bound=HUGE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.train(2)
    assert "within the bound" in caption(trainer.handle)


def test_bits_are_raised_up_to_eight_and_each_is_told_once():
    trainer = Trainer("L1.2", bits=6)
    trainer.handle.monitor(trainer.closure, every=1, bound=TINY, raise_bits=True)
    with pytest.warns(UserWarning, match="bits") as told:
        trainer.train(6)
    said = " ".join(str(warning.message) for warning in told)
    assert [said.count(part) for part in ("from 6 to 7", "from 7 to 8", "cannot be raised")] == [1, 1, 1]
    assert trainer.handle.level.bits == 8
    assert trainer.handle.report().level == "L1.2 with bits=8"


def test_raised_bits_make_the_error_smaller():
    errors = []
    for raise_bits in (False, True):
        trainer = Trainer("L1", bits=2)
        trainer.handle.monitor(trainer.closure, every=2, bound=0.05, raise_bits=raise_bits)
        with pytest.warns(UserWarning, match="the bound is 0.05"):
            trainer.train(12)
        errors.append(trainer.handle.gradient_error(trainer.closure).relative)
    assert errors[1] < errors[0] / 2  # a bit more halves the steps


@pytest.mark.parametrize("with_closure", [True, False])
def test_an_adaptive_level_plans_anew_with_more_bits(with_closure):
    trainer = Trainer("L2.1")
    trainer.train(3)
    first = trainer.handle.plan
    trainer.handle.monitor(trainer.closure if with_closure else None, every=4, bound=TINY, raise_bits=True)
    with pytest.warns(UserWarning, match="bits raised from 3 to 4"):
        trainer.train(4)
    assert trainer.handle.plan.step > first.step
    assert trainer.handle.plan.budget > first.budget
    assert trainer.handle.level.bits == 4


def test_without_a_closure_it_is_the_plans_prediction_looked_at_once():
    trainer = Trainer("L2")
    trainer.handle.monitor(every=1, bound=TINY, raise_bits=True)
    with pytest.warns(UserWarning, match="predicted by the plan, not measured; the bound"):
        trainer.train(3)
    assert trainer.handle.level.bits == 5
    trainer.model(X)
    bits = trainer.handle.level.bits
    trainer.model(X)  # nothing new was measured: there is no new prediction to judge by
    assert trainer.handle.level.bits == bits
    assert not trainer.handle.last_error.measured
    assert "predicted by the plan, not measured: above the bound" in caption(trainer.handle)
    quiet = Trainer("L2")
    quiet.handle.monitor(every=1, bound=HUGE)
    quiet.train(4)
    assert quiet.handle.last_error.relative == quiet.handle.plan.relative_error


@pytest.mark.filterwarnings("ignore:.*(bits raised|the bound is)")
def test_a_resumed_run_is_monitored_as_the_one_that_went_on():
    trainer = Trainer("L1", bits=2)
    trainer.handle.monitor(trainer.closure, every=2, bound=TINY, raise_bits=True)
    resumed = Trainer("L1")
    resumed.handle.monitor(resumed.closure, every=50)
    trainer.train(5)
    assert trainer.handle.level.bits == 4
    file = io.BytesIO()
    torch.save([trainer.model.state_dict(), trainer.optimizer.state_dict(), trainer.handle.state_dict()], file)
    random = torch.get_rng_state()
    trainer.train(4)
    expected = trainer.snapshot()
    file.seek(0)
    for part, state in zip((resumed.model, resumed.optimizer, resumed.handle), torch.load(file), strict=True):
        part.load_state_dict(state)
    torch.set_rng_state(random)
    resumed.train(4)
    assert resumed.handle.state_dict() == trainer.handle.state_dict()
    assert resumed.handle.last_error == trainer.handle.last_error
    assert all(map(same, expected, resumed.snapshot()))


def test_a_state_without_its_closure_says_so_and_older_states_leave_the_monitor():
    trainer, other = Trainer(), Trainer()
    trainer.handle.monitor(trainer.closure, every=7)
    state = trainer.handle.state_dict()
    with pytest.warns(UserWarning, match=r"call handle.monitor\(closure, every=7\) before load_state_dict"):
        other.handle.load_state_dict(state)
    assert "nothing predicts the gradient's error at a level of fixed bits" in caption_of_one_step(other)
    trainer.handle.load_state_dict({key: value for key, value in state.items() if key != "monitor"} | {"version": 2})
    assert trainer.handle.state_dict() == state
    with pytest.raises(ValueError, match="state of a monitor must be what state_dict returned"):
        trainer.handle.load_state_dict({**state, "monitor": {}})


def caption_of_one_step(trainer):
    trainer.train(1)
    return caption(trainer.handle)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_has_no_closure(copied):
    trainer = Trainer()
    trainer.handle.monitor(trainer.closure, every=1, bound=HUGE)
    model = copied(trainer.model)
    for _ in range(3):
        model(X).sum().backward()
    assert trainer.calls == 0
    trainer.train(2)
    assert trainer.calls == 2


def checkpointed_steps(model):
    for _ in range(2):
        checkpoint(model, X.clone().requires_grad_(), use_reentrant=False).sum().backward()


def test_inside_a_checkpoint_it_waits_and_says_so():
    trainer = Trainer()
    trainer.handle.monitor(trainer.closure, every=1, bound=HUGE)
    with pytest.warns(UserWarning, match="is postponed to a later forward: saved-tensor hooks are active"):
        checkpointed_steps(trainer.model)
    assert trainer.calls == 0
    trainer.train(1)
    assert trainer.calls == 2


def test_autocast_around_the_forward_is_not_the_closures():
    trainer, plain, surroundings = Trainer(), Trainer(), []

    def closure():
        surroundings.append(torch.is_autocast_enabled("cpu"))
        trainer.closure()

    trainer.handle.monitor(closure, every=1, bound=HUGE)
    for one in (trainer, plain):
        torch.manual_seed(1)
        for _ in range(3):
            one.optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                assert one.model[3](X).dtype is torch.bfloat16  # a cast that is remembered
                loss = one.model(X).float().square().mean()
            loss.backward()
            one.optimizer.step()
    assert surroundings == [False] * 4
    assert all(map(same, trainer.snapshot(), plain.snapshot()))


def test_what_the_closure_raises_comes_through_and_leaves_training_as_it_was():
    trainer = Trainer()

    def closure():
        trainer.closure()
        raise MemoryError("none left")

    trainer.handle.monitor(closure, every=1)
    trainer.train(1)
    before = trainer.snapshot()
    with pytest.raises(MemoryError) as raised:
        trainer.model(X)
    assert "closure of handle.monitor" in raised.value.__notes__[0]
    assert trainer.handle.step == 1
    assert all(map(same, trainer.snapshot(), before))


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"every": 0}, ValueError, "every must be 1 step or more, got 0; None ends monitoring"),
        ({"every": 2.0}, TypeError, "every must be an int, or None"),
        ({"every": True}, TypeError, "every must be an int, or None"),
        ({"bound": 0}, ValueError, "bound must be positive and finite, got 0"),
        ({"bound": float("nan")}, ValueError, "bound must be positive and finite, got nan"),
        ({"bound": "small"}, TypeError, "bound must be a number or None"),
        ({"raise_bits": 1}, TypeError, "raise_bits must be True or False"),
        ({"bound": None, "raise_bits": True}, ValueError, "bound must be a number where raise_bits is True"),
        ({"closure": 3}, TypeError, "closure must be callable or None, got 3"),
        (
            {},
            ValueError,
            "closure must be given at L1, because fixed bits do not predict the error; or pass bound=None",
        ),
    ],
)
def test_bad_values(options, kind, message):
    handle = Trainer().handle
    with pytest.raises(kind, match=message):
        handle.monitor(**options)
    assert handle.state_dict()["monitor"] is None


def test_a_level_that_rounds_nothing_has_nothing_to_monitor():
    with pytest.raises(ValueError, match="a monitored level must quantize, got swap"):
        Trainer("swap").handle.monitor(lambda: None)
