"""What torch does not tell of a recurrent layer on fake tensors. ``with_workspace``: its results, with the memory that
its kernel keeps for backward; torch's functions for fake tensors return none, although it is most of what such a layer
saves. ``count_recurrent_scratch``: the bytes that the kernel takes only while it runs.

The formulas are those of oneDNN's reference layer (``src/cpu/rnn/rnn_utils.hpp``). On a CPU with AVX-512 they equal
what torch allocates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from integrations._utils.torch_internals import OpOverload

_ONEDNN = "aten::mkldnn_rnn_layer"
_OTHERS = ("aten::_cudnn_rnn", "aten::miopen_rnn")
RECURRENT = frozenset((_ONEDNN, *_OTHERS))
"""Names of the operators for which ``with_workspace`` knows more than torch."""

_WORKSPACE = 3  # the place of the result of oneDNN's layer
_LINE = 16  # elements of a cache line, to which rows are rounded up
_CONFLICTING = 256  # elements; rows of a multiple are longer by a line, so that columns lie in different cache sets
_PAGE = 4096  # bytes to which each array is rounded up
_NOTES = 4664  # bytes that a kernel takes whatever its sizes
_FLOAT = 4


def with_workspace(
    func: OpOverload, args: tuple[Any, ...], run: Callable[[], Any], empty: Callable[[int], Tensor]
) -> Any:
    """Return an operator's results on fake tensors.

    Args:
        func, args: the call.
        run: returns the results as torch knows them.
        empty: makes a fake tensor of so many bytes.

    Raises:
        NotImplementedError: torch does not tell the bytes of this library's layer, or of this dtype.
    """
    name = func._schema.name
    # oneDNN's layer keeps it in eval(), too.
    keeps = name == _ONEDNN or args[[one.name for one in func._schema.arguments].index("train")]
    if not keeps or not torch.is_grad_enabled():
        return run() if name != _ONEDNN else (*run()[:_WORKSPACE], None)
    if name != _ONEDNN or args[0].dtype != torch.float32:
        kernel = f"{name.removeprefix('aten::')} in {args[0].dtype}"
        raise NotImplementedError(f"torch does not tell how many bytes {kernel} keeps for backward")
    out = list(run())
    out[_WORKSPACE] = empty(_Sizes.from_arguments(args).count_workspace())
    return tuple(out)


def count_recurrent_scratch(func: OpOverload, args: tuple[Any, ...]) -> int:
    """Return the bytes that oneDNN's layer, or its backward, takes while it runs; 0 for other operators."""
    if func._schema.name not in (_ONEDNN, f"{_ONEDNN}_backward"):
        return 0
    sizes = _Sizes.from_arguments(args)
    return sizes.count_scratch() + (0 if func._schema.name == _ONEDNN else sizes.count_transposed())


class _Sizes(NamedTuple):
    """The sizes of a layer: ``steps * batch`` rows of ``inner`` elements in its input, ``hidden`` in its state."""

    steps: int
    batch: int
    inner: int
    hidden: int

    @classmethod
    def from_arguments(cls, args: tuple[Any, ...]) -> Self:
        """Those of a call of the layer or its backward, which begin with the input, the weights, biases and a state."""
        (one, other, _), batch = args[0].shape, args[5].shape[-2]
        return cls(one * other // max(1, batch), batch, args[1].shape[1], args[2].shape[1])

    def count_workspace(self) -> int:
        """Return the bytes of states and their gradients before and after each step, of gates, and of products."""
        rows, states = self.steps * self.batch, 2 * (self.steps + 1) * self.batch
        widest = _pad(max(self.inner, self.hidden))
        arrays = [states * widest] * 3 + [states * self.hidden] * 2
        return sum(map(_in_pages, (*arrays, rows * _pad(self.hidden), rows * self._gates)))

    def count_scratch(self) -> int:
        """Return the bytes of gates, of the state's gradients, and of copies of the weights and the bias."""
        arrays = self.steps * self.batch * self._gates, *[self.batch * _pad(self.hidden)] * 2
        copied = (self.inner + self.hidden) * self._gates + 4 * self.hidden
        return sum(map(_in_pages, arrays)) + _FLOAT * copied + _NOTES

    def count_transposed(self) -> int:
        """Return the bytes of the weights' other copies, which backward makes of rows that are not whole lines."""
        return sum(_FLOAT * 4 * self.hidden * _pad(size) for size in (self.inner, self.hidden) if _pad(size) != size)

    @property
    def _gates(self) -> int:
        return _pad(4 * self.hidden)


def _pad(row: int) -> int:
    lines = -(-row // _LINE) * _LINE
    return lines + _LINE if lines % _CONFLICTING == 0 else lines


def _in_pages(elements: int) -> int:
    return -(-elements * _FLOAT // _PAGE) * _PAGE
