"""``Offload`` without a GPU: what it does on the host, and the order of its copies on a lane that only takes notes."""

import copy
import gc
import io

import pytest
import torch

import actcore
from actcore.codecs import offload

from .samples import normal, same_bits

X = normal(3000).view(60, 50)
FOUR_BITS = actcore.GroupAffine(bits=4)


class NotedEvent:
    def __init__(self, log, name):
        self.log, self.name = log, name

    def synchronize(self):
        self.log.append(f"synchronize {self.name}")


class NotedStream:
    def __init__(self, log):
        self.log = log

    def wait_event(self, event):
        self.log.append(f"wait for {event.name}")


class NotedLane:
    """Copies at once, and notes in which order; payloads have the name of their first element."""

    def __init__(self):
        self.device = torch.device("cpu")
        self.log = []
        self.stream = NotedStream(self.log)

    def current(self):
        return self.stream

    def copy_out(self, parts):
        name = f"out {parts[0].flatten()[0].item():.0f}"
        self.log.append(name)
        return tuple(part.clone() for part in parts), self.crossing(parts, name)

    def copy_back(self, parts, arrived):
        name = f"back {parts[0].flatten()[0].item():.0f}"
        self.log.append(f"{name} after {arrived.name if arrived else 'nothing'}")
        return self.crossing([part.clone() for part in parts], name)

    def crossing(self, parts, name):
        return offload.Crossing(tuple(parts), NotedEvent(self.log, name), self.stream, None)


@pytest.fixture
def noted(monkeypatch):
    """A lane of notes, and tensors of the CPU that are taken for a GPU's."""
    lane = NotedLane()
    monkeypatch.setattr(offload, "lane", lambda device: lane)
    monkeypatch.setattr(offload, "_leaves", lambda device: True)
    for order in ("_last", "_leaving", "_ahead"):
        monkeypatch.setattr(offload, order, {})
    return lane


def stored(number):
    return actcore.compress(torch.full((4,), float(number)), actcore.Offload())


def test_without_leaving_each_copy_is_waited_for_and_comes_back_alone(noted):
    codec = actcore.Offload(leaving=0, ahead=False)
    tensors = [torch.full((4,), float(number)) for number in (1, 2)]
    one, two = (actcore.compress(tensor, codec) for tensor in tensors)
    assert noted.log == ["out 1", "wait for out 1", "out 2", "wait for out 2"]
    assert one.codec == actcore.Offload(device=torch.device("cpu"), leaving=0, ahead=False)
    noted.log.clear()
    for stored_, tensor in ((two, tensors[1]), (one, tensors[0])):
        assert torch.equal(stored_.decompress(), tensor)
    assert noted.log == ["back 2 after out 2", "wait for back 2", "back 1 after out 1", "wait for back 1"]


def test_what_leaves_at_once_is_not_copied_on_the_device(noted, monkeypatch):
    """A tensor that may stay a while is: it may be changed in place meanwhile."""
    given, sent = torch.zeros(4), []
    copy_out = noted.copy_out
    monkeypatch.setattr(
        noted, "copy_out", lambda parts: (sent.extend(part.data_ptr() for part in parts), copy_out(parts))[1]
    )
    actcore.compress(given, actcore.Offload(leaving=0))
    actcore.compress(given, actcore.Offload())
    assert sent[0] == given.data_ptr() != sent[1]


def test_what_has_gaps_is_made_dense_before_it_leaves(noted, monkeypatch):
    """torch would copy it on the device anyway, on the stream of the copies."""
    sent, copy_out = [], noted.copy_out
    monkeypatch.setattr(noted, "copy_out", lambda parts: (sent.extend(parts), copy_out(parts))[1])
    given = normal(48).view(8, 6)[:, :3]
    stored_ = actcore.compress(given, actcore.Offload(leaving=0))
    assert sent[0].is_contiguous()
    assert torch.equal(stored_.decompress(), given)


