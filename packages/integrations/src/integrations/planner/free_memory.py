"""``Free``: the memory that a training may still take on a device, for the budget ``"auto"``."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from integrations.planner.budget import AUTO, Budget, read_fraction, resolve_bytes
from integrations.planner.errors import PlanningError
from integrations.planner.optimizers import (
    OPTIMIZERS,
    bytes_of_tensors,
    find_optimizers,
    find_states,
    kept_like,
    nbytes,
)
from integrations.report.words import format_bytes
from integrations.tracing.tensors import get_gradient, tensors_in

RESERVE = 0.05
"""The part of a device's memory that is left to what is not counted, as by default in ``integrations.fit``."""

_ASSUMED = "adamw"  # if no optimizer of the model exists yet
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")


class Room(NamedTuple):
    """A device's memory.

    Attributes:
        free: bytes that can still be allocated.
        whole: bytes that the device has, or that this process may use of it.
    """

    free: int
    whole: int


@dataclass(frozen=True)
class Free:
    """The memory that forward and backward of a model may take.

    Attributes:
        device: the model's device.
        free: bytes that can still be allocated there.
        gradients: bytes of the gradients that training will make and that do not exist yet.
        states: bytes of the optimizer's states that do not exist yet.
        optimizer: the optimizer that they are counted for, by its name in ``integrations.fit``.
        margin: bytes that are left to what is not counted.
    """

    device: torch.device
    free: int
    gradients: int
    states: int
    optimizer: str
    margin: int

    @property
    def nbytes(self) -> int:
        """The bytes that are left; 0 if there are none."""
        return max(0, self.free - self.gradients - self.states - self.margin)

    def __str__(self) -> str:
        return (
            f"'{AUTO}' is {self.nbytes} bytes here: {format_bytes(self.free)} that are free on {self.device}, less "
            f"{format_bytes(self.gradients)} of gradients and {format_bytes(self.states)} of {self.optimizer}'s states "
            f"to come, and a margin of {format_bytes(self.margin)}"
        )


def free_for(model: nn.Module, inputs: Any = ()) -> Free:
    """Return the memory that forward and backward of a model may take on its device.

    The optimizer is the one that trains the model now, or AdamW if there is none yet.

    Args:
        model: the model, with its weights on the device.
        inputs: of its forward; they say the device of a model without parameters.

    Raises:
        PlanningError: the free memory of the device is unknown.
    """
    trained = [one for one in model.parameters() if one.requires_grad]
    device = next((one.device for one in (*model.parameters(), *tensors_in(inputs))), torch.device("cpu"))
    room = measure_room(device)
    optimizers = find_optimizers(model)
    name = kept_like(optimizers) if optimizers else _ASSUMED
    stateful = {id(weight) for one in optimizers for weight in one.state}
    coming = [_local(one) for one in trained if id(one) not in stateful]
    return Free(
        device,
        room.free,
        sum(nbytes(_local(one)) for one in trained if get_gradient(one) is None),
        OPTIMIZERS[name].states(coming),
        name,
        int(RESERVE * room.whole),
    )


def resolved(budget: Budget | None, model: nn.Module, inputs: Any = ()) -> tuple[Budget | None, Free | None]:
    """Return a budget with bytes in the place of ``"auto"``, and the memory that these are of.

    Args:
        budget: in any form.
        model, inputs: as for ``free_for``.

    Raises:
        PlanningError: as ``free_for``.
    """
    if budget != AUTO:
        return budget, None
    found = free_for(model, inputs)
    return f"{found.nbytes}B", found


