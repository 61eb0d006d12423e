"""``Graph``: one training step of a model as numbers: operators, the memory they make, and what backward reads of it.

Events are the forward's operators, in order, and then the steps of backward.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from integrations._utils.checked_json import complete, loaded, of_format, read_entry
from integrations.capture.graphs.signature import Signature

FORMAT = 2  # a new field with a default does not raise it: files without the field can be read
"""Format 1 did not say which operators decide."""
_WRITER = "Graph.to_json"


@dataclass(frozen=True)
class Value:
    """The memory that an operator makes, at one version: an operator that works in place makes a value of its own.

    Parameters, buffers and the model's inputs are no values.

    Attributes:
        nbytes: bytes of the storage, as the device's allocator counts them.
        producer: the operator that makes it.
        reuses: the value whose storage it takes over, whose contents are gone from then on; -1 for a new storage.
        until: the last event at which something other than autograd holds it, such as a variable of the forward; the
            very last event for what the model returns.
        saved: the last event at which autograd holds it, where it is kept; -1 if autograd never saves it.
        exact: whether something was decided by it that is right only beside its exact elements, such as a mask, or an
            operator reads it that would amplify its errors without bound, such as a logarithm.
    """

    nbytes: int
    producer: int
    reuses: int = -1
    until: int = -1
    saved: int = -1
    exact: bool = False


@dataclass(frozen=True)
class Op:
    """An operator of the forward that makes at least one value. Views make none, and are no operators here.

    Attributes:
        name: the ATen operator.
        module: path of the module in whose forward it runs; empty for the model itself.
        reads: values among its arguments.
        makes: values that it makes: first those that it changes in place, then its results.
        seconds: its time, modelled or measured.
        repeatable: whether it may be run once more, and what it reads is kept or can be recomputed.
        packs: values that autograd saves between this operator and the next. Of memory that is written later, it is the
            last value there.
        shapes: the shapes of its results, by which a run is compared with the capture.
        scratch: bytes that it takes only while it runs, as far as they are known.
        decides: whether it may decide otherwise where it reads what was recomputed from rounded values.
        remade: whether backward makes its results anyway, so that recomputing them costs nothing.
    """

    name: str
    module: str
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    seconds: float
    repeatable: bool
    packs: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    scratch: int = 0
    decides: bool = False
    remade: bool = False

    @property
    def repeat_seconds(self) -> float:
        """The seconds that backward takes longer if it recomputes the operator's values."""
        return 0.0 if self.remade else self.seconds


