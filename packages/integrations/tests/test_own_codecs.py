"""Codecs of a user's own in a model: what they return is checked, and laid out as the tensor was."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import actcore
from integrations import checkpoint, compression

from .nets import assert_same, gradients, normal


@dataclass(frozen=True)
class Flat:
    """Stores the elements in the order of the indices: exact."""

    def compress(self, tensor, *, seed=0, stream=0):
        return actcore.Compressed.of(self, tensor, [tensor.reshape(-1).clone()])

    def decompress(self, compressed):
        return compressed.payload[0].clone().view(compressed.shape)


class Short(Flat):
    def decompress(self, compressed):
        return compressed.payload[0][:5].clone()


class Double(Flat):
    def decompress(self, compressed):
        return super().decompress(compressed).double()


class Nothing(Flat):
    def decompress(self, compressed):
        return None


class Refusing(Flat):
    error: type[Exception] = TypeError

    def compress(self, tensor, *, seed=0, stream=0):
        raise self.error("mine wants 3-D")


class RefusingValues(Refusing):
    error = ValueError


def convolutions(memory_format):
    torch.manual_seed(0)
    layers = (nn.Conv2d(8, 8, 3, padding=1), nn.GELU(), nn.Conv2d(8, 8, 3, padding=1), nn.Tanh())
    return nn.Sequential(*layers).train().to(memory_format=memory_format)


def stored_by(codec, memory_format=torch.contiguous_format):
    model, x = convolutions(memory_format), normal(4, 8, 16, 16).to(memory_format=memory_format)
    return checkpoint.apply(model, checkpoint.plan(model, (x,), budget=1.0), codec=codec), x


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_layout_in_memory_is_the_tensors(memory_format):
    """A codec may return elements in the order of their indices, whatever the tensor's strides."""
    model, x = stored_by(Flat(), memory_format)
    assert_same(gradients(convolutions(memory_format), x), gradients(model, x))
    assert str(Flat()) in {row.codec for row in compression(model).report().rows}


@pytest.mark.parametrize(
    ("codec", "got"), [(Short(), r"\(5,\) in torch.float32"), (Double(), "in torch.float64"), (Nothing(), "None")]
)
def test_what_was_not_compressed_is_refused(codec, got):
    model, x = stored_by(codec)
    loss = model(x).sum()
    with pytest.raises(
        TypeError,
        match=rf"{type(codec).__name__}.decompress must return a tensor of the shape and "
        rf"dtype that was compressed, .*{got}",
    ):
        loss.backward()


@pytest.mark.parametrize("codec", [Refusing(), RefusingValues()])
def test_what_a_codec_refuses_is_kept(codec):
    model, x = stored_by(codec)
    assert_same(gradients(convolutions(torch.contiguous_format), x), gradients(model, x))
    assert any(row.why == "kept exactly: mine wants 3-D" for row in compression(model).report().rows)
