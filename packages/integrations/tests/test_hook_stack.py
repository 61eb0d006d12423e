"""Saved-tensor hooks that a forward pushes and does not pop, or pops and did not push."""

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

import integrations
from actcore import stored
from integrations.runtime.compiled.hooks import session_here

from .nets import assert_nothing_active, normal

X = normal(64, 64)
STACK = torch._C._autograd


def pack(tensor):
    return tensor


def unpack(tensor):
    return tensor


class Leaving(nn.Module):
    """Calls ``between``, which may push and pop, before its only layer."""

    def __init__(self, between):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.between = nn.Linear(64, 64), between

    def forward(self, x):
        self.between()
        return self.layer(x.cosh())


def on_stack():
    """How many pairs there are; takes them off."""
    count = 0
    while STACK._top_saved_tensors_default_hooks(True) is not None:
        STACK._pop_saved_tensors_default_hooks()
        count += 1
    return count


@pytest.fixture(autouse=True)
def clean():
    yield
    on_stack()


LEFT = r"forward or block of Leaving pushed saved-tensor hooks and did not pop them: \S*test_hook_stack\.pack\."


@pytest.mark.parametrize("level", ["L1", "L2", "L3"])
@pytest.mark.filterwarnings("ignore:.*offload")
def test_pushed_and_not_popped(level):
    """Named, and left as they are without compression; ours are gone, however often it happens."""
    model = integrations.compress_model(Leaving(saved_tensors_hooks(pack, unpack).__enter__), level)
    for step in range(1, 3):
        with pytest.raises(RuntimeError, match=LEFT):
            model(X)
        assert STACK._top_saved_tensors_default_hooks(True) == (pack, unpack)
        assert integrations.compression(model).step == step
    assert on_stack() == 2
    assert_nothing_active()
    model.between = lambda: None
    model(X).sum().backward()
    assert_nothing_active()


def test_several_pushed_in_a_block_inside_a_block():
    hooks = [saved_tensors_hooks(torch.Tensor.detach, unpack), saved_tensors_hooks(nn.Identity(), unpack)]
    outer, inner = nn.Linear(64, 64), nn.Linear(64, 64)
    with integrations.compress(outer), saved_tensors_hooks(pack, unpack):
        block = integrations.compress(inner)
        block.__enter__()
        for hook in hooks:
            hook.__enter__()
        with pytest.raises(RuntimeError, match=r"TensorBase\.detach, torch\.nn\.modules\.linear\.Identity\."):
            block.__exit__(None, None, None)
        for _ in hooks:
            STACK._pop_saved_tensors_default_hooks()
        assert STACK._top_saved_tensors_default_hooks(True) == (pack, unpack)
        outer(X.cosh()).sum().backward()
    assert_nothing_active()


def test_an_error_that_is_under_way_stays_the_error():
    def fail():
        saved_tensors_hooks(pack, unpack).__enter__()
        raise KeyError("of the model")

    model = integrations.compress_model(Leaving(fail))
    with pytest.warns(UserWarning, match=LEFT), pytest.raises(KeyError, match="of the model"):
        model(X)
    assert on_stack() == 1


@pytest.mark.parametrize(
    "then", [None, saved_tensors_hooks(torch.Tensor.detach, unpack)], ids=["alone", "others pushed"]
)
def test_popped_and_not_pushed(then):
    """The stack is what it is without compression: theirs, which were to go, are gone."""
    theirs = saved_tensors_hooks(pack, unpack)

    def leave():
        theirs.__exit__()
        if then is not None:
            then.__enter__()

    theirs.__enter__()
    model = integrations.compress_model(Leaving(leave))
    message = r"popped saved-tensor hooks that it had not pushed \(\S*test_hook_stack\.pack\), and so removed"
    with pytest.raises(RuntimeError, match=message):
        model(X)
    assert on_stack() == (then is not None)


def test_popped_where_there_were_no_others():
    model = integrations.compress_model(Leaving(STACK._pop_saved_tensors_default_hooks))
    with pytest.raises(
        RuntimeError, match="popped saved-tensor hooks that it had not pushed, and so removed the hooks of the"
    ):
        model(X)
    assert_nothing_active()


def test_what_is_balanced_is_left_alone():
    """Hooks around a compressed model and inside of it, in contexts."""

    def inside():
        with saved_tensors_hooks(pack, unpack):
            torch.ones(3, requires_grad=True).cosh()

    model = integrations.compress_model(Leaving(inside))
    with saved_tensors_hooks(pack, unpack):
        model(X).sum().backward()
        assert STACK._top_saved_tensors_default_hooks(True) == (pack, unpack)
    assert_nothing_active()


def test_blocks_that_are_left_in_the_wrong_order():
    """The one that is left last is told; the next one is as any."""
    first, second = Leaving(lambda: None), Leaving(lambda: None)
    blocks = [integrations.compress(model, level) for model, level in ((first, "L1"), (second, "L1.1"))]
    for block in blocks:
        block.__enter__()
    for block in blocks:
        with pytest.raises(RuntimeError, match="saved-tensor hooks"):
            block.__exit__(None, None, None)
    on_stack()
    assert session_here() is None
    assert stored._here.listener is None
    with integrations.compress(first, "L1") as handle:
        first(X).sum().backward()
    assert handle._records
    assert_nothing_active()