@dataclass(frozen=True)
class Step:
    """A node of backward, or the part of it in which it only reads what was saved.

    Attributes:
        reads: saved values that it reads; those that have to be recomputed are made first.
        seconds: its time, modelled or measured.
    """

    reads: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class Graph:
    """A training step.

    Attributes:
        ops: the forward's operators.
        values: the operators' values, in the order in which they are made.
        steps: backward.
        other: by event: the bytes that are alive and are no values, whatever is kept: gradients, and what backward
            makes and frees again, its kernels' workspaces included as far as they are known.
        outputs: the values that the model returns.
        gradients: bytes of the parameters' gradients, which are in the last entry of ``other``.
        fingerprint: of the model.
        inputs: the inputs that it was captured with.
        note: why it was captured on real tensors; empty where fake ones sufficed.
        measured: whether times and workspaces were measured; otherwise times are modelled, and workspaces none
            or those of convolutions by arithmetic.
        standing: by event: the bytes in ``other`` that are complete gradients of parameters. In a step that finds
            gradients, as all but the first of an accumulation do, these bytes are not alive: each gradient is added to
            its parameter's. Empty if not known.
        differentiated: what backward starts from, in words.
        holds_outputs: whether all that the model returns is held during backward.
        accumulates: whether each parameter has a gradient already, to which backward adds.
        clears: whether each parameter has its last gradient during the forward, and none when backward starts.
        rounded: whether what backward reads may be rounded in the captured forward: its attention keeps query, key and
            value alone and is recomputed from them, and nothing is decided a second time.
        double_backward: whether a backward with ``create_graph=True`` reads saved tensors, which must be exact then.
        torch_version: the version of torch that ran the forward; empty if not known.
        in_flight: how many forwards are alive at once that have not had their backward, at most, as in a stage of a
            pipeline. Peaks count the saved tensors of all of them.
    """

    ops: tuple[Op, ...]
    values: tuple[Value, ...]
    steps: tuple[Step, ...]
    other: tuple[int, ...]
    outputs: tuple[int, ...]
    gradients: int
    fingerprint: str
    inputs: Signature
    note: str = ""
    measured: bool = False
    standing: tuple[int, ...] = ()
    differentiated: str = ""
    holds_outputs: bool = True
    accumulates: bool = False
    clears: bool = False
    rounded: bool = False
    double_backward: bool = False
    torch_version: str = ""
    in_flight: int = 1

    @property
    def seconds(self) -> float:
        """The seconds of forward and backward without a plan."""
        return sum(op.seconds for op in self.ops) + sum(step.seconds for step in self.steps)

    @property
    def accumulating(self) -> Graph:
        """The same step where each parameter has a gradient already, to which backward adds."""
        other = tuple(nbytes - standing for nbytes, standing in zip(self.other, self.standing, strict=True))
        return replace(self, other=other, standing=(), gradients=0, accumulates=True, clears=False)

    @property
    def clearing(self) -> Graph:
        """The same step where each parameter has its last gradient in the forward, and none when backward starts."""
        last = (self.gradients,) * len(self.ops) + (0,) * len(self.steps)
        other, standing = (tuple(map(sum, zip(entries, last, strict=True))) for entries in (self.other, self.standing))
        return replace(self, other=other, standing=standing, clears=True)

    def with_in_flight(self, count: int) -> Graph:
        """The same step with so many forwards in flight. If there are several, the first backward makes the gradients,
        and the others add to them, so that the step is one that finds gradients: no other step takes more."""
        graph = self.accumulating if count > 1 and self.standing else self
        return replace(graph, in_flight=count)

    @property
    def with_peak_between(self) -> Graph:
        """The same step with its peak between forward and backward, whatever is kept. Its plans of the least peak hold
        the least until backward."""
        other = list(self.other)
        if self.steps:
            other[len(self.ops)] += sum(value.nbytes for value in self.values) + max(other)
        return replace(self, other=tuple(other))

    def keeping(self, fixed: Collection[int]) -> Graph:
        """The graph without recomputation of these values, nor of what would need them after their memory was taken
        over: what is gone and cannot be recomputed cannot be read."""
        taken_over = {value.reuses for value in self.values}
        repeatable: list[bool] = []
        for op in self.ops:
            lost = any(value in taken_over and not repeatable[self.values[value].producer] for value in op.reads)
            repeatable.append(op.repeatable and not lost and not any(value in fixed for value in op.makes))
        ops = tuple(replace(op, repeatable=flag) for op, flag in zip(self.ops, repeatable, strict=True))
        return replace(self, ops=ops)

    @cached_property
    def keeping_all(self) -> Graph:
        """The graph without recomputation."""
        return self.keeping(range(len(self.values)))

    def with_remade(self, values: Collection[int]) -> Graph:
        """The graph in which backward makes these values anyway. It stays as it is for a value whose memory is written
        later, or that would have to stay alive for this alone."""
        taken_over = {value.reuses for value in self.values}
        spared = (value for value in values if self.values[value].saved >= 0 and value not in taken_over)
        remade = {self.values[value].producer for value in spared}
        ops = tuple(replace(op, remade=number in remade) for number, op in enumerate(self.ops))
        return replace(self, ops=ops) if remade else self

    @cached_property
    def where_rounded(self) -> Graph:
        """The graph for kept values that are rounded: operators that decide are not repeated, nor what has to be
        exact."""
        fixed = {value for op in self.ops if op.decides for value in op.makes}
        fixed.update(number for number, value in enumerate(self.values) if value.exact)
        return self.keeping(fixed) if fixed else self

    @property
    def as_rounded(self) -> Graph:
        """The graph of a forward whose plan may round what backward reads."""
        return replace(self.where_rounded, rounded=True)

    def to_json(self) -> str:
        """The graph as JSON, in which all numbers stay exact."""
        return json.dumps(self.content())

    def content(self) -> dict[str, Any]:
        """The JSON object of the graph."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, text: str) -> Graph:
        """The graph that ``to_json`` wrote.

        Raises:
            ValueError: the text is not a graph, or of another version, or its numbers contradict each other.
        """
        return cls.from_content(loaded(text, _WRITER))

    @classmethod
    def from_content(cls, content: Any) -> Graph:
        """The graph of a JSON object that ``content`` returned.

        Raises:
            ValueError: it is not a graph, or of another version, or its numbers contradict each other.
        """
        given = of_format(content, FORMAT, _WRITER)
        with complete(_WRITER):
            graph = read_entry(cls, given)
        graph.check()
        return graph

    def __deepcopy__(self, memo: dict[int, Any]) -> Graph:
        """The graph itself: it never changes, and copies of a model share it."""
        return self

    def check(self) -> None:
        """Checks that the graph's numbers do not contradict each other.

        Raises:
            ValueError: they do.
        """
        made = [value for op in self.ops for value in op.makes]
        if made != list(range(len(self.values))):
            raise ValueError("a graph's values must be numbered in the order in which its operators make them")
        if self.in_flight < 1:
            raise ValueError(f"in_flight must be 1 or more, got {self.in_flight}")
        if len(self.other) != len(self.ops) + len(self.steps):
            raise ValueError(
                f"other must have an entry for each of {len(self.ops)} operators and {len(self.steps)} steps, got "
                f"{len(self.other)}"
            )
        if self.standing and len(self.standing) != len(self.other):
            raise ValueError(
                f"standing must have an entry for each of {len(self.other)} events, got {len(self.standing)}"
            )
        if any(not 0 <= standing <= nbytes for standing, nbytes in zip(self.standing, self.other, strict=False)):
            raise ValueError("standing must be bytes that are in other")
        for number, op in enumerate(self.ops):
            if not op.makes:
                raise ValueError(f"operator {number} ({op.name}) must make a value")
            if any(not 0 <= read < op.makes[0] for read in op.reads):
                raise ValueError(f"operator {number} ({op.name}) must read values made before it, got {op.reads}")
            if any(self.values[value].producer != number for value in op.makes):
                raise ValueError(f"operator {number} ({op.name}) must be the producer of the values that it makes")
        known, events = range(len(self.values)), range(-1, len(self.other))
        taken_over = [value.reuses for value in self.values if value.reuses != -1]
        if len(taken_over) != len(set(taken_over)):
            raise ValueError("each value must be taken over by one other at most")
        for number, value in enumerate(self.values):
            if not -1 <= value.reuses < number:
                raise ValueError(f"value {number} must take over -1 or a value made before it, got {value.reuses}")
            if value.nbytes < 0 or value.until not in events or value.saved not in events:
                raise ValueError(f"value {number} must have bytes, and events of this graph, got {value}")
        if any(value not in known for step in self.steps for value in step.reads):
            raise ValueError("the steps of backward must read values of the graph")
        if any(value not in known for values in (self.outputs, *(op.packs for op in self.ops)) for value in values):
            raise ValueError("what is saved and what is returned must be values of the graph")
