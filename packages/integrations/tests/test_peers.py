"""The harness that runs libraries' own tests under compression (``peers``): it hooks in, counts, and can fail."""

import copy
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import integrations

from .nets import assert_same, mlp, normal
from .peers.peers_hook import EXACT, WAYS, Outermost

PEERS = Path(__file__).parent / "peers"
X = normal(48, 64)


def is_compressed(model):
    try:
        return bool(integrations.compression(model))
    except ValueError:
        return False


def gradients(model):
    model.zero_grad()
    model(X).square().mean().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("way", WAYS)
def test_the_outermost_module_is_compressed(way):
    model = mlp()
    plain = gradients(model)
    with Outermost(way).put() as outermost:
        found = gradients(model)
        assert is_compressed(model) is (way != "plain")
        assert not any(map(is_compressed, model))
        counts = outermost.take()
        outermost.restore()
    assert counts.forwards == 1
    if way in ("plain", *EXACT):
        assert_same(plain, found)
    else:
        assert any(not torch.equal(found[name], plain[name]) for name in plain)
        assert 0 < counts.stored_bytes < counts.original_bytes / 2
    assert not is_compressed(model)
    assert "forward" not in vars(model)


class Own(nn.Sequential):
    """A module that is called in a way of its own, as GPyTorch's are."""

    def __call__(self, x):
        return self.forward(x)


@pytest.mark.parametrize("way", ["L1.1", "exact"])
def test_a_call_of_another_library_is_a_forward_if_it_is_named(way):
    model = Own(*mlp())
    plain = gradients(model)
    with Outermost(way, [f"{__name__}:Own.__call__"]).put() as outermost:
        found = [gradients(model), gradients(model)]
        counts = outermost.take()
        outermost.restore()
    assert counts.forwards == 2
    assert counts.original_bytes > 0
    for one in found:
        assert all(torch.equal(one[name], plain[name]) for name in plain) is (way == "exact")
    gradients(model)
    assert outermost.take().forwards == 0


def test_what_is_no_training_is_left_alone():
    model = mlp()
    with Outermost("L1.1").put() as outermost:
        with torch.no_grad():
            model(X)
        model.eval()(X)
    assert outermost.take().forwards == 0
    assert not is_compressed(model)


def test_a_part_that_was_called_before_the_whole():
    model = mlp()
    with Outermost("exact").put() as outermost:
        model[0](X)
        assert is_compressed(model[0])
        model(X)
        assert is_compressed(model)
        assert not is_compressed(model[0])
        model[0](X)  # by itself between two forwards of the whole
        gradients(model)
        assert not is_compressed(model[0])
        outermost.restore()


def test_what_backward_runs_again_is_no_forward():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = mlp()

        def forward(self, x):
            return checkpoint(self.part, x, use_reentrant=False)

    model = Checkpointed()
    with Outermost("L1.1").put() as outermost:
        gradients(model)
        assert outermost.take().forwards == 1
        assert not is_compressed(model.part)
        outermost.restore()


def test_copies_are_counted_and_restored():
    model = mlp()
    with Outermost("L1.1").put() as outermost:
        gradients(model)
        family = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        for member in family:
            gradients(member)
        assert outermost.take().forwards == 3
        outermost.restore()
    assert not any(map(is_compressed, [model, *family]))


LIBRARY = """
import os
import torch
from torch import nn

def step():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)), torch.randn(48, 64)
    model(x).sum().backward()
    return model, model[:2](x)

def test_trains():
    assert step()[0][0].weight.grad.isfinite().all()

def test_is_exact():
    model, hidden = step()
    torch.testing.assert_close(model[2].weight.grad, hidden.sum(0).expand(64, 64))

def test_trains_not():
    assert nn.Linear(2, 2)

def test_fails_plainly():
    assert step() is None

def test_dies():
    if "forward" in vars(step()[0]):
        os._exit(3)
"""


def test_the_command_counts_what_passes_plainly_and_fails_with_us(tmp_path):
    (tmp_path / "test_library.py").write_text(LIBRARY, "utf-8")
    command = [sys.executable, PEERS / "peers_run.py", tmp_path, "--ways", "L1.1", "--json", tmp_path / "found.json"]
    path = os.pathsep.join(entry for entry in sys.path if entry)
    ran = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    found = json.loads((tmp_path / "found.json").read_text("utf-8"))
    one = found["ways"].pop("L1.1")
    assert found == {"run": 5, "passed plainly": 4, "train a model": 3, "ways": {}}
    assert (one["run"], one["passed"], one["do not tell"]) == (3, 1, [])
    whys = {name.partition("::")[2]: line["why"] for name, line in one["failed"].items()}
    assert set(whys) == {"test_is_exact", "test_dies"}
    assert "not close" in whys["test_is_exact"]
    assert "process ended" in whys["test_dies"]
    assert 0 < one["stored bytes"] < one["original bytes"]
    assert ran.returncode == 0, ran.stderr  # only ways without rounding have to pass everything
    assert "5 run, 4 passed plainly, 3 of these train a model" in ran.stdout
