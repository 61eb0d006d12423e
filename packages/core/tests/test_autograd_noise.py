"""Whose noise ``save_for_backward`` draws: under ``vmap``, and where seeds are the same 64 bits."""

import pytest
import torch

import actcore


class Square(torch.autograd.Function):
    generate_vmap_rule = True
    codec = actcore.GroupAffine(bits=2)

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        actcore.save_for_backward(ctx, (inputs[0], Square.codec))

    @staticmethod
    def backward(ctx, grad):
        (x,) = actcore.saved_tensors_of(ctx)
        return grad * 2 * x


@pytest.mark.parametrize("outer", [True, False], ids=["grad of vmap", "vmap of grad"])
def test_vmap_asks_for_one_noise_for_all_before_it_gives_it(outer):
    """One stream serves a batch: errors that are all alike do not average out, and nobody would notice."""
    x = torch.randn(256, generator=torch.Generator().manual_seed(0)).repeat(8, 1)

    def gradients(randomness):
        if outer:
            return torch.func.grad(lambda x: torch.func.vmap(Square.apply, randomness=randomness)(x).sum())(x)
        return torch.func.vmap(torch.func.grad(lambda x: Square.apply(x).sum()), randomness=randomness)(x)

    for randomness in ("error", "different"):
        with pytest.raises(RuntimeError, match="one stream for the whole batch; pass randomness='same'"):
            gradients(randomness)
    same = gradients("same")
    assert torch.equal(same[0], same[1])
    assert not torch.equal(same, 2 * x)


@pytest.mark.parametrize("codec", [actcore.GroupAffine(8, rounding="nearest"), actcore.Float8(rounding="nearest")])
def test_vmap_takes_codecs_that_draw_nothing(monkeypatch, codec):
    monkeypatch.setattr(Square, "codec", codec)
    x = torch.randn(8, 256)
    got = torch.func.vmap(torch.func.grad(lambda x: Square.apply(x).sum()))(x)
    for sample in range(8):
        assert torch.equal(got[sample], 2 * actcore.decompress(actcore.compress(x[sample], codec)))


def test_seeds_that_are_the_same_64_bits_share_a_counter():
    x = torch.randn(256, requires_grad=True)
    noted = []

    class Noting(actcore.GroupAffine):
        def compress(self, tensor, *, seed=0, stream=0):
            noted.append((seed, stream))
            return super().compress(tensor, seed=seed, stream=stream)

    codec = Noting(bits=4)
    for seed in (-1, 2**64 - 1):
        with torch.autograd.graph.saved_tensors_hooks(*actcore.hooks(codec, seed=seed)):
            (x * 1).sin()
        Saves.apply(x, codec, seed)
    assert {seed for seed, _ in noted} == {-1}
    assert len(set(noted)) == len(noted) == 4


class Saves(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, codec, seed):
        actcore.save_for_backward(ctx, (x, codec), seed=seed)
        return x.clone()