def test_one_may_be_on_its_way_out(noted):
    held = [actcore.compress(torch.full((4,), float(number)), actcore.Offload(leaving=1)) for number in (1, 2, 3)]
    assert noted.log == ["out 1", "wait for out 1", "out 2", "wait for out 2", "out 3"]
    assert len(held) == 3


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"leaving": -1}, ValueError, "leaving must be at least 0, got -1"),
        ({"leaving": 1.5}, TypeError, "leaving must be an int, got 1.5"),
        ({"ahead": 1}, TypeError, "ahead must be a bool, got 1"),
    ],
)
def test_options_out_of_range(options, error, message):
    with pytest.raises(error, match=message):
        actcore.Offload(**options)


def test_the_one_stored_before_comes_back_ahead_of_its_use(noted):
    one, two, three = map(stored, (1, 2, 3))
    assert noted.log == ["out 1", "out 2", "wait for out 1", "out 3"]
    noted.log.clear()
    for number, c in ((3, three), (2, two), (1, one)):
        assert torch.equal(c.decompress(), torch.full((4,), float(number)))
    assert noted.log == [
        "wait for out 2",
        "wait for out 3",
        "back 3 after out 3",
        "back 2 after out 2",
        "wait for back 3",
        "back 1 after out 1",
        "wait for back 2",
        "wait for back 1",
    ]


def test_the_order_is_kept_across_what_is_gone(noted):
    """One that was stored between two others, and replaced, is no gap in the fetching ahead."""
    one, two, three = map(stored, (1, 2, 3))
    del two
    gc.collect()
    four = stored(4)
    del three
    gc.collect()
    four.decompress()
    assert "back 1 after out 1" in noted.log
    assert torch.equal(one.decompress(), torch.ones(4))


def test_no_more_than_two_wait_for_their_use(noted):
    """Every other one is asked for, so the guess is wrong each time; what was dropped comes back when it is needed."""
    stack = [stored(number) for number in range(10)]
    for number in (9, 7, 5, 3, 1):
        stack[number].decompress()
        assert sum(transfer.coming is not None for transfer in offload._transfers.values()) <= offload._AHEAD
    for number in (8, 6, 4, 2, 0):
        assert torch.equal(stack[number].decompress(), torch.full((4,), float(number)))
    assert len(offload._ahead[noted.device]) <= offload._AHEAD


def test_decompressing_twice_copies_twice(noted):
    c = stored(1)
    assert torch.equal(c.decompress(), c.decompress())
    assert noted.log.count("back 1 after out 1") == 2


def test_a_payload_that_is_gone_is_not_fetched(noted):
    one, two = stored(1), stored(2)
    del one
    gc.collect()
    two.decompress()
    assert "back 1 after out 1" not in noted.log
    del two
    assert len(offload._transfers) == 0


def test_what_was_fetched_and_not_used_goes_with_its_payload(noted):
    one, two = stored(1), stored(2)
    two.decompress()
    assert [transfer.coming is not None for transfer in offload._transfers.values()] == [True, False]
    del one
    assert len(offload._transfers) == 1


def test_the_tensor_and_its_inner_form_come_back(noted):
    c = actcore.compress(X.t(), actcore.Offload(FOUR_BITS), seed=1, stream=2)
    expected = actcore.compress(X.t(), FOUR_BITS, seed=1, stream=2)
    assert c.codec == actcore.Offload(FOUR_BITS, torch.device("cpu"))
    assert c.nbytes == expected.nbytes
    back = c.decompress()
    assert same_bits(back, expected.decompress())
    assert back.stride() == X.t().stride()


def test_a_later_change_in_place_does_not_reach_the_copy(noted, monkeypatch):
    """The lane copies later than the call: what it was given must not be the tensor itself."""
    given = []
    copy_out = NotedLane.copy_out
    monkeypatch.setattr(NotedLane, "copy_out", lambda lane, parts: (given.extend(parts), copy_out(lane, parts))[1])
    x = X.clone()
    actcore.compress(x, actcore.Offload())
    actcore.compress(x, actcore.Offload(FOUR_BITS))
    assert all(part.untyped_storage().data_ptr() != x.data_ptr() for part in given)


