"""Integers whose range a call tells, and the inputs of which backward needs only the shape: exact, and small."""

import pytest
import torch
import torch.nn.functional as F

import actcore
import integrations
from integrations.policies.policy import FixedBits, SaveDecision

from .nets import Net, assert_same, normal, plain_and_compressed, rows

X = normal(48, 64)
W = normal(64, 64, seed=1) / 8
IMAGES = normal(4, 3, 16, 16, seed=1)
VOLUMES = normal(2, 3, 8, 8, 8, seed=1)
EDGES = torch.arange(4096) % 48


def net(operator):
    return Net(lambda self, x: operator(F.linear(x, self.w)), w=W)


def image_net(operator, images):
    """The images' own gradient, through a node that stores nothing."""
    return Net(lambda self, x: operator(x + self.offset), offset=torch.zeros_like(images))


def plus(h):
    """The graph's index, made in the forward: nobody else keeps it."""
    return EDGES.to(h.device) + 0


# name: operator, the row's operator, codec
INDICES = {
    "index_select": (lambda h: h.index_select(0, plus(h)), "index_select", "Narrow(low=0, high=47)"),
    "torch.gather": (lambda h: torch.gather(h, 1, plus(h).view(-1, 32)[:48]), "gather", "Narrow(low=0, high=63)"),
    "getitem": (lambda h: h[plus(h)], "getitem", "Narrow(low=-64, high=63)"),
    "getitem from the end": (lambda h: h[plus(h) - 48], "getitem", "Narrow(low=-64, high=63)"),
    "getitem of two": (lambda h: h[plus(h), plus(h).flip(0)], "getitem", "Narrow(low=-64, high=63)"),
    "index_add": (
        lambda h: torch.zeros(50, 64).index_add(0, plus(h)[:48], h),
        "index_add",
        None,
    ),
    "scatter_add": (
        lambda h: torch.zeros(50, 64).scatter_add_(0, plus(h)[:48, None].expand(48, 64), h),
        "scatter_add",
        None,
    ),
    "scatter": (lambda h: torch.zeros(48, 99).scatter(1, plus(h)[:64].repeat(48, 1), h), "scatter", None),
    "sort": (lambda h: h.sort(1).values, "sort", "Narrow(low=0, high=63)"),
    "topk": (lambda h: torch.topk(h, 20, dim=1).values, "topk", "Narrow(low=0, high=63)"),
    "max": (lambda h: h.repeat(8, 1).max(1).values, "max", "Narrow(low=0, high=383)"),
}


@pytest.mark.parametrize("name", INDICES)
def test_indices_take_the_bits_of_their_range(name):
    operator, saved_by, codec = INDICES[name]
    plain, compressed, model = plain_and_compressed(net(operator), X, loss=lambda y: y.pow(3).sum(), min_bytes=0)
    assert_same(plain, compressed)
    found = [row for row in rows(model, saved_by) if row.dtype is torch.int64 and row.original_bytes]
    assert found
    for row in found:
        assert row.codec.startswith("Narrow")
        assert codec in (None, row.codec)
        assert row.stored_bytes < row.original_bytes / 5


def test_an_index_expanded_and_as_it_is_are_stored_once():
    """As a GCN layer does: one index of the sources, the same storage for the targets, expanded over features."""

    def forward(self, x):
        edges = torch.stack([EDGES, EDGES.flip(0)])
        h = F.linear(x, self.w).index_select(0, edges[0])
        return torch.zeros(48, 64).scatter_add(0, edges[1][:, None].expand(4096, 64), h)

    plain, compressed, model = plain_and_compressed(Net(forward, w=W), X)
    assert_same(plain, compressed)
    found = [row for row in rows(model) if row.dtype is torch.int64]
    assert sum(row.original_bytes for row in found) == 2 * 8 * 4096
    assert sum(row.stored_bytes for row in found) == 2 * 4096 * 6 // 8


@pytest.mark.parametrize("name", ["index_add", "index_copy"])
@pytest.mark.parametrize("level", ["L1", "L2"])
def test_complex_values_beside_an_index(name, level):
    """The call tells the range of its index; the values that it saves are no integers."""

    def forward(self, x):
        h = F.linear(x, self.w)
        zeros = torch.zeros(48, 64, dtype=torch.complex64)
        return torch.view_as_real(getattr(zeros, name)(0, torch.arange(48).flip(0), torch.complex(h, h)))

    plain, compressed, model = plain_and_compressed(Net(forward, w=W), X, level=level, min_bytes=0)
    assert_same(plain, compressed)
    found = {row.dtype: (row.codec, row.why) for row in rows(model, name)}
    assert found[torch.complex64] == ("kept", "complex64 is kept exactly")
    assert found[torch.int64][0] == "Narrow(low=0, high=47)"


def test_a_codec_that_does_not_take_the_dtype(monkeypatch):
    """Nothing that a codec says of a tensor's kind ends a forward."""
    monkeypatch.setattr(FixedBits, "decide", lambda self, saved: SaveDecision(actcore.Narrow(0, 9), "wrongly"))
    plain, compressed, model = plain_and_compressed(net(torch.cosh), X)
    assert_same(plain, compressed)
    [row] = rows(model)
    assert row.codec == "kept"
    assert row.why.startswith("kept exactly: Narrow(low=0, high=9) takes bool, uint8")


def test_an_index_out_of_range_is_torchs_error():
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        plain_and_compressed(net(lambda h: h[plus(h) + 1]), X)


