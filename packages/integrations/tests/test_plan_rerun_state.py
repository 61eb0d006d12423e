"""A forward that runs a second time leaves all state as one forward does: generators, buffers, counters, containers."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from integrations.runtime import forward_state, replay

from .rerun_nets import (
    ERROR,
    TOLD,
    WIDTH,
    Cache,
    ExitingNet,
    StatefulNet,
    count_runs,
    gradient,
    make_input,
    measure_error,
    plain,
    planned,
)

pytestmark = pytest.mark.filterwarnings(f"ignore:.*{TOLD}")


@pytest.mark.parametrize("taped", [False, True], ids=["replayed", "taped"])
def test_each_kind_of_state_is_as_after_one_forward(taped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "FORCED_OFF", taped)
    torch.manual_seed(1)
    model = planned(StatefulNet(), 2, lambda: (Cache(), [0]))
    model.exits = True
    exact = plain(model)
    count, runs = model.calls, count_runs(model)
    caches, logs = (Cache(), Cache()), ([0], [0])
    ends, states = [], []
    for one, cache, log in zip((exact, model), caches, logs, strict=True):
        ends.append(gradient(one, cache, log))
        states.append((torch.get_rng_state(), random.getstate(), np.random.rand(), one.generator.get_state()))  # noqa: NPY002
    assert len(runs) == 2
    assert (ends[1] - ends[0]).norm() <= ERROR * ends[0].norm()
    for place in (0, 3):
        assert torch.equal(states[0][place], states[1][place])
    assert states[0][1:3] == states[1][1:3]
    assert model.calls == exact.calls == count + 1
    assert model.outputs == exact.outputs
    assert model.nested == exact.nested
    assert torch.equal(model.average, exact.average)
    for name, buffer in exact.named_buffers():
        assert torch.equal(buffer, model.get_buffer(name)), name
    assert logs[0] == logs[1]
    assert len(caches[1].layers) == 2
    assert caches[1].layers[0]["seen"] == 64
    assert caches[1].count == 1


def test_a_module_that_was_replaced_is_part_of_the_state() -> None:
    model = planned(ExitingNet(), 2)
    model.first[1] = nn.Sequential(nn.BatchNorm1d(WIDTH), nn.SiLU())
    exact, runs = plain(model), count_runs(model)
    assert measure_error(model, exact) <= ERROR
    assert len(runs) == 2
    assert all(map(torch.equal, model.buffers(), exact.buffers()))


@pytest.mark.parametrize("form", ["overlapping", "quantized", "resized"])
def test_buffers_of_every_form_stay_as_they_are(form: str) -> None:
    model = ExitingNet()
    if form == "overlapping":
        model.register_buffer("mask", torch.ones(1).expand(8))
    else:
        codes = [torch.quantize_per_tensor(torch.arange(8.0), scale, 0, torch.qint8) for scale in (0.1, 0.5)]
        for name, code in zip("ab", codes if form == "quantized" else (torch.zeros(4), torch.ones(4)), strict=True):
            model.register_buffer(name, code)
    planned(model)
    if form == "resized":
        model.a.data = torch.arange(8.0)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.exits = True
    with pytest.warns(UserWarning, match="runs a second time"):
        model(make_input()).square().mean().backward()
    assert all(torch.equal(before[name], buffer) for name, buffer in model.named_buffers())


def test_a_list_from_before_the_modules_own_attributes_is_restored() -> None:
    class Early(ExitingNet):
        def __init__(self) -> None:
            self.log: list[int] = []
            super().__init__()

        def forward(self, x: Tensor) -> Tensor:
            self.log.append(1)
            return super().forward(x)

    model = planned(Early())
    before = len(model.log)
    model.exits = True
    with pytest.warns(UserWarning, match="runs a second time"):
        model(make_input()).square().mean().backward()
    assert len(model.log) == before + 1


def test_tensors_beyond_a_limit_in_all_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_state, "_MOST_BYTES_IN_ALL", 100)

    class Counts(ExitingNet):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("counts", torch.zeros(64))

        def forward(self, x: Tensor) -> Tensor:
            self.counts += 1
            return super().forward(x)

    model = planned(Counts())
    model.exits = True
    with pytest.raises(RuntimeError, match=r"it changed a buffer \[64\] in place"):
        model(make_input())
