"""A forward that does what the one before did decides nothing, is seen by whoever looks on, and holds nothing."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import integrations
from actcore import replay as native
from integrations import checkpoint
from integrations.runtime import replay
from integrations.runtime import session as sessions

from .replay_nets import WIDTH, Net, Thinning, input_of


class Leaking(nn.Module):
    """A mask of bools, and a pooling that asks for a shape alone."""

    def __init__(self, size: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.avg_pool1d(torch.where(x > 0, x, x * 0.1), 1)


class Normed(nn.Module):
    """Norms whose inputs are stored as they are normalised."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.batch, self.group = nn.BatchNorm2d(4), nn.GroupNorm(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        images = x.view(-1, 4, 4, WIDTH // 16)
        return self.group(self.batch(images)).view(x.shape)  # type: ignore[no-any-return]


class Attending(nn.Module):
    """Attention of what one product makes, indices, an exponent that a rule follows from, and a mask of numbers."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.three = nn.Linear(size, 3 * size)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.three(x).view(1, len(x), 3, 2, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(x.shape)
        y = nn.functional.dropout(y, 0.25) + y.index_select(0, torch.arange(len(y)))
        return y * y.pow(2).mean(-1, keepdim=True)


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by each saved tensor that is decided, or stored, by Python."""
    monkeypatch.setattr(replay, "FORCED_OFF", False)
    found: list[str] = []
    anew, store = sessions.Session._pack_anew, sessions.Session.store
    monkeypatch.setattr(
        sessions.Session,
        "_pack_anew",
        lambda self, tensor, *rest: (found.append("anew"), anew(self, tensor, *rest))[1],
    )
    monkeypatch.setattr(
        sessions.Session, "store", lambda self, tensor, *rest: (found.append("stored"), store(self, tensor, *rest))[1]
    )
    return found


def test_a_second_forward_decides_nothing(decided: list[str]) -> None:
    """Else ``test_replay.py`` would ask nothing of what is done again."""
    layers = (
        *(nn.LayerNorm, lambda size: nn.Linear(size, size), lambda _: nn.ReLU(), lambda _: nn.GELU()),
        *(Leaking, Normed, Attending),
    )
    model = nn.Sequential(*(layer(WIDTH) for _ in range(3) for layer in layers))
    integrations.compress_model(model, "L1", min_bytes=0)
    model(input_of(0)).sum().backward()
    assert decided
    decided.clear()
    model(input_of(1)).sum().backward()
    assert decided == []


def test_what_has_changed_for_good_is_decided_once(decided: list[str]) -> None:
    """Also where only the stored form tells, as that of a mask with another value: the next forward decides anew."""
    model = Thinning()
    model.norm = nn.Identity()  # type: ignore[assignment]
    integrations.compress_model(model, "L1", min_bytes=0)
    for number in (0, 3, 1, 2, 4):  # the rates are 0.1, 0.1, 0.5, 0.5, 0.5
        decided.clear()
        model(input_of(number), number).sum().backward()
        assert bool(decided) == (number in (0, 1, 2)), number


def test_what_a_plan_recomputes_is_decided_once(decided: list[str]) -> None:
    """Nor is what the repetition reads stored by Python in each forward."""
    model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU()))).train()
    made = checkpoint.plan(model, input_of(0).repeat(64, 1))
    assert made.segments
    checkpoint.apply(model, made)
    counts = []
    for number in range(3):
        decided.clear()
        model(input_of(number).repeat(64, 1)).sum().backward()
        counts.append(len(decided))
    assert counts[0] > 8
    assert counts[2] == 0


def test_a_mode_and_a_profiler_see_the_codec() -> None:
    """It is called without torch's dispatcher where neither is."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    integrations.compress_model(model, "L1", min_bytes=0)
    for number in range(3):
        model(input_of(number)).sum().backward()
    seen: list[str] = []

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Noted():
        model(input_of(3)).sum().backward()
    assert "actcore.group_affine_compress.default" in seen
    assert "actcore.group_affine_decompress.default" in seen
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        model(input_of(4)).sum().backward()
    names = {event.key for event in profiled.key_averages()}
    assert {"actcore::group_affine_compress", "actcore::group_affine_decompress"} <= names


def test_a_backward_outside_of_the_mode_of_its_fake_tensors() -> None:
    """They say that they are on the CPU, and have no memory that the codec's kernel could read."""
    with FakeTensorMode():
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
        integrations.compress_model(model, "L1", min_bytes=0)
        loss = model(torch.ones(8, WIDTH)).sum()
    loss.backward()
    assert all(isinstance(parameter.grad, FakeTensor) for parameter in model.parameters())


class _Wrapped(Tensor):
    """Counts what is asked of it."""

    seen = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        _Wrapped.seen += 1
        return super().__torch_function__(func, types, args, kwargs)


def test_another_class_of_tensors_sees_nothing_of_it(decided: list[str]) -> None:
    model = Net()
    wrapped = torch.rand(8, WIDTH).as_subclass(_Wrapped)
    model.between = lambda x, step: torch.mul(x, wrapped).as_subclass(Tensor)  # type: ignore[method-assign, assignment]
    integrations.compress_model(model, "L1", min_bytes=0)
    asked = []
    for number in range(4):
        before = _Wrapped.seen
        model(input_of(number), number).sum().backward()
        asked.append(_Wrapped.seen - before)
    assert len(set(asked)) == 1, asked


def test_a_session_that_cannot_be_entered_is_let_go() -> None:
    model = nn.Linear(WIDTH, WIDTH)
    integrations.compress_model(model, "L1", min_bytes=0)
    left: list[weakref.ref[sessions.Session]] = []
    enter = sessions.Session.__enter__

    def noting(self: sessions.Session) -> sessions.Session:
        left.append(weakref.ref(self))
        return enter(self)

    gc.collect()
    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patch, torch.autograd.graph.disable_saved_tensors_hooks("not here"):
            patch.setattr(sessions.Session, "__enter__", noting)
            with pytest.raises(RuntimeError, match="not here"):
                model(input_of(0))
        assert [reference() for reference in left] == [None]
    finally:
        gc.enable()


def test_a_hook_takes_no_other_replay() -> None:
    hook = native.Pack(lambda tensor: "whole", lambda tensor: "anew")
    hook.replay = object()  # type: ignore[assignment]
    assert hook(torch.ones(2)) == "whole"


def test_the_form_of_a_shared_region_has_all_of_its_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU the part in C restores query, key and value of one product by the size of their region. Whatever else
    restores them, which on a GPU is Python, goes by the stored form."""
    begun_by: list[Any] = []
    sizes: list[int] = []
    begun = replay.Sites._begun

    def noted(self: Any) -> Any:
        begun_by.append(self._session)
        return begun(self)

    def look(*call: object) -> None:  # while the forward runs, whose session knows all regions
        entries = begun_by[-1].storages.entries.by_address.values()
        regions = [region for entry in entries for weak in entry.regions if (region := weak()) is not None]
        sizes.extend(region.value.decompress().numel() for region in regions if region.numel == 3 * x.numel())

    monkeypatch.setattr(replay, "FORCED_OFF", False)
    monkeypatch.setattr(replay.Sites, "_begun", noted)
    torch.manual_seed(0)
    model, x = nn.Sequential(Attending(64), nn.Linear(64, 64)), torch.randn(32, 64)
    model[1].register_forward_hook(look)
    integrations.compress_model(model, min_bytes=0)
    for _ in range(4):  # the last two are replayed
        model(x).square().sum().backward()
    assert sizes == [3 * x.numel()] * 4
