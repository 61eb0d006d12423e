"""What training loops do with models: averages of weights, accumulation, several models at once, several processes."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import integrations

from .nets import EIGHT_BITS, assert_same, gradients, mlp, normal, relative_error, rows
from .two_ranks import run_two_ranks

X = normal(48, 64)


def test_an_average_of_the_weights():
    """It is a deep copy: it follows the weights, takes no part in training, and can be trained itself."""
    model = integrations.compress_model(mlp(), "L1.2")
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        gradients(model, X)
        optimizer.step()
        average.update_parameters(model)
    assert integrations.compression(model).step == 3
    assert integrations.compression(average.module).step == 0
    with torch.no_grad():
        assert average.eval()(X).isfinite().all()
    gradients(average.train(), X)
    assert integrations.compression(average.module).step == 1
    assert integrations.compression(model).step == 3


def test_copies_train_as_the_original_does():
    """From the same weights and step, a deep copy and an unpickled one take the same steps, bit for bit."""
    model = integrations.compress_model(mlp(), "L1.2")
    gradients(model, X)
    family = [model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for member in family:
        optimizer = torch.optim.SGD(member.parameters(), 0.1)
        for _ in range(3):
            gradients(member, X)
            optimizer.step()
    for twin in family[1:]:
        assert_same(model.state_dict(), twin.state_dict())
        assert integrations.compression(twin).state_dict() == integrations.compression(model).state_dict()


@pytest.mark.parametrize("level", ["L1.1", "L1.2"])
def test_accumulation_draws_noise_for_each_part(level):
    """Gradients of the same batch, summed over 64 forwards: independent errors average out, to an eighth of one's. A
    noise that repeated would keep them all."""
    model = integrations.compress_model(mlp(), level, min_bytes=0)
    plain = gradients(mlp(), X)["4.weight"]
    once = (gradients(model, X)["4.weight"] - plain).norm()
    model.zero_grad()
    for _ in range(64):
        (model(X).square().mean() / 64).backward()
    many = (model[4].weight.grad - plain).norm()
    # The squared norm of a mean of 64 errors is once's / 64, spread by less than half over 4096 elements.
    assert many < 1.5 * once / 8


def test_two_models_against_each_other():
    """As in a GAN: each has its step while the other's activations are alive, at a level of its own."""
    torch.manual_seed(0)
    networks = {
        "generator": nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64)),
        "discriminator": nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)),
    }
    noise, real = normal(48, 16, seed=3), normal(48, 64, seed=4)

    def run(generator, discriminator):
        fake = generator(noise)
        loss = F.softplus(-discriminator(real)).mean() + F.softplus(discriminator(fake.detach())).mean()
        loss.backward()
        found = {f"discriminator.{name}": p.grad.clone() for name, p in discriminator.named_parameters()}
        discriminator.zero_grad()
        F.softplus(-discriminator(fake)).mean().backward()
        return found | {f"generator.{name}": p.grad.clone() for name, p in generator.named_parameters()}

    plain = run(*copy.deepcopy(networks).values())
    integrations.compress_model(networks["generator"], "L1.1", min_bytes=0)
    integrations.compress_model(networks["discriminator"], "L1", bits=8, min_bytes=0)
    assert relative_error(plain, run(*networks.values())) < EIGHT_BITS
    steps = {name: integrations.compression(network).step for name, network in networks.items()}
    assert steps == {"generator": 1, "discriminator": 3}
    assert [row.operator for row in rows(networks["generator"])] == ["relu", "linear"]


def test_two_processes(tmp_path):
    """DistributedDataParallel, FSDP2 and DTensor activations on the CPU (see ``distributed_child.py``)."""
    found = run_two_ranks("distributed_child.py", tmp_path / "meet")
    for name in ("ddp", "fsdp", "fsdp, compressed first"):
        first, second = (result[name] for result in found)
        assert first["sum"] == second["sum"]  # of the averaged gradients: the ranks agree
        for result in (first, second):
            # Each rank's own half has an error below EIGHT_BITS of its own gradient, and so has their mean.
            assert result["error"] < EIGHT_BITS
            assert result["codecs"] == ["GroupAffine", "Positive"]
            assert result["owners"] == ["input of the model", "parameter"]
    for result in (found[0]["dtensor"], found[1]["dtensor"]):
        assert result["error"] < EIGHT_BITS
        assert [codec for codec, _ in result["relu"]] == ["Positive"] * 3
        assert result["relu"][0][1] == 48 * 64 // 8 // 2  # a bit for each element of this rank's half, of the columns
    assert found[0]["rounded"] != found[1]["rounded"]  # of the same tensor: ranks round independently