def training_memory(budget: Budget, device: torch.device) -> int:
    """Return the bytes of a device that a whole training may take, weights included.

    Args:
        budget: bytes as an int, or a string such as ``"24GiB"``; a fraction of the device's memory, such as ``0.9`` or
            ``"90%"``; or ``"auto"``, for what is free and what torch has allocated.
        device: the device, which has to be here for a fraction and for ``"auto"``.

    Raises:
        TypeError, ValueError: the budget is wrong, as ``resolve_bytes`` says, or the device's memory is unknown.
    """
    if budget != AUTO and read_fraction(budget) is None:
        return resolve_bytes(budget, 0, "memory")
    room = measure_room(device)
    if budget != AUTO:
        return resolve_bytes(budget, room.whole, "memory")
    return room.free + (torch.cuda.memory_allocated(device) if device.type == "cuda" else 0)


def auto_memory(model: nn.Module | None, inputs: Any, device: torch.device, reserve: float) -> Room:
    """Return the bytes of a device that a whole training may take for ``"auto"``, weights included, with the bytes
    that are left to what is not counted taken off, and without.

    What the training has on the device already, weights, gradients, optimizer states and inputs, counts as free. So the
    memory that is left beside these is that of ``free_for``.

    Args:
        model: the model, on any device; ``None`` if there is none yet.
        inputs: of its forward.
        device: the device, which has to be here.
        reserve: the part of its memory that is left to what is not counted.

    Raises:
        PlanningError: the free memory of the device is unknown.
    """
    room = measure_room(device)
    tensors: list[Any] = []
    if model is not None:
        parameters = list(model.parameters())
        gradients = [gradient for one in parameters if (gradient := get_gradient(one)) is not None]
        tensors = [*parameters, *model.buffers(), *gradients, *find_states(find_optimizers(model))]
    there = [one for one in tensors if isinstance(one, Tensor) and one.device.type == device.type]
    given = [one.nbytes for one in tensors_in(inputs) if one.device.type == device.type]  # as ``fit`` counts them
    whole = room.free + bytes_of_tensors(there) + sum(given)
    return Room(max(0, whole - int(reserve * room.whole)), whole)


def measure_room(device: torch.device) -> Room:
    """Return the memory of a device.

    On a GPU, memory that torch's allocator has reserved but does not use counts as free. On a CPU, the free memory is
    what Linux reports as available, or what is left in the process's control group.

    Raises:
        PlanningError: it is unknown.
    """
    if device.type == "cuda" and torch.cuda.is_available():
        free, whole = torch.cuda.mem_get_info(device)
        allocated = torch.cuda.memory_allocated(device)
        allowed = int(whole * torch.cuda.get_per_process_memory_fraction(device))
        unused = torch.cuda.memory_reserved(device) - allocated
        return Room(max(0, min(free + unused, allowed - allocated)), min(whole, allowed))
    if device.type == "cpu" and _MEMINFO.exists():
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines() if ":" in line)
        whole, free = (int(lines[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
        for limit, used in _limits():
            whole, free = min(whole, limit), min(free, max(0, limit - used))
        return Room(free, whole)
    raise PlanningError(
        f"memory must be in bytes here, such as '8GiB', got '{AUTO}' or a fraction of a device: the memory of "
        f"{device} is unknown"
    )


def _limits() -> Iterable[tuple[int, int]]:
    """Yield the limits of the process's control groups and the bytes in use, files that can be dropped left out. The
    groups around a group limit it, too."""
    with suppress(OSError, ValueError, IndexError):
        for line in _CGROUP.read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":
                root, names = _CGROUPS, ("memory.max", "memory.current", "inactive_file")
            elif "memory" in controllers.split(","):
                root = _CGROUPS / "memory"
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            else:
                continue
            parts = [part for part in path.split("/") if part]
            for depth in range(len(parts), -1, -1):
                yield from _limit_in(root.joinpath(*parts[:depth]), *names)


def _limit_in(folder: Path, limit: str, used: str, inactive: str) -> Iterable[tuple[int, int]]:
    with suppress(OSError, ValueError, KeyError):  # no such group here, or no limit
        most = int((folder / limit).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        yield most, max(0, int((folder / used).read_text()) - int(stat[inactive]))


def _local(parameter: Tensor) -> Tensor:
    """Return this rank's part of a parameter."""
    part: Tensor = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return part
