"""Views that read the same memory in another way, and memory that changes where torch does not see it."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from integrations import compress_model

from .nets import EIGHT_BITS, Net, gradients, normal, plain_and_compressed, relative_error, rows

X = normal(64, 64, seed=9)
WEIGHTS = {"w0": normal(64, 64, seed=1) / 8, "w1": normal(64, 64, seed=2) / 8}


@pytest.mark.parametrize("negated_first", [True, False])
def test_a_lazily_negated_view_is_not_taken_for_its_base(negated_first):
    """``z.conj().imag`` reads z's memory with the sign turned; a copy of one must not serve the other."""

    def forward(self, x):
        z = torch.fft.fft(x) * torch.complex(x, x)
        z.requires_grad_()
        parts = [lambda: F.linear(z.conj().imag, self.w0), lambda: F.linear(z.imag, self.w1)]
        return sum(part() for part in (parts if negated_first else parts[::-1]))

    plain, compressed, _ = plain_and_compressed(Net(forward, **WEIGHTS), X, level="L1.1")
    assert relative_error(plain, compressed) < EIGHT_BITS


def _through_data(h):
    h.data.mul_(2)


def _through_numpy(h):
    h.detach().numpy()[:] *= 2


@pytest.mark.parametrize("write", [_through_data, _through_numpy])
def test_memory_written_behind_torchs_back_is_stored_anew(write):
    """The version does not move, so the copy of before must not be shared with what is saved after."""

    def forward(self, x):
        h = F.linear(x, self.w0)
        first = F.linear(h, self.w1)
        write(h)
        return first + F.linear(h, self.w1).square()

    class Exact(nn.Module):
        """The same with a second tensor in place of the write."""

        def __init__(self):
            super().__init__()
            self.w0, self.w1 = (nn.Parameter(WEIGHTS[name].clone()) for name in ("w0", "w1"))

        def forward(self, x):
            h = F.linear(x, self.w0)
            doubled = h + h.detach()  # torch gives the gradient of the write none
            return F.linear(h, self.w1) + F.linear(doubled, self.w1).square()

    expected = gradients(Exact(), X)
    found = gradients(compress_model(Net(forward, **WEIGHTS), "L1.1"), X)
    assert relative_error(expected, found) < EIGHT_BITS


def test_bytes_of_a_mask_other_than_zero_and_one():
    """torch reads every byte of a bool tensor but 0 as true."""
    mask = (X > 0).to(torch.uint8).mul(255).view(torch.bool)
    net = Net(lambda self, x: torch.where(mask.clone(), F.linear(x, self.w0), 0.0), w0=WEIGHTS["w0"])
    plain, compressed, model = plain_and_compressed(net, X)
    assert relative_error(plain, compressed) == 0
    assert [row.codec for row in rows(model, "where")] == ["BitMask(values=(0, 1))"]


@pytest.mark.parametrize(("width", "codec"), [(48, "kept"), (64, "group_size=64"), (768, "group_size=256")])
def test_no_group_of_a_norms_input_has_elements_of_two_rows(width, codec):
    """Rows of very different size: a small one that shared bounds with a large one would be lost."""
    x = normal(64, width) * torch.logspace(-3, 3, 64)[:, None]
    net = Net(lambda self, x: F.layer_norm(x.clone(), (width,), self.weight), weight=normal(width))
    plain, compressed, model = plain_and_compressed(net, x)
    assert relative_error(plain, compressed) < EIGHT_BITS
    assert codec in rows(model, "layer_norm")[0].codec


def test_rows_of_a_norms_input_that_are_not_contiguous_are_stored_one_by_one():
    net = Net(lambda self, x: F.layer_norm((x * 2).t(), (64,), self.weight), weight=normal(64))
    _, _, model = plain_and_compressed(net, X)
    assert rows(model, "layer_norm")[0].codec.endswith("row by row")
