"""A replayed forward stores query, key and value of one product as one region, in a form that says what it holds.

On a CPU the part in C restores such a region by the region's own size. Whatever else restores it, which on a GPU is
Python, goes by the form.
"""

import torch
import torch.nn.functional as F
from torch import nn

import integrations
from integrations._runtime.replay import Sites

from .nets import normal


class Attention(nn.Module):
    """As image models have it: one product makes query, key and value."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x):
        query, key, value = self.qkv(x).view(*x.shape[:2], 3, 4, 16).permute(2, 0, 3, 1, 4).unbind(0)
        found = F.scaled_dot_product_attention(query, key, value)
        return self.out(found.transpose(1, 2).reshape(x.shape))


def test_the_form_of_a_shared_region_has_all_of_its_elements(monkeypatch):
    sessions, sizes, begun = [], [], Sites._begun

    def noted(self):
        sessions.append(self._session)
        return begun(self)

    def look(*call):  # while the forward runs, whose session knows all regions
        entries = sessions[-1].storages.entries.by_address.values()
        regions = [region for entry in entries for weak in entry.regions if (region := weak()) is not None]
        sizes.extend(len(region.value.decompress().flatten()) for region in regions if region.numel == 3 * x.numel())

    monkeypatch.setattr(Sites, "_begun", noted)
    torch.manual_seed(0)
    model, x = Attention(), normal(2, 32, 64)
    model.out.register_forward_hook(look)
    integrations.compress_model(model, min_bytes=0)
    for _ in range(4):  # the last two are replayed
        model(x).square().sum().backward()
    assert sizes == [3 * x.numel()] * 4
