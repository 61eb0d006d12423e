"""A stored tensor comes back with its shape, dtype, strides and place, whatever its layout.

``mul`` saves its operand as it is, and ``grad_fn._saved_self`` shows what backward gets. At 8 bits no element moves by
a step, at most 1/255 of the tensor's range.
"""

import pytest
import torch

import integrations

from .nets import EIGHT_BITS, Net, normal, rows

H = normal(24, 8, 6, 10)

LAYOUTS = {
    "contiguous": lambda h: h,
    "transposed": lambda h: h.transpose(1, 3),
    "permuted": lambda h: h.permute(3, 1, 0, 2),
    "channels-last": lambda h: h.contiguous(memory_format=torch.channels_last),
    "channels-last, sliced": lambda h: h.contiguous(memory_format=torch.channels_last)[4:20],
    "flat view": lambda h: h.view(-1),
    "rows": lambda h: h[5:17],
    "one row": lambda h: h[7],
    "columns": lambda h: h[:, 2:5],
    "last columns": lambda h: h[..., 3:],
    "steps": lambda h: h[::3, ::2],
    "transposed columns": lambda h: h[:, 2:5].transpose(0, 1),
    "chunk of the last dimension": lambda h: h.chunk(3, -1)[1],
    "diagonal": lambda h: h.view(120, 96).diagonal(),
    "expanded": lambda h: h[:, :1].expand(24, 8, 6, 10),
    "expanded by a new dimension": lambda h: h[:4].expand(3, 4, 8, 6, 10),
    "expanded, transposed": lambda h: h[:, :1].expand(24, 8, 6, 10).transpose(0, 3),
    "expanded columns": lambda h: h[:, 2:3, :, 1:7].expand(24, 5, 6, 6),
    "one element": lambda h: h[3, 3, 3, 3],
    "one element, expanded": lambda h: h[3, 3, 3, 3].expand(700),
    "empty": lambda h: h[3:3],
    "size 1 with an odd stride": lambda h: h.as_strided((1, 480), (7, 1), 96),
}


def roundtrip(view, h, **options):
    """The view as the forward saw it and as backward gets it, and the report's row."""
    seen = []

    def forward(self, x):
        h = view(x * self.one)
        seen.append(h.detach())
        return h * self.two

    model = integrations.compress_model(
        Net(forward, one=torch.tensor(1.0, dtype=h.dtype), two=torch.tensor(2.0, dtype=h.dtype)), **options
    )
    product = model(h)
    [row] = rows(model, "mul")
    return seen[-1], product.grad_fn._saved_self, row


@pytest.mark.parametrize("view", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shape_dtype_strides_and_values(view, dtype):
    h = H.to(dtype)
    expected, found, _ = roundtrip(view, h, level="L1.1", min_bytes=0)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    assert found.stride() == expected.stride()
    # A step of the range, and an ulp of the dtype at the range's end.
    tolerance = (H.max() - H.min()) / 255 + torch.finfo(dtype).eps * H.abs().max()
    assert torch.equal(torch.isnan(found), torch.zeros_like(found, dtype=torch.bool))
    assert ((found.float() - expected.float()).abs() <= tolerance).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_dtypes(dtype):
    expected, found, row = roundtrip(lambda h: h.transpose(0, 1), H.to(dtype), level="L1.1")
    assert (found.dtype, found.stride(), row.codec[:11]) == (dtype, expected.stride(), "GroupAffine")
    assert ((found - expected).abs() <= (H.max() - H.min()) / 255 + torch.finfo(dtype).eps * H.abs().max()).all()


def test_an_expanded_tensor_is_stored_once():
    """``[24, 1, 6, 10]`` shown as ``[24, 64, 6, 10]`` takes the bytes of the 1440 elements that there are."""
    *_, row = roundtrip(lambda h: h[:, :1].clone().expand(24, 64, 6, 10), H, level="L1.1")
    assert row.shape == (24, 64, 6, 10)
    assert row.stored_bytes == 1440 + 6 * 8


def test_windows_that_overlap_come_back_with_their_values():
    """``unfold`` gives every element several places; what comes back has a place for each."""
    expected, found, _ = roundtrip(lambda h: h.view(-1).unfold(0, 16, 4), H, level="L1.1")
    assert found.shape == expected.shape
    assert ((found - expected).abs() <= (H.max() - H.min()) / 255).all()


def test_views_of_one_stored_tensor_have_their_own_places():
    """Each row of a stored matrix is found where it was, not at the beginning."""
    views = []

    def forward(self, x):
        h = x * self.one
        whole = h * self.two
        views.extend((row.detach(), row * self.two) for row in h.unbind(0))
        return whole

    model = integrations.compress_model(Net(forward, one=torch.tensor(1.0), two=torch.tensor(2.0)), "L1.1", min_bytes=0)
    whole = model(H)
    for expected, product in views:
        found = product.grad_fn._saved_self
        assert ((found - expected).abs() <= (H.max() - H.min()) / 255).all()
        assert found.stride() == expected.stride()
    assert integrations.compression(model).report().stored_bytes == H.numel() + H.numel() // 256 * 8
    del whole


def test_views_as_another_dtype_do_not_mix_with_their_base():
    """A complex view of stored floats has a stored form of its own, in both orders."""
    weight, complex_weight = normal(64, 64, seed=1), torch.view_as_complex(normal(32, 2, seed=2))
    for order in (1, -1):

        def forward(self, x, order=order):
            h = torch.nn.functional.linear(x, self.weight)
            parts = [
                lambda: torch.nn.functional.linear(h, self.weight).sum(),
                lambda: (torch.view_as_complex(h.view(64, 32, 2)) * self.complex_weight).real.sum(),
            ]
            return sum(part() for part in parts[::order])

        x = normal(64, 64)
        found = {}
        for level in ("L0", "L1.1"):
            model = Net(forward, weight=weight, complex_weight=complex_weight)
            integrations.compress_model(model, level)
            model(x).backward()
            found[level] = model.weight.grad, model.complex_weight.grad
        for plain, ours in zip(found["L0"], found["L1.1"], strict=True):
            assert 0 < (plain - ours).norm() < EIGHT_BITS * plain.norm()


def test_a_lazily_negated_view_does_not_turn_the_sign_of_its_base():
    """``z.conj().imag`` shares its memory with ``z.imag`` and means the opposite."""

    def forward(self, x):
        h = torch.nn.functional.linear(x, self.weight)
        z = torch.view_as_complex(h.view(64, 32, 2))
        return torch.nn.functional.linear(z.imag, self.other).sum() + (z.conj().imag * self.factor).sum()

    found = {}
    for level in ("L0", "L1.1"):
        model = Net(forward, weight=normal(64, 64), other=normal(16, 32), factor=normal(64, 32))
        integrations.compress_model(model, level)
        model(normal(64, 64, seed=4)).backward()
        found[level] = model.other.grad, model.factor.grad
    for expected, got in zip(*found.values(), strict=True):
        assert (expected - got).norm() < EIGHT_BITS * expected.norm()