def test_saving_moving_and_copying_wait_for_the_copy(noted):
    c = stored(1)
    for leave in (lambda: torch.save(c, io.BytesIO()), lambda: c.to("cpu"), lambda: copy.deepcopy(c)):
        noted.log.clear()
        leave()
        assert noted.log == ["synchronize out 1"]


def test_a_loaded_one_comes_back(noted):
    file = io.BytesIO()
    torch.save(stored(7), file)
    file.seek(0)
    c = torch.load(file, weights_only=True)
    noted.log.clear()
    assert torch.equal(c.decompress(), torch.full((4,), 7.0))
    assert noted.log == ["back 7 after nothing", "wait for back 7"]


@pytest.mark.parametrize("entrance", ["hooks", "save_for_backward"])
def test_in_a_training_step(noted, entrance):
    """Each layer's tensor is on its way back while the layer above runs backward."""

    class Times(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            actcore.save_for_backward(ctx, (x, actcore.Offload()), (w, None))
            return x * w

        @staticmethod
        def backward(ctx, grad):
            x, w = actcore.saved_tensors_of(ctx)
            return grad * w, (grad * x).sum()

    w = torch.tensor(2.0, requires_grad=True)
    h = torch.ones(4)
    if entrance == "hooks":
        with torch.autograd.graph.saved_tensors_hooks(*actcore.hooks(actcore.Offload())):
            for _ in range(3):
                h = h * w
    else:
        for _ in range(3):
            h = Times.apply(h, w)
    h.sum().backward()
    assert w.grad.item() == 4 * 3 * 2.0**2
    assert [entry for entry in noted.log if entry.startswith("back")] == [
        "back 4 after out 4",
        "back 2 after out 2",
        "back 1 after out 1",
    ]
    assert noted.log.index("back 2 after out 2") < noted.log.index("wait for back 4")


# ---- without pretending ----


def test_a_tensor_on_the_host_is_stored_by_the_inner_codec():
    c = actcore.compress(X, actcore.Offload(FOUR_BITS), seed=1)
    assert c.codec == FOUR_BITS
    assert same_bits(c.payload[0], actcore.compress(X, FOUR_BITS, seed=1).payload[0])
    assert actcore.compress(X, actcore.Offload()).codec == actcore.Raw()


def test_a_change_in_place_of_what_is_shared_is_seen():
    h = X.clone().requires_grad_() * 1
    with torch.autograd.graph.saved_tensors_hooks(*actcore.hooks(actcore.Offload())):
        y = h.sin()
    h.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_words():
    assert actcore.Offload() == actcore.Offload(actcore.Raw())
    assert repr(actcore.Offload(FOUR_BITS)).startswith("Offload(inner=GroupAffine(bits=4")
    assert len({actcore.Offload(), actcore.Offload(), actcore.Offload(FOUR_BITS)}) == 2


@pytest.mark.parametrize(
    ("inner", "text"),
    [
        (4, "codec must have compress and decompress, got 4"),
        (actcore.Offload(), "inner must store tensors on their device, got Offload"),
    ],
)
def test_wrong_inner(inner, text):
    with pytest.raises(TypeError, match=text):
        actcore.Offload(inner)


def test_other_devices():
    with pytest.raises(TypeError, match="takes tensors on the CPU and on CUDA devices, got meta"):
        actcore.compress(torch.empty(4, device="meta"), actcore.Offload())


def test_graph_hooks_refuse_it():
    with pytest.raises(TypeError, match=r"copies on its own CUDA streams; use actcore\.hooks"):
        actcore.graph_hooks(actcore.Offload())


def test_a_payload_without_a_device():
    c = actcore.Compressed.of(actcore.Offload(), X, (X,))
    with pytest.raises(ValueError, match="must name a device"):
        c.decompress()
