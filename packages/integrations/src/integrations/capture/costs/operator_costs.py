"""What an operator's call takes, by arithmetic: its ``Work`` at the rates of a device. ``workspaces`` measures it
instead.

The registry of operators has the kind of each kernel. An operator takes the time of its arithmetic or of the bytes that
it reads and writes, whichever is longer, and that of Python.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from integrations._utils.torch_internals import OpOverload, trilinear
from integrations.capture.costs.chunked import is_chunked_loss, scratch_of_chunks, work_of_chunks
from integrations.capture.costs.convolution_scratch import convolution_scratch
from integrations.capture.costs.cpu_scratch import count_cpu_scratch
from integrations.capture.costs.cuda_scratch import kernel_scratch_bytes
from integrations.capture.costs.rates import MAPPED, Rates, Rating, constant
from integrations.capture.dispatch.memory import count_bytes, count_elements, iter_tensors
from integrations.capture.dispatch.recurrent import count_recurrent_scratch
from integrations.policies.operators import OPERATORS, Kernel

if TYPE_CHECKING:
    from integrations.capture.costs.calls import CostedCall


@dataclass(frozen=True)
class Cost:
    """What a call takes.

    Attributes:
        seconds: of its kernel.
        scratch: bytes that the kernel has beside its arguments and results while it runs: copies in another layout,
            partial sums.
    """

    seconds: float
    scratch: int = 0


Costs = Callable[[Sequence["CostedCall"]], Sequence[Cost]]
"""A function that returns the cost of each call."""


_KERNELS = {one.name: one.kernel for entry in OPERATORS for one in entry.kernels}

_GROUPS = {"convolution": 8, "convolution_backward": 9}
"""Operators with groups, and the place of the argument that is their number."""


@dataclass(frozen=True)
class Work:
    """What a call has to do.

    Attributes:
        kind: the operator's kind.
        dtype: of its results, or of its arguments if it has no results or sums them to a number.
        flops: floating-point operations.
        elements: elements of the largest result.
        moved: bytes that it reads and writes.
        mapped: bytes of new results that are large enough for memory of their own from the kernel.
        scratch: bytes that it takes while it runs, as far as arithmetic tells.
        parts: into how many parts the call is cut, one after the other. Each moves ``moved`` bytes.
    """

    kind: Kernel
    dtype: torch.dtype
    flops: int
    elements: int
    moved: int
    mapped: int
    scratch: int = 0
    parts: int = 1

    def seconds(self, rates: Rates) -> float:
        """The seconds of the call, Python included."""
        if self.kind is Kernel.NOTHING and rates.measured:
            return rates.host.launch
        each = {
            Kernel.PRODUCT: rates.product,
            Kernel.CONVOLUTION: rates.convolution,
            Kernel.CONVOLUTION_BACKWARD: rates.convolution_backward,
            Kernel.GROUPED: rates.grouped,
            Kernel.ATTENTION: rates.attention,
        }.get(self.kind, 0.0)
        by_element = {Kernel.FUNCTION: rates.function, Kernel.DRAW: rates.draw}.get(self.kind, 0.0)
        if self.kind is Kernel.CHUNKED:  # products, softmax and sums come one after the other
            kernel = self.flops * rates.product + self.elements * rates.function
            return rates.host.launch + kernel + self.parts * rates.traffic(self.moved) + self.mapped * rates.fresh
        kernel = max(self.flops * each, self.elements * by_element, rates.traffic(self.moved))
        return rates.host.launch + kernel + self.mapped * rates.fresh


def modelled(calls: Sequence[CostedCall]) -> list[Cost]:
    """Costs by constants, the same everywhere, without scratch: only tensors take memory."""
    return [replace(cost, scratch=0) for cost in by(constant)(calls)]


def by(rating: Rating) -> Callable[[Sequence[CostedCall]], list[Cost]]:
    """Costs by the given rates, with the scratch that arithmetic tells."""

    def costs(calls: Sequence[CostedCall]) -> list[Cost]:
        return [
            Cost(call.work.seconds(rating(call.device or "cpu", call.work.dtype)), call.work.scratch) for call in calls
        ]

    return costs


def estimate_work(
    function: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], results: tuple[Any, ...]
) -> Work:
    """Return the work of a call. If a formula raises, use only the bytes that the call moves: an estimate must not
    prevent a plan."""
    kind = _get_kind(function)
    made = list(iter_tensors(results))
    given = [*iter_tensors(args), *iter_tensors(kwargs.values())]
    sizes = [count_bytes(tensor) for tensor in made]
    most = max(sizes, default=0)
    moved = sum(sizes)
    if kind is not Kernel.FILL:
        gathers = kind is Kernel.GATHER
        moved += sum(min(count_bytes(tensor), most) if gathers else count_bytes(tensor) for tensor in given)
    try:
        flops, grouped = _flops_of_call(function, args, kwargs, results)
    except Exception:
        flops, grouped, kind = 0, False, Kernel.TRAFFIC
    try:
        scratch = count_scratch(function, args, results)
    except Exception:
        scratch = 0
    work = Work(
        kind=Kernel.GROUPED if grouped else kind,
        dtype=_get_dtype(made, given),
        flops=flops,
        elements=max((count_elements(tensor) for tensor in made), default=0),
        moved=moved,
        mapped=sum(
            nbytes for tensor, nbytes in zip(made, sizes, strict=True) if nbytes > MAPPED and _is_new(tensor, given)
        ),
        scratch=scratch,
    )
    return _in_chunks(work, args) if is_chunked_loss(function) else work


def _get_dtype(made: Sequence[Tensor], given: Sequence[Tensor]) -> torch.dtype:
    """Return the dtype whose rates hold for a call: that of its results, or of its arguments if it has no results or
    sums them to a number, maybe in a wider dtype."""
    alike = given if given and all(count_elements(tensor) <= 1 for tensor in made) else (*made, *given)
    return next((tensor.dtype for tensor in alike), torch.float32)


def _in_chunks(work: Work, args: tuple[Any, ...]) -> Work:
    """Return the work of a loss in chunks, whose chunk's logits are new memory, too."""
    found = work_of_chunks(args)
    return replace(
        work,
        kind=Kernel.CHUNKED,
        dtype=args[0].dtype,
        flops=found.flops,
        elements=found.elements,
        moved=found.moved,
        parts=found.chunks,
        mapped=work.mapped + (work.scratch if work.scratch > MAPPED else 0),
    )


