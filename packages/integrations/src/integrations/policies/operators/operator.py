"""An entry of the registry: what the library knows about one operator of torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from integrations.policies.needs import Rule


class Effect(Enum):
    """What an operator does to the elements of its first argument."""

    SAME = "its result is a view, a copy or a cast"
    MOVES = "gathers or repeats some, or puts them in another order"
    SCALES = "multiplies each by a number or an element"
    SUMS = "adds something to each"
    PICKS = "takes each, or an element of another tensor in its place"
    JOINS = "concatenates them with elements of another tensor"
    PUTS = "replaces some by other values, or pads them"


class Gain(Enum):
    """By how much a cheap operator amplifies an error of its arguments, if backward repeats it."""

    ONE = "by little more than 1"
    NARROW = "by little more than 1, and the result has a small range"
    SUM = "as much as all arguments together"
    FACTOR = "by the other factor"
    POWER = "by the exponent"
    QUOTIENT = "by one over a number, and without bound if the divisor is a tensor"
    UNKNOWN = "by a factor among the elements"
    UNBOUNDED = "without bound"


class Kernel(Enum):
    """What a kernel's time depends on. The cost model adds what only a call tells: groups, chunks and random draws."""

    PRODUCT = "the arithmetic of a matrix product"
    CONVOLUTION = "the arithmetic of a convolution"
    CONVOLUTION_BACKWARD = "the arithmetic of a convolution's gradients"
    GROUPED = "the arithmetic of a convolution with groups"
    ATTENTION = "the arithmetic of attention"
    CHUNKED = "a loss in chunks: products, softmax and sums, one after the other"
    FUNCTION = "elementary functions, or several passes"
    DRAW = "random numbers"
    TRAFFIC = "the bytes that it reads and writes"
    GATHER = "the bytes of its result: it reads as much of a table"
    FILL = "the bytes that it writes: it reads a shape"
    NOTHING = "no element is touched"


@dataclass(frozen=True)
class Aten:
    """An ATen operator that a torch function or its backward runs.

    Attributes:
        name: without library, overload and the underscore of in-place operators.
        kernel: what its time depends on.
        factors: positions of the operands in which the result is linear, the other factor being a gradient.
        repeated: positions of the operands in which it is linear, or normalizes rows, when a plan repeats it.
        steady: whether an error of its argument moves its result by a bounded multiple.
        saved: of a backward operator: the position of the tensor that its rule is about.
        role: the role of that tensor in the forward call.
    """

    name: str
    kernel: Kernel = Kernel.TRAFFIC
    factors: tuple[int, ...] = ()
    repeated: tuple[int, ...] = ()
    steady: bool = False
    saved: int | None = None
    role: str = "input"


@dataclass(frozen=True)
class Operator:
    """One operator, or several that share all facts.

    Attributes:
        functions: names of torch functions with spaces between them, as ``rules.operator_name`` has them. The first
            one stands for the operator in reports of compiled code.
        rule: what backward needs of the saved tensors; ``None`` if they are kept exactly.
        aten, backward: the ATen operators of forward and backward.
        nodes: names of the autograd nodes without ``Backward``.
        effect: what it does to elements.
        gain: by how much it amplifies an error; ``None`` if backward never repeats it.
        saves_result: whether it saves its result and nothing else.
        discontinuous: whether its result may jump where its arguments change a little.
        reads_shape: whether it only reads the shape of its arguments.
        poles: positions of the arguments whose errors it amplifies without bound near a pole of the first of them.
        searches: whether its backward looks for its results among its arguments.
        compares: whether its backward only asks on which side of a bound elements are, although its rule keeps them.
        by_row: whether it normalizes the last dimensions, and no other rows.
        smooth: of an operator without a rule: whether it is linear, or its slope changes without a jump.
        saturation: the range beyond which its slope is, to 1e-4 or better, the slope at the range's ends.
        slope_jumps: whether the slope jumps at the ends of that range.
    """

    functions: str
    rule: Rule | None = None
    aten: tuple[Aten, ...] = ()
    backward: tuple[Aten, ...] = ()
    nodes: str = ""
    effect: Effect | None = None
    gain: Gain | None = None
    saves_result: bool = False
    discontinuous: bool = False
    reads_shape: bool = False
    poles: tuple[int, ...] = ()
    searches: bool = False
    compares: bool = False
    by_row: bool = False
    smooth: bool = False
    saturation: tuple[float, float] | None = None
    slope_jumps: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the torch functions."""
        return tuple(self.functions.split())

    @property
    def kernels(self) -> tuple[Aten, ...]:
        """The ATen operators of forward and backward."""
        return self.aten + self.backward


def aten(names: str, kernel: Kernel = Kernel.TRAFFIC) -> tuple[Aten, ...]:
    """Return the ATen operators of these names, with spaces between them, which differ in nothing else."""
    return tuple(Aten(name, kernel) for name in names.split())
