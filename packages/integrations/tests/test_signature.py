"""Signatures tell calls apart by how their inputs are nested, by dtypes and by sizes."""

import pytest
import torch
from torch.utils._pytree import tree_flatten

from integrations.capture.graphs.signature import Signature

X, Y = torch.zeros(2, 3), torch.zeros(4)
CALLS = [
    *(((), {}), ((X,), {}), ((X, Y), {}), ((), {"a": X}), ((X,), {"a": Y}), ((X,), {"a": Y, "b": Y})),
    *(((X,), {"b": Y, "a": Y}), ((X, None), {}), (([X],), {}), ((X, 2), {"a": "mean"})),
]


@pytest.mark.parametrize(("args", "kwargs"), CALLS)
def test_the_structure_is_that_of_the_tree(args, kwargs):
    """Calls with tensors alone have their structure from a cache."""
    leaves, structure = tree_flatten((args, kwargs))
    others = [None if isinstance(leaf, torch.Tensor) else repr(leaf) for leaf in leaves]
    assert Signature.of(args, kwargs).structure == f"{structure} {others}"


def test_calls_that_are_nested_otherwise_have_other_signatures():
    found = [Signature.of(args, kwargs) for args, kwargs in CALLS]
    assert len(set(found)) == len(found)


def test_sizes_and_dtypes_tell_calls_apart():
    one = Signature.of((X,), {})
    assert one == Signature.of((X + 1,), {})
    assert one != Signature.of((X.double(),), {})
    assert one != Signature.of((X[:1],), {})
    assert one.alike(Signature.of((X[:1],), {}))
    assert Signature.of((X[:1],), {}).within(one)
    with torch.autocast("cpu", torch.bfloat16):
        assert one != Signature.of((X,), {})
