"""Cosine transforms beside scipy's."""

import pytest
import scipy.fft
import torch

from integrations.fewbit import fft

from .nets import normal


@pytest.mark.parametrize("norm", ["backward", "forward", "ortho"])
@pytest.mark.parametrize("type", [2, 3])
@pytest.mark.parametrize("name", ["dct", "idct"])
def test_is_scipys(name, type, norm):
    """In float64; sums of 100 numbers of about 1, each rounded to 2**-53, are off by less than 1e-12."""
    for size in (1, 2, 3, 4, 9, 100):
        x = normal(3, size, 2, dtype=torch.float64)
        for n in (None, size + 3, max(1, size - 2)):
            expected = getattr(scipy.fft, name)(x.numpy(), type=type, n=n, axis=1, norm=norm)
            found = getattr(fft, name)(x, type=type, n=n, dim=1, norm=norm)
            torch.testing.assert_close(found, torch.from_numpy(expected), rtol=0, atol=1e-12 * 2 * (size + 3))


def test_inverse_gradient_and_dtypes():
    x = normal(2, 7, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: fft.dct(x, norm="ortho"), x)
    assert torch.autograd.gradcheck(lambda x: fft.idct(x, type=2), x)
    for dtype in (torch.bfloat16, torch.float16):
        half = normal(4, 8).to(dtype)
        assert torch.equal(fft.dct(half), fft.dct(half.float()).to(dtype))
    assert fft.dct(torch.arange(4)).dtype == torch.float32


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"x": [1.0]}, TypeError, "real numbers, got list"),
        ({"x": torch.ones(3, dtype=torch.complex64)}, TypeError, "complex64"),
        ({"x": torch.ones(3), "type": 1}, ValueError, "type must be 2 or 3, got 1"),
        ({"x": torch.ones(3), "norm": "orto"}, ValueError, "backward, forward, ortho, got 'orto'"),
        ({"x": torch.ones(3), "n": 0}, ValueError, "n must be at least 1"),
    ],
)
def test_errors(arguments, error, text):
    with pytest.raises(error, match=text):
        fft.dct(**arguments)
