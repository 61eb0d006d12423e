"""Who is told of what layers store for themselves, and that it changes nothing else."""

import gc
import threading
import weakref

import pytest
import torch
from torch import nn

import actcore
import integrations
from actcore import stored
from integrations import fewbit, qmodules

from .exchanged_nets import EXCHANGED, TOKENS, Tokens, free, make_report
from .nets import gradients, normal


def test_gradients_are_those_without_anybody_listening(monkeypatch):
    found = []
    for heard in (True, False):
        if not heard:
            monkeypatch.setattr(stored._Here, "listener", property(lambda self: None, lambda self, value: None))
        model = integrations.compress_model(Tokens(), **EXCHANGED)
        torch.manual_seed(2)
        found.append(gradients(model, TOKENS))
        rows = integrations.compression(model).report().rows
        assert any(not row.operator for row in rows) is not heard
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_nobody_is_told_without_a_session(monkeypatch):
    told = []
    model = fewbit.convert(Tokens(), bits=3, linear=0.3)
    model(TOKENS).sum().backward()  # a report records the first one
    monkeypatch.setattr(stored, "Stored", lambda *args, **kwargs: told.append(args))
    monkeypatch.setattr(stored.Absent, "like", lambda *args, **kwargs: told.append(args))
    model(TOKENS).sum().backward()
    actcore.dropout(normal(64).requires_grad_()).sum().backward()
    assert not told
    assert not stored.is_heard()
    integrations.compress_model(model, "L0")
    model(TOKENS).sum().backward()
    assert not told


def test_listeners_are_those_of_their_thread_and_go_with_their_block():
    class Listener:
        def __init__(self):
            self.told = []

        def stored(self, announced):
            self.told += announced

    x = normal(64).requires_grad_()
    outer, inner, elsewhere = Listener(), Listener(), []
    with stored.Listening(outer):
        with stored.Listening(inner):
            actcore.relu(x)
        thread = threading.Thread(target=lambda: elsewhere.append((stored.is_heard(), actcore.relu(x))))
        thread.start()
        thread.join()
        with torch.no_grad():
            actcore.relu(x)
        with pytest.raises(ZeroDivisionError), stored.Listening(inner):
            raise ZeroDivisionError
        actcore.dropout(x)
    actcore.relu(x)
    assert not elsewhere[0][0]
    assert [one.operator for one in inner.told] == ["relu"]
    assert [one.operator for one in outer.told] == ["dropout"]


def test_what_a_checkpoint_saves_is_its_own():
    class Net(nn.Sequential):
        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=False)

    model = nn.Sequential(nn.Linear(32, 32), Net(fewbit.GELU(), qmodules.QLinear(32, 32)))
    report = make_report(model, TOKENS)
    # Before torch 2.13 a checkpoint saves a tensor without elements, too.
    assert [row.operator for row in free(report) if row.original_bytes] == ["checkpoint"]


def test_a_row_holds_no_tensor():
    """What was announced goes as it would without."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.gone = nn.Linear(32, 32), []

        def forward(self, x):
            for _ in range(2):
                x = self.linear(x)
                y = fewbit.functional.gelu(x)
                self.gone.append(weakref.ref(x))
                x = y
                del y
            assert self.gone[0]() is None
            return x

    model = Net()
    gc.disable()
    try:
        make_report(model, TOKENS)
    finally:
        gc.enable()
    assert all(gone() is None for gone in model.gone)


def test_a_forward_made_no_smaller_is_told_of_exchanged_layers_too():
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    options = {"linear": {"proj_dim_ratio": 0.99, "bits": None}, "min_bytes": 1 << 30}
    integrations.compress_model(model, strict=True, **options)
    with pytest.raises(RuntimeError, match="nothing is stored in fewer bytes"):
        model(normal(256, 64).requires_grad_())


@pytest.mark.parametrize(
    ("options", "undone"),
    [({"activations": "fewbit", "linear": 0.5}, fewbit.restore_model), ({"layers": "q"}, qmodules.restore_model)],
    ids=["fewbit", "Q-layers"],
)
def test_what_was_exchanged_is_told_after_the_model_was_restored(options, undone):
    """A trainer's callback restores the model when training ends. So is what somebody else has put back."""
    said = []
    for by_hand in (False, True):
        model = integrations.compress_model(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)), **options)
        gradients(model, normal(48, 64))
        handle = integrations.compression(model)
        if by_hand:
            undone(model)
        said.append(handle.report().exchanged)
        integrations.restore_model(model)
        integrations.compress_model(model, level="L0", loss={"head": "2"})  # of which this handle knows nothing
        assert handle.report().exchanged == said[-1]
    assert said[0].startswith("Exchanged: ")
    assert "which have been undone since" in said[1]
