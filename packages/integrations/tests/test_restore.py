"""What a repetition reads is the same whether C restores it (``actcore.replay.restore``) or ``Beside.unpack``."""

import pytest
import torch

from actcore import BitMask, GroupAffine, Kept, Narrow, Positive
from actcore.replay import restore
from integrations.tracing.storage.records import Record
from integrations.tracing.storage.storage import Storages
from integrations.tracing.tensors import Extent

CODECS = {
    "4 bits": (torch.float32, GroupAffine(bits=4)),
    "8 bits": (torch.bfloat16, GroupAffine(bits=8)),
    "signs": (torch.float32, Positive()),
    "mask": (torch.bool, BitMask()),
    "indices": (torch.int64, Narrow(0, 7)),
}


def stored(dtype, codec, shape=(6, 64)):
    """A tensor, the view of it that autograd holds, and the one that a repetition holds."""
    values = torch.randn(shape) if dtype.is_floating_point else torch.randint(0, 2, shape)
    tensor, storages = values.to(dtype), Storages()
    record = Record(None, "kept", "", "", tensor.nbytes)
    first, second = (storages.store(tensor, Extent.of(tensor), codec, record, seed=0, stream=1) for _ in range(2))
    return tensor, first, second.beside()


@pytest.mark.parametrize("name", CODECS)
def test_c_restores_what_python_does(name):
    tensor, _, beside = stored(*CODECS[name])
    waiting = beside.view.region.waiting
    expected, found = beside.unpack(), restore(beside)
    assert found.dtype == expected.dtype
    assert found.stride() == expected.stride()
    assert torch.equal(found, expected)
    assert found is not expected
    assert found.data_ptr() != tensor.data_ptr()
    assert beside.view.region.waiting == waiting
    assert beside.view.region.lent is None  # it lives while its operator runs


def test_a_lent_tensor_is_read_again():
    tensor = torch.randn(6, 64)
    storages, record = Storages(), Record(None, "kept", "", "", tensor.nbytes)
    views = [storages.store(tensor, Extent.of(tensor), GroupAffine(bits=4), record, seed=0, stream=1) for _ in range(3)]
    beside = views.pop().beside()
    lent = views[0].unpack()  # the other view is still to come
    assert restore(beside) is lent
    assert views[1].unpack() is lent


def test_a_part_of_a_region_is_a_view_of_it():
    tensor = torch.randn(6, 64)
    storages, record = Storages(), Record(None, "kept", "", "", tensor.nbytes)
    storing = {"codec": GroupAffine(bits=8), "record": record, "seed": 0, "stream": 1}
    whole = storages.store(tensor, Extent.of(tensor), **storing)
    part = storages.store(tensor[2:4], Extent.of(tensor[2:4]), **storing).beside()
    assert torch.equal(restore(part), whole.beside().unpack()[2:4])


def test_a_kept_tensor_that_was_changed_is_refused():
    kept = Kept.of(torch.ones(3))
    assert torch.equal(restore(kept), torch.ones(3))
    kept.tensor.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        restore(kept)


def test_what_has_no_method_unpack_is_refused():
    with pytest.raises(AttributeError, match="unpack"):
        restore(object())