def _flops_of_call(
    function: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], results: tuple[Any, ...]
) -> tuple[int, bool]:
    """Return the floating-point operations of a call, 0 if no formula is known, and whether it has groups.

    Raises:
        Exception: the formula does not support these arguments.
    """
    name = _get_name(function)
    if _is_attention(function._schema.name):
        return _attention_flops(function._schema.name, args), False
    formula = _find_flop_formula(function)
    if formula is None:
        return 0, False
    grouped = name in _GROUPS and args[_GROUPS[name]] > 1
    if grouped and name == "convolution_backward":  # torch's formula ignores groups for the weight's gradient
        gradient, image, weight, transposed, asked = args[0], args[1], args[2], args[7], args[10]
        return 2 * count_elements(image if transposed else gradient) * count_elements(weight[0]) * sum(asked[:2]), True
    return int(formula(*args, **kwargs, out_val=results[0] if len(results) == 1 else results)), grouped


@cache
def _find_flop_formula(function: OpOverload) -> Callable[..., Any] | None:
    """Torch's formula for the operations of an operator's call; ``None`` where it has none."""
    from torch.utils.flop_counter import flop_registry  # imports triton

    return flop_registry.get(function.overloadpacket)


@cache
def _get_kind(function: OpOverload) -> Kernel:
    name = _get_name(function)
    if _is_attention(function._schema.name):
        return Kernel.ATTENTION
    if _find_flop_formula(function) is not None:
        if "convolution" in name:
            return Kernel.CONVOLUTION_BACKWARD if "backward" in name else Kernel.CONVOLUTION
        return Kernel.PRODUCT
    kernel = _KERNELS.get(name, Kernel.TRAFFIC)
    drawn = kernel is not Kernel.NOTHING and torch.Tag.nondeterministic_seeded in function.tags
    return Kernel.DRAW if drawn else kernel


@cache
def _get_name(function: OpOverload) -> str:
    """The name of an ATen operator, without the underscore of in-place operators."""
    return function._schema.name.removeprefix("aten::").removesuffix("_")


