"""One stored copy per storage, whatever saves it and through however many views.

Byte counts: a value of ``b`` bits takes ``b`` bits an element and two float32 bounds a group of 256, or of
128 in up to 4 bits, as all values of so few bits here are linear inputs; a mask one bit.
"""

import pytest
import torch.nn.functional as F

from integrations import compress_model

from .nets import EIGHT_BITS, Net, assert_same, gradients, normal, plain_and_compressed, relative_error, rows

N = 64 * 64
X = normal(64, 64)
WEIGHTS = {f"w{i}": normal(64, 64, seed=i) / 8 for i in range(4)}
WEIGHTS |= {"fused": normal(192, 64, seed=4) / 8, "wide": normal(64, 192, seed=5) / 8}


def value_bytes(numel, bits, group_size=None):
    group_size = group_size or (128 if bits <= 4 else 256)
    return numel * bits // 8 + 8 * -(-numel // group_size)


def live_bytes(payloads):
    return sum(part.nbytes for reference in payloads if (part := reference()) is not None)


def stored(forward, payloads, level="L1", **options):
    """Runs a forward; the report's stored bytes and those of the payloads that are alive."""
    _, _, model = plain_and_compressed(Net(forward, **WEIGHTS), X, level=level, **options)
    payloads.clear()
    loss = model(X).sum()
    kept = sum(row.stored_bytes for row in rows(model) if row.codec == "kept")
    assert sum(row.stored_bytes for row in rows(model)) - kept == live_bytes(payloads), (
        "the report is not what is stored"
    )
    del loss
    return sum(row.stored_bytes for row in rows(model)), kept


def test_a_tensor_that_two_operators_save_is_stored_once(payloads):
    def forward(self, x):
        h = F.linear(x, self.w0)
        return F.linear(h, self.w1) + F.linear(h, self.w2) + h @ self.w3

    assert stored(forward, payloads) == (value_bytes(N, 4), 0)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("with_base", ["views only", "base first", "base last"])
def test_three_views_of_one_projection_take_no_more_than_it(dim, with_base, payloads):
    """q, k and v: chunks of one tensor. Along the columns they are no stretch of memory, so each is stored by itself;
    together they are the projection."""

    def forward(self, x):
        base = F.linear(x, self.fused)
        total = F.linear(base, self.wide).sum() if with_base == "base first" else 0
        for part in base.chunk(3, dim):
            total = total + F.linear(part, self.wide if dim == 0 else self.w3).sum()
        return total + (F.linear(base, self.wide).sum() if with_base == "base last" else 0)

    total, kept = stored(forward, payloads)
    copies = 2 if with_base == "base last" else 1
    # Chunks have group borders of their own: at most one partial group more for each.
    assert kept == 0
    least = 3 * N // 2 + 8 * (3 * N // 192)  # the projection's rows are groups of 192
    assert least <= total <= copies * value_bytes(3 * N, 4) + 3 * 8
    plain, compressed, _ = plain_and_compressed(Net(forward, **WEIGHTS), X, level="L1.1")
    assert relative_error(plain, compressed) < EIGHT_BITS


def test_many_overlapping_views_never_take_more_than_their_storage(payloads):
    """Twelve shifted windows of one tensor, each of 8 bits, would take thrice its memory."""

    def forward(self, x):
        h = F.linear(x, self.w0)
        return sum((h[:, i : i + 52] * self.w1[i, :52]).sum() for i in range(12))

    net = Net(forward, **WEIGHTS)
    plain, compressed, model = plain_and_compressed(net, X, level="L1")
    assert sum(row.stored_bytes for row in rows(model)) == 4 * N
    assert_same(plain, compressed)
    assert {row.codec for row in rows(model, "mul")} == {"kept"}


def test_bits_are_upgraded_for_the_operator_that_needs_more(payloads):
    """A linear layer's four bits give way to the norm's eight; both use them."""

    def forward(self, x):
        h = F.linear(x, self.w0)
        return F.linear(h, self.w1) + F.layer_norm(h, (64,), self.w2[0])

    total, _ = stored(forward, payloads)
    statistics = 2 * 64 * 4
    assert total == value_bytes(N, 8, group_size=64) + statistics  # no group of a norm's input has two rows
    model = Net(forward, **WEIGHTS)
    _, _, model = plain_and_compressed(model, X)
    [linear] = rows(model, "linear")
    assert "bits=8" in linear.codec
    assert "more bits" in linear.why


def test_bits_are_not_downgraded(payloads):
    def forward(self, x):
        h = F.linear(x, self.w0)
        return F.layer_norm(h, (64,), self.w2[0]) + F.linear(h, self.w1)

    total, _ = stored(forward, payloads)
    assert total == value_bytes(N, 8, group_size=64) + 2 * 64 * 4


@pytest.mark.parametrize("exact_first", [True, False])
def test_a_tensor_kept_for_one_operator_is_not_stored_for_another(exact_first, payloads):
    """cosh keeps its input exactly, so the linear layer and ReLU use it, exactly, at no cost."""

    def forward(self, x):
        h = F.linear(x, self.w0)
        parts = [lambda: h.cosh(), lambda: F.leaky_relu(h) + F.linear(h, self.w1)]
        return sum(part() for part in (parts if exact_first else parts[::-1]))

    assert stored(forward, payloads) == (4 * N, 4 * N)
    plain, compressed, model = plain_and_compressed(Net(forward, **WEIGHTS), X)
    assert_same(plain, compressed)
    assert {row.codec for row in rows(model)} == {"kept"}


def test_keeping_one_view_keeps_the_others(payloads):
    """The kept rows hold the whole storage: what was stored of the other rows is dropped."""

    def forward(self, x):
        h = F.linear(x, self.w0)
        return F.linear(h[:32], self.w1).sum() + F.linear(h[:, :32], self.w2[:, :32]).sum() + h[20:].cosh().sum()

    assert stored(forward, payloads) == (4 * N, 4 * N)


def test_two_sign_users_share_one_mask(payloads):
    def forward(self, x):
        h = F.linear(x, self.w0)
        return F.leaky_relu(h, 0.1) + F.leaky_relu(h, 0.2)

    assert stored(forward, payloads) == (N // 8, 0)
    _, _, model = plain_and_compressed(Net(forward, **WEIGHTS), X)
    assert [row.codec for row in rows(model)] == ["Positive()"] * 2


def test_a_tensor_changed_in_place_is_another_value():
    """What the first layer saved is a copy from before the change, so that torch's error is not called for."""

    def forward(self, x):
        h = F.linear(x, self.w0)
        first = F.linear(h, self.w1)
        h.add_(5)
        return first + F.linear(h, self.w2)

    def out_of_place(self, x):
        h = F.linear(x, self.w0)
        return F.linear(h, self.w1) + F.linear(h + 5, self.w2)

    expected = gradients(Net(out_of_place, **WEIGHTS), X)
    found = gradients(compress_model(Net(forward, **WEIGHTS), "L1.1"), X)
    assert relative_error(expected, found) < EIGHT_BITS


def test_a_small_view_of_a_large_tensor_is_kept_as_a_copy():
    """A class token of 256 bytes: autograd alone would keep the tensor of 16 KiB that it is a view of."""
    net = Net(lambda self, x: F.linear(F.linear(x, self.w0)[:1], self.w1), **WEIGHTS)
    _, _, model = plain_and_compressed(net, X)
    [row] = rows(model, "linear")
    assert (row.shape, row.original_bytes, row.stored_bytes) == ((1, 64), 4 * N, 256)
    assert row.codec == "copied"
