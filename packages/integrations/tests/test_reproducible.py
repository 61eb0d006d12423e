"""Rounding is random and repeatable: one seed, one run, bit for bit; and no two packs draw the same noise."""

import copy
import dataclasses
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations
from actcore import stream_of

from .nets import Net, assert_same, gradients, mlp, normal

X = normal(48, 64)
TARGET = normal(48, 64, seed=1)


class Trainer:
    """A model with dropout, its optimizer, and the losses of its steps."""

    def __init__(self, level="L1.2", **options):
        torch.manual_seed(0)
        self.model = nn.Sequential(mlp(), nn.Dropout(0.2), nn.Linear(64, 64))
        if level:
            integrations.compress_model(self.model, level, **options)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def train(self, steps):
        losses = []
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss = F.mse_loss(self.model(X), TARGET)
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return losses

    def state(self):
        handle = integrations.compression(self.model)
        parts = self.model, self.optimizer, handle
        return {"parts": [part.state_dict() for part in parts], "rng": torch.get_rng_state()}

    def load(self, state):
        handle = integrations.compression(self.model)
        for part, saved in zip((self.model, self.optimizer, handle), state["parts"], strict=True):
            part.load_state_dict(saved)
        torch.set_rng_state(state["rng"])


def test_the_same_seed_gives_the_same_losses():
    runs = []
    for _ in range(2):
        torch.manual_seed(0)
        runs.append(Trainer(seed=5).train(6))
    assert runs[0] == runs[1]


def test_another_seed_gives_other_noise():
    found = [
        gradients(integrations.compress_model(mlp(), "L1.2", seed=seed), X) for seed in (0, 1, -1, 2**63, 2**64 - 2)
    ]
    for i, one in enumerate(found):
        for other in found[:i]:
            assert not torch.equal(one["2.weight"], other["2.weight"])
            assert torch.equal(one["4.bias"], other["4.bias"])


def test_dropout_is_that_of_the_untouched_model():
    """The first loss is before any rounding; equal masks make it equal."""
    assert Trainer("L1.2").train(1) == Trainer(None).train(1)


def test_a_resumed_run_goes_on_bit_for_bit():
    trainer = Trainer()
    trainer.train(3)
    file = io.BytesIO()
    torch.save(trainer.state(), file)
    expected = trainer.train(4)

    file.seek(0)
    resumed = Trainer("L1", seed=77)  # level, options and step come with the state
    resumed.load(torch.load(file))
    assert resumed.train(4) == expected


def test_a_handles_state_is_plain():
    handle = integrations.compression(Trainer().model)
    state = handle.state_dict()
    assert state == {
        "version": 7,
        "level": "L1.2",
        "options": dataclasses.asdict(integrations.LEVELS["L1.2"]),
        "step": 0,
        "adaptive": None,
        "monitor": None,
        "recomputing": None,
    }
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == state


@pytest.mark.parametrize("level", ["L1.2", "L2.2"])
@pytest.mark.parametrize("blocks", [False, True])
def test_restoring_leaves_no_step_and_no_plan(level, blocks):
    """The same model, compressed again: step 0, no plan, and the same noise; the third step has a plan at L2.2."""
    model, runs = mlp(), []
    for _ in range(2):
        if blocks:
            found = []
            for _ in range(3):
                with integrations.compress(model, level) as handle:
                    found.append(gradients(model, X))
            integrations.compress_model(model, level)
        else:
            integrations.compress_model(model, level)
            handle = integrations.compression(model)
            assert (handle.step, handle.plan) == (0, None)
            found = [gradients(model, X) for _ in range(3)]
        assert handle.step == 3
        assert (handle.plan is None) == (level == "L1.2")
        integrations.restore_model(model)
        runs.append(found)
    for expected, again in zip(*runs, strict=True):
        assert_same(expected, again)


def test_the_state_survives_the_handle():
    handle = integrations.compression(Trainer().model)
    state = copy.deepcopy(handle.state_dict())
    handle.step += 5
    assert state["step"] == 0


# ---- no two packs share noise ----


def rounding_errors(model, *inputs):
    """What one step's weight gradients are off by, for identical inputs, one row of W^T's identity each."""
    exact = copy.deepcopy(model)
    integrations.restore_model(exact)
    expected, found = gradients(exact, *inputs, loss=torch.sum), gradients(model, *inputs, loss=torch.sum)
    return {name: found[name] - expected[name] for name in expected}


def same_inputs(self, x):
    """Two equal products of the same values, through two storages."""
    return F.linear(x.clone(), self.one) + F.linear(x.clone(), self.two)


def test_two_equal_tensors_of_one_step_are_rounded_independently():
    weights = {"one": normal(64, 64), "two": normal(64, 64)}
    errors = rounding_errors(integrations.compress_model(Net(same_inputs, **weights), "L1.2"), X)
    assert_independent(errors["one"][0], errors["two"][0])


def test_two_equal_layers_are_rounded_independently():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            return self.one(x.clone()) + self.two(x.clone())

    errors = rounding_errors(integrations.compress_model(Pair(), "L1.2"), X)
    assert_independent(errors["one.weight"][0], errors["two.weight"][0])


def test_two_steps_are_rounded_independently():
    model = integrations.compress_model(Net(same_inputs, one=normal(64, 64), two=normal(64, 64)), "L1.2")
    first, second = rounding_errors(model, X), rounding_errors(model, X)
    assert_independent(first["one"][0], second["one"][0])


def test_blocks_one_after_the_other_are_rounded_independently():
    """Each block has a handle of its own; its noise goes on from the last block's, and is the same in the next run."""
    runs = []
    for _ in range(2):
        model = Net(same_inputs, one=normal(64, 64), two=normal(64, 64))
        exact, found = gradients(model, X, loss=torch.sum)["one"], []
        for step in range(2):
            with integrations.compress(model, "L1.2") as handle:
                found.append(gradients(model, X, loss=torch.sum)["one"] - exact)
            assert handle.step == step + 1
        assert_independent(found[0][0], found[1][0])
        runs.append(found)
    assert torch.equal(runs[0][1], runs[1][1])


def assert_independent(one, other):
    """64 independent errors each: their correlation is near normal with standard deviation 1/8; 6 of them are 3/4."""
    correlation = torch.corrcoef(torch.stack([one, other]))[0, 1].item()
    assert abs(correlation) < 0.75


def test_streams_differ_by_identity_step_and_rank():
    """64-bit hashes: 40,000 streams share none, but once in 2**64 / 40000**2 * 2 = 2e10 tries."""
    streams = {
        stream_of(f"module.{i}\0linear\0input\0{j}", step, rank)
        for i in range(10)
        for j in range(10)
        for step in range(100)
        for rank in range(4)
    }
    assert len(streams) == 40_000
    assert all(0 <= stream < 2**64 for stream in streams)


@pytest.mark.parametrize("rank", [1, 3])
def test_ranks_round_independently(monkeypatch, rank):
    found = []
    for current in (0, rank):
        monkeypatch.setattr("integrations.capture.graphs.sharding.current_rank", lambda current=current: current)
        found.append(gradients(integrations.compress_model(mlp(), "L1.2"), X))
    assert not torch.equal(found[0]["2.weight"], found[1]["2.weight"])
