"""On which devices a site repeats the call that standardised or clamped what it stores: where there is one operator for
it."""

from types import SimpleNamespace

import pytest
import torch

from actcore import GroupAffine, Layout, compress
from integrations.policies import standardizing
from integrations.policies.norms import CHANNELS, Standardized
from integrations.runtime.replay_cache import COMPRESS_CLAMPED, Site
from integrations.tracing.norm_inputs import compress_for_norm

from .nets import normal


def repeated(device, codec, x, bounds=()):
    """What a site on a device would call for a tensor that was stored so; ``None`` where it leaves that to the full
    way."""
    site = Site.__new__(Site)
    site.spec = SimpleNamespace(extent=SimpleNamespace(layout=Layout.of(x)), identity="a module")
    site.device, site.dtype = torch.device(device), x.dtype
    return site.encoder if site._encodes(compress(x, codec), 0, bounds) else None


@pytest.mark.parametrize(
    ("device", "missing", "repeats"),
    [("cpu", "none here", True), ("cuda", "", True), ("cuda", "none here", False), ("meta", "", False)],
)
def test_one_call_is_repeated_where_there_is_an_operator(monkeypatch, device, missing, repeats):
    monkeypatch.setattr(standardizing, "missing_on", lambda device: missing)
    x = normal(8, 32, 5, 5)
    codec, last = Standardized(8, 256, "stochastic", CHANNELS, 32), x.contiguous(memory_format=torch.channels_last)
    for given in (x, last):
        assert repeated(device, codec, given) == (compress_for_norm if repeats else None)
    clamped = repeated(device, GroupAffine(4), x, (-5.0, 5.0))
    assert clamped == (COMPRESS_CLAMPED if repeats else None)
    assert repeated(device, GroupAffine(4), last, (-5.0, 5.0)) is None  # it is clamped first
