"""Measured memory of one training step, compressed and not, in a process that has the allocator's setting.

Two quantities, each the median of ``REPEATS`` steps after warm-up steps that pay for caches:

* live bytes after the forward: what the forward left allocated, its result included;
* the activation peak: the most bytes during forward and backward, less those before the step, with ``.grad`` unset, and
  less the bytes of the gradients.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from rich.text import Text
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

import integrations
from bench.results.entry import Entry, at, metric, part
from bench.results.tables import marked
from bench.runner.child import Child
from bench.runner.process_memory import HEAP_ONLY, Counters, counters

REPEATS = 3

PLAIN = "L0"
"""The level of an untouched model."""

AGREEMENT = 0.05
"""By how much of themselves the measured bytes may differ from those that the report says are stored."""


@part("memory", "a step of a model at a level, measured in a process of its own")
class Memory(Entry):
    """One model at one level; level ``"L0"`` is the untouched model."""

    model: str = at("its name")
    level: str = at("of integrations.LEVELS, or a way's name")
    live_bytes: int | None = metric("bytes", "that the forward left allocated, its result among them")
    peak_bytes: int | None = metric("bytes", "the most in forward and backward, less those before and the gradients")
    original_bytes: int | None = metric("bytes", "that autograd alone keeps: by the report, or as hooks count")
    stored_bytes: int | None = metric("bytes", "that are kept instead, by the report; none of the untouched model")

    def agreement(self, plain: Memory) -> float | None:
        """Live bytes of the saved tensors, measured, over what the report says is stored; ``None`` where unknown.

        What lives after the untouched model's forward besides its saved tensors (the result, the graph) is not counted.

        Args:
            plain: of the untouched model.
        """
        if self.live_bytes is None or plain.live_bytes is None or self.original_bytes is None:
            return None
        # The untouched model may save other tensors than the report knows: attention's, where a level replaces it.
        others = plain.live_bytes - (self.original_bytes if plain.original_bytes is None else plain.original_bytes)
        return (self.live_bytes - others) / self.stored_bytes if self.stored_bytes else None


def marked_agreement(agreement: float | None, judged: bool = True) -> Text:
    """Write ``Memory.agreement`` with a sign that says whether it is 1 within ``AGREEMENT``."""
    if agreement is None:
        return Text("")
    return marked(f"{agreement:.3f}", abs(agreement - 1) <= AGREEMENT if judged else None)


def measured_twice(function: Callable[..., Memory], wanted: Sequence[Memory], **options: Any) -> list[Memory]:
    """Measures entries in two processes: one counts live bytes exactly, the other gives back at once what is freed, and
    has the peaks.

    Args:
        function: measures an entry in the process that it is called in, with the options.
        wanted: without numbers.
        **options: of the function.
    """
    found = []
    with Child(HEAP_ONLY) as exact, Child() as sized:
        for entry in wanted:
            live = exact.measure(function, entry, **options)
            peak = live if live.failure else sized.measure(function, entry, **options)
            found.append(replace(live, peak_bytes=peak.peak_bytes, failure=peak.failure))
    return found


def measure_step(
    entry: Memory,
    network: nn.Module,
    forward: Callable[[], Tensor],
    loss: Callable[[], Tensor],
    device: torch.device,
) -> Memory:
    """Measures one model at one level in this process.

    Args:
        entry: which.
        network: the model, in training mode, which is compressed; ``PLAIN`` leaves it untouched.
        forward: runs it; what its result holds is alive after the forward.
        loss: the same, down to a loss.
        device: of the model.
    """
    plain = entry.level == PLAIN
    adaptive = not plain and integrations.compression(integrations.compress_model(network, entry.level)).level.adaptive
    for _ in range(3 if adaptive else 1):  # the warm-up; an unchanged loop plans in its second step
        loss().backward()

    live, peak, reason = step_bytes(network, forward, loss, device)
    original, stored = saved_bytes(network, forward) if plain else None, None
    if not plain:
        report = integrations.compression(network).report()
        original, stored = report.original_bytes, report.stored_bytes
    return replace(
        entry,
        live_bytes=live,
        peak_bytes=peak,
        original_bytes=original,
        stored_bytes=stored,
        not_measured=reason,
    )


def step_bytes(
    network: nn.Module, forward: Callable[[], Tensor], loss: Callable[[], Tensor], device: torch.device
) -> tuple[int | None, int | None, str]:
    """Live bytes after the forward and the peak, see the module; ``None`` where not measured, and then the reason."""
    found = counters(device)
    if isinstance(found, str):
        return None, None, found
    live = int(statistics.median(live_bytes(forward, found) for _ in range(REPEATS)))
    peak = int(statistics.median(peak_bytes(network, loss, found) for _ in range(REPEATS)))
    return live, peak, ""


def saved_bytes(network: nn.Module, forward: Callable[[], Tensor]) -> int:
    """Bytes of the storages that autograd alone keeps after a forward of a model without hooks of its own."""
    others = {
        tensor.untyped_storage().data_ptr() for tensor in (*network.parameters(), *network.buffers(), *_kept(network))
    }
    saved: dict[int, int] = {}  # bytes by address: all are alive until the forward is over

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    def note_inputs(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = (one for one in (*args, *kwargs.values()) if isinstance(one, Tensor))
        others.update(tensor.untyped_storage().data_ptr() for tensor in given)

    with (
        network.register_forward_pre_hook(note_inputs, with_kwargs=True),
        saved_tensors_hooks(pack, lambda tensor: tensor),
    ):
        result = forward()
    del result
    return sum(nbytes for address, nbytes in saved.items() if address not in others)


def _kept(network: nn.Module) -> Iterator[Tensor]:
    """Tensors that modules hold besides parameters and buffers, such as a graph's norm that PyG's layers cache."""
    for module in network.modules():
        for value in vars(module).values():
            yield from (one for one in (value if isinstance(value, tuple) else (value,)) if isinstance(one, Tensor))


def peak_bytes(network: nn.Module, loss: Callable[[], Tensor], count: Counters) -> int:
    """The activation peak of one step, see the module."""
    network.zero_grad(set_to_none=True)
    gc.collect()
    before = count.start_peak()
    loss().backward()
    gradients = sum(parameter.grad.nbytes for parameter in network.parameters() if parameter.grad is not None)
    return count.peak() - before - gradients


def standing_peak_bytes(loss: Callable[[], Tensor], count: Counters) -> int:
    """The most bytes of one step more than before it. Every ``.grad`` must be there, from a step before.

    ``peak_bytes`` takes off gradients that the step makes. Where they outweigh activations, the most is in use when
    they are all there and activations are gone, so that what it leaves is too little: less than what is stored, even.
    """
    gc.collect()
    before = count.start_peak()
    loss().backward()
    return count.peak() - before


def step_peak_bytes(step: Callable[[], object], count: Counters) -> int:
    """The most bytes of a step more than are left after it: what ``memory`` of a plan means.

    Gradients that the step makes are there after it, in as many whole pages as before, so that nothing of them is in it
    that is not meanwhile.
    """
    gc.collect()
    count.start_peak()
    step()
    peak = count.peak()
    gc.collect()
    return peak - count.start_peak()


def live_bytes(forward: Callable[[], Tensor], count: Counters) -> int:
    """Bytes that one forward leaves allocated, see the module."""
    gc.collect()
    before = count.live()
    result = forward()  # held, so that what autograd saved is alive
    after = count.live()
    del result
    return after - before
