"""What the loss in chunks takes, by the arguments of its operator: arithmetic, bytes, and memory while it runs."""

from __future__ import annotations

from typing import Any, NamedTuple

from integrations._utils.chunked_loss import OPERATOR, WEIGHT_ROWS
from integrations._utils.torch_internals import OpOverload


class ChunkedWork(NamedTuple):
    """The work of one call.

    Attributes:
        flops: floating-point operations of the products.
        elements: elements of all logits, of which a softmax is computed.
        chunks: how many chunks there are.
        moved: bytes that a chunk reads and writes.
    """

    flops: int
    elements: int
    chunks: int
    moved: int


def is_chunked_loss(function: OpOverload) -> bool:
    """Return whether an operator computes a loss in chunks."""
    return bool(function._schema.name == OPERATOR)


def work_of_chunks(args: tuple[Any, ...]) -> ChunkedWork:
    """Return the work of a call with these arguments.

    A chunk writes its logits, reads and writes them for a softmax, and reads them for each product. Each product reads
    or adds to a tensor as large as the weight; on a GPU, the product with half tensors is a tensor of its own.
    """
    hidden, weight, *_, rows, wanted = args
    of_hidden, of_weight = wanted[:2]
    count, classes, features = len(hidden), len(weight), weight.shape[1]
    rows = max(1, min(rows, count))
    wide = max(4, hidden.itemsize)
    narrow = hidden.itemsize if hidden.itemsize < wide else 0
    passes = 4 * wide + 2 * narrow + (of_hidden + of_weight) * (narrow or wide) + any(wanted) * 2 * wide
    of_weight_sized = (1 + of_hidden) * weight.itemsize + of_weight * 2 * wide
    if of_weight and narrow and hidden.device.type != "cpu":
        of_weight_sized += 2 * narrow
    return ChunkedWork(
        flops=2 * count * classes * features * (1 + of_hidden + of_weight),
        elements=count * classes,
        chunks=-(-count // rows),
        moved=rows * classes * passes + classes * features * of_weight_sized,
    )


def scratch_of_chunks(args: tuple[Any, ...]) -> int:
    """Return the bytes for the logits of one chunk of rows: in the dtype of the products, also in that of the losses if
    it is wider, and with ``softcap`` once more. For the weight's gradient from half tensors, add a block of it on a
    GPU, and the chunk's hidden states in float32 on a CPU."""
    hidden, weight, *_, cap, rows, wanted = args
    rows, itemsize, features = min(rows, len(hidden)), max(4, hidden.itemsize), weight.shape[1]
    narrow = hidden.itemsize if hidden.itemsize < itemsize else 0
    of_weight = 0
    if narrow and wanted[1]:
        on_cpu = hidden.device.type == "cpu"
        of_weight = features * (rows * itemsize if on_cpu else min(WEIGHT_ROWS, len(weight)) * narrow)
    return int(rows * len(weight) * (narrow + itemsize * (2 if cap and any(wanted) else 1))) + of_weight
