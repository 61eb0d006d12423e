"""What a closure runs besides the model that is measured: a trial run of it leaves that as it was, too."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations

from .nets import normal
from .trainer import assert_equal

Z = normal(64, 16)


class Gan:
    """A generator at an adaptive level, and a discriminator, at one or at none."""

    def __init__(self, level="L2", other=None):
        torch.manual_seed(0)
        self.generator = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64))
        self.discriminator = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
        integrations.compress_model(self.generator, level, min_bytes=0, adapt_interval=3)
        if other is not None:
            integrations.compress_model(self.discriminator, other, min_bytes=0, adapt_interval=3)
        self.compressed = other is not None
        self.handle = integrations.compression(self.generator)
        self.optimizers = [torch.optim.Adam(m.parameters(), 0.01) for m in (self.generator, self.discriminator)]

    def closure(self):
        F.softplus(-self.discriminator(self.generator(Z))).mean().backward()

    def train(self, steps):
        for _ in range(steps):
            fake = self.generator(torch.randn(64, 16))
            self.optimizers[1].zero_grad()
            real = F.softplus(-self.discriminator(torch.randn(64, 64))).mean()
            (real + F.softplus(self.discriminator(fake.detach())).mean()).backward()
            self.optimizers[1].step()
            self.optimizers[0].zero_grad()
            F.softplus(-self.discriminator(fake)).mean().backward()
            self.optimizers[0].step()

    def snapshot(self):
        models = self.generator, self.discriminator
        named = [(f"{i} {name}", p) for i, model in enumerate(models) for name, p in model.named_parameters()]
        steps = [integrations.compression(model).step for model in models[: 1 + self.compressed]]
        buffers = {name: value.clone() for name, value in self.discriminator.named_buffers()}
        gradients = {name: (id(p.grad), None if p.grad is None else p.grad.clone()) for name, p in named}
        return [{name: p.detach().clone() for name, p in named}, gradients, buffers, steps, torch.get_rng_state()]


@pytest.mark.parametrize("ask", ["adapt", "gradient_error"])
@pytest.mark.parametrize("other", [None, "L1", "L2"])
def test_a_discriminator_is_as_it_was(ask, other):
    gan = Gan(other=other)
    gan.train(2)  # its gradients stay
    before = gan.snapshot()
    getattr(gan.handle, ask)(gan.closure)
    assert_equal(before, gan.snapshot())


@pytest.mark.parametrize("zeroing", ["to zero", "to none", "by torch.autograd.backward"])
def test_a_closure_that_clears_the_others_gradients_does_not_lose_them(zeroing):
    gan = Gan()
    gan.train(1)

    def closure():
        gan.optimizers[1].zero_grad(set_to_none=zeroing != "to zero")
        loss = F.softplus(-gan.discriminator(gan.generator(Z))).mean()
        torch.autograd.backward([loss]) if "autograd" in zeroing else loss.backward()

    before = gan.snapshot()
    gan.handle.adapt(closure)
    assert_equal(before, gan.snapshot())


@pytest.mark.parametrize("level", ["L1", "L2"])
def test_a_gan_trains_as_without_a_monitor(level):
    ends = []
    for monitored in (False, True):
        gan = Gan(level, other=level)
        if monitored:
            gan.handle.monitor(gan.closure, every=2, bound=1e6)
            integrations.compression(gan.discriminator).monitor(every=1, bound=None)
        torch.manual_seed(1)
        gan.train(5)
        ends.append([*gan.snapshot()[0].values(), gan.snapshot()[2:]])
    assert gan.handle.last_error.measured
    assert_equal(*ends)


def test_the_discriminators_noise_is_no_error_of_the_generator():
    """Both runs draw it alike, so that nothing differs where the generator rounds nothing."""
    gan = Gan("L1", other="L1.2")
    gan.generator.requires_grad_(False)
    gan.generator[2].bias.requires_grad_(True)
    assert gan.handle.gradient_error(gan.closure).relative == 0


def test_blocks_of_another_model_are_no_steps_of_its_training():
    gan = Gan()

    def closure():
        fake = gan.generator(Z)
        with integrations.compress(gan.discriminator, "L2") as handle:
            gan.discriminator(fake).mean().backward()
        steps.append(handle.step)

    steps = []
    for _ in range(2):
        closure()
    gan.handle.adapt(closure, passes=2)
    closure()
    assert steps == [1, 2, 3, 4, 3]


def test_leaves_that_only_a_compiled_function_knows():
    gan = Gan()
    torch.compiler.reset()
    gan.discriminator = nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    gan.discriminator.compile(backend="aot_eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gan.closure()
        before = gan.snapshot()
        gan.handle.adapt(gan.closure)
    assert_equal(before, gan.snapshot())


def test_a_view_of_a_bucket_and_an_input_that_takes_a_gradient():
    gan = Gan()
    z = Z.clone().requires_grad_()
    weight, bucket = gan.discriminator[0].weight, torch.ones(64 * 64 + 5)
    weight.grad = bucket[5:].view_as(weight)

    def closure():
        F.softplus(-gan.discriminator(gan.generator(z))).mean().backward()
        bucket.zero_()

    gan.handle.adapt(closure)
    assert weight.grad.data_ptr() == bucket[5:].data_ptr()
    assert bool((weight.grad == 1).all())
    assert z.grad is None


def test_a_failing_closure_leaves_the_others_as_they_were():
    gan = Gan(other="L2")
    gan.train(2)

    def closure():
        gan.closure()
        raise torch.OutOfMemoryError("no memory")

    before = gan.snapshot()
    with pytest.raises(torch.OutOfMemoryError):
        gan.handle.adapt(closure)
    assert_equal(before, gan.snapshot())
    assert not integrations.compression(gan.discriminator).in_trial
