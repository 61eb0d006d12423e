"""Kernels that pass torch's dispatcher by return what the operators return, and refuse what these refuse."""

import threading

import pytest
import torch

from actcore.replay import KERNELS

pytestmark = pytest.mark.skipif(not KERNELS, reason="this torch has no way to take its objects apart: from 2.14 on")

X = torch.randn(3, 500, generator=torch.Generator().manual_seed(0))
BITS = torch.ops.actcore.group_affine_compress.default(X, 4, 256, True, 1, 2)
NORMAL = torch.ops.actcore.group_affine_standardized_compress.default(X, 4, 96, True, 1, 2, 3, 1, 0)
MASK = torch.ops.actcore.positive_mask.default(X)
PLACES = torch.arange(500) % 9
STREAM = torch.tensor([2])
PAYLOAD = torch.ops.actcore.group_affine_compress.graph(X, 4, 256, True, 1, STREAM)
NARROW = torch.ops.actcore.narrow_compress.default(PLACES, 0, 8)

CALLS = {
    "group_affine_compress": (X, 4, 256, True, -1, 2),
    "group_affine_clamped_compress": (X, 4, 256, True, 1, 2, -1.0, 1.0),
    "group_affine_standardized_compress": (X, 4, 96, True, 1, 2, 3, 1, 0),
    "group_affine_standardized_compress_given": (
        X,
        4,
        96,
        True,
        1,
        2,
        *torch.ones(2, 3),
        1,
        0,
        *map(torch.clone, NORMAL),
    ),
    "group_affine_standardized_decompress": (*NORMAL, 1500, 1, 0, 4, 96),
    "group_affine_decompress": (*BITS, 1500, 4, 256),
    "bit_mask_compress": (X > 0, 0.0, 1.0),
    "bit_mask_decompress": (MASK, 1500, torch.bfloat16, 0.0, 2.0),
    "positive_mask": (X,),
    "narrow_compress": (PLACES, 0, 8),
    "narrow_decompress": (NARROW[0], 500, torch.int64, 0, 8),
    "group_affine_compress_graph": (X, 4, 256, True, 1, STREAM),
    "group_affine_decompress_graph": (PAYLOAD, 1500, torch.float32, 4, 256),
    "bit_mask_compress_graph": (X > 0, 0.0, 1.0),
}


WRITING = torch.ops.actcore.group_affine_standardized_compress.given


def find_operator(name):
    """The operator of a kernel: its overload of that name, or the one without a name."""
    packet, _, overload = name.rpartition("_")
    return (
        getattr(getattr(torch.ops.actcore, packet), overload)
        if overload in ("graph", "given")
        else (getattr(torch.ops.actcore, name).default)
    )


def test_each_has_a_case():
    assert KERNELS.keys() == CALLS.keys()


@pytest.mark.parametrize("name", [name for name in CALLS if not name.endswith("_given")])
def test_the_same_bytes(name):
    found, expected = KERNELS[name](*CALLS[name]), find_operator(name)(*CALLS[name])
    pairs = [(found, expected)] if isinstance(expected, torch.Tensor) else list(zip(found, expected, strict=True))
    assert pairs
    for one, other in pairs:
        assert type(one) is torch.Tensor
        assert one.dtype is other.dtype
        assert torch.equal(one, other)


def test_the_same_bytes_are_written():
    """By an operator that returns nothing."""
    written = []
    for function in (KERNELS["group_affine_standardized_compress_given"], WRITING):
        *given, codes, bounds, statistics = CALLS["group_affine_standardized_compress_given"]
        parts = [torch.zeros_like(one) for one in (codes, bounds, statistics)]
        assert not function(*given, *parts)
        written.append(parts)
    assert all(torch.equal(*pair) for pair in zip(*written, strict=True))
    assert all(one.any() for one in written[0])


def test_results_have_no_history():
    x = X.clone().requires_grad_()
    assert not any(part.requires_grad for part in KERNELS["group_affine_compress"](x * 2, 4, 256, True, 1, 2))


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        ((X,), TypeError, "group_affine_compress takes 6 arguments by place, got 1"),
        (("x", 4, 256, True, 1, 2), TypeError, "argument 0 must be a tensor, got 'x'"),
        ((X, 4, 256, 1, 1, 2), TypeError, "argument 3 must be a bool, got 1"),
        ((X, 4.5, 256, True, 1, 2), TypeError, "float"),
        ((X, 4, 256, True, 1 << 70, 2), OverflowError, "int too big"),
        ((X, 9, 256, True, 1, 2), RuntimeError, "bits must be from 1 to 8, got 9"),
        ((X.t(), 4, 256, True, 1, 2), RuntimeError, "input must be contiguous"),
    ],
)
def test_what_is_refused(args, error, message):
    with pytest.raises(error, match=message):
        KERNELS["group_affine_compress"](*args)
    with pytest.raises(TypeError, match="a dtype that is known here, got 'float'"):
        KERNELS["bit_mask_decompress"](MASK, 1500, "float", 0.0, 1.0)


def test_nothing_is_left_behind():
    """Neither of what was returned, nor of arguments before one that is refused."""
    freed = []

    class Noted(torch.Tensor):
        def __del__(self):
            freed.append(1)

    for _ in range(5):
        KERNELS["group_affine_compress"](X.clone().as_subclass(Noted), 4, 256, True, 1, 2)
        with pytest.raises(TypeError):
            KERNELS["group_affine_decompress"](BITS[0].clone().as_subclass(Noted), "bounds", 1500, 4, 256)
        given = CALLS["group_affine_standardized_compress_given"]
        KERNELS["group_affine_standardized_compress_given"](X.clone().as_subclass(Noted), *given[1:])
    assert len(freed) == 15


def test_threads():
    wrong = []

    def work():
        for _ in range(50):
            found = KERNELS["group_affine_decompress"](*BITS, 1500, 4, 256)
            wrong.extend([] if torch.equal(found, expected) else [1])

    expected = KERNELS["group_affine_decompress"](*BITS, 1500, 4, 256)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