@pytest.mark.parametrize("embedding", [F.embedding, lambda index, table: torch.embedding(table, index)])
def test_an_embeddings_indices(embedding):
    model = Net(lambda self, i: embedding(i * 2, self.table).cosh(), table=normal(100, 32))
    plain, compressed, model = plain_and_compressed(model, torch.arange(50).repeat(8))
    assert_same(plain, compressed)
    [row] = rows(model, "embedding")
    assert (row.codec, row.stored_bytes) == ("Narrow(low=0, high=99)", 400 * 7 // 8)


POOLS = {
    "max": (lambda h: F.max_pool2d(h, 3, stride=2, padding=1), IMAGES, 4),
    "max, keyword": (lambda h: torch.max_pool2d(input=h, kernel_size=(2, 3)), IMAGES, 3),
    "max, ceil": (lambda h: F.max_pool2d(h, 3, ceil_mode=True, dilation=2, padding=1), IMAGES, 4),
    "max, stride of no numbers": (lambda h: torch.max_pool2d(h, (2, 3), ()), IMAGES, 3),
    "max 3d, stride of no numbers": (lambda h: torch.max_pool3d(h, 2, []), VOLUMES, 3),
    "max with indices": (lambda h: F.max_pool2d(h, 2, return_indices=True)[0], IMAGES, 2),
    "max of one image": (lambda h: F.max_pool2d(h[0], 2), IMAGES, 2),
    "max of a wide window": (lambda h: F.max_pool2d(h, 3, stride=1, padding=1), normal(2, 3, 24, 24), 4),
    "max 1d": (lambda h: F.max_pool1d(h.flatten(2), 4), IMAGES, 8),
    "max 3d": (lambda h: F.max_pool3d(h, 2), VOLUMES, 3),
    "adaptive max": (lambda h: F.adaptive_max_pool2d(h, 6), IMAGES, 8),
    "adaptive max 1d": (lambda h: F.adaptive_max_pool1d(h.flatten(2), 40), IMAGES, 8),
    "adaptive max 3d": (lambda h: F.adaptive_max_pool3d(h, 3), VOLUMES, 9),
    "average": (lambda h: F.avg_pool2d(h, 3, stride=2, padding=1, count_include_pad=False), IMAGES, None),
    "average 1d": (lambda h: F.avg_pool1d(h.flatten(2), 4), IMAGES, None),
    "average 3d": (lambda h: F.avg_pool3d(h, 2), VOLUMES, None),
    "adaptive average": (lambda h: F.adaptive_avg_pool2d(h, (3, 5)), IMAGES, None),
    "adaptive average 1d": (lambda h: F.adaptive_avg_pool1d(h.flatten(2), 7), IMAGES, None),
    "adaptive average 3d": (lambda h: F.adaptive_avg_pool3d(h, 3), VOLUMES, None),
}


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", POOLS)
def test_a_pooling_keeps_nothing_of_its_input(name, channels_last):
    """Of a maximum, where it is: in its window, or in the plane where the window is not known."""
    operator, images, bits = POOLS[name]
    if channels_last:
        images = images.to(memory_format=torch.channels_last if images.dim() == 4 else torch.channels_last_3d)
    model = image_net(operator, images)
    plain, compressed, model = plain_and_compressed(model, images, loss=lambda y: y.pow(3).sum(), min_bytes=0)
    assert_same(plain, compressed)
    [image] = [row for row in rows(model) if "pool" in row.operator and row.dtype is torch.float32]
    assert (image.codec, image.stored_bytes) == ("shape", 0)
    assert image.original_bytes == 4 * images.numel()
    indices = [row for row in rows(model) if "pool" in row.operator and row.dtype is torch.int64]
    assert len(indices) == (bits is not None)
    for row in indices:
        assert row.stored_bytes == -(-bits * row.original_bytes // 8 // 8)


@pytest.mark.parametrize("pool", [F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, F.adaptive_max_pool2d])
def test_a_pools_gradient_has_its_inputs_memory_format(pool):
    found = []
    for level in ("L0", "L1"):
        images = IMAGES.to(memory_format=torch.channels_last)
        seen = []

        def forward(self, x, seen=seen):
            h = x * self.scale
            h.register_hook(lambda gradient: seen.append(gradient.stride()))
            return pool(h, 2)

        model = Net(forward, scale=torch.ones(()))
        plain_and_compressed(model, images, level=level, min_bytes=0)
        found.append(seen)
    assert found[0] == found[1]


def test_a_relu_before_a_max_pool_takes_its_sign_alone():
    """The pool shares the ReLU's result, and used to keep it whole."""
    model = image_net(lambda h: F.max_pool2d(h.relu(), 2), IMAGES)
    plain, compressed, model = plain_and_compressed(model, IMAGES, loss=lambda y: y.pow(3).sum(), min_bytes=0)
    assert_same(plain, compressed)
    stored = {row.operator: row.stored_bytes for row in rows(model) if row.dtype is torch.float32}
    assert (stored["relu"], stored["max_pool2d"]) == (IMAGES.numel() // 8, 0)


def test_the_gradient_of_a_pools_gradient():
    for operator, images, _ in POOLS.values():
        found = []
        for level in ("L0", "L1"):
            x = images.clone().requires_grad_()
            model = image_net(operator, images)
            integrations.compress_model(model, level, min_bytes=0)
            [slope] = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
            [second] = torch.autograd.grad(slope.square().sum(), x)
            found.append(second)
        # pow(2) stores its input in 8 bits: a value's own rounding, at most a step of a group of 256.
        assert (found[0] - found[1]).abs().max() <= 16 * 2 * (images.max() - images.min()) / 255