def _is_new(tensor: Tensor, given: Sequence[Tensor]) -> bool:
    return all(tensor is not other for other in given)


_BATCHES = "aten::_scaled_dot_product_"
"""The beginning of the names of operators that take tensors of (batch, heads, tokens, width)."""

_ROWS = {
    "aten::_flash_attention_forward": (3, 6),
    "aten::_flash_attention_backward": (6, 9),
    "aten::_efficient_attention_forward": (4, 7),
    "aten::_efficient_attention_backward": (6, 9),
}
"""Operators that take tensors of shape (batch, tokens, heads, width), or packed sequences of several lengths: (tokens,
heads, width), or a batch of one. The numbers are the positions of two arguments: the starts of the query sequences
(``None`` for a batch), and the length of the longest key sequence."""


def _is_attention(name: str) -> bool:
    """Return whether an operator is one of torch's attention operators.

    Args:
        name: the operator's name with its library, without the overload.
    """
    return name.startswith(_BATCHES) or name in _ROWS


def _attention_flops(name: str, args: tuple[Any, ...]) -> int:
    """Return the floating-point operations of a call: a forward has two products of all queries with all keys, its
    backward five. ``torch.utils.flop_counter`` has no formula for the CPU's operator, and up to torch 2.11 its formulas
    raise if there are fewer key/value heads than query heads, which CUDA's operators allow.

    As in torch's formulas, a causal mask does not lower the number. Sequences of several lengths count as if each had
    as many keys as the longest one.

    Args:
        name: the operator, see ``_is_attention``.
        args: its arguments by position.

    Raises:
        Exception: the arguments do not match the operator.
    """
    backward = "backward" in name
    query, key, value = (_sizes(given) for given in args[backward : backward + 3])
    pairs = math.prod(query[:-1]) * _keys(name, args, key)
    of_width, of_value = (3, 2) if backward else (1, 1)
    return 2 * pairs * (of_width * query[-1] + of_value * value[-1])


def _keys(name: str, args: tuple[Any, ...], key: tuple[int, ...]) -> int:
    """Return the number of keys for each query."""
    if name not in _ROWS:
        return key[-2]
    begins, longest = _ROWS[name]
    return key[-3] if args[begins] is None else int(args[longest])


def _sizes(tensor: Tensor) -> tuple[int, ...]:
    return tuple(int(size) for size in tensor.shape)


aten = torch.ops.aten


def count_scratch(function: OpOverload, args: tuple[Any, ...], results: tuple[Any, ...]) -> int:
    """Bytes that a call takes while it runs, as far as they are modelled; otherwise 0."""
    if is_chunked_loss(function):
        return scratch_of_chunks(args)
    if function.overloadpacket is trilinear:
        return _count_products(*args[:7], *args[7:] or (1,))
    if args and isinstance(args[0], Tensor) and args[0].device.type == "cuda":
        return kernel_scratch_bytes(function, args, results)
    packet = function.overloadpacket
    if packet in (aten.convolution, aten.convolution_backward):
        return convolution_scratch(packet is aten.convolution_backward, args, results)
    return count_recurrent_scratch(function, args) + count_cpu_scratch(function, args)


def _count_products(
    one: Tensor,
    two: Tensor,
    three: Tensor,
    expanded_one: Sequence[int],
    expanded_two: Sequence[int],
    expanded_three: Sequence[int],
    summed: Sequence[int],
    unrolled: int,
) -> int:
    """Bytes of the product of three tensors that ``nn.Bilinear`` computes. For each place of the unrolled dimension,
    torch multiplies two of them, and sums over the dimensions that the third lacks; then by the third
    (``aten/src/ATen/native/Linear.cpp``)."""
    dims = range(one.dim() + len(expanded_one))
    shapes = []
    for tensor, expanded in ((one, expanded_one), (two, expanded_two), (three, expanded_three)):
        sizes = iter(tensor.shape)
        shapes.append([1 if dim in expanded else int(next(sizes)) for dim in dims])
    kept = [dim for dim in dims if dim != unrolled and not (dim in summed and dim in expanded_three)]
    first = math.prod(max(shapes[0][dim], shapes[1][dim]) for dim in kept)
    last = math.prod(max(shape[dim] for shape in shapes) for dim in kept if dim not in summed)
    return (first + last) * one.element_size()
