"""Seeds and streams as tensors: the same bytes as the numbers, read when the operator runs."""

import re

import pytest
import torch

import actcore

from .samples import name_of, normal, same_bits

X = normal(1200).view(4, 300)
CODECS = [actcore.GroupAffine(3), actcore.Float8(), actcore.GroupAffineRows((1, 3, 4, 8))]
every_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: type(codec).__name__)
KEYS = [(0, 0), (3, 4), (2**63 - 1, -(2**63)), (-1, 5)]


def payload(codec, seed, stream):
    return actcore.compress(X, codec, seed=seed, stream=stream).payload


def assert_same_payload(one, other):
    for part, same in zip(one, other, strict=True):
        assert same_bits(part, same)


@every_codec
@pytest.mark.parametrize("key", KEYS)
def test_tensors_and_numbers_give_the_same_bytes(codec, key):
    expected = payload(codec, *key)
    seed, stream = (torch.tensor(part) for part in key)
    for one in (seed, seed.view(1), key[0]):
        for other in (stream, stream.view(1, 1), key[1]):
            assert_same_payload(payload(codec, one, other), expected)


@pytest.mark.parametrize("codec", [actcore.Raw(), actcore.Positive()], ids=repr)
def test_codecs_without_noise_take_them_too(codec):
    assert_same_payload(payload(codec, torch.tensor(1), torch.tensor(2)), payload(codec, 0, 0))


@every_codec
def test_the_value_is_read_at_the_call(codec):
    seed = torch.tensor([1])
    first = payload(codec, seed, 0)
    seed += 1
    assert_same_payload(payload(codec, seed, 0), payload(codec, 2, 0))
    assert_same_payload(first, payload(codec, 1, 0))


@every_codec
def test_a_compiled_region_draws_anew_without_compiling_again(codec):
    torch.compiler.reset()
    compiled = torch.compile(
        lambda x, seed, stream: actcore.compress(x, codec, seed=seed, stream=stream).payload,
        fullgraph=True,
        backend="aot_eager",
    )
    with torch.compiler.set_stance("default"):
        for key in KEYS[:1]:
            assert_same_payload(compiled(X, *map(torch.tensor, key)), payload(codec, *key))
    with torch.compiler.set_stance("fail_on_recompile"):
        for key in KEYS:
            assert_same_payload(compiled(X, *map(torch.tensor, key)), payload(codec, *key))
    torch.compiler.reset()


@every_codec
@pytest.mark.parametrize("name", ["seed", "stream"])
def test_wrong_tensors(codec, name):
    for error, text, value in (
        (TypeError, "must be an int or an int64 tensor of one element, got torch.int32", torch.tensor(1).int()),
        (TypeError, "must be an int or an int64 tensor of one element, got torch.float32", torch.tensor(1.0)),
        (ValueError, "must have one element, got 2", torch.tensor([1, 2])),
        (ValueError, "must have one element, got 0", torch.tensor([]).long()),
        (
            ValueError,
            "must be on the tensor's device cpu, got meta; move it with .to",
            torch.empty(1, dtype=torch.int64, device="meta"),
        ),
    ):
        with pytest.raises(error, match=f"^{re.escape(f'{name} {text}')}$"):
            actcore.compress(X, codec, **{name: value})


OPERATORS = {
    "group_affine_compress": (X, 3, 256, True),
    "float8_compress": (X, torch.float8_e4m3fn, 256, True),
    "group_affine_rows_compress": (X, torch.tensor([1, 3, 4, 8]), 604, 256, True),
}


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_operators_refuse_wrong_tensors(operator):
    overload = getattr(torch.ops.actcore, operator).tensor
    one = torch.tensor([1])
    for name, place in (("seed", 0), ("stream", 1)):
        for text, wrong in (("must be int64", one.int()), ("must have one element, got 2", torch.tensor([1, 2]))):
            key = (wrong, one) if place == 0 else (one, wrong)
            with pytest.raises(RuntimeError, match=f"actcore::{operator}: {name} {text}"):
                overload(*OPERATORS[operator], *key)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=name_of)
@pytest.mark.parametrize("operator", OPERATORS)
def test_opcheck(operator, dtype):
    x, *options = OPERATORS[operator]
    arguments = (x.to(dtype), *options, torch.tensor([1]), torch.tensor([-2]))
    torch.library.opcheck(getattr(torch.ops.actcore, operator).tensor, arguments)
